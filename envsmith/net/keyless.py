"""Signing without a key of one's own: sigstore's short-lived certificate for the identity that a CI job has.

It needs a network and the extra. The identity token is the one that the CI gives (``SIGSTORE_ID_TOKEN``, or what
sigstore detects by itself). No browser is opened.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from envsmith.base.about import command_for
from envsmith.errors import ContentError, EngineError, NetworkError, UsageError

# What a signed envelope holds: an in-toto statement.
PAYLOAD_TYPE = "application/vnd.in-toto+json"
# The certificate's extension that names the issuer (sigstore/fulcio, docs/oid-info.md).
_ISSUER = "1.3.6.1.4.1.57264.1.8"


def missing_extra(work: str, extra: str = "publish") -> EngineError:
    """Return the error for work whose packages an extra brings."""
    return EngineError(
        f"Cannot {work}: packages for it are not installed.", hint=f"Install them: {command_for(extra)}."
    )


def sign_keyless(payload: bytes) -> bytes:
    """Return a sigstore bundle around a statement.

    ``UsageError`` when there is no identity, ``NetworkError`` when sigstore cannot be reached, ``EngineError`` without
    the extra.
    """
    try:
        from sigstore.dsse import Statement
        from sigstore.errors import Error as SigstoreError
        from sigstore.models import ClientTrustConfig
        from sigstore.oidc import IdentityError, IdentityToken, IssuerError, detect_credential
        from sigstore.sign import SigningContext
    except ImportError:
        raise missing_extra("sign without a key", "keyless") from None
    try:
        token = os.environ.get("SIGSTORE_ID_TOKEN") or detect_credential()
        if token:
            context = SigningContext.from_trust_config(ClientTrustConfig.production())
            with context.signer(IdentityToken(token)) as signer:
                bundle: str = signer.sign_dsse(Statement(payload)).to_json()
            return bundle.encode()
    except (SigstoreError, IdentityError, IssuerError, OSError, ValueError) as error:
        raise NetworkError(
            f"Cannot sign without a key: {type(error).__name__}: {str(error)[:200]}.",
            hint="Check that sigstore's services can be reached. --key FILE signs without a network.",
        ) from None
    raise UsageError(
        "Cannot sign without a key: there is no identity here.",
        hint="Run it in a CI job with an OIDC token, set SIGSTORE_ID_TOKEN, or sign with --key FILE.",
    )


def open_bundle(raw: bytes, *, identity: str, issuer: str) -> bytes:
    """Return the statement in a bundle that ``identity`` signed (an address or a workflow), as ``issuer`` knows it.

    ``ContentError`` when it was not, ``NetworkError`` when the root of trust can neither be fetched nor is cached.
    """
    try:
        from sigstore.models import Bundle, InvalidBundle
        from sigstore.verify import policy
    except ImportError:
        raise missing_extra("check a keyless signature", "keyless") from None
    try:
        bundle = Bundle.from_json(raw)
    except (InvalidBundle, ValueError) as error:
        raise _not_valid(error) from None
    return _opened(bundle, policy.Identity(identity=identity, issuer=issuer))


def _opened(bundle: Any, policy: Any) -> bytes:
    from sigstore.errors import Error as SigstoreError
    from sigstore.verify import Verifier

    try:
        verifier = Verifier.production()
    except (SigstoreError, OSError, ValueError) as error:
        raise NetworkError(f"Cannot fetch sigstore's root of trust: {str(error)[:200]}.") from None
    try:
        kind, payload = verifier.verify_dsse(bundle, policy)
    except (SigstoreError, ValueError) as error:
        raise _not_valid(error) from None
    if kind != PAYLOAD_TYPE:
        raise ContentError("Cannot verify the statement: its envelope does not hold an in-toto statement.")
    return bytes(payload)


def _not_valid(error: Exception) -> ContentError:
    return ContentError(f"Cannot verify the statement: its keyless signature is not valid ({str(error)[:200]}).")


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who signed without a key: an address or a workflow, as its issuer knows it."""

    name: str
    issuer: str


def signed_by(raw: bytes) -> tuple[bytes, Identity]:
    """Return the statement in a bundle and who signed it, whoever that is. Errors as of :func:`open_bundle`."""
    try:
        from cryptography.x509 import ObjectIdentifier, SubjectAlternativeName
        from sigstore.models import Bundle, InvalidBundle
        from sigstore.verify.policy import UnsafeNoOp
    except ImportError:
        raise missing_extra("check a keyless signature", "keyless") from None
    try:
        bundle = Bundle.from_json(raw)
    except (InvalidBundle, ValueError) as error:
        raise _not_valid(error) from None
    payload = _opened(bundle, UnsafeNoOp())
    extensions = bundle.signing_certificate.extensions
    names = [str(name.value) for name in extensions.get_extension_for_class(SubjectAlternativeName).value]
    issuer = next((e.value.value for e in extensions if e.oid == ObjectIdentifier(_ISSUER)), b"")
    # A DER string: its kind, its length, its bytes.
    return payload, Identity(name=names[0] if names else "", issuer=issuer[2:].decode(errors="replace"))
