"""The in-toto statement about an image: what its signer says, as a value and as the bytes that are signed.

The predicate is in-toto's own ``test-result`` 0.1 (result and the descriptors of what was tested), so that policy
engines understand it; what is ours stands under ``envsmith``. Statement and predicate are public formats of the in-toto
attestation framework 1.0.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsmith.base.files import digest_of, read_bounded, write_whole
from envsmith.base.schema import parse_json
from envsmith.errors import ContentError
from envsmith.model.lock import LOCK_FILE
from envsmith.model.record import KEYLESS_SUFFIX, RECORD_FILE
from envsmith.net.keyless import sign_keyless
from envsmith.net.oci.spec import Descriptor, canonical, is_digest
from envsmith.publish.sbom import SBOM_FILE

PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
# A statement about one file: a record, or an archive.
RECORD_TYPE = "urn:envsmith:record:v1"
ARCHIVE_TYPE = "urn:envsmith:archive:v1"
# The documents that every statement names.
_DOCUMENTS = frozenset({LOCK_FILE, RECORD_FILE, SBOM_FILE})
_STATEMENT = "https://in-toto.io/Statement/v1"
_MAX_RECORD = 8 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What the signer says. ``parts`` are the three documents by name.

    ``tags`` are the names under which this image was published; ``expires`` the day (UTC) after which the record is
    old. ``attests`` are the signer's further statements about it: the digest of each payload by its predicate type.
    ``replaces`` is the image to which its tag led before.
    """

    image: str
    cell: str
    lock: str
    config: str
    parts: Mapping[str, Descriptor]
    tags: tuple[str, ...]
    rungs: tuple[str, ...]
    recorded: dt.datetime
    expires: dt.date
    attests: Mapping[str, str] = field(default_factory=dict)
    replaces: str = ""


def attestation(image: str, cell: str, kind: str, predicate: Mapping[str, Any]) -> bytes:
    """Return an in-toto statement about ``image`` in one spelling: what is signed."""
    subject = {"name": cell, "digest": {"sha256": image[7:]}}
    return canonical({"_type": _STATEMENT, "subject": [subject], "predicateType": kind, "predicate": predicate})


def sign_record(record: Path) -> Path:
    """Sign the file of a record with the identity of this CI job. Return the bundle beside it."""
    statement = attestation(digest_of(read_bounded(record, _MAX_RECORD)), record.name, RECORD_TYPE, {})
    bundle = record.with_name(record.name + KEYLESS_SUFFIX)
    write_whole(bundle, sign_keyless(statement).decode())
    return bundle


def statement_bytes(claim: Claim) -> bytes:
    """Return the statement that covers everything else."""
    parts = [
        {
            "name": name,
            "digest": {"sha256": d.digest[7:]},
            "mediaType": d.media_type,
            "annotations": {"size": str(d.size)},
        }
        for name, d in sorted(claim.parts.items())
    ]
    ours = {
        "cell": claim.cell,
        "lock": claim.lock,
        "config": claim.config,
        "tags": sorted(claim.tags),
        "rungs": list(claim.rungs),
        "recorded": claim.recorded.isoformat(timespec="seconds"),
        "expires": claim.expires.isoformat(),
        "attests": dict(claim.attests),
        "replaces": claim.replaces,
    }
    predicate = {"result": "PASSED", "configuration": parts, "envsmith": ours}
    return attestation(claim.image, claim.cell, PREDICATE_TYPE, predicate)


def parse_statement(payload: bytes) -> Claim:
    """Return the claim of a payload whose signature was checked. ``ContentError`` says what is wrong."""
    try:
        value = parse_json(payload)
        if value["_type"] != _STATEMENT or value["predicateType"] != PREDICATE_TYPE:
            raise ContentError("Cannot verify the statement: it is of another kind than the proof of an image.")
        (subject,) = value["subject"]
        predicate = value["predicate"]
        ours = predicate["envsmith"]
        if predicate["result"] != "PASSED":
            raise ContentError("Cannot verify the statement: it does not say that the image passed.")
        claim = Claim(
            image=f"sha256:{subject['digest']['sha256']}",
            cell=str(ours["cell"]),
            lock=str(ours["lock"]),
            config=str(ours["config"]),
            tags=tuple(str(tag) for tag in ours["tags"]),
            rungs=tuple(str(rung) for rung in ours["rungs"]),
            recorded=dt.datetime.fromisoformat(str(ours["recorded"])),
            expires=dt.date.fromisoformat(str(ours["expires"])),
            attests={str(kind): str(digest) for kind, digest in ours["attests"].items()},
            replaces=str(ours["replaces"]),
            parts={str(part["name"]): _part(part) for part in predicate["configuration"]},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContentError(
            f"Cannot verify the statement: envsmith did not write it ({type(error).__name__}: {str(error)[:80]})."
        ) from None
    digests = [claim.image, claim.lock, claim.config, *(d.digest for d in claim.parts.values())]
    digests += [*claim.attests.values(), claim.replaces or claim.image]
    if not all(is_digest(d) for d in digests) or set(claim.parts) != _DOCUMENTS:
        raise ContentError("Cannot verify the statement: it names no digests of lock, record and bill of materials.")
    return claim


def _part(value: Mapping[str, Any]) -> Descriptor:
    return Descriptor(
        media_type=str(value["mediaType"]),
        digest=f"sha256:{value['digest']['sha256']}",
        size=int(value["annotations"]["size"]),
    )
