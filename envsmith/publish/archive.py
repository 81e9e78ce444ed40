"""A pack archive, signed and verified as images are: by the same keys, and a statement that names it by its digest."""

from __future__ import annotations

from pathlib import Path

from envsmith.base.files import read_bounded, sha256_of, write_whole
from envsmith.base.schema import parse_json
from envsmith.errors import ContentError
from envsmith.publish.attachment_checks import open_trusted
from envsmith.publish.push import Seal
from envsmith.publish.report import CheckState, PartCheck, Trust, VerifyReport
from envsmith.publish.statement import ARCHIVE_TYPE, attestation

# What stands behind the archive's name in that of its signature: where cosign puts it too.
SUFFIX = ".sigstore.json"
_MAX_BYTES = 1 << 20


def sign_archive(archive: Path, sha256: str, cell: str, seal: Seal) -> Path:
    """Write the signed statement beside an archive and return its path."""
    statement = attestation(f"sha256:{sha256}", cell, ARCHIVE_TYPE, {})
    signature = archive.with_name(archive.name + SUFFIX)
    write_whole(signature, seal.close(statement).decode())
    return signature


def verify_archive(archive: Path, trust: Trust) -> VerifyReport:
    """Check that the archive is the one that somebody who is trusted has signed. What differs is in the report."""
    with archive.open("rb") as file:
        report = VerifyReport(where=archive.name, digest=f"sha256:{sha256_of(file).hex()}")
    signature = archive.with_name(archive.name + SUFFIX)
    with PartCheck(report, "statement"):
        if not signature.is_file():
            text = f"there is no {signature.name}, so no one vouches for this archive"
            report.add("statement", CheckState.UNPROVED, text)
            return report
        opened = open_trusted(read_bounded(signature, _MAX_BYTES), trust)
        if not opened.signer:
            text = f"signed by {'; '.join(opened.claimed)}: say with --key whether you trust that"
            report.add("statement", CheckState.UNPROVED, text)
            return report
        report.add("statement", CheckState.OK, f"signed by {opened.signer}")
        cell, digest = _subject(opened.payload)
        same = digest == report.digest
        text = f"the archive of {cell}" if same else f"the signature is of {digest}"
        report.add("archive", CheckState.OK if same else CheckState.DIFFERS, text)
    return report


def _subject(payload: bytes) -> tuple[str, str]:
    """Return name and digest of what a statement is about. ``ContentError`` where it is not about an archive."""
    try:
        value = parse_json(payload)
        (subject,) = value["subject"]
        if value["predicateType"] == ARCHIVE_TYPE:
            return str(subject["name"]), f"sha256:{subject['digest']['sha256']}"
    except (ValueError, KeyError, TypeError):
        pass
    raise ContentError("Cannot verify the statement: it is not about a pack archive.")
