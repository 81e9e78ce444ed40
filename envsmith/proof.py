"""The smoke test of what was built, and the record of it."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envsmith.engines.base import Engine, verify_content
from envsmith.engines.venv import inspect_python
from envsmith.errors import ContentError, EnvsmithError, SmokeError
from envsmith.frameworks import FRAMEWORKS
from envsmith.lock import store
from envsmith.model.cell import CellId, Platform
from envsmith.model.record import Failure, Record, Rung, Verdict, record_text
from envsmith.options import Options, Outcome
from envsmith.progress import Clock
from envsmith.smoke.bandwidth import peaks
from envsmith.smoke.plan import Plan
from envsmith.smoke.verdict import failure_of

if TYPE_CHECKING:
    from envsmith.model.lock import Lock
    from envsmith.smoke.everything import Done
    from envsmith.smoke.run import Progress as SmokeProgress
    from envsmith.smoke.verdict import SmokeResult


def prove(outcome: Outcome, engine: Engine, options: Options, clock: Clock) -> Record:
    """Run the smoke test of the options on what was built and write the record. ``SmokeError`` when it cannot be run at all."""
    from envsmith.smoke.run import run

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


# An environment that is there already: which cell it is, and the record of what was run in it.
#
# Where it was built here, the lock beside it says so, and what is installed is held against it. Otherwise the cell is read from what was loaded:
# nobody solved or locked it, and the record claims neither.


# The parts that speak for the cell; how ranks shared a GPU, or what the older engine did, is told in the notes.
_MAIN, _STEPS, _BANDWIDTH = "full", "framework", "bandwidth"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The cell of an environment. ``lock`` is the digest of its lock, empty where there is none; ``environment`` the hash of what is installed."""

    cell: str
    components: Mapping[str, str]
    engine: str
    environment: str
    lock: str = ""

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """What is known before anything was run."""
        return (Rung.SOLVED, Rung.LOCKED, Rung.INSTALLED) if self.lock else (Rung.INSTALLED,)


def find_cell(python: Path, loaded: Mapping[str, object]) -> Found:
    """The cell of the interpreter ``python``, with what a run ``loaded`` there. Raises :class:`ContentError` when it does not start any more."""
    installed = inspect_python(python)
    text = json.dumps(installed, sort_keys=True, separators=(",", ":"))
    environment = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    lock = _lock_beside(python)
    if lock is not None:
        try:
            verify_content(lock, installed)
        except ContentError:
            lock = None  # changed since: it is not that cell any more
    if lock is not None:
        cell, components = str(lock.cell.id), lock.cell.components
        return Found(cell=cell, components=components, engine="venv", environment=environment, lock=lock.digest)
    components = _components(loaded)
    chosen = tuple((n, components[n]) for n in (*FRAMEWORKS, "torch", "cuda", "python") if n in components)
    return Found(
        cell=str(CellId(chosen, _platform(loaded))), components=components, engine="found", environment=environment
    )


def _lock_beside(python: Path) -> Lock | None:
    """The lock of ``CELL/venv/bin/python``, when that is how the environment came about."""
    directory = python.absolute().parent.parent.parent
    try:
        return store.read(directory)
    except EnvsmithError:
        return None


def _components(loaded: Mapping[str, object]) -> dict[str, str]:
    """Component -> version, as records name them: frameworks, torch with its build, CUDA, Python's minor, what torch brings."""
    told = loaded.get("installed")
    installed = {str(k): str(v) for k, v in told.items()} if isinstance(told, dict) else {}
    torch, cuda = str(loaded.get("torch") or ""), str(loaded.get("cuda") or "cpu")
    if "+" not in torch:
        torch += "+cpu" if cuda == "cpu" else "+cu" + cuda.replace(".", "")
    found = {name: installed[name] for name in FRAMEWORKS if name in installed}
    found |= {"torch": torch, "cuda": cuda, "python": ".".join(str(loaded.get("python") or "").split(".")[:2])}
    nccl = str(loaded.get("nccl_runtime") or loaded.get("nccl") or "")
    cudnn = next((v for k, v in installed.items() if k.startswith("nvidia-cudnn-")), "")
    found |= {"nccl": nccl, "cudnn": cudnn, "triton": installed.get("triton", "")}
    return {name: version for name, version in found.items() if version}


def _platform(loaded: Mapping[str, object]) -> Platform:
    import platform

    machine = str(loaded.get("machine") or platform.machine())
    return Platform.LINUX_AARCH64 if machine in {"aarch64", "arm64"} else Platform.LINUX_64


def record_of_parts(found: Found, done: Sequence[Done], *, started: str) -> Record:
    """One record of all parts: cases of the full tier, steps of the framework tier, peaks of the bandwidth tier; every part stands in the notes.

    It has passed when those of them that were run passed, and the full tier was run. ``EnvsmithError`` when no part gave a result.
    """
    by_name = {d.part.name: d for d in done}
    main, steps, band = (by_name[n].result if n in by_name else None for n in (_MAIN, _STEPS, _BANDWIDTH))
    said = main or steps or band or next((d.result for d in done if d.result), None)
    if said is None:
        raise EnvsmithError("nothing was run that a record could tell of", hint="; ".join(d.sentence for d in done[:3]))
    joined = replace(
        said,
        passed=main is not None and all(r.passed for r in (main, steps, band) if r),
        summary=_summary(main, steps, said),
        steps=steps.steps if steps else (),
        bandwidth=band.bandwidth if band else (),
    )
    rungs = (*found.rungs, *_proved(main, steps, said))
    return Record(
        cell_id=found.cell,
        components=found.components,
        lock_digest=found.lock,
        engine=found.engine,
        environment_digest=found.environment,
        rungs=rungs,
        passed=joined.passed,
        summary=joined.summary,
        started=started,
        seconds={d.part.name: d.seconds for d in done if d.result},
        host=said.host,
        loaded=said.loaded,
        backend=said.backend,
        ranks=said.ranks,
        cases=main.cases if main else (),
        steps=joined.steps,
        notes=_notes(done, main),
        case_list=main.digest if main else "",
        failure=None if joined.passed else _failure(joined, main, by_name, rungs),
        bandwidth=peaks(joined.bandwidth),
    )


def _proved(main: SmokeResult | None, steps: SmokeResult | None, said: SmokeResult) -> list[Rung]:
    gpu = said.backend.startswith("nccl")
    rungs = [Rung.IMPORTED]
    if main and main.collectives_good:
        rungs.append(Rung.COLLECTIVES_GPU if gpu else Rung.COLLECTIVES_CPU)
    ran = [s for s in (steps.steps if steps else ()) if s.verdict is not Verdict.SKIPPED]
    # torch's own steps are the control: without a framework nothing is proved of one.
    if any(s.name.startswith(tuple(FRAMEWORKS)) for s in ran) and all(s.verdict.good for s in ran):
        rungs.append(Rung.FRAMEWORK_GPU if gpu else Rung.FRAMEWORK_CPU)
    return rungs


def _summary(main: SmokeResult | None, steps: SmokeResult | None, said: SmokeResult) -> str:
    first = next((r.summary for r in (main, steps) if r and not r.passed), None)
    if first:
        return first
    passed = [s.name for s in (steps.steps if steps else ()) if s.verdict is Verdict.PASS]
    return said.summary + (f"; steps passed: {', '.join(passed)}" if passed else "")


def _placements(done: Sequence[Done]) -> str:
    """How ranks were placed, each way once."""
    ways = dict.fromkeys(d.result.placement for d in done if d.result and d.result.placement)
    return "; ".join(re.sub(r"; this proves nothing about NVLink or the network", " (no NVLink)", way) for way in ways)


def _notes(done: Sequence[Done], main: SmokeResult | None) -> tuple[str, ...]:
    """A record keeps six: where the ranks were, what passed, what was not run, each part that failed, what the full tier noted."""
    passed = ", ".join(d.part.name for d in done if d.word == "passed")
    missing = "; ".join(f"{d.part.name} ({d.sentence})" for d in done if d.word == "not run")
    failed = [f"{d.part.name} failed: {d.sentence}" for d in done if d.word == "failed"]
    told = [
        _placements(done),
        f"parts that passed: {passed}" if passed else "",
        f"not run: {missing}" if missing else "",
    ]
    return tuple(filter(None, (*told, *failed, *(main.notes if main else ()))))


def _failure(
    joined: SmokeResult, main: SmokeResult | None, by_name: Mapping[str, Done], rungs: Sequence[Rung]
) -> Failure | None:
    """Without the full tier nothing is said against the cell: it was not asked."""
    if main is not None:
        return failure_of(joined, rungs)
    why = by_name[_MAIN].sentence if _MAIN in by_name else "it was not among the parts"
    rung = Rung.COLLECTIVES_GPU if joined.backend.startswith("nccl") else Rung.COLLECTIVES_CPU
    return Failure(rung=rung, symptom=f"the full tier was not run: {why}", of_host=True)
