"""Where the jobs of a campaign run: on this machine, in the tasks of a Slurm cluster, in the jobs of GitHub Actions."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsmith.agent.machine import memory_info
from envsmith.base.files import open_regular
from envsmith.base.programs import Kept, execute
from envsmith.errors import EngineError
from envsmith.matrix.campaign.drive import Handle, State, forget_unneeded
from envsmith.matrix.campaign.job import Job, Plan, Settings
from envsmith.model import plain

_GIB = 1 << 30
# State, job and interpreter -> what runs the job.
Command = Callable[[State, Job, str], list[str]]


def worker_command(state: State, job: Job, python: str) -> list[str]:
    """Return what runs one job of a campaign, anywhere its folder can be seen."""
    return [python, "-m", "envsmith", "matrix", "run", "--state", str(state.root), "--only", job.id, "--here"]


def _last_words(log: Path) -> str | None:
    """Return the last error of a worker's log, or its last line, or ``None`` without a log."""
    output = Kept(1 << 20)
    try:
        with open_regular(log) as file:
            output.drain(file)
    except OSError:
        return None
    lines = output.text.strip().splitlines()
    return next((line for line in reversed(lines) if line.startswith("error")), lines[-1] if lines else "")[:200]


# -- this machine: one process a cell, within limits of disk and memory ------------------------------------------------


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    log: Path

    def done(self) -> bool:
        return self.process.poll() is not None

    def why(self) -> str:
        words = _last_words(self.log)
        return f"status {self.process.returncode}" + ("" if words is None else f": {words}")

    def cancel(self) -> None:
        """End it politely, so that uv and the ranks end too. What does not listen is killed."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


@dataclass(slots=True)
class LocalExecutor:
    """``jobs`` cells at once; none is started below ``free_disk`` or ``free_memory`` bytes."""

    jobs: int = 1
    free_disk: int = 15 * _GIB
    free_memory: int = 3 * _GIB
    root: Path = field(default_factory=Path)
    command: Command = worker_command
    _needed: set[str] | None = None

    @property
    def name(self) -> str:
        """Return ``local``."""
        return "local"

    def room(self, running: int) -> int:
        """Return 1 while the limits allow another job: they are looked at before each."""
        return 0 if self.why_waiting() or running >= self.jobs else 1

    def why_waiting(self) -> str:
        """Return the limit of disk or memory that forbids another job."""
        disk, memory = shutil.disk_usage(self.root).free, memory_info().get("MemAvailable")
        if disk < self.free_disk:
            return f"waiting: {disk / _GIB:.1f} GiB of disk are free, {self.free_disk / _GIB:.0f} are kept"
        if memory is not None and memory < self.free_memory:
            return f"waiting: {memory / _GIB:.1f} GiB of memory are free, {self.free_memory / _GIB:.0f} are kept"
        return ""

    def submit(self, state: State, jobs: Sequence[Job]) -> Sequence[Handle]:
        """Start a process for each job."""
        return [self._start(state, job) for job in jobs]

    def _start(self, state: State, job: Job) -> _Worker:
        log = state.log(job)
        with log.open("ab") as file:
            process = subprocess.Popen(
                self.command(state, job, sys.executable),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return _Worker(process, log)

    def tidy(self, state: State, jobs: Sequence[Job]) -> None:
        """Remove a torch's wheels from the cache as soon as no cell needs them. They are the bulk of it."""
        needed = {job.cell.components["torch"] for job in jobs}
        if needed != self._needed:
            self._needed = needed
            forget_unneeded(state, jobs)


# -- a Slurm cluster: one array job through submitit, one cell a task --------------------------------------------------
#
# What a task achieved is its record in the campaign's folder, which every node sees. Whether a task is still there is
# asked of ``squeue``, one question for all tasks: accounting (``sacct``), which submitit itself would ask, is switched
# off on many clusters.

# squeue is asked at most this often, as its manual wishes.
_ASK_SECONDS = 5.0
# A task that was submitted just now may not be listed yet.
_GRACE_SECONDS = 15.0


def work(command: Sequence[str]) -> int:
    """Run the command of one cell as a task does, its output in the task's log. Return the command's status."""
    return subprocess.run(list(command), check=False, stdin=subprocess.DEVNULL).returncode


@dataclass(slots=True)
class _Queue:
    """The tasks that Slurm still knows, and when it was last asked."""

    moment: float = 0.0
    listed: frozenset[str] = frozenset()

    def holds(self, task: str, since: float) -> bool:
        """Return whether a task is pending, running or completing."""
        now = time.monotonic()
        if now - self.moment > _ASK_SECONDS:
            with suppress(OSError, subprocess.SubprocessError):
                question = ["squeue", "--noheader", "--array", "--format=%i", f"--user={os.getuid()}"]
                answer = execute(question, seconds=60)
                # A controller that does not answer says nothing about its tasks.
                if answer.returncode == 0:
                    self.listed, self.moment = frozenset(answer.stdout.split()), now
        return task in self.listed or now - since < _GRACE_SECONDS or self.moment < since


@dataclass(slots=True)
class _Task:
    job: Any
    queue: _Queue
    since: float = field(default_factory=time.monotonic)

    def done(self) -> bool:
        return bool(self.job.paths.result_pickle.exists()) or not self.queue.holds(self.job.job_id, self.since)

    def why(self) -> str:
        words = _last_words(self.job.paths.stderr)
        return f"task {self.job.job_id}: " + ("it never started" if words is None else words or "no word of it")

    def cancel(self) -> None:
        with suppress(OSError, subprocess.SubprocessError):
            execute(["scancel", self.job.job_id], seconds=60)


@dataclass(slots=True)
class SlurmExecutor:
    """Hands over all jobs there are; how many run at once is the cluster's business."""

    settings: Settings
    name_of_campaign: str
    ranks: int
    command: Command = worker_command
    _queue: _Queue = field(default_factory=_Queue)

    @property
    def name(self) -> str:
        """Return ``slurm``."""
        return "slurm"

    def room(self, running: int) -> int:
        """Return what is left of about a thousand tasks, the limit that Slurm sets to an array."""
        return max(0, 1000 - running)

    def why_waiting(self) -> str:
        """Return nothing: how many jobs run at once is the cluster's business."""
        return ""

    def submit(self, state: State, jobs: Sequence[Job]) -> Sequence[Handle]:
        """Submit one array job. ``EngineError`` when Slurm or submitit is not there, or refuses."""
        try:
            import submitit
        except ImportError:
            raise EngineError(
                "Cannot run on Slurm: submitit is not installed.", hint="Install it: pip install 'envsmith[slurm]'."
            ) from None
        python = self.settings.python or plain.line(sys.executable)
        commands = [self.command(state, job, python) for job in jobs]
        folder = Path(plain.line(str(state.root / "slurm")))
        try:
            executor = submitit.SlurmExecutor(folder=folder, python=shlex.quote(python))
            executor.update_parameters(**self._parameters())
            tasks = executor.map_array(work, commands)
        except (RuntimeError, OSError, subprocess.SubprocessError, submitit.core.utils.FailedJobError) as error:
            raise EngineError(
                f"Cannot send the campaign to Slurm: {error}.", hint="Try sinfo and sbatch by hand."
            ) from None
        return [_Task(task, self._queue) for task in tasks]

    def _parameters(self) -> dict[str, Any]:
        settings = self.settings
        parameters = {
            "job_name": f"envsmith-{self.name_of_campaign}",
            "time": settings.minutes,
            "array_parallelism": settings.at_once,
            "ntasks_per_node": 1,
            "cpus_per_task": settings.cpus or self.ranks,
            "nodes": 1,
            "partition": settings.partition,
            "gpus_per_node": settings.gpus,
            "mem": f"{settings.memory_gib}GB" if settings.memory_gib else None,
        }
        return {name: value for name, value in parameters.items() if value}

    def tidy(self, state: State, jobs: Sequence[Job]) -> None:
        """Remove the caches that none of ``jobs`` needs."""
        forget_unneeded(state, jobs)


# -- GitHub Actions: one cell a job; results come back through ``envsmith matrix merge`` -------------------------------


def listing(plan: Plan) -> dict[str, Any]:
    """Return a plan as ``strategy.matrix``: ``{"jobs": [...], "left_out": [...]}``, each job an entry for ``include``.

    GitHub takes 256 entries in one matrix: who has more splits the campaign file or uses ``take:``.
    """
    jobs = [
        {
            "cell": job.id,
            "python": job.cell.components["python"],
            "torch": job.cell.components["torch"],
            "framework": job.cell.frameworks[0] if job.cell.frameworks else "",
            "expected": job.expected.value,
            "rules": " ".join(job.rules),
            "why": job.why,
        }
        for job in plan.jobs
    ]
    return {"jobs": jobs, "left_out": [list(pair) for pair in plan.left_out]}
