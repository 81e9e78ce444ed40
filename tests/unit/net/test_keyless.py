"""Signing without a key of one's own: a stand-in for sigstore, and what is said where it lacks."""

from __future__ import annotations

import datetime as dt
import sys
from types import ModuleType
from typing import Any

import pytest

from envsmith.base.about import command_for
from envsmith.errors import ContentError, EngineError, NetworkError, UsageError
from envsmith.net.keyless import PAYLOAD_TYPE, Identity, open_bundle, sign_keyless, signed_by

WHO = {"identity": "me@example.test", "issuer": "https://issuer.test"}


class Sigstore:
    """What the stand-in was asked and what it answers. An answer that is an error is raised."""

    def __init__(self) -> None:
        self.detected: str | Exception | None = "detected"
        self.signed: str | Exception = "a bundle"
        self.root: Exception | None = None
        self.verified: tuple[str, bytes] | Exception = (PAYLOAD_TYPE, b"payload")
        self.bundle: Any = type("Read", (), {"signing_certificate": None})()
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
            "Bundle": type("Bundle", (), {"from_json": staticmethod(lambda _: double.bundle)}),
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
        "verify.policy": {"Identity": lambda **who: tuple(who.values()), "UnsafeNoOp": lambda: "anybody"},
    }
    monkeypatch.setitem(sys.modules, "sigstore", ModuleType("sigstore"))
    for name, values in names.items():
        module = ModuleType(f"sigstore.{name}")
        vars(module).update(values)
        setattr(
            sys.modules["sigstore.verify" if name == "verify.policy" else "sigstore"], name.rpartition(".")[2], module
        )
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
    assert sigstore.asked[-1] == (sigstore.bundle, tuple(WHO.values()))


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


def test_a_bundle_says_who_signed_it_whoever_that_is(sigstore: Sigstore) -> None:
    sigstore.bundle.signing_certificate = certificate_of("https://example.test/workflow", "https://issuer.test")

    payload, identity = signed_by(b"{}")

    assert payload == b"payload"
    assert identity == Identity(name="https://example.test/workflow", issuer="https://issuer.test")
    assert sigstore.asked[-1] == (sigstore.bundle, "anybody")


def certificate_of(name: str, issuer: str) -> Any:
    """Return a certificate as Fulcio writes it: the name of who signed, and the issuer in an extension."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, day = Ed25519PrivateKey.generate(), dt.datetime(2026, 11, 27, tzinfo=dt.timezone.utc)
    value = bytes([12, len(issuer)]) + issuer.encode()
    return (
        x509.CertificateBuilder(x509.Name([]), x509.Name([]), key.public_key(), 1, day, day)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name)]), critical=True)
        .add_extension(
            x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8"), value), critical=False
        )
        .sign(key, None)
    )


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (sign_keyless, "sign without a key"),
        (lambda raw: open_bundle(raw, **WHO), "check a keyless signature"),
        (signed_by, "check a keyless signature"),
    ],
)
def test_sigstore_that_is_not_installed_is_named_by_its_extra(
    monkeypatch: pytest.MonkeyPatch, ask: Any, what: str
) -> None:
    monkeypatch.setitem(sys.modules, "sigstore", None)

    with pytest.raises(EngineError) as caught:
        ask(b"{}")

    assert caught.value.message == f"Cannot {what}: packages for it are not installed."
    assert caught.value.hint == f"Install them: {command_for('keyless')}."
