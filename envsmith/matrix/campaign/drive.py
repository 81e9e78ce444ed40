"""Keeps an executor busy until every job of a plan has its record, or nothing more can be done now."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from envsmith.errors import DataError
from envsmith.matrix.campaign.job import CampaignJob
from envsmith.matrix.campaign.state import CampaignState
from envsmith.model.record import Expected, Record, put_record, read_record

# A cell whose worker died twice in one run is left for the next: something kills it.
_TRIES = 2


class Handle(Protocol):
    """A job that was handed to an executor."""

    def done(self) -> bool:
        """Return whether its worker has ended, one way or another."""

    def why(self) -> str:
        """Return what a worker that left no record said last."""

    def cancel(self) -> None:
        """End the worker."""


class Executor(Protocol):
    """Where jobs run: this machine, a cluster. What a job achieved is in the campaign's folder, nowhere else."""

    @property
    def name(self) -> str:
        """Return ``local`` or ``slurm``."""

    def room(self, running: int) -> int:
        """Return how many jobs may be handed over now, with ``running`` under way: 0 while the limits forbid."""

    def why_waiting(self) -> str:
        """Return the limit that forbids."""

    def submit(self, state: CampaignState, jobs: Sequence[CampaignJob]) -> Sequence[Handle]:
        """Start ``jobs``, one handle each."""

    def tidy(self, state: CampaignState, jobs: Sequence[CampaignJob]) -> None:
        """Throw away what none of ``jobs`` needs any more (the wheels of a torch whose cells are all done)."""


@dataclass(slots=True)
class Tally:
    """How far a campaign is; ``seconds`` since this run began."""

    total: int
    done: int = 0
    before: int = 0
    running: tuple[str, ...] = ()
    lost: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    note: str = ""

    @property
    def remaining_seconds(self) -> float | None:
        """Return an estimate from what this run has done, or ``None`` before its first cell."""
        count = self.done - self.before
        return None if count <= 0 else self.seconds / count * (self.total - self.done)


def run_one(state: CampaignState, job: CampaignJob, climb: Callable[[Path], Record]) -> Path | None:
    """Run one job here and write its record, or return ``None`` when it is done or another process runs it."""
    with state.claim(job) as mine:
        if not mine or state.is_done(job):
            return None
        with state.slot() as slot:
            return put_record(state.records, climb(slot), cell=slot)


def drive(
    state: CampaignState,
    executor: Executor,
    *,
    jobs: Sequence[CampaignJob],
    tell: Callable[[Tally, str], None],
    poll: float = 0.5,
) -> Tally:
    """Run ``jobs`` in their order. ``tell`` is called whenever something changed, with one line of news.

    A cell that fails is a record. A worker that dies loses its cell, which is tried once more. On Ctrl-C the workers
    are ended.
    """
    began = time.monotonic()
    finished = state.done()
    waiting = [job for job in jobs if job.id not in finished]
    before = len(jobs) - len(waiting)
    run = _Drive(state, executor, waiting, Tally(total=len(jobs), done=before, before=before), tell)
    try:
        while run.waiting or run.running:
            run.tally.seconds = time.monotonic() - began
            run.reap()
            run.start()
            executor.tidy(state, [*run.waiting, *(job for job, _ in run.running.values())])
            if run.waiting or run.running:
                time.sleep(poll)
    except BaseException:
        for _, handle in run.running.values():
            handle.cancel()
        raise
    run.tally.seconds = time.monotonic() - began
    return run.tally


@dataclass(slots=True)
class _Drive:
    """One run of :func:`drive`."""

    state: CampaignState
    executor: Executor
    waiting: list[CampaignJob]
    tally: Tally
    tell: Callable[[Tally, str], None]
    running: dict[str, tuple[CampaignJob, Handle]] = field(default_factory=dict)
    tries: dict[str, int] = field(default_factory=dict)

    def reap(self) -> None:
        """Take up what has ended: a record, or a worker that left none."""
        ended = [name for name, (_, handle) in self.running.items() if handle.done()]
        finished = self.state.done() if ended else {}
        for name in ended:
            job, handle = self.running.pop(name)
            self.tally.running = tuple(self.running)
            if name in finished:
                self.tally.done += 1
                self.tell(self.tally, _news(finished[name]))
            elif self.tries[name] < _TRIES:
                self.waiting.insert(0, job)
                self.tell(self.tally, f"{name}: its worker left no record ({handle.why()}); it is run again")
            else:
                self.tally.lost[name] = handle.why()
                self.tell(self.tally, f"{name}: lost twice ({handle.why()}); left for the next run")

    def start(self) -> None:
        """Hand over as many jobs as there is room for."""
        room = self.executor.room(len(self.running)) if self.waiting else 0
        note = self.executor.why_waiting() if self.waiting and not room and not self.running else ""
        if bool(note) != bool(self.tally.note):  # the figures in it change all the time
            self.tell(self.tally, note or "going on")
        self.tally.note = note
        chosen = self._free(room) if room else []
        for job, handle in zip(chosen, self.executor.submit(self.state, chosen) if chosen else (), strict=True):
            self.tries[job.id] = self.tries.get(job.id, 0) + 1
            self.running[job.id] = (job, handle)
        self.tally.running = tuple(self.running)

    def _free(self, room: int) -> list[CampaignJob]:
        """Return the next jobs that have no record and that no other process holds."""
        finished = self.state.done()
        before = len(self.waiting)
        self.waiting = [job for job in self.waiting if job.id not in finished]
        self.tally.done += before - len(self.waiting)
        chosen: list[CampaignJob] = []
        for job in list(self.waiting):
            if len(chosen) >= room:
                break
            if not self.state.claimed(job):
                chosen.append(job)
                self.waiting.remove(job)
        return chosen


def _news(path: Path) -> str:
    """Return one line on a record that has just been written."""
    try:
        record = read_record(path.name, path.read_bytes())
    except (OSError, DataError):
        return f"{path.name}: written"
    failure, expected = record.failure, record.expected
    outcome = (
        f"failed at {failure.rung.value}: {failure.symptom}" if failure else "passed" if record.passed else "failed"
    )
    same = record.passed == (expected is not Expected.BAD) or (failure and failure.of_host)
    odd = "" if same else f" -- expected {expected.value if expected else None}"
    return f"{record.cell}: {outcome}{' (flaky)' if record.flaky else ''}{odd}"
