"""Who vouches for a record: the key or the identity that signed it, or nobody."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envsmith.base import ssh
from envsmith.base.files import read_bounded
from envsmith.base.schema import parse_json
from envsmith.errors import ContentError, EngineError, NetworkError
from envsmith.model.record import KEYLESS_SUFFIX, SIGNATURES
from envsmith.net.keyless import signed_by

# Names of people, and their keys, in OpenSSH's form of ``allowed_signers``. People add themselves to it.
SIGNERS_FILE = "signers"
_MAX_BYTES = 64_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Voucher:
    """Who signed a file. ``name`` is who that is, where it is known, ``by`` the key's fingerprint or the issuer.

    ``unchecked`` says why a signature that is there could not be checked here.
    """

    name: str = ""
    by: str = ""
    unchecked: str = ""

    def __str__(self) -> str:
        if self.unchecked:
            return f"signed, not checked here: {self.unchecked}"
        return f"{self.name} ({self.by})" if self.name else self.by or "unsigned"


UNSIGNED = Voucher()


def voucher_of(record: Path, signers: Path) -> Voucher:
    """Return who vouches for a file that holds a record. ``ContentError`` when its signature is not of this file."""
    keyless = record.with_name(record.name + KEYLESS_SUFFIX)
    try:
        if record.with_name(record.name + ssh.SUFFIX).is_file():
            signer = ssh.signer_of(record, signers)
            return Voucher(name=signer.name, by=signer.key)
        if keyless.is_file():
            return _keyless(record, read_bounded(keyless, _MAX_BYTES))
    except (EngineError, NetworkError) as error:
        return Voucher(unchecked=error.message.rstrip("."))
    return UNSIGNED


def _keyless(record: Path, bundle: bytes) -> Voucher:
    payload, identity = signed_by(bundle)
    subjects = parse_json(payload).get("subject", ())
    digests = [subject["digest"]["sha256"] for subject in subjects]
    if digests != [hashlib.sha256(read_bounded(record, _MAX_BYTES)).hexdigest()]:
        raise ContentError(
            f"Cannot verify {record.name}: its signature is of another file.",
            hint="Fetch file and signature again: one of them was changed.",
        )
    return Voucher(name=identity.name, by=identity.issuer)


def vouchers(root: Path) -> Mapping[str, Voucher]:
    """Return who vouches for each signed record of a matrix. A signature that is not valid is said, not raised."""
    folder = root / "records"
    names = {p.name.removesuffix(s) for s in SIGNATURES for p in folder.glob(f"*{s}")}
    return {name: _voucher_or_why(folder / name, root / SIGNERS_FILE) for name in sorted(names)}


def _voucher_or_why(record: Path, signers: Path) -> Voucher:
    try:
        return voucher_of(record, signers)
    except (ContentError, OSError) as error:
        return Voucher(unchecked=str(error).rstrip("."))
