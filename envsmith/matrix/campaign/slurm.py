"""A campaign on a Slurm cluster: one array job through submitit, one cell a task.

What a task achieved is its record in the campaign's folder, which every node sees. Whether a task is still there is
asked of ``squeue``, one question for all tasks: accounting (``sacct``), which submitit itself would ask, is switched
off on many clusters.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsmith.base.about import command_for
from envsmith.base.json_types import JsonDict
from envsmith.base.programs import execute
from envsmith.errors import EngineError
from envsmith.matrix.campaign.drive import Handle
from envsmith.matrix.campaign.job import CampaignJob, CampaignSettings
from envsmith.matrix.campaign.state import CampaignState, forget_unneeded
from envsmith.matrix.campaign.worker import Command, last_words, worker_command
from envsmith.model import plain

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
        words = last_words(self.job.paths.stderr)
        return f"task {self.job.job_id}: " + ("it never started" if words is None else words or "no word of it")

    def cancel(self) -> None:
        with suppress(OSError, subprocess.SubprocessError):
            execute(["scancel", self.job.job_id], seconds=60)


@dataclass(slots=True)
class SlurmExecutor:
    """Hands over all jobs there are; how many run at once is the cluster's business."""

    name = "slurm"
    settings: CampaignSettings
    name_of_campaign: str
    ranks: int
    command: Command = worker_command
    _queue: _Queue = field(default_factory=_Queue)

    def room(self, running: int) -> int:
        """Return what is left of about a thousand tasks, the limit that Slurm sets to an array."""
        return max(0, 1000 - running)

    def why_waiting(self) -> str:
        """Return nothing: how many jobs run at once is the cluster's business."""
        return ""

    def submit(self, state: CampaignState, jobs: Sequence[CampaignJob]) -> Sequence[Handle]:
        """Submit one array job. ``EngineError`` when Slurm or submitit is not there, or refuses."""
        try:
            import submitit
        except ImportError:
            raise EngineError(
                "Cannot run on Slurm: submitit is not installed.", hint=f"Install it: {command_for('slurm')}."
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

    def _parameters(self) -> JsonDict:
        settings = self.settings
        parameters: JsonDict = {
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

    def tidy(self, state: CampaignState, jobs: Sequence[CampaignJob]) -> None:
        """Remove the caches that none of ``jobs`` needs."""
        forget_unneeded(state, jobs)
