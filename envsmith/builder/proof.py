"""What was built here is run, and the result of the smoke test becomes its record."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from envsmith.base.files import write_together
from envsmith.base.json_types import JsonDict
from envsmith.base.progress import Clock
from envsmith.base.schema import parse_value
from envsmith.base.text import counted
from envsmith.builder.engines.base import Engine
from envsmith.builder.options import BuildOutcome
from envsmith.errors import SmokeError
from envsmith.model.record import RECORD_FILE, Cases, Facts, Failure, Fault, Record, Rung, record_text
from envsmith.smoke import run
from envsmith.smoke.bandwidth import peaks
from envsmith.smoke.events import HealthEvent
from envsmith.smoke.failure import failure_of
from envsmith.smoke.ladder import proved_rungs
from envsmith.smoke.plan import Plan

if TYPE_CHECKING:
    from envsmith.smoke.result import SmokeResult


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordSubject:
    """What a record speaks of: a cell, and the environment that stands for it.

    ``lock`` is the digest of its lock, empty where there is none. ``environment`` is the digest of what is installed.
    """

    cell: str
    components: Mapping[str, str]
    engine: str
    environment: str
    lock: str = ""
    image: str | None = None

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """Return what is known before anything was run."""
        return (Rung.SOLVED, Rung.LOCKED, Rung.INSTALLED) if self.lock else (Rung.INSTALLED,)


def make_record(
    subject: RecordSubject,
    result: SmokeResult | None,
    *,
    rungs: tuple[Rung, ...],
    started: str,
    seconds: Mapping[str, float],
    notes: Sequence[str] = (),
    failure: Failure | None = None,
) -> Record:
    """Return the record of one run on ``subject``: what was loaded, not what was declared.

    Without a ``result`` nothing was run.
    """
    record = Record(
        cell=subject.cell,
        components=subject.components,
        lock=subject.lock,
        engine=subject.engine,
        environment=subject.environment,
        image=subject.image,
        rungs=rungs,
        passed=False,
        summary=failure.symptom if failure else "",
        started=started,
        seconds=seconds,
        host={},
        loaded={},
        backend="",
        ranks=0,
        notes=tuple(filter(None, notes)),
        failure=failure,
    )
    if result is None:
        return record
    return replace(
        record,
        passed=result.passed,
        summary=result.summary,
        host={**result.host, **_links(result.host)},
        loaded=result.loaded,
        backend=result.backend,
        ranks=result.ranks,
        cases=Cases.of(result.cases, result.digest),
        steps=result.steps,
        bandwidth=peaks(result.bandwidth),
    )


def _links(host: Facts) -> JsonDict:
    """Return how many pairs of GPUs reach each other on which way, and the cards with an active port by their kind."""
    rows = host.get("health")
    for row in rows if isinstance(rows, list) else ():
        with suppress(ValueError):
            event = parse_value(HealthEvent, row)
            pairs, active = event.before.pairs, event.cards.active
            counts_of = {"links": {k: len(v) for k, v in pairs.items()}, "rdma": {k: len(v) for k, v in active.items()}}
            return {name: counts for name, counts in counts_of.items() if counts}
    return {}


def prove(outcome: BuildOutcome, engine: Engine, clock: Clock, *, tier: str, ranks: int) -> Record:
    """Run the smoke test of a tier on what was built and write the record.

    Raises ``SmokeError`` when it cannot be run at all.
    """
    built = outcome.built
    if built is None:
        raise SmokeError("Cannot run the smoke test: nothing was built.")
    plan = Plan.build(outcome.cell, tier=tier, ranks=ranks).with_(image=built.digest)
    started = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    steps = counted(len(plan.steps), "framework step")
    clock.start("smoke test", f"{counted(len(plan.cases), 'case')} and {steps}, {counted(plan.ranks, 'rank')}")
    result = run.run(plan, engine.target(built), progress=lambda p: clock.line("smoke test", p.line))
    clock.done("smoke test", result.summary)
    refuse_fault_of_host(result)
    subject = RecordSubject(
        cell=str(outcome.cell.id),
        components=outcome.cell.components,
        engine=engine.name,
        environment=built.digest,
        lock=outcome.lock.digest,
        image=built.digest if built.kind == "image" else None,
    )
    rungs = (*subject.rungs, *proved_rungs(result, outcome.cell.frameworks))
    record = make_record(
        subject,
        result,
        rungs=rungs,
        started=started,
        seconds={**clock.seconds, **result.seconds},
        notes=(*outcome.notes, result.placement, *result.notes),
        failure=failure_of(result, rungs),
    )
    # `.` stands for where the cell stood.
    write_together(outcome.directory, {RECORD_FILE: record_text(record, cell=outcome.directory)})
    return record


def refuse_fault_of_host(result: SmokeResult) -> None:
    """Raise ``SmokeError`` where a run failed by the machine's fault, or the cause is unknown: a record would be untrue.

    What the machine lacks for good (a GPU) is recorded, as not shown.
    """
    cause = result.cause
    if result.passed or cause.fault is Fault.CELL or cause.lasting:
        return
    raise SmokeError(
        f"Cannot prove the cell on this machine: {cause.sentence}.",
        hint="Mend that and run the same command again. Nothing was recorded.",
        details=[result.summary],
    )
