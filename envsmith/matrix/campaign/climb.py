"""One job: a cell climbs the ladder as far as it comes, and its record is written.

locked -> installed -> imported -> collectives -> framework step. What fails ends the climb and is told as a user would see it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from envsmith.engines.base import Built
from envsmith.errors import EnvsmithError, InterruptedRunError, NetworkError, StorageError
from envsmith.frameworks import FRAMEWORKS
from envsmith.frameworks.framework import ImportWithoutGpu
from envsmith.lock.files import layer_text
from envsmith.matrix.campaign.job import Job, Plan
from envsmith.matrix.campaign.plan import without
from envsmith.model.lock import Lock
from envsmith.model.record import Cases, Expected, Failure, Record, Rung, Verdict
from envsmith.progress import Event, EventKind, Progress, silent
from envsmith.proof import progress_line, rungs_of
from envsmith.python.uv import Uv, uv_environment
from envsmith.smoke.plan import Plan as SmokePlan
from envsmith.smoke.plan import Timeouts
from envsmith.smoke.verdict import failure_of
from envsmith.solve import check, constraints_for, default_solver

if TYPE_CHECKING:
    from envsmith.model.cell import Cell
    from envsmith.model.finding import Judgement
    from envsmith.smoke.run import Progress as SmokeProgress
    from envsmith.smoke.verdict import SmokeResult


# Verdicts that a busy machine can cause; what Python itself raised does not change by waiting.
_TRANSIENT = frozenset({Verdict.HANG, Verdict.CRASH, Verdict.NOT_RUN})
# A campaign shares its machine: a case that takes seconds under load does not hang.
_PATIENCE = {"imports": 600.0, "init": 180.0, "first": 120.0, "case": 30.0, "group": 300.0, "tier": 600.0}
_STEP_PATIENCE = 900.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ground:
    """Where a job runs: ``slot`` is a folder of its own, ``cache`` is shared. ``offline`` forbids the network."""

    slot: Path
    cache: Path
    offline: bool = False

    def uv(self, torch: str | None = None) -> Uv:
        """The campaign's uv: its cache, or the one of a torch release; files are linked into the environment, not copied.

        A release's wheels take five to eight gigabytes unpacked: they are thrown away with the folder when no cell needs them.
        """
        environment = {**uv_environment(), "UV_LINK_MODE": "hardlink"}
        folder = self.cache / "uv" if torch is None else self.cache / "torch" / torch
        return Uv(environment=environment, cache=folder, offline=self.offline)


@dataclass(slots=True)
class _Climb:
    """What is known so far."""

    job: Job
    plan: Plan
    ground: Ground
    progress: Progress
    rungs: list[Rung] = field(default_factory=lambda: [Rung.SOLVED])
    seconds: dict[str, float] = field(default_factory=dict)
    lock: Lock | None = None
    built: Built | None = None
    result: SmokeResult | None = None
    failure: Failure | None = None
    transient: bool = False


def climb(job: Job, plan: Plan, ground: Ground, *, progress: Progress = silent) -> Record:
    """Run ``job``; a failure that was not expected, or that waiting may cure, is tried once more.

    Raises only what says nothing about the cell: ``StorageError``, ``NetworkError``, ``InterruptedRunError``, ``EngineError``.
    """
    started = _now()
    first = _attempt(job, plan, ground, progress)
    if first.failure is None or not _worth_another(first):
        return _record(first, started)
    progress(Event(kind=EventKind.NOTE, step="", text=f"{first.failure.symptom}; once more"))
    again = _attempt(job, plan, ground, progress)
    record = _record(again, started)
    return dataclasses.replace(record, earlier=(_anonymous(first.failure, ground.slot),))


def _worth_another(state: _Climb) -> bool:
    """What was expected is believed, and so is an import that Python itself refuses: neither changes by waiting."""
    if state.transient:
        return True
    failure = state.failure
    told = failure is not None and (failure.of_host or failure.rung is Rung.IMPORTED)
    return not told and state.job.expected is not Expected.BAD


def _attempt(job: Job, plan: Plan, ground: Ground, progress: Progress) -> _Climb:
    state = _Climb(job, plan, ground, progress)
    for name, rung, step in (
        ("lock", Rung.LOCKED, _lock),
        ("install", Rung.INSTALLED, _install),
        ("smoke", None, _smoke),
    ):
        began = time.monotonic()
        progress(Event(kind=EventKind.START, step=name))
        try:
            step(state)
        except (StorageError, NetworkError, InterruptedRunError):
            raise
        except EnvsmithError as error:
            failed = rung or Rung.IMPORTED
            state.failure = Failure(rung=failed, symptom=_symptom(error), log=tuple(error.details))
            return state
        finally:
            state.seconds[name] = time.monotonic() - began
        if state.failure is None and rung is not None:
            state.rungs.append(rung)
        progress(Event(kind=EventKind.DONE, step=name, seconds=state.seconds[name]))
    return state


def _symptom(error: EnvsmithError) -> str:
    """The line that a user would search for: the last that names an error, else our own sentence."""
    named = [line.strip() for line in error.details if "Error" in line or "error:" in line]
    return f"{error.message}: {named[-1]}" if named else error.message


def _lock(state: _Climb) -> None:
    from envsmith.lock.resolve import Resolver, lock_pip

    cell = state.job.cell
    solver = without(
        default_solver(), frozenset(state.job.rules) if state.job.expected is Expected.BAD else frozenset()
    )

    def judge(cell: Cell, components: Mapping[str, str]) -> Judgement:
        return check(components, cell.platform, keep=tuple(cell.components), solver=solver)

    state.lock = lock_pip(
        cell,
        request=f"matrix run {state.plan.name}",
        exclude_newer=state.plan.exclude_newer,
        constraints=constraints_for(cell, solver=solver),
        resolver=Resolver(uv=state.ground.uv(), judge=judge),
        progress=state.progress,
    )


def _install(state: _Climb) -> None:
    from envsmith.engines.venv import realise

    if state.lock is None:
        raise InterruptedRunError("nothing was locked")
    # Operators of another cell must not be taken for this one's.
    shutil.rmtree(state.ground.slot / "torch-extensions", ignore_errors=True)
    torch = state.job.cell.components["torch"]
    heavy = state.ground.uv(torch)
    with _first_alone(state.ground.cache / "torch" / torch, state.lock):
        state.built = realise(
            state.lock, state.ground.slot, progress=state.progress, uv=state.ground.uv(), torch_uv=heavy
        )


@contextmanager
def _first_alone(cache: Path, lock: Lock) -> Iterator[None]:
    """Of the cells with one torch layer the first fetches it alone.

    Several installing at once into an empty cache would each fetch and keep a copy of the same gigabytes.
    """
    layer = hashlib.sha256(layer_text(p for p in lock.pins if p.layer == "torch").encode()).hexdigest()[:16]
    ready = cache / f"envsmith-ready-{layer}"
    if ready.exists():
        yield
        return
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "envsmith-first.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
        ready.touch()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Target:
    """The cell's interpreter, writing byte-code: the environment is the campaign's own, and the torch layer serves many cells."""

    python: Path
    variables: Mapping[str, str]

    def argv(self, args: Sequence[str]) -> list[str]:
        return [str(self.python), *(a for a in args if a != "-B")]

    def env(self) -> Mapping[str, str]:
        return self.variables

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()


def _target(ground: Ground, built: Built) -> _Target:
    """With ccache on the host, what a framework compiles at its start is compiled once per torch and source, not once per cell."""
    path = [str(Path(built.python).parent)]
    variables = {"TORCH_EXTENSIONS_DIR": str(ground.slot / "torch-extensions")}
    if (folder := ccache_folder()) is not None:
        path.append(str(folder))
        variables |= {
            "CCACHE_DIR": str(ground.cache / "ccache"),
            "CCACHE_BASEDIR": str(ground.slot),
            "CCACHE_NOHASHDIR": "1",
            "CCACHE_COMPILERCHECK": "content",
            "CCACHE_MAXSIZE": "1G",
        }
    path.append(os.environ.get("PATH", os.defpath))
    return _Target(python=Path(built.python), variables={**variables, "PATH": os.pathsep.join(path)})


def ccache_folder() -> Path | None:
    """The folder in which ``c++`` and ``g++`` are ccache, where there is one."""
    for folder in ("/usr/lib/ccache", "/usr/lib64/ccache"):
        if Path(folder, "c++").exists():
            return Path(folder)
    return None


def _smoke(state: _Climb) -> None:
    from envsmith.smoke.run import run

    if state.built is None:
        raise InterruptedRunError("nothing was built")
    plan = SmokePlan.build(state.job.cell, tier=state.plan.tier, ranks=state.plan.ranks, image=state.built.digest)
    steps = tuple(dataclasses.replace(step, deadline=max(step.deadline, _STEP_PATIENCE)) for step in plan.steps)
    plan = plan.with_(timeouts=Timeouts(**_PATIENCE), steps=steps)

    def line(told: SmokeProgress) -> None:
        state.progress(Event(kind=EventKind.LINE, step="smoke", text=progress_line(told)))

    result = state.result = run(plan, _target(state.ground, state.built), progress=line)
    reached = list(rungs_of(result))
    state.failure = failure_of(result, reached)
    for name in state.job.cell.frameworks:
        trick = FRAMEWORKS[name].import_without_gpu
        if state.failure is not None and trick is not None and trick.needs in state.failure.symptom:
            state.failure = _import_without_gpu(state, FRAMEWORKS[name].module, trick)
    if state.failure is not None:
        ladder = list(Rung)
        if ladder.index(state.failure.rung) > ladder.index(Rung.IMPORTED) and Rung.IMPORTED not in reached:
            reached.append(Rung.IMPORTED)
        reached = [r for r in ladder if r in reached and ladder.index(r) < ladder.index(state.failure.rung)]
        bad = [c.verdict for c in result.cases] + [s.verdict for s in result.steps]
        state.transient = bool(_TRANSIENT & set(bad))
    state.rungs = reached


def _import_without_gpu(state: _Climb, module: str, trick: ImportWithoutGpu) -> Failure:
    """Import the framework as ``trick`` says and return what fails then: that is the cell's own, the rest is left to a host with a GPU."""
    built = state.built
    python = built.python if built else sys.executable
    target = _target(state.ground, built) if built else None
    variables = {**os.environ, **(target.env() if target else {}), **trick.variables}
    try:
        finished = subprocess.run(
            [python, "-I", "-c", f"import {module}"],
            env=variables,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_STEP_PATIENCE,
            check=False,
        )
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


def _anonymous(failure: Failure, slot: Path) -> Failure:
    """Where the cell stood on this machine is nobody's business: ``.`` stands for it."""
    here = str(slot.resolve())
    log = tuple(line.replace(here, ".") for line in failure.log)
    return dataclasses.replace(failure, symptom=failure.symptom.replace(here, "."), log=log)


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")


def _record(state: _Climb, started: str) -> Record:
    result, built = state.result, state.built
    slot = str(state.ground.slot.resolve())
    failure = _anonymous(state.failure, state.ground.slot) if state.failure else None
    return Record(
        cell=state.job.id,
        components=state.job.cell.components,
        lock=state.lock.digest if state.lock else "",
        engine="venv",
        environment=built.digest if built else "",
        rungs=tuple(state.rungs),
        passed=failure is None and Rung.FRAMEWORK_CPU in state.rungs,
        summary=result.summary.replace(slot, ".") if result else (failure.symptom if failure else ""),
        started=started,
        seconds={**state.seconds, **(result.seconds if result else {})},
        host=result.host if result else {},
        loaded=result.loaded if result else {},
        backend=result.backend if result else "",
        ranks=result.ranks if result else 0,
        cases=Cases.of(result.cases, result.digest) if result else Cases(),
        steps=tuple(dataclasses.replace(s, detail=s.detail.replace(slot, ".")) for s in result.steps) if result else (),
        notes=tuple(n.replace(slot, ".") for n in (result.placement, *result.notes) if n) if result else (),
        failure=failure,
        expected=state.job.expected,
        rules=state.job.rules,
        campaign=state.plan.name,
    )
