"""Signing with and without a key of one's own: a stand-in for sigstore, and what is said where a package lacks."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from envsmith.base.about import command_for
from envsmith.errors import ContentError, EngineError, NetworkError, UsageError
from envsmith.publish import sign
from envsmith.publish.sign import open_bundle, open_envelope, sign_keyless
from envsmith.publish.statement import PAYLOAD_TYPE

WHO = {"identity": "me@example.test", "issuer": "https://issuer.test"}


class Sigstore:
    """What the stand-in was asked and what it answers. An answer that is an error is raised."""

    def __init__(self) -> None:
        self.detected: str | Exception | None = "detected"
        self.signed: str | Exception = "a bundle"
        self.root: Exception | None = None
        self.verified: tuple[str, bytes] | Exception = (PAYLOAD_TYPE, b"payload")
        self.asked: list[object] = []

    def answer(self, value: Any, *question: object) -> Any:
        self.asked.append(question)
        if isinstance(value, Exception):
            raise value
        return value


@pytest.fixture
def sigstore(monkeypatch: pytest.MonkeyPatch) -> Sigstore:
    double = Sigstore()

    class Error(Exception):
        pass

    class Signer:
        def __init__(self, token: str) -> None:
            self.token = token

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            double.asked.append(("closed",))

        def sign_dsse(self, statement: bytes) -> Any:
            double.answer(double.signed, self.token, statement)
            return type("Signed", (), {"to_json": lambda _: double.signed})()

    class Verifier:
        @classmethod
        def production(cls) -> Verifier:
            double.answer(double.root)
            return cls()

        def verify_dsse(self, bundle: object, policy: object) -> Any:
            return double.answer(double.verified, bundle, policy)

    names: dict[str, dict[str, Any]] = {
        "dsse": {"Statement": bytes},
        "errors": {"Error": Error, "VerificationError": type("VerificationError", (Error,), {})},
        "models": {
            "ClientTrustConfig": type("Config", (), {"production": staticmethod(lambda: "trust")}),
            "Bundle": type("Bundle", (), {"from_json": staticmethod(lambda raw: raw)}),
            "InvalidBundle": type("InvalidBundle", (Error,), {}),
        },
        "oidc": {
            "IdentityError": type("IdentityError", (Exception,), {}),
            "IssuerError": type("IssuerError", (Exception,), {}),
            "IdentityToken": lambda token: f"token {token}",
            "detect_credential": lambda: double.answer(double.detected),
        },
        "sign": {
            "SigningContext": type(
                "Context",
                (),
                {"from_trust_config": staticmethod(lambda _: type("C", (), {"signer": lambda _, t: Signer(t)})())},
            )
        },
        "verify": {"Verifier": Verifier},
        "verify.policy": {"Identity": lambda **who: tuple(who.values())},
    }
    monkeypatch.setitem(sys.modules, "sigstore", ModuleType("sigstore"))
    for name, values in names.items():
        module = ModuleType(f"sigstore.{name}")
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delenv("SIGSTORE_ID_TOKEN", raising=False)
    return double


def _error(place: str, *words: str) -> Exception:
    module, _, name = place.rpartition(".")
    kind = (
        vars(sys.modules[f"sigstore.{module}"])[name]
        if module
        else {"OSError": OSError, "ValueError": ValueError}[name]
    )
    error: Exception = kind(*words)
    return error


@pytest.mark.parametrize(("variable", "token"), [(None, "token detected"), ("named", "token named")])
def test_a_statement_is_signed_for_the_identity_that_the_user_names_or_the_place_has(
    sigstore: Sigstore, monkeypatch: pytest.MonkeyPatch, variable: str | None, token: str
) -> None:
    if variable:
        monkeypatch.setenv("SIGSTORE_ID_TOKEN", variable)

    bundle = sign_keyless(b"statement")

    assert bundle == b"a bundle"
    assert sigstore.asked[-2:] == [(token, b"statement"), ("closed",)]


def test_a_place_without_an_identity_cannot_sign_without_a_key(sigstore: Sigstore) -> None:
    sigstore.detected = None

    with pytest.raises(UsageError, match="there is no identity here"):
        sign_keyless(b"statement")


@pytest.mark.parametrize("place", ["errors.Error", "oidc.IdentityError", "oidc.IssuerError", "OSError", "ValueError"])
@pytest.mark.parametrize("step", ["detected", "signed"])
def test_whatever_stops_signing_is_said_shortly_with_the_other_way(sigstore: Sigstore, place: str, step: str) -> None:
    setattr(sigstore, step, _error(place, "x" * 300))

    with pytest.raises(NetworkError) as caught:
        sign_keyless(b"statement")

    assert caught.value.message == f"Cannot sign without a key: {place.rpartition('.')[2]}: {'x' * 200}."
    assert "--key FILE" in str(caught.value.hint)


def test_a_bundle_gives_the_statement_that_the_identity_signed(sigstore: Sigstore) -> None:
    assert open_bundle(b"{}", **WHO) == b"payload"
    assert sigstore.asked[-1] == (b"{}", tuple(WHO.values()))


@pytest.mark.parametrize("place", ["errors.VerificationError", "models.InvalidBundle", "ValueError"])
def test_a_bundle_of_somebody_else_or_none_is_refused_shortly(sigstore: Sigstore, place: str) -> None:
    sigstore.verified = _error(place, "x" * 300)

    with pytest.raises(ContentError) as caught:
        open_bundle(b"{}", **WHO)

    assert caught.value.message == f"Cannot verify the statement: its keyless signature is not valid ({'x' * 200})."


def test_a_bundle_around_something_else_is_refused(sigstore: Sigstore) -> None:
    sigstore.verified = ("text/plain", b"payload")

    with pytest.raises(ContentError, match="does not hold an in-toto statement"):
        open_bundle(b"{}", **WHO)


@pytest.mark.parametrize("place", ["errors.Error", "OSError", "ValueError"])
def test_without_the_root_of_trust_nothing_is_said_of_a_bundle(sigstore: Sigstore, place: str) -> None:
    sigstore.root = _error(place, "x" * 300)

    with pytest.raises(NetworkError) as caught:
        open_bundle(b"{}", **WHO)

    assert caught.value.message == f"Cannot fetch sigstore's root of trust: {'x' * 200}."


@pytest.mark.parametrize(
    ("module", "ask", "what", "extra"),
    [
        ("securesystemslib.signer", sign.load_signer, "sign an image", "publish"),
        ("securesystemslib.signer", sign.load_key, "check a signature", "publish"),
        ("securesystemslib.dsse", lambda _: open_envelope(b"{}", []), "check a signature", "publish"),
        ("sigstore.dsse", lambda _: sign_keyless(b""), "sign without a key", "keyless"),
        ("sigstore.errors", lambda _: open_bundle(b"{}", **WHO), "check a keyless signature", "keyless"),
    ],
)
def test_a_package_that_is_not_installed_is_named_by_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, ask: Any, what: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "key.pem").write_text("a key")

    with pytest.raises(EngineError) as caught:
        ask(tmp_path / "key.pem")

    assert caught.value.message == f"Cannot {what}: packages for it are not installed."
    assert caught.value.hint == f"Install them: {command_for(extra)}."
