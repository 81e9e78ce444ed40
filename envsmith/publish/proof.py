"""What proves an image: lock and record of a cell's folder, the record one that passed, of this lock and of this image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from envsmith.base.files import read_bounded
from envsmith.base.schema import Problems, UnreadableError, parse_document
from envsmith.errors import DataError, EnvsmithError
from envsmith.model.lock import LOCK_FILE, MAX_BYTES, Lock, parse_lock
from envsmith.model.record import RECORD_FILE, SCHEMA, Record, check_record

# Of the log of a test that failed, how many lines a refusal shows.
_LAST_LINES = 5


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
    reasons, failure = unproved(proof.lock, proof.record, images=images), proof.record.failure
    hint = "Build it with envsmith build --oci. It tests the very image that is published, and writes its record."
    if not proof.record.passed:
        reasons += [failure.symptom, *failure.log[-_LAST_LINES:]] if failure else []
        hint = (
            f"Mend what failed first: the rest of its log is in {RECORD_FILE}, and envsmith smoke runs the test again."
        )
    if reasons:
        raise EnvsmithError(
            f"Cannot publish {proof.lock.cell.id}: no passing record is about this image.", details=reasons, hint=hint
        )
