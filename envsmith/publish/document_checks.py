"""The documents that a statement names, against image and lock: lock, labels, record, bill of materials, provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from envsmith.base.json_types import JsonFields, object_in
from envsmith.base.schema import parse_json
from envsmith.errors import ContentError
from envsmith.model.lock import MAX_BYTES, Lock, OsPackage, parse_lock
from envsmith.model.record import Record
from envsmith.net.oci.spec import Manifest
from envsmith.net.oci.store import Store, read_blob
from envsmith.publish.attachment_checks import Attestation, SignedStatement
from envsmith.publish.proof import parse_record, unproved
from envsmith.publish.provenance import PREDICATE_TYPE as SLSA
from envsmith.publish.provenance import provenance_differences
from envsmith.publish.report import CheckState, Covered, PartCheck, VerifyReport
from envsmith.publish.sbom import PREDICATE_TYPE as CYCLONEDX
from envsmith.publish.sbom import sbom_differences
from envsmith.publish.statement import Claim


def check_documents(
    report: VerifyReport,
    store: Store,
    manifest: Manifest,
    config: JsonFields,
    newest: SignedStatement,
    *,
    system: Sequence[OsPackage],
) -> Covered:
    """Compare lock, labels, record, bill of materials and provenance, and return what is covered with the lock."""
    claim, covered = newest.claim, Covered(signer=newest.signer, claim=newest.claim)
    with PartCheck(report, "lock"):
        raw = read_blob(store, claim.parts["lock.json"], "lock", limit=MAX_BYTES)
        lock = parse_lock(raw.decode(errors="replace"), where="lock")
        if lock.digest != claim.lock or str(lock.cell.id) != claim.cell:
            raise ContentError("Cannot verify the lock: it is not the one of the statement.")
        covered = replace(covered, lock=lock)
        report.add("lock", CheckState.OK, f"{lock.digest}, {len(lock.pins)} packages")
    if covered.lock is not None and config:
        differences = label_differences(config, covered.lock)
        good = f"they say cell {claim.cell} and this lock"
        report.add("labels", CheckState.DIFFERS if differences else CheckState.OK, "; ".join(differences) or good)
    with PartCheck(report, "record"):
        raw = read_blob(store, claim.parts["record.json"], "record", limit=MAX_BYTES)
        record = parse_record(raw, "record")
        if covered.lock is not None:
            _record(report, manifest, claim, covered.lock, record)
    with PartCheck(report, "sbom"):
        raw = read_blob(store, claim.parts["sbom.cdx.json"], "sbom", limit=MAX_BYTES)
        digest = manifest.digest
        if covered.lock is not None and (differences := sbom_differences(raw, covered.lock, digest, system)):
            raise ContentError("Cannot verify the sbom: it is not that of lock and image.", details=differences)
        if CYCLONEDX in newest.further and _predicate(newest.further[CYCLONEDX]) != parse_json(raw):
            raise ContentError("Cannot verify the sbom: the signed one differs from the attached one.")
        report.add("sbom", CheckState.OK, claim.parts["sbom.cdx.json"].digest)
    with PartCheck(report, "provenance"):
        if covered.lock is not None and SLSA in newest.further:
            if differences := provenance_differences(_predicate(newest.further[SLSA]), covered.lock):
                raise ContentError("Cannot verify the provenance: it is not that of the lock.", details=differences)
            report.add("provenance", CheckState.OK, claim.attests[SLSA])
    return covered


def _predicate(one: Attestation) -> Any:
    return parse_json(one.opened.payload).get("predicate")


def _record(report: VerifyReport, manifest: Manifest, claim: Claim, lock: Lock, record: Record) -> None:
    images = {"manifest": manifest.digest, "config": manifest.config.digest}
    reasons = unproved(lock, record, images=images)
    stated = (list(claim.rungs), claim.recorded, claim.config)
    if stated != ([rung.value for rung in record.rungs], record.moment, manifest.config.digest):
        reasons.append("the statement gives other rungs, another time or another configuration than record and image")
    if reasons:
        report.add("record", CheckState.DIFFERS, "; ".join(reasons))
    else:
        report.add("record", CheckState.OK, f"passed {record.moment.date()}: {record.summary}")


def label_differences(config: JsonFields, lock: Lock) -> list[str]:
    """Return how the labels of an image differ from its lock. Cell and lock must be among them."""
    labels = object_in(object_in(config, "config"), "Labels")
    expected = {"io.envsmith.cell": str(lock.cell.id), "io.envsmith.lock": lock.digest}
    expected |= {
        key: version for name, version in lock.cell.components.items() if (key := f"io.envsmith.{name}") in labels
    }
    if "io.envsmith.flavour" in labels:
        expected["io.envsmith.flavour"] = lock.flavour
    if lock.base is not None and "org.opencontainers.image.base.digest" in labels:
        expected["org.opencontainers.image.base.digest"] = lock.base.digest
    return [
        f"{key} is {str(labels.get(key, 'missing'))[:80]}, the lock says {value}"
        for key, value in expected.items()
        if labels.get(key) != value
    ]
