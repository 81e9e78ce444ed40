"""A record that somebody sends: whether it is one, tells nothing private, and shows what it claims.

That it was made up can't be seen. Who vouches for it is said beside it (:mod:`envsmith.matrix.vouchers`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import read_bounded
from envsmith.base.schema import parse_json
from envsmith.base.text import private_parts
from envsmith.errors import ContentError, DataError
from envsmith.matrix.vouchers import SIGNERS_FILE, UNSIGNED, Voucher, voucher_of
from envsmith.model.record import RECORD_FILE, Record, Rung, Verdict, read_record, record_name
from envsmith.model.rule import Knowledge
from envsmith.model.version import public

_MAX_BYTES = 64_000
_GPU = (Rung.COLLECTIVES_GPU, Rung.FRAMEWORK_GPU)
_STEPS = (Rung.FRAMEWORK_CPU, Rung.FRAMEWORK_GPU)
_COLLECTIVES = (Rung.COLLECTIVES_CPU, Rung.COLLECTIVES_GPU)


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """A file that was judged. It is accepted where there are no ``objections``."""

    name: str
    record: Record | None = None
    voucher: Voucher = UNSIGNED
    objections: tuple[str, ...] = ()


def judge_file(path: Path, root: Path, knowledge: Knowledge, now: dt.datetime) -> Acceptance:
    """Judge a file that is to go into the matrix below ``root``."""
    try:
        content = read_bounded(path, _MAX_BYTES)
        record, text = read_record(path.name, content), content.decode()
    except DataError as error:
        return Acceptance(name=path.name, objections=(error.message, *error.details))
    name = record_name(record.cell, record.engine, text)
    objections = [] if path.name in {name, RECORD_FILE} else [f"its name must be {name}: it was changed after the run"]
    voucher = UNSIGNED
    try:
        voucher = voucher_of(path, root / SIGNERS_FILE)
    except ContentError as error:
        objections.append(error.message)
    objections += [f"{part} must stay private" for part in private_parts(parse_json(text))]
    objections += _objections(record, knowledge, now)
    return Acceptance(name=name, record=record, voucher=voucher, objections=tuple(objections))


def _objections(record: Record, knowledge: Knowledge, now: dt.datetime) -> Iterator[str]:
    """Yield what a record claims and does not show."""
    if record.moment > now + dt.timedelta(days=1):
        yield f"the run began on {record.day}, which is to come"
    for name, version in record.components.items():
        releases = {release.version for release in knowledge.releases.get(name, ())}
        if releases and not {version, public(version)} & {*releases, *map(public, releases)}:
            yield f"{name} {version} is not a release that the matrix knows: run envsmith matrix refresh"
    torch = str(record.loaded.get("torch") or "")
    if torch and public(torch) != public(record.components.get("torch", torch)):
        yield f"the cell has torch {record.components.get('torch')}, and torch {torch} was loaded"
    if {*_GPU} & {*record.rungs}:
        lacking = [name for name in ("gpus", "driver", "kernel") if not record.host.get(name)]
        if lacking:
            yield f"it claims a run on GPUs, and names no {', '.join(lacking)}"
        if not record.backend.startswith("nccl"):
            yield f"it claims a run on GPUs, and its backend is {record.backend}"
    if {*_COLLECTIVES} & {*record.rungs} and not record.cases.counts.get(Verdict.PASS.value):
        yield "it claims collectives, and no case passed"
    if {*_STEPS} & {*record.rungs} and not any(step.verdict is Verdict.PASS for step in record.steps):
        yield "it claims a framework step, and none passed"
    if record.passed and record.failure is not None:
        yield "it passed, and names a failure"
