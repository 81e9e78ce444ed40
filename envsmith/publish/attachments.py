"""What is attached to an image: its documents and its statements, each an artifact that refers to it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

from envsmith.model.lock import LOCK_FILE
from envsmith.model.record import RECORD_FILE
from envsmith.net.oci.spec import EMPTY, Descriptor, Manifest, artifact, describe
from envsmith.publish.proof import Proof
from envsmith.publish.sbom import MEDIA_TYPE as SBOM_TYPE
from envsmith.publish.sbom import SBOM_FILE
from envsmith.publish.statement import Claim

PROOF_ARTIFACT = "application/vnd.envsmith.proof.v1"
SBOM_ARTIFACT = SBOM_TYPE
# A statement in a sigstore bundle. Until 2026-11 one that was signed by a key was attached as a bare envelope.
BUNDLE_ARTIFACT = "application/vnd.dev.sigstore.bundle.v0.3+json"
ENVELOPE_ARTIFACT = "application/vnd.in-toto+json"
_LOCK_TYPE = "application/vnd.envsmith.lock.v1+json"
_RECORD_TYPE = "application/vnd.envsmith.record.v1+json"
TITLE = "org.opencontainers.image.title"
# Which documents each kind of attachment carries.
CARRIERS = {PROOF_ARTIFACT: (LOCK_FILE, RECORD_FILE), SBOM_ARTIFACT: (SBOM_FILE,)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Attachment:
    """An artifact manifest and the bytes of its blobs by digest."""

    manifest: Manifest
    blobs: Mapping[str, bytes]


def image_annotations(claim: Claim, *, source: str = "", expired: bool = False) -> dict[str, str]:
    """Return what a registry shows of an image without its blobs: cell, lock, rungs, dates, source.

    They stand on what is attached, not on the image: its own digest follows from the lock alone.
    """
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
    }
    return {key: value for key, value in pairs.items() if value}


def _time(moment: dt.datetime) -> str:
    return moment.astimezone(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def documents(proof: Proof, sbom: bytes) -> dict[str, tuple[Descriptor, bytes]]:
    """Return the three documents that the statement names, as blobs."""
    named = {
        LOCK_FILE: (proof.lock_raw, _LOCK_TYPE),
        RECORD_FILE: (proof.record_raw, _RECORD_TYPE),
        SBOM_FILE: (sbom, SBOM_TYPE),
    }
    return {name: (describe(data, kind, **{TITLE: name}), data) for name, (data, kind) in named.items()}


def document_artifacts(
    image: Manifest, parts: Mapping[str, tuple[Descriptor, bytes]], annotations: Mapping[str, str]
) -> list[Attachment]:
    """Return the artifact of lock and record, and that of the bill of materials."""
    proof = _attach(image, PROOF_ARTIFACT, [parts[LOCK_FILE], parts[RECORD_FILE]], annotations)
    return [proof, _attach(image, SBOM_ARTIFACT, [parts[SBOM_FILE]], annotations)]


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
