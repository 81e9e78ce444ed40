"""A campaign on this machine: one process a cell, within limits of disk and memory."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.agent.machine import memory_info
from envsmith.base.programs import end, start
from envsmith.matrix.campaign.drive import Handle
from envsmith.matrix.campaign.job import CampaignJob
from envsmith.matrix.campaign.state import CampaignState, forget_unneeded
from envsmith.matrix.campaign.worker import Command, last_words, worker_command

_GIB = 1 << 30


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    log: Path

    def done(self) -> bool:
        if self.process.poll() is None:
            return False
        end(self.process)
        return True

    def why(self) -> str:
        words = last_words(self.log)
        return f"status {self.process.returncode}" + ("" if words is None else f": {words}")

    def cancel(self) -> None:
        """End it politely, so that uv and the ranks end too. What does not listen is killed."""
        end(self.process, signals=(signal.SIGTERM, signal.SIGKILL), patience=20.0)


@dataclass(slots=True)
class LocalExecutor:
    """``jobs`` cells at once; none is started below ``free_disk`` or ``free_memory`` bytes."""

    name = "local"
    jobs: int = 1
    free_disk: int = 15 * _GIB
    free_memory: int = 3 * _GIB
    root: Path = field(default_factory=Path)
    command: Command = worker_command
    _needed: set[str] | None = None

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

    def submit(self, state: CampaignState, jobs: Sequence[CampaignJob]) -> Sequence[Handle]:
        """Start a process for each job."""
        return [self._start(state, job) for job in jobs]

    def _start(self, state: CampaignState, job: CampaignJob) -> _Worker:
        log = state.log(job)
        with log.open("ab") as file:
            process = start(
                self.command(state, job, sys.executable),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        return _Worker(process, log)

    def tidy(self, state: CampaignState, jobs: Sequence[CampaignJob]) -> None:
        """Remove a torch's wheels from the cache as soon as no cell needs them. They are the bulk of it."""
        needed = {job.cell.components["torch"] for job in jobs}
        if needed != self._needed:
            self._needed = needed
            forget_unneeded(state, jobs)
