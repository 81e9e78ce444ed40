"""What a build left in a cell's folder, read as the proof of an image: a record that passed, of this lock and of this image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from envsmith.errors import DataError, EnvsmithError
from envsmith.files import read_bounded
from envsmith.model.lock import Lock, parse_lock
from envsmith.model.record import SCHEMA, Record, check_record
from envsmith.schema import Problems, UnreadableError, parse_document

LOCK_FILE, RECORD_FILE = "lock.json", "record.json"
_MAX_BYTES = 32 << 20


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
            names = {field.name for field in fields(Record)} - {"cases"}
            document = {**{key: document[key] for key in document.keys() & names}, "schema": SCHEMA}
        record = check_record(document, where, problems)
    if record is None:
        count = len(problems.lines)
        raise DataError(f"{where}: {count} problems in the record", details=problems.lines, hint="build the cell again")
    return record


def load_proof(directory: Path) -> Proof:
    """Return lock and record of a cell's folder.

    ``EnvsmithError`` (exit code 1) when there is none to publish, ``DataError`` when one is broken.
    """
    lock_file, record_file = directory / LOCK_FILE, directory / RECORD_FILE
    if not lock_file.is_file():
        hint = "name the folder of a cell: envsmith build says where it is"
        raise EnvsmithError(f"{directory}: no lock is there", hint=hint)
    lock_raw = read_bounded(lock_file, _MAX_BYTES)
    try:
        lock = parse_lock(lock_raw.decode(), where=str(lock_file))
    except UnicodeDecodeError:
        raise DataError(f"{lock_file}: not UTF-8", hint="lock the cell again") from None
    if not record_file.is_file():
        raise EnvsmithError(
            f"{lock.cell.id} has no record: what is not proved is not published",
            hint="envsmith build runs the smoke test and writes record.json",
        )
    record_raw = read_bounded(record_file, _MAX_BYTES)
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
            f"{proof.lock.cell.id} is not published: no passing record speaks of this image",
            details=reasons,
            hint="envsmith build --engine docker proves the image and writes its record",
        )
