"""What is attached to an image: its lock and record, its bill of materials, the signed statement, each an artifact that refers to it. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from envsmith.publish.content import EMPTY, Descriptor, Manifest, artifact, describe
from envsmith.publish.proof import Proof
from envsmith.publish.sbom import MEDIA_TYPE as SBOM_TYPE
from envsmith.publish.statement import PREDICATE_TYPE, Claim

__all__ = [
    "KEYLESS_ARTIFACT",
    "PAYLOAD_KEY",
    "PROOF_ARTIFACT",
    "SBOM_ARTIFACT",
    "STATEMENT_ARTIFACT",
    "Attachment",
    "documents",
    "image_annotations",
    "proof_artifact",
    "sbom_artifact",
    "statement_artifact",
]

PROOF_ARTIFACT = "application/vnd.envsmith.proof.v1"
SBOM_ARTIFACT = SBOM_TYPE
STATEMENT_ARTIFACT = "application/vnd.in-toto+json"
KEYLESS_ARTIFACT = "application/vnd.dev.sigstore.bundle.v0.3+json"
_LOCK_TYPE = "application/vnd.envsmith.lock.v1+json"
_RECORD_TYPE = "application/vnd.envsmith.record.v1+json"
_TITLE = "org.opencontainers.image.title"
# Which statement it is and whose, so that publishing the same again adds nothing.
PAYLOAD_KEY = "io.envsmith.statement"


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """An artifact manifest and the bytes of its blobs by digest."""

    manifest: Manifest
    blobs: Mapping[str, bytes]


def image_annotations(claim: Claim, *, source: str = "", expired: bool = False) -> dict[str, str]:
    """What a registry shows of an image without its blobs: cell, lock, how far it was proved, when, until when, from which source.

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
    """The three documents that the statement names, as blobs."""
    named = {
        "lock.json": (proof.lock_raw, _LOCK_TYPE),
        "record.json": (proof.record_raw, _RECORD_TYPE),
        "sbom.cdx.json": (sbom, SBOM_TYPE),
    }
    return {name: (describe(data, kind, **{_TITLE: name}), data) for name, (data, kind) in named.items()}


def proof_artifact(
    image: Manifest, parts: Mapping[str, tuple[Descriptor, bytes]], told: Mapping[str, str]
) -> Attachment:
    """Lock and record."""
    return _attach(image, PROOF_ARTIFACT, [parts["lock.json"], parts["record.json"]], told)


def sbom_artifact(
    image: Manifest, parts: Mapping[str, tuple[Descriptor, bytes]], told: Mapping[str, str]
) -> Attachment:
    """The bill of materials."""
    return _attach(image, SBOM_ARTIFACT, [parts["sbom.cdx.json"]], told)


def statement_artifact(
    image: Manifest, envelope: bytes, kind: str, told: Mapping[str, str], *, marks: Mapping[str, str]
) -> Attachment:
    """The signed statement: a DSSE envelope, or a sigstore bundle (``kind`` is its media type)."""
    of = KEYLESS_ARTIFACT if kind == KEYLESS_ARTIFACT else STATEMENT_ARTIFACT
    blob = describe(envelope, kind, **{"in-toto.io/predicate-type": PREDICATE_TYPE})
    return _attach(image, of, [(blob, envelope)], {**told, "in-toto.io/predicate-type": PREDICATE_TYPE, **marks})


def _attach(image: Manifest, kind: str, blobs: list[tuple[Descriptor, bytes]], told: Mapping[str, str]) -> Attachment:
    manifest = artifact(artifact_type=kind, layers=[d for d, _ in blobs], subject=image.descriptor, annotations=told)
    return Attachment(manifest=manifest, blobs={EMPTY.digest: b"{}", **{d.digest: data for d, data in blobs}})
