"""The smoke test of what was built, and the record of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING

from envsmith.engine.base import Engine
from envsmith.errors import SmokeError
from envsmith.model.record import Record, Rung
from envsmith.pipeline.values import Clock, Options, Outcome

if TYPE_CHECKING:
    from envsmith.smoke import Progress as SmokeProgress
    from envsmith.smoke import SmokeResult

__all__ = ["progress_line", "prove", "record_of", "rungs_of"]


def prove(outcome: Outcome, engine: Engine, options: Options, clock: Clock) -> Record:
    """Run the smoke test of the options on what was built and write the record. ``SmokeError`` when it cannot be run at all."""
    from envsmith.lock import store
    from envsmith.matrix.records import record_text
    from envsmith.smoke import Plan, run

    if outcome.built is None:
        raise SmokeError("nothing was built that could be tested")
    plan = Plan.build(outcome.cell, tier=options.tier, ranks=options.ranks, image=outcome.built.digest)
    started = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    clock.start("smoke test", f"{len(plan.cases)} cases and {len(plan.steps)} framework steps, {plan.ranks} ranks")
    result = run(plan, engine.target(outcome.built), progress=lambda p: clock.line("smoke test", progress_line(p)))
    clock.done("smoke test", result.summary)
    record = record_of(outcome, result, engine=engine.name, started=started, seconds=clock.seconds)
    # `.` stands for where the cell stood.
    store.write(outcome.directory, {"record.json": record_text(record, cell=outcome.directory)})
    return record


def progress_line(progress: SmokeProgress) -> str:
    """One line of how far a smoke test is."""
    count = f" {progress.done}/{progress.total}" if progress.total else ""
    return f"{progress.phase}{count} {progress.text}".strip()


def record_of(
    outcome: Outcome, result: SmokeResult, *, engine: str, started: str, seconds: Mapping[str, float]
) -> Record:
    """The record of one run: what was loaded, not what was declared. ``SmokeError`` when nothing was built."""
    if outcome.built is None:
        raise SmokeError("nothing was built that could be tested")
    from envsmith.smoke.bandwidth import peaks
    from envsmith.smoke.failure import failure_of

    rungs = rungs_of(result)
    return Record(
        cell_id=str(outcome.cell.id),
        components=outcome.cell.components,
        lock_digest=outcome.lock.digest,
        engine=engine,
        environment_digest=outcome.built.digest,
        image=outcome.built.digest if outcome.built.kind == "image" else None,
        rungs=rungs,
        passed=result.passed,
        summary=result.summary,
        started=started,
        seconds={**seconds, **result.seconds},
        host=result.host,
        loaded=result.loaded,
        backend=result.backend,
        ranks=result.ranks,
        cases=result.cases,
        steps=result.steps,
        notes=tuple(filter(None, (*outcome.notes, result.placement, *result.notes))),
        case_list=result.digest,
        failure=failure_of(result, rungs),
        bandwidth=peaks(result.bandwidth),
    )


def rungs_of(result: SmokeResult) -> tuple[Rung, ...]:
    """The rungs of the ladder that this run proved: collectives when every case is good, the framework step when one passed and none failed."""
    rungs = [Rung.SOLVED, Rung.LOCKED, Rung.INSTALLED]
    gpu = result.backend.startswith("nccl")
    if result.loaded:
        rungs.append(Rung.IMPORTED)
    if result.collectives_good and not result.bandwidth:  # what is timed is not checked
        rungs.append(Rung.COLLECTIVES_GPU if gpu else Rung.COLLECTIVES_CPU)
    ran = [step for step in result.steps if step.verdict.value != "skipped"]
    if ran and all(step.verdict.good for step in ran):
        rungs.append(Rung.FRAMEWORK_GPU if gpu else Rung.FRAMEWORK_CPU)
    return tuple(rungs)
