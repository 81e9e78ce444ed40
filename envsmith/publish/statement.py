"""What is said of an image: its proof (lock and record), the in-toto statement, and the artifacts that carry both.

The predicate is in-toto's own ``test-result`` 0.1 (result and the descriptors of what was tested), so that policy
engines understand it; what is ours stands under ``envsmith``. Statement and predicate are public formats of the in-toto
attestation framework 1.0.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from envsmith.base.files import read_bounded
from envsmith.base.schema import Problems, UnreadableError, parse_document, parse_json
from envsmith.errors import ContentError, DataError, EnvsmithError
from envsmith.model.lock import LOCK_FILE, MAX_BYTES, Lock, parse_lock
from envsmith.model.record import RECORD_FILE, SCHEMA, Record, check_record
from envsmith.net.oci.spec import EMPTY, Descriptor, Manifest, artifact, canonical, describe, is_digest
from envsmith.publish.sbom import MEDIA_TYPE as SBOM_TYPE

# -- the proof: what a build left in a cell's folder, a record that passed, of this lock and of this image -------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """Lock and record as values and as the bytes that are published."""

    lock: Lock
    lock_raw: bytes
    record: Record
    record_raw: bytes


def parse_record(raw: bytes, where: str) -> Record:
    """Return the record of an image. ``DataError`` lists every problem.

    An image that was published with a record of schema 1 keeps it: such a record is read without its list of cases.
    """
    problems = Problems()
    record = None
    try:
        document = parse_document(".json", raw)
    except UnreadableError as error:
        problems.add(where, str(error))
    else:
        if isinstance(document, dict) and document.get("schema") == 1:
            names = {place.name for place in fields(Record)} - {"cases"}
            document = {**{key: document[key] for key in document.keys() & names}, "schema": SCHEMA}
        record = check_record(document, where, problems)
    if record is None:
        count = len(problems.lines)
        raise DataError(
            f"Cannot read {where}: {count} values in the record are wrong.",
            details=problems.lines,
            hint="Build the cell again.",
        )
    return record


def load_proof(directory: Path) -> Proof:
    """Return lock and record of a cell's folder.

    ``EnvsmithError`` (exit code 1) when there is none to publish, ``DataError`` when one is broken.
    """
    lock_file, record_file = directory / LOCK_FILE, directory / RECORD_FILE
    if not lock_file.is_file():
        hint = "Name the folder of a cell. envsmith build prints it."
        raise EnvsmithError(f"Cannot publish {directory}: it has no lock.", hint=hint)
    lock_raw = read_bounded(lock_file, MAX_BYTES)
    try:
        lock = parse_lock(lock_raw.decode(), where=str(lock_file))
    except UnicodeDecodeError:
        raise DataError(f"Cannot read {lock_file}: it is not UTF-8.", hint="Lock the cell again.") from None
    if not record_file.is_file():
        raise EnvsmithError(
            f"Cannot publish {lock.cell.id}: it has no record, and only proved cells are published.",
            hint="Run envsmith build. It runs the smoke test and writes record.json.",
        )
    record_raw = read_bounded(record_file, MAX_BYTES)
    record = parse_record(record_raw, str(record_file))
    return Proof(lock=lock, lock_raw=lock_raw, record=record, record_raw=record_raw)


def unproved(lock: Lock, record: Record, *, images: Mapping[str, str]) -> list[str]:
    """Return why a record does not prove the image of a lock. ``images`` are the image's digests by what each is."""
    reasons = []
    if record.lock != lock.digest:
        reasons.append(f"the record is of lock {record.lock[:19]}…, this one is {lock.digest[:19]}…")
    if record.cell != str(lock.cell.id):
        reasons.append(f"the record is of cell {record.cell}")
    if not record.passed:
        reasons.append(f"the record says failed: {record.summary}")
    if not record.image:
        reasons.append("the record is of a virtual environment, not of an image")
    elif record.image not in images.values():
        digests = ", ".join(f"{what} {digest[:19]}…" for what, digest in images.items() if digest)
        reasons.append(f"the record is of image {record.image[:19]}…, this one is {digests}")
    return reasons


def refuse_unproved(proof: Proof, *, images: Mapping[str, str]) -> None:
    """Raise ``EnvsmithError`` (exit code 1) with every reason why this must not be published."""
    if reasons := unproved(proof.lock, proof.record, images=images):
        raise EnvsmithError(
            f"Cannot publish {proof.lock.cell.id}: no passing record is about this image.",
            details=reasons,
            hint="Build it with envsmith build --oci. It tests the very image that is published, and writes its "
            "record.",
        )


# -- the statement -----------------------------------------------------------------------------------------------------

PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
_STATEMENT = "https://in-toto.io/Statement/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What the signer says. ``parts`` are the three documents by name.

    ``tags`` are the names under which this image was published; ``expires`` the day (UTC) after which the record is
    old. ``attests`` are the signer's further statements about it: the digest of each payload by its predicate type.
    ``replaces`` is the image to which its tag led before. ``built_from`` is what earlier releases said: the id of the
    engine's image that the record names.
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
    built_from: str = ""
    audit: Mapping[str, Any] = field(default_factory=dict)
    attests: Mapping[str, str] = field(default_factory=dict)
    replaces: str = ""


def attestation(image: str, cell: str, kind: str, predicate: Mapping[str, Any]) -> bytes:
    """Return an in-toto statement about ``image`` in one spelling: what is signed."""
    subject = {"name": cell, "digest": {"sha256": image[7:]}}
    return canonical({"_type": _STATEMENT, "subject": [subject], "predicateType": kind, "predicate": predicate})


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
        "audit": dict(claim.audit),
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
            built_from=str(ours.get("builtFrom", "")),
            tags=tuple(str(tag) for tag in ours["tags"]),
            rungs=tuple(str(rung) for rung in ours["rungs"]),
            recorded=dt.datetime.fromisoformat(str(ours["recorded"])),
            expires=dt.date.fromisoformat(str(ours["expires"])),
            audit=dict(ours["audit"]),
            attests={str(kind): str(digest) for kind, digest in ours.get("attests", {}).items()},
            replaces=str(ours.get("replaces", "")),
            parts={str(part["name"]): _part(part) for part in predicate["configuration"]},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContentError(
            f"Cannot verify the statement: envsmith did not write it ({type(error).__name__}: {str(error)[:80]})."
        ) from None
    digests = [claim.image, claim.lock, claim.config, *(d.digest for d in claim.parts.values())]
    digests += [*claim.attests.values(), claim.replaces or claim.image]
    if not all(is_digest(d) for d in digests) or set(claim.parts) != {
        name for names in CARRIERS.values() for name in names
    }:
        raise ContentError("Cannot verify the statement: it names no digests of lock, record and bill of materials.")
    return claim


def _part(value: Mapping[str, Any]) -> Descriptor:
    return Descriptor(
        media_type=str(value["mediaType"]),
        digest=f"sha256:{value['digest']['sha256']}",
        size=int(value["annotations"]["size"]),
    )


# -- what is attached to an image, each an artifact that refers to it ----------------------------------------------------

PROOF_ARTIFACT = "application/vnd.envsmith.proof.v1"
SBOM_ARTIFACT = SBOM_TYPE
# A statement in a sigstore bundle. Until 2026-11 one that was signed by a key was attached as a bare envelope.
BUNDLE_ARTIFACT = "application/vnd.dev.sigstore.bundle.v0.3+json"
ENVELOPE_ARTIFACT = "application/vnd.in-toto+json"
_LOCK_TYPE = "application/vnd.envsmith.lock.v1+json"
_RECORD_TYPE = "application/vnd.envsmith.record.v1+json"
TITLE = "org.opencontainers.image.title"
# Which documents each kind of attachment carries.
CARRIERS = {PROOF_ARTIFACT: (LOCK_FILE, RECORD_FILE), SBOM_ARTIFACT: ("sbom.cdx.json",)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """An artifact manifest and the bytes of its blobs by digest."""

    manifest: Manifest
    blobs: Mapping[str, bytes]


def image_annotations(claim: Claim, *, source: str = "", expired: bool = False) -> dict[str, str]:
    """Return what a registry shows of an image without its blobs: cell, lock, rungs, dates, source.

    They stand on what is attached, not on the image: its own digest follows from the lock alone.
    """
    audit = claim.audit
    pairs = {
        "org.opencontainers.image.created": _time(claim.recorded),
        "org.opencontainers.image.version": claim.cell,
        "org.opencontainers.image.source": source,
        "io.envsmith.cell": claim.cell,
        "io.envsmith.lock": claim.lock,
        "io.envsmith.rungs": ",".join(claim.rungs),
        "io.envsmith.recorded": _time(claim.recorded),
        "io.envsmith.expires": claim.expires.isoformat(),
        "io.envsmith.expired": "true" if expired else "",
        "io.envsmith.audit": str(audit.get("status", "not audited")),
    }
    return {key: value for key, value in pairs.items() if value}


def _time(moment: dt.datetime) -> str:
    return moment.astimezone(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def documents(proof: Proof, sbom: bytes) -> dict[str, tuple[Descriptor, bytes]]:
    """Return the three documents that the statement names, as blobs."""
    named = {
        "lock.json": (proof.lock_raw, _LOCK_TYPE),
        "record.json": (proof.record_raw, _RECORD_TYPE),
        "sbom.cdx.json": (sbom, SBOM_TYPE),
    }
    return {name: (describe(data, kind, **{TITLE: name}), data) for name, (data, kind) in named.items()}


def document_artifacts(
    image: Manifest, parts: Mapping[str, tuple[Descriptor, bytes]], annotations: Mapping[str, str]
) -> list[Attachment]:
    """Return the artifact of lock and record, and that of the bill of materials."""
    proof = _attach(image, PROOF_ARTIFACT, [parts["lock.json"], parts["record.json"]], annotations)
    return [proof, _attach(image, SBOM_ARTIFACT, [parts["sbom.cdx.json"]], annotations)]


def statement_artifact(image: Manifest, bundle: bytes, kind: str, annotations: Mapping[str, str]) -> Attachment:
    """Return the artifact of a signed statement as cosign 3 writes it: one layer, a bundle, and its predicate's type."""
    # cosign, pkg/oci/remote/write.go, WriteAttestationNewBundleFormat.
    of = {"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": kind}
    return _attach(image, BUNDLE_ARTIFACT, [(describe(bundle, BUNDLE_ARTIFACT), bundle)], {**annotations, **of})


def _attach(
    image: Manifest, kind: str, blobs: list[tuple[Descriptor, bytes]], annotations: Mapping[str, str]
) -> Attachment:
    manifest = artifact(
        artifact_type=kind, layers=[d for d, _ in blobs], subject=image.descriptor, annotations=annotations
    )
    return Attachment(manifest=manifest, blobs={EMPTY.digest: b"{}", **{d.digest: data for d, data in blobs}})
