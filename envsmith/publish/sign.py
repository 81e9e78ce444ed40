"""Signing a statement and checking a signature: DSSE envelopes by securesystemslib, keys by cryptography.

What is signed is a sigstore bundle, by a key as well as keyless: the form that cosign 3 attaches and looks for. Keys
are PEM: a private ECDSA or Ed25519 key signs, its public half verifies. The passphrase of an encrypted key is read from
``ENVSMITH_KEY_PASSWORD`` and from nowhere else.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsmith.base.files import read_bounded
from envsmith.base.schema import UnreadableError, parse_json
from envsmith.errors import ContentError, UsageError
from envsmith.net.keyless import PAYLOAD_TYPE, missing_extra
from envsmith.net.oci.spec import canonical

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey


ENVELOPE_TYPE = "application/vnd.dsse.envelope.v1+json"
BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_MAX_KEY = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """An envelope: its payload, the ids of keys that it names, the id of the given key that signed it, or none."""

    payload: bytes
    claimed: tuple[str, ...]
    signer: str = ""


def load_signer(path: Path) -> CryptoSigner:
    """Return the private key in a PEM file. ``UsageError`` when it is not one that signs here."""
    data = _read(path)
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        from securesystemslib.signer import CryptoSigner
    except ImportError:
        raise missing_extra("sign an image") from None
    if data.startswith((b"-----BEGIN ENCRYPTED SIGSTORE", b"-----BEGIN ENCRYPTED COSIGN")):
        raise UsageError(
            f"Cannot sign with {path}: cosign has encrypted it in a form of its own.",
            hint="Make the key with openssl and hand it to cosign too: cosign import-key-pair --key key.pem.",
        )
    password = os.environ.get("ENVSMITH_KEY_PASSWORD")
    try:
        key = load_pem_private_key(data, password.encode() if password else None)
        return CryptoSigner(key)
    except TypeError:
        why = "its passphrase is not set" if not password else "it has no passphrase, and one is set"
        raise UsageError(
            f"Cannot open the key {path}: {why}.", hint="Put the passphrase into ENVSMITH_KEY_PASSWORD."
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unusable(path, "private", error) from None


def load_key(path: Path) -> SSlibKey:
    """Return the public key in a PEM file. ``UsageError`` when it is not one."""
    data = _read(path)
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
        from securesystemslib.signer import SSlibKey
    except ImportError:
        raise missing_extra("check a signature") from None
    if b"PRIVATE KEY" in data:
        raise UsageError(
            f"Cannot check a signature with {path}: it is a private key.",
            hint=f"Make the public one: openssl pkey -in {path} -pubout.",
        )
    try:
        return SSlibKey.from_crypto(load_pem_public_key(data))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _unusable(path, "public", error) from None


def _read(path: Path) -> bytes:
    if not path.exists():
        hint = "Make one: openssl genpkey -algorithm ed25519 -out key.pem."
        raise UsageError(f"Cannot read {path}: there is no such key file.", hint=hint)
    return read_bounded(path, _MAX_KEY, failure=UsageError)


def _unusable(path: Path, kind: str, error: Exception) -> UsageError:
    return UsageError(
        f"Cannot use {path}: it is not a {kind} Ed25519 or ECDSA key in PEM ({type(error).__name__}).",
        hint="Make one: openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out key.pub."
        + (" Check ENVSMITH_KEY_PASSWORD too: a wrong one looks the same." if kind == "private" else ""),
    )


def sign(payload: bytes, signer: CryptoSigner) -> bytes:
    """Return a bundle with a DSSE envelope around a statement, and the id of the key as its hint."""
    from securesystemslib.dsse import Envelope

    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    envelope.sign(signer)
    value = envelope.to_dict()
    # cosign 3 passes over a signature whose key has another name than it would give the key itself.
    value["signatures"] = [{**signature, "keyid": ""} for signature in value["signatures"]]
    material = {"publicKey": {"hint": signer.public_key.keyid}}
    return canonical({"mediaType": BUNDLE_TYPE, "verificationMaterial": material, "dsseEnvelope": value})


def envelope_of(raw: bytes) -> dict[str, Any]:
    """Return the envelope in a bundle, or the bare one that cosign 2 and earlier releases attach. ``ValueError``."""
    value = parse_json(raw)
    envelope = value.get("dsseEnvelope", value) if isinstance(value, dict) else None
    if not isinstance(envelope, dict):
        raise UnreadableError("no envelope")
    return envelope


def is_keyless(raw: bytes) -> bool:
    """Tell whether a bundle rests on a certificate and not on a key."""
    try:
        return "publicKey" not in parse_json(raw)["verificationMaterial"]
    except (ValueError, KeyError, TypeError):
        return False


def _hint(bundle: bytes) -> str:
    return str(parse_json(bundle).get("verificationMaterial", {}).get("publicKey", {}).get("hint", ""))


def open_envelope(raw: bytes, keys: Sequence[SSlibKey]) -> Opened:
    """Check an envelope against ``keys``. ``ContentError`` when it is not an envelope around a statement.

    A signature by none of the keys is in the result: other people may sign the same image.
    """
    envelope: Any
    try:
        from securesystemslib.dsse import Envelope
        from securesystemslib.exceptions import FormatError, UnverifiedSignatureError
    except ImportError:
        raise missing_extra("check a signature") from None
    try:
        value = envelope_of(raw)
        # A bundle names the key beside the envelope. cosign names none.
        value["signatures"] = [{**one, "keyid": one.get("keyid") or _hint(raw)} for one in value["signatures"]]
        envelope = Envelope.from_dict(value)
        claimed = tuple(str(s.keyid) for s in envelope.signatures.values() if s.keyid)
        payload, kind = bytes(envelope.payload), envelope.payload_type
    except (ValueError, KeyError, TypeError, AttributeError, FormatError, binascii.Error):
        raise ContentError(
            "Cannot verify the statement: it is not a signed envelope.", hint="Fetch it again: it was changed or cut."
        ) from None
    if kind != PAYLOAD_TYPE:
        raise ContentError("Cannot verify the statement: its envelope does not hold an in-toto statement.")
    for signature in envelope.signatures.values():
        for key in keys:
            try:
                key.verify_signature(signature, envelope.pae())
            except UnverifiedSignatureError:
                continue
            return Opened(payload=payload, claimed=claimed, signer=key.keyid)
    return Opened(payload=payload, claimed=claimed)


def predicate_type(raw: bytes) -> str:
    """Return what kind of statement an attestation says it holds, unchecked. Empty when that cannot be read.

    It tells other people's attestations from ours, which are then checked. One that lies about its kind is passed over
    and proves nothing.
    """
    try:
        if "messageSignature" in parse_json(raw):
            return "signature"
        envelope = envelope_of(raw)
        text = base64.b64decode(envelope["payload"]) if "payload" in envelope else raw
        return str(parse_json(text)["predicateType"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
