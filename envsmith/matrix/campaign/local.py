"""The executor of this machine: one process a cell, within limits of disk and memory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.matrix.campaign.cache import forget_unneeded
from envsmith.matrix.campaign.drive import Handle
from envsmith.matrix.campaign.job import Job
from envsmith.matrix.campaign.state import State

__all__ = ["Command", "LocalExecutor", "available_memory", "worker_command"]

_GIB = 1 << 30
# State, job and interpreter -> what runs the job.
Command = Callable[[State, Job, str], list[str]]


def worker_command(state: State, job: Job, python: str) -> list[str]:
    """What runs one job of a campaign, anywhere its folder can be seen."""
    return [python, "-m", "envsmith", "matrix", "run", "--state", str(state.root), "--only", job.id, "--here"]


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    log: Path

    def done(self) -> bool:
        return self.process.poll() is not None

    def why(self) -> str:
        with suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            told = next((line for line in reversed(lines) if line.startswith("error")), lines[-1] if lines else "")
            return f"status {self.process.returncode}: {told[:200]}"
        return f"status {self.process.returncode}"

    def cancel(self) -> None:
        """Politely, so that uv and the ranks end too; what does not listen is killed."""
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
    _waiting: str = ""

    @property
    def name(self) -> str:
        """``local``."""
        return "local"

    def room(self, running: int) -> int:
        """See :class:`envsmith.matrix.campaign.drive.Executor`."""
        disk, memory = shutil.disk_usage(self.root).free, available_memory()
        self._waiting = ""
        if disk < self.free_disk:
            self._waiting = f"waiting: {disk / _GIB:.1f} GiB of disk are free, {self.free_disk / _GIB:.0f} are kept"
        elif memory is not None and memory < self.free_memory:
            self._waiting = (
                f"waiting: {memory / _GIB:.1f} GiB of memory are free, {self.free_memory / _GIB:.0f} are kept"
            )
        # One at a time is handed over, so that the limits are looked at before each.
        return 0 if self._waiting or running >= self.jobs else 1

    def why_waiting(self) -> str:
        """See :class:`envsmith.matrix.campaign.drive.Executor`."""
        return self._waiting

    def submit(self, state: State, jobs: Sequence[Job]) -> Sequence[Handle]:
        """See :class:`envsmith.matrix.campaign.drive.Executor`."""
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

    def tidy(self, state: State, left: Sequence[Job]) -> None:
        """Remove a torch's wheels from the cache as soon as no cell needs them; they are the bulk of it."""
        needed = {job.cell.components["torch"] for job in left}
        if needed != self._needed:
            self._needed = needed
            forget_unneeded(state, left)


def available_memory() -> int | None:
    """Bytes that can be had without swapping (``MemAvailable``); ``None`` where the kernel does not tell."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None
