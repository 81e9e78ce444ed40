"""Signing without a key of one's own: sigstore's short-lived certificate for the identity that a CI job has. Needs a network and the extra.

The identity token is the one that the CI gives (``SIGSTORE_ID_TOKEN``, or what sigstore detects by itself); no browser is opened.
"""

from __future__ import annotations

import os

from envsmith.errors import ContentError, NetworkError, UsageError
from envsmith.publish.sbom import missing_extra
from envsmith.publish.statement import PAYLOAD_TYPE

__all__ = ["BUNDLE_TYPE", "open_bundle", "sign_keyless"]

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"


def sign_keyless(payload: bytes) -> bytes:
    """A sigstore bundle around a statement.

    ``UsageError`` when there is no identity, ``NetworkError`` when sigstore cannot be reached, ``EngineError`` without the extra.
    """
    try:
        from sigstore.dsse import Statement
        from sigstore.errors import Error as SigstoreError
        from sigstore.models import ClientTrustConfig
        from sigstore.oidc import IdentityError, IdentityToken, IssuerError, detect_credential
        from sigstore.sign import SigningContext
    except ImportError:
        raise missing_extra("keyless signing", "keyless") from None
    try:
        token = os.environ.get("SIGSTORE_ID_TOKEN") or detect_credential()
        if token:
            context = SigningContext.from_trust_config(ClientTrustConfig.production())
            with context.signer(IdentityToken(token)) as signer:
                bundle: str = signer.sign_dsse(Statement(payload)).to_json()
            return bundle.encode()
    except (SigstoreError, IdentityError, IssuerError, OSError, ValueError) as error:
        raise NetworkError(
            f"keyless signing failed: {type(error).__name__}: {str(error)[:200]}",
            hint="sigstore's services must be reachable; --key FILE signs without a network",
        ) from None
    raise UsageError(
        "keyless signing needs an identity, and this place gives none",
        hint="run it in a CI job with an OIDC token, set SIGSTORE_ID_TOKEN, or sign with --key FILE",
    )


def open_bundle(raw: bytes, *, identity: str, issuer: str) -> bytes:
    """The statement in a bundle that was signed by ``identity`` (an address or a workflow) as ``issuer`` knows it.

    ``ContentError`` when it was not, ``NetworkError`` when the root of trust can neither be fetched nor is cached.
    """
    try:
        from sigstore.errors import Error as SigstoreError
        from sigstore.errors import VerificationError
        from sigstore.models import Bundle, InvalidBundle
        from sigstore.verify import Verifier
        from sigstore.verify.policy import Identity
    except ImportError:
        raise missing_extra("checking a keyless signature", "keyless") from None
    try:
        verifier = Verifier.production()
    except (SigstoreError, OSError, ValueError) as error:
        raise NetworkError(f"sigstore's root of trust cannot be had: {str(error)[:200]}") from None
    try:
        kind, payload = verifier.verify_dsse(Bundle.from_json(raw), Identity(identity=identity, issuer=issuer))
    except (VerificationError, InvalidBundle, ValueError) as error:
        raise ContentError(f"statement: its keyless signature is not valid: {str(error)[:200]}") from None
    if kind != PAYLOAD_TYPE:
        raise ContentError("statement: the envelope holds something else than an in-toto statement")
    return bytes(payload)
