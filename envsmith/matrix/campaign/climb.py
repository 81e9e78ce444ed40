"""One job: a cell climbs the ladder as far as it comes, and its record is made.

locked -> installed -> imported -> collectives -> framework step. What fails ends the climb and is reported as a user would
see it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import write_whole
from envsmith.base.programs import execute
from envsmith.base.progress import EventKind, Progress, ProgressEvent, silent
from envsmith.builder.engines.base import Built
from envsmith.builder.engines.venv import realise
from envsmith.builder.proof import RecordSubject, make_record, refuse_fault_of_host
from envsmith.errors import EnvsmithError, is_of_the_system
from envsmith.frameworks import FRAMEWORKS
from envsmith.frameworks.framework import ImportWithoutGpu
from envsmith.lock.index.archives import parse_wish, read_archive
from envsmith.lock.index.uv import Uv
from envsmith.lock.pip_files import layer_text
from envsmith.lock.resolve import Beside, Resolver, lock_pip
from envsmith.matrix.campaign.composer import without
from envsmith.matrix.campaign.job import CampaignJob, CampaignPlan
from envsmith.model.cell import Cell
from envsmith.model.finding import Judgement
from envsmith.model.lock import Compile, Lock
from envsmith.model.record import Expected, Failure, Record, Rung, Verdict
from envsmith.net.http import HttpClient
from envsmith.smoke.failure import failure_of
from envsmith.smoke.ladder import proved_rungs
from envsmith.smoke.plan import Plan as SmokePlan
from envsmith.smoke.plan import Timeouts
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.run import SmokeProgress, run
from envsmith.solver import check, constraints_for, default_solver

# Verdicts that a busy machine can cause; what Python itself raised does not change by waiting.
_TRANSIENT = frozenset({Verdict.HANG.value, Verdict.CRASH.value, Verdict.NOT_RUN.value})
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
        """Return the campaign's uv with its cache, or the one of a torch release. Files are linked, not copied.

        A release's wheels take five to eight gigabytes unpacked: they are thrown away with the folder when no cell
        needs them.
        """
        folder = self.cache / "uv" if torch is None else self.cache / "torch" / torch
        environ = {**os.environ, **self.compilers(), "UV_LINK_MODE": "hardlink"}
        return Uv(environ=environ, cache=folder, offline=self.offline)

    def compilers(self, *first: str) -> dict[str, str]:
        """Return the variables with which a source compiles once per torch where there is ccache, ``first`` on PATH."""
        path, folder = [*first, os.environ.get("PATH", os.defpath)], ccache_folder()
        variables = {}
        if folder is not None:
            path.insert(len(first), str(folder))
            variables = {
                "CCACHE_DIR": str(self.cache / "ccache"),
                "CCACHE_BASEDIR": os.path.commonpath([self.slot, self.cache]),
                "CCACHE_NOHASHDIR": "1",
                "CCACHE_COMPILERCHECK": "content",
                "CCACHE_MAXSIZE": "1G",
            }
        return {**variables, "PATH": os.pathsep.join(path)}


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
            lock = _lock(job, plan, ground, progress)
        subject, rungs = dataclasses.replace(subject, lock=lock.digest), (*rungs, Rung.LOCKED)
        with _step("install", Rung.INSTALLED, seconds, progress):
            built = _install(lock, ground, progress)
        subject, rungs = dataclasses.replace(subject, environment=built.digest), (*rungs, Rung.INSTALLED)
        with _step("smoke", Rung.IMPORTED, seconds, progress):
            target = _target(ground, built)
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
    progress(ProgressEvent(kind=EventKind.START, step=name))
    try:
        yield
    except EnvsmithError as error:
        if is_of_the_system(error):
            raise
        raise _EndError(Failure(rung=rung, symptom=_symptom(error), log=error.details)) from error
    finally:
        seconds[name] = time.monotonic() - began
    progress(ProgressEvent(kind=EventKind.DONE, step=name, seconds=seconds[name]))


def _symptom(error: EnvsmithError) -> str:
    """Return the line that a user would search for: the last that names an error, else our own sentence."""
    named = [line.strip() for line in error.details if "Error" in line or "error:" in line]
    return f"{error.message} {named[-1]}" if named else error.message


def _lock(job: CampaignJob, plan: CampaignPlan, ground: Ground, progress: Progress) -> Lock:
    """Lock the cell under every rule but those that it breaks on purpose."""
    solver = without(default_solver(), frozenset(job.rules) if job.expected is Expected.BAD else frozenset())

    def judge(cell: Cell, components: Mapping[str, str]) -> Judgement:
        return check(components, cell.platform, keep=tuple(cell.components), solver=solver)

    return lock_pip(
        job.cell,
        request=f"matrix run {plan.name}",
        exclude_newer=plan.exclude_newer,
        beside=Beside(constraints=constraints_for(job.cell, solver=solver)),
        compile=_archives_of(job, plan, ground),
        resolver=Resolver(uv=ground.uv(), judge=judge),
        progress=progress,
    )


def _archives_of(job: CampaignJob, plan: CampaignPlan, ground: Ground) -> Compile:
    """Return the archives of the campaign that are releases of this cell's components."""
    fetcher = HttpClient(offline=ground.offline)
    wishes = [parse_wish(text) for text in plan.sources]
    archives = (read_archive(wish, fetcher) for wish in wishes if wish.name in job.cell.components)
    return Compile(archives=tuple(a for a in archives if a.version == job.cell.components[a.name]))


def _install(lock: Lock, ground: Ground, progress: Progress) -> Built:
    # Operators of another cell must not be taken for this one's.
    shutil.rmtree(ground.slot / "torch-extensions", ignore_errors=True)
    torch = lock.cell.components["torch"]
    with _first_alone(ground.cache / "torch" / torch, lock):
        return realise(lock, ground.slot, progress=progress, uv=ground.uv(), torch_uv=ground.uv(torch))


@contextmanager
def _first_alone(cache: Path, lock: Lock) -> Iterator[None]:
    """Let the first of the cells with one torch layer fetch it alone.

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
        write_whole(ready, "")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Target:
    """The cell's interpreter, writing byte-code: the environment is the campaign's own."""

    python: Path
    variables: Mapping[str, str]

    def argv(self, args: Sequence[str]) -> list[str]:
        return [str(self.python), *(a for a in args if a != "-B")]

    def env(self) -> Mapping[str, str]:
        return self.variables

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()


def _target(ground: Ground, built: Built) -> _Target:
    """Return the cell's interpreter."""
    variables = {"TORCH_EXTENSIONS_DIR": str(ground.slot / "torch-extensions")}
    variables |= ground.compilers(str(Path(built.python).parent))
    return _Target(python=Path(built.python), variables=variables)


def ccache_folder() -> Path | None:
    """Return the folder in which ``c++`` and ``g++`` are ccache, where there is one."""
    for folder in ("/usr/lib/ccache", "/usr/lib64/ccache"):
        if Path(folder, "c++").exists():
            return Path(folder)
    return None


def _smoke(job: CampaignJob, plan: CampaignPlan, built: Built, target: _Target, progress: Progress) -> SmokeResult:
    smoke = SmokePlan.build(job.cell, tier=plan.tier, ranks=plan.ranks).with_(image=built.digest)
    steps = tuple(dataclasses.replace(step, deadline=max(step.deadline, _STEP_PATIENCE)) for step in smoke.steps)

    def line(now: SmokeProgress) -> None:
        progress(ProgressEvent(kind=EventKind.LINE, step="smoke", text=now.line))

    result = run(smoke.with_(timeouts=Timeouts(**_PATIENCE), steps=steps), target, progress=line)
    refuse_fault_of_host(result)
    return result


def _reached(job: CampaignJob, result: SmokeResult, target: _Target) -> tuple[tuple[Rung, ...], Failure | None]:
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


def _import_without_gpu(target: _Target, module: str, trick: ImportWithoutGpu) -> Failure:
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
