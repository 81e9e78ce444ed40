"""The executor of a Slurm cluster: one array job through submitit, one cell a task.

What a task achieved is its record in the campaign's folder, which every node sees. Whether a task is still there is asked of ``squeue``, one
question for all tasks: accounting (``sacct``), which submitit itself would ask, is switched off on many clusters.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsmith.errors import EngineError
from envsmith.matrix.campaign.cache import forget_unneeded
from envsmith.matrix.campaign.drive import Handle
from envsmith.matrix.campaign.job import Job
from envsmith.matrix.campaign.local import Command, worker_command
from envsmith.matrix.campaign.state import State

__all__ = ["SlurmExecutor", "SlurmSettings", "work"]

# squeue is asked at most this often, as its manual wishes.
_ASK_SECONDS = 5.0
# A task that was submitted just now may not be listed yet.
_GRACE_SECONDS = 15.0


def work(command: Sequence[str]) -> int:
    """What a task does: the command of one cell, its output in the task's log. The status is the command's own."""
    return subprocess.run(list(command), check=False, stdin=subprocess.DEVNULL).returncode


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmSettings:
    """``cpus`` (default: one a rank), ``minutes`` and ``memory_gib`` are a cell's; ``at_once`` limits the tasks in parallel; ``python`` has envsmith on every node."""

    partition: str | None = None
    cpus: int = 2
    gpus: int | None = None
    minutes: int = 60
    memory_gib: int | None = 8
    at_once: int = 256
    python: str = sys.executable

    @classmethod
    def of(cls, settings: Mapping[str, Any], *, ranks: int) -> SlurmSettings:
        """From the ``executor:`` of a campaign file, already parsed; what is not named keeps its default."""
        settings = {"cpus": ranks, **settings}
        known = {name: settings[name] for name in cls.__dataclass_fields__ if settings.get(name) is not None}
        return cls(**known)


@dataclass(slots=True)
class _Queue:
    """The tasks that Slurm still knows."""

    root: Path
    asked: float = 0.0
    listed: frozenset[str] = frozenset()

    def holds(self, task: str, since: float) -> bool:
        """Whether a task is pending, running or completing."""
        now = time.monotonic()
        if now - self.asked > _ASK_SECONDS:
            with suppress(OSError, subprocess.SubprocessError):
                done = subprocess.run(
                    ["squeue", "--noheader", "--array", "--format=%i", f"--user={os.getuid()}"],
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                # A controller that does not answer says nothing about its tasks.
                if done.returncode == 0:
                    self.listed, self.asked = frozenset(done.stdout.split()), now
        return task in self.listed or now - since < _GRACE_SECONDS or self.asked < since


@dataclass(slots=True)
class _Task:
    job: Any
    queue: _Queue
    since: float = field(default_factory=time.monotonic)

    def done(self) -> bool:
        return bool(self.job.paths.result_pickle.exists()) or not self.queue.holds(self.job.job_id, self.since)

    def why(self) -> str:
        with suppress(OSError):
            lines = self.job.paths.stderr.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            told = next((line for line in reversed(lines) if line.startswith("error")), lines[-1] if lines else "")
            return f"task {self.job.job_id}: {told[:200] or 'no word of it'}"
        return f"task {self.job.job_id}: it never started"

    def cancel(self) -> None:
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["scancel", self.job.job_id], check=False, timeout=60, capture_output=True)


@dataclass(slots=True)
class SlurmExecutor:
    """Hands over all jobs there are; how many run at once is the cluster's business."""

    settings: SlurmSettings
    name_of_campaign: str
    command: Command = worker_command
    _queue: _Queue | None = None

    @property
    def name(self) -> str:
        """``slurm``."""
        return "slurm"

    def room(self, running: int) -> int:
        """See :class:`envsmith.matrix.campaign.drive.Executor`; Slurm limits an array to about a thousand tasks."""
        return max(0, 1000 - running)

    def why_waiting(self) -> str:
        """See :class:`envsmith.matrix.campaign.drive.Executor`."""
        return ""

    def submit(self, state: State, jobs: Sequence[Job]) -> Sequence[Handle]:
        """One array job. ``EngineError`` when Slurm or submitit is not there, or refuses."""
        try:
            import submitit
        except ImportError:
            raise EngineError("submitit is not installed", hint="pip install 'envsmith[slurm]'") from None
        queue = self._queue = self._queue or _Queue(state.root)
        commands = [self.command(state, job, self.settings.python) for job in jobs]
        try:
            executor = submitit.SlurmExecutor(folder=state.root / "slurm", python=self.settings.python)
            executor.update_parameters(**self._parameters())
            tasks = executor.map_array(work, commands)
        except (RuntimeError, OSError, subprocess.SubprocessError, submitit.core.utils.FailedJobError) as error:
            raise EngineError(
                f"Slurm does not take the campaign: {error}", hint="try sinfo and sbatch by hand"
            ) from None
        return [_Task(task, queue) for task in tasks]

    def _parameters(self) -> dict[str, Any]:
        asked = self.settings
        found: dict[str, Any] = {
            "job_name": f"envsmith-{self.name_of_campaign}",
            "time": asked.minutes,
            "array_parallelism": asked.at_once,
            "ntasks_per_node": 1,
            "cpus_per_task": max(1, asked.cpus),
            "nodes": 1,
        }
        if asked.partition:
            found["partition"] = asked.partition
        if asked.gpus:
            found["gpus_per_node"] = asked.gpus
        if asked.memory_gib:
            found["mem"] = f"{asked.memory_gib}GB"
        return found

    def tidy(self, state: State, left: Sequence[Job]) -> None:
        """See :class:`envsmith.matrix.campaign.drive.Executor`."""
        forget_unneeded(state, left)
