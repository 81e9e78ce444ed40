"""One job: a cell climbs the ladder as far as it comes, and its record is made.

locked -> installed -> imported -> collectives -> framework step. What fails ends the climb and is reported as a user would
see it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from envsmith.base.programs import execute
from envsmith.base.progress import EventKind, Progress, ProgressEvent, announced, silent
from envsmith.builder.engines.base import Built
from envsmith.builder.proof import RecordSubject, make_record, refuse_fault_of_host
from envsmith.errors import EnvsmithError, is_of_the_system
from envsmith.frameworks import FRAMEWORKS
from envsmith.frameworks.framework import ImportWithoutGpu
from envsmith.matrix.campaign.ground import Ground, install, lock_job, target_of
from envsmith.matrix.campaign.job import CampaignJob, CampaignPlan
from envsmith.model.record import Expected, Failure, Record, Rung, Verdict
from envsmith.smoke.failure import failure_of
from envsmith.smoke.ladder import proved_rungs
from envsmith.smoke.plan import Plan as SmokePlan
from envsmith.smoke.plan import Timeouts
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.run import LocalTarget, SmokeProgress, run

# Verdicts that a busy machine can cause; what Python itself raised does not change by waiting.
_TRANSIENT = frozenset({Verdict.HANG.value, Verdict.CRASH.value, Verdict.NOT_RUN.value})
# A campaign shares its machine: a case that takes seconds under load does not hang.
_PATIENCE = {"imports": 600.0, "init": 180.0, "first": 120.0, "case": 30.0, "group": 300.0, "tier": 600.0}
_STEP_PATIENCE = 900.0


def climb(job: CampaignJob, plan: CampaignPlan, ground: Ground, *, progress: Progress = silent) -> Record:
    """Run ``job``. A failure that was not expected, or that waiting may cure, is tried once more.

    Raises only what says nothing about the cell: what :func:`envsmith.errors.is_of_the_system` knows.
    """
    started = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    record = _attempt(job, plan, ground, progress, started)
    failure = record.failure
    if failure is None or not _worth_another(record, failure):
        return record
    progress(ProgressEvent(kind=EventKind.NOTE, step="", text=f"{failure.symptom}; once more"))
    return dataclasses.replace(_attempt(job, plan, ground, progress, started), earlier=(failure,))


def _worth_another(record: Record, failure: Failure) -> bool:
    """Believe what was expected, and an import that Python itself refuses: neither changes by waiting."""
    if _TRANSIENT & {*record.cases.counts, *(step.verdict.value for step in record.steps)}:
        return True
    return not failure.of_host and failure.rung is not Rung.IMPORTED and record.expected is not Expected.BAD


def _attempt(job: CampaignJob, plan: CampaignPlan, ground: Ground, progress: Progress, started: str) -> Record:
    subject = RecordSubject(cell=job.id, components=job.cell.components, engine="venv", environment="")
    rungs: tuple[Rung, ...] = (Rung.SOLVED,)
    seconds: dict[str, float] = {}
    result: SmokeResult | None = None
    failure: Failure | None
    try:
        with _step("lock", Rung.LOCKED, seconds, progress):
            lock = lock_job(job, plan, ground, progress)
        subject, rungs = dataclasses.replace(subject, lock=lock.digest), (*rungs, Rung.LOCKED)
        with _step("install", Rung.INSTALLED, seconds, progress):
            built = install(lock, ground, progress)
        subject, rungs = dataclasses.replace(subject, environment=built.digest), (*rungs, Rung.INSTALLED)
        with _step("smoke", Rung.IMPORTED, seconds, progress):
            target = target_of(ground, built)
            result = _smoke(job, plan, built, target, progress)
            rungs, failure = _reached(job, result, target)
    except _EndError as end:
        failure = end.failure
    record = make_record(
        subject,
        result,
        rungs=rungs,
        started=started,
        seconds={**seconds, **(result.seconds if result else {})},
        notes=(result.placement, *result.notes) if result else (),
        failure=failure,
    )
    passed = failure is None and Rung.FRAMEWORK_CPU in rungs
    return dataclasses.replace(record, passed=passed, expected=job.expected, rules=job.rules, campaign=plan.name)


class _EndError(Exception):
    """The climb ends with ``failure``."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.symptom)
        self.failure = failure


@contextmanager
def _step(name: str, rung: Rung, seconds: dict[str, float], progress: Progress) -> Iterator[None]:
    """Announce a step and take its time. What fails in it fails the ``rung``."""
    began = time.monotonic()
    try:
        with announced(progress, name):
            yield
    except EnvsmithError as error:
        if is_of_the_system(error):
            raise
        raise _EndError(Failure(rung=rung, symptom=_symptom(error), log=error.details)) from error
    finally:
        seconds[name] = time.monotonic() - began


def _symptom(error: EnvsmithError) -> str:
    """Return the line that a user would search for: the last that names an error, else our own sentence."""
    named = [line.strip() for line in error.details if "Error" in line or "error:" in line]
    return f"{error.message} {named[-1]}" if named else error.message


def _smoke(job: CampaignJob, plan: CampaignPlan, built: Built, target: LocalTarget, progress: Progress) -> SmokeResult:
    smoke = SmokePlan.build(job.cell, tier=plan.tier, ranks=plan.ranks).with_(image=built.digest)
    steps = tuple(dataclasses.replace(step, deadline=max(step.deadline, _STEP_PATIENCE)) for step in smoke.steps)

    def line(now: SmokeProgress) -> None:
        progress(ProgressEvent(kind=EventKind.LINE, step="smoke", text=now.line))

    result = run(smoke.with_(timeouts=Timeouts(**_PATIENCE), steps=steps), target, progress=line)
    refuse_fault_of_host(result)
    return result


def _reached(job: CampaignJob, result: SmokeResult, target: LocalTarget) -> tuple[tuple[Rung, ...], Failure | None]:
    """Return the rungs that a smoke test proved, and at which one it failed."""
    rungs = (Rung.SOLVED, Rung.LOCKED, Rung.INSTALLED, *proved_rungs(result, job.cell.frameworks))
    failure = failure_of(result, rungs)
    if failure is None:
        return rungs, None
    for framework in map(FRAMEWORKS.__getitem__, job.cell.frameworks):
        trick = framework.import_without_gpu
        if trick is not None and trick.needs in failure.symptom:
            failure = _import_without_gpu(target, framework.module, trick)
    ladder = list(Rung)
    below = ladder[: ladder.index(failure.rung)]
    return tuple(rung for rung in below if rung in rungs or rung is Rung.IMPORTED), failure


def _import_without_gpu(target: LocalTarget, module: str, trick: ImportWithoutGpu) -> Failure:
    """Import the framework as ``trick`` says and return what fails then. The rest needs a host with a GPU."""
    try:
        command = [str(target.python), "-I", "-c", f"import {module}"]
        finished = execute(command, seconds=_STEP_PATIENCE, env={**os.environ, **target.env(), **trick.variables})
    except (OSError, subprocess.SubprocessError) as error:
        return Failure(rung=Rung.IMPORTED, symptom=f"the import could not be tried: {error}", of_host=True)
    lines = [line for line in finished.stderr.splitlines() if line.strip()]
    if finished.returncode == 0:
        variable = " ".join(f"{name}={value}" for name, value in trick.variables.items())
        symptom = f"{trick.needs} is needed to train on the CPU; imported with {variable}, not run further"
        return Failure(rung=Rung.FRAMEWORK_CPU, symptom=symptom, of_host=True)
    symptom = lines[-1] if lines else f"status {finished.returncode}"
    # Triton finds no driver where there is none.
    of_host = symptom.startswith(trick.host_errors) or "0 active drivers" in symptom
    return Failure(rung=Rung.IMPORTED, symptom=symptom, log=tuple(lines), of_host=of_host)
