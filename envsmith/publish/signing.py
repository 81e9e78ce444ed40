"""Signing a statement with a key file, and checking such a signature: DSSE envelopes by securesystemslib, keys by cryptography.

Keys are PEM: a private Ed25519 or ECDSA key signs (``openssl genpkey -algorithm ed25519``), its public half verifies. The passphrase of an
encrypted key is read from ``ENVSMITH_KEY_PASSWORD`` and from nowhere else.
"""

from __future__ import annotations

import binascii
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsmith.errors import ContentError, StorageError, UsageError
from envsmith.publish.sbom import missing_extra
from envsmith.publish.statement import PAYLOAD_TYPE

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

__all__ = ["ENVELOPE_TYPE", "Opened", "load_key", "load_signer", "open_envelope", "sign"]

ENVELOPE_TYPE = "application/vnd.dsse.envelope.v1+json"
_MAX_KEY = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """An envelope: its payload, the ids of keys that it says it was signed by, and the id of the given key that really did, or none."""

    payload: bytes
    claimed: tuple[str, ...]
    signer: str = ""


def load_signer(path: Path) -> CryptoSigner:
    """The private key in a PEM file; ``UsageError`` when it is not one that signs here."""
    data = _read(path)
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        from securesystemslib.signer import CryptoSigner
    except ImportError:
        raise missing_extra("signing") from None
    password = os.environ.get("ENVSMITH_KEY_PASSWORD")
    try:
        key = load_pem_private_key(data, password.encode() if password else None)
        return CryptoSigner(key)
    except TypeError:
        why = "its passphrase is not set" if not password else "it has no passphrase, and one is set"
        raise UsageError(
            f"{path}: the key cannot be opened: {why}", hint="the passphrase is read from ENVSMITH_KEY_PASSWORD"
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unusable(path, "private", error) from None


def load_key(path: Path) -> SSlibKey:
    """The public key in a PEM file; ``UsageError`` when it is not one."""
    data = _read(path)
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
        from securesystemslib.signer import SSlibKey
    except ImportError:
        raise missing_extra("checking a signature") from None
    if b"PRIVATE KEY" in data:
        raise UsageError(
            f"{path}: it is a private key; a signature is checked with the public one",
            hint=f"openssl pkey -in {path} -pubout",
        )
    try:
        return SSlibKey.from_crypto(load_pem_public_key(data))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unusable(path, "public", error) from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_KEY)
    except FileNotFoundError:
        raise UsageError(
            f"{path}: no such key file", hint="openssl genpkey -algorithm ed25519 -out key.pem makes one"
        ) from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror or error}") from None


def _unusable(path: Path, kind: str, error: Exception) -> UsageError:
    return UsageError(
        f"{path}: not a {kind} Ed25519 or ECDSA key in PEM that can be used ({type(error).__name__})",
        hint="openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out key.pub"
        + ("; a wrong ENVSMITH_KEY_PASSWORD looks the same" if kind == "private" else ""),
    )


def sign(payload: bytes, signer: CryptoSigner) -> bytes:
    """A DSSE envelope around a statement."""
    from securesystemslib.dsse import Envelope

    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    envelope.sign(signer)
    return json.dumps(envelope.to_dict(), sort_keys=True, separators=(",", ":")).encode()


def open_envelope(raw: bytes, keys: Sequence[SSlibKey]) -> Opened:
    """Check an envelope against ``keys``. ``ContentError`` when it is no envelope around a statement; a signature by none of the keys is
    told in the result, because others may sign the same image.
    """  # noqa: D205
    envelope: Any
    try:
        from securesystemslib.dsse import Envelope
        from securesystemslib.exceptions import FormatError, UnverifiedSignatureError
    except ImportError:
        raise missing_extra("checking a signature") from None
    try:
        envelope = Envelope.from_dict(json.loads(raw))
        claimed = tuple(str(s.keyid) for s in envelope.signatures.values())
        payload, kind = bytes(envelope.payload), envelope.payload_type
    except (ValueError, KeyError, TypeError, AttributeError, FormatError, binascii.Error, RecursionError):
        raise ContentError("statement: it is not a signed envelope", hint="it was changed or cut") from None
    if kind != PAYLOAD_TYPE:
        raise ContentError("statement: the envelope holds something else than an in-toto statement")
    for signature in envelope.signatures.values():
        for key in keys:
            try:
                key.verify_signature(signature, envelope.pae())
            except UnverifiedSignatureError:
                continue
            return Opened(payload=payload, claimed=claimed, signer=key.keyid)
    return Opened(payload=payload, claimed=claimed)
