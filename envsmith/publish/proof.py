"""What a build left in a cell's folder, read as the proof of an image: a record that passed, of this lock and of this image."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.errors import DataError, EnvsmithError, StorageError
from envsmith.model.lock import Lock, parse_lock
from envsmith.model.record import Rung
from envsmith.oci.spec import is_digest

LOCK_FILE, RECORD_FILE = "lock.json", "record.json"
_MAX_BYTES = 32 << 20
_RUNGS = frozenset(rung.value for rung in Rung)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFacts:
    """The fields of a record that publishing and verifying ask about. ``image`` and ``lock`` are digests, ``started`` is UTC."""

    cell: str
    lock: str
    image: str
    passed: bool
    rungs: tuple[str, ...]
    summary: str
    started: dt.datetime
    audit: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """Lock and record as values and as the bytes that are published."""

    lock: Lock
    lock_raw: bytes
    record: RecordFacts
    record_raw: bytes


def parse_record(raw: bytes, where: str) -> RecordFacts:
    """``DataError`` lists every field that is missing or malformed."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise DataError(
            f"{where}: not JSON", hint="build the cell again: a record is written by envsmith alone"
        ) from None
    fields: dict[str, Any] = value if isinstance(value, dict) else {}
    problems = [
        f"{key}: a text was expected"
        for key in ("cell", "lock", "summary", "started")
        if not isinstance(fields.get(key), str)
    ]
    problems += [] if is_digest(fields.get("lock")) else ["lock: a sha256 digest was expected"]
    problems += [] if type(fields.get("passed")) is bool else ["passed: true or false was expected"]
    rungs = fields.get("rungs")
    if not isinstance(rungs, list) or not set(map(str, rungs)) <= _RUNGS:
        problems.append(f"rungs: a list of {', '.join(sorted(_RUNGS))} was expected")
    image = fields.get("image")
    if image is not None and not is_digest(image):
        problems.append("image: a sha256 digest or null was expected")
    started = _moment(fields.get("started"))
    if started is None:
        problems.append("started: a time like 2026-11-21T04:05:31+00:00 was expected")
    if problems or started is None or not isinstance(rungs, list):
        raise DataError(
            f"{where}: {len(problems)} problems in the record", details=problems, hint="build the cell again"
        )
    audit = fields.get("audit")
    return RecordFacts(
        cell=fields["cell"],
        lock=fields["lock"],
        image=image or "",
        passed=fields["passed"],
        rungs=tuple(str(r) for r in rungs),
        summary=fields["summary"],
        started=started,
        audit=audit if isinstance(audit, dict) else None,
    )


def _moment(text: object) -> dt.datetime | None:
    try:
        moment = dt.datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment.astimezone(dt.timezone.utc) if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)


def load_proof(directory: Path) -> Proof:
    """Lock and record of a cell's folder; ``EnvsmithError`` (exit code 1) when there is none to publish, ``DataError`` when one is broken or not the other's."""
    lock_raw = _bytes(directory / LOCK_FILE)
    if lock_raw is None:
        raise EnvsmithError(
            f"{directory}: no lock is there", hint="name the folder of a cell: envsmith build says where it is"
        )
    try:
        lock = parse_lock(lock_raw.decode(), where=str(directory / LOCK_FILE))
    except UnicodeDecodeError:
        raise DataError(f"{directory / LOCK_FILE}: not UTF-8", hint="lock the cell again") from None
    record_raw = _bytes(directory / RECORD_FILE)
    if record_raw is None:
        raise EnvsmithError(
            f"{lock.cell.id} has no record: what is not proved is not published",
            hint="envsmith build runs the smoke test and writes record.json",
        )
    record = parse_record(record_raw, str(directory / RECORD_FILE))
    return Proof(lock=lock, lock_raw=lock_raw, record=record, record_raw=record_raw)


def _bytes(path: Path) -> bytes | None:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path}: larger than {_MAX_BYTES >> 20} MiB")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror or error}") from None


def unproved(lock: Lock, record: RecordFacts, *, images: Mapping[str, str]) -> list[str]:
    """Why a record does not prove the image of a lock; ``images`` are the digests by which the image may be named, with what each is."""
    cell = str(lock.cell.id)
    told = []
    if record.lock != lock.digest:
        told.append(f"the record is of lock {record.lock[:19]}…, this one is {lock.digest[:19]}…")
    if record.cell != cell:
        told.append(f"the record is of cell {record.cell}")
    if not record.passed:
        told.append(f"the record says failed: {record.summary}")
    if not record.image:
        told.append("the record is of a virtual environment, not of an image")
    elif record.image not in images.values():
        known = ", ".join(f"{what} {digest[:19]}…" for what, digest in images.items() if digest)
        told.append(f"the record is of image {record.image[:19]}…, this one is {known}")
    return told


def refuse_unproved(proof: Proof, *, images: Mapping[str, str]) -> None:
    """``EnvsmithError`` (exit code 1) with every reason why this must not be published."""
    if told := unproved(proof.lock, proof.record, images=images):
        raise EnvsmithError(
            f"{proof.lock.cell.id} is not published: no passing record speaks of this image",
            details=told,
            hint="envsmith build --engine docker proves the image and writes its record",
        )
