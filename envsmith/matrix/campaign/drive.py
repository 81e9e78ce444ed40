"""Keeps an executor busy until every job of a plan has its record, or nothing more can be done now."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from envsmith.errors import EnvsmithError, NetworkError, StorageError
from envsmith.matrix.campaign.job import Job, Plan
from envsmith.matrix.campaign.state import State

__all__ = ["Executor", "Handle", "Tally", "drive", "run_one"]

# A cell whose worker died twice in one run is left for the next: something kills it.
_TRIES = 2


class Handle(Protocol):
    """A job that was handed to an executor."""

    def done(self) -> bool:
        """True when its worker has ended, one way or another."""

    def why(self) -> str:
        """What a worker that left no record said last."""

    def cancel(self) -> None:
        """End the worker."""


class Executor(Protocol):
    """Where jobs run: this machine, a cluster. What a job achieved is in the campaign's folder, nowhere else."""

    @property
    def name(self) -> str:
        """``local``, ``slurm``."""

    def room(self, running: int) -> int:
        """How many jobs may be handed over now, with ``running`` under way; 0 while the limits forbid."""

    def why_waiting(self) -> str:
        """The limit that forbids."""

    def submit(self, state: State, jobs: Sequence[Job]) -> Sequence[Handle]:
        """Start ``jobs``, one handle each."""

    def tidy(self, state: State, left: Sequence[Job]) -> None:
        """Throw away what none of ``left`` needs any more (the wheels of a torch whose cells are all done)."""


@dataclass(slots=True)
class Tally:
    """How far a campaign is; ``seconds`` since this run began."""

    total: int
    done: int = 0
    before: int = 0
    running: tuple[str, ...] = ()
    lost: dict[str, str] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()
    seconds: float = 0.0
    note: str = ""

    @property
    def remaining_seconds(self) -> float | None:
        """An estimate from what this run has done; ``None`` before its first cell."""
        made = self.done - self.before
        return None if made <= 0 else self.seconds / made * (self.total - self.done)


def run_one(state: State, plan: Plan, job: Job, *, progress: Callable[[str], None] = lambda _line: None) -> Path | None:
    """Run one job here and write its record; ``None`` when it is done already or somebody else is at it."""
    from envsmith.engine.base import Event, EventKind
    from envsmith.matrix.campaign.climb import Ground, climb
    from envsmith.matrix.records import put_record

    def told(event: Event) -> None:
        took = f" {event.seconds:.1f} s" if event.seconds is not None else ""
        mark = {EventKind.START: " ...", EventKind.DONE: " done", EventKind.FAILED: " failed"}.get(event.kind, "")
        progress(f"{event.step}{mark}{took} {event.text}".strip())

    with state.claim(job) as mine:
        if not mine or state.is_done(job):
            return None
        with state.slot() as slot:
            record = climb(job, plan, Ground(slot=slot, cache=state.cache), progress=told)
            return put_record(state.records, record)


def drive(
    state: State,
    plan: Plan,
    executor: Executor,
    *,
    jobs: Sequence[Job],
    tell: Callable[[Tally, str], None],
    poll: float = 0.5,
) -> Tally:
    """Run ``jobs``; ``tell`` is called whenever something changed, with one line of news.

    A cell that fails is a record; a worker that dies loses its cell, which is tried once more. On Ctrl-C the workers are ended.
    """
    began = time.monotonic()
    ordered = list(jobs)
    finished = state.done()
    waiting = [job for job in ordered if job.id not in finished]
    tally = Tally(total=len(ordered), done=len(ordered) - len(waiting), before=len(ordered) - len(waiting))
    tries: dict[str, int] = {}
    running: dict[str, tuple[Job, Handle]] = {}
    try:
        while waiting or running:
            _reap(state, running, waiting, tries, tally, tell)
            _start(state, executor, running, waiting, tries, tally, tell)
            tally.seconds = time.monotonic() - began
            executor.tidy(state, [*waiting, *(job for job, _ in running.values())])
            if waiting or running:
                time.sleep(poll)
    except BaseException:
        for _, handle in running.values():
            handle.cancel()
        raise
    tally.seconds = time.monotonic() - began
    return tally


def _reap(
    state: State,
    running: dict[str, tuple[Job, Handle]],
    waiting: list[Job],
    tries: dict[str, int],
    tally: Tally,
    tell: Callable[[Tally, str], None],
) -> None:
    ended = [name for name, (_, handle) in running.items() if handle.done()]
    if not ended:
        return
    finished = state.done()
    for name in ended:
        job, handle = running.pop(name)
        tally.running = tuple(running)
        if name in finished:
            tally.done += 1
            tell(tally, _news(finished[name]))
        elif tries[name] < _TRIES:
            waiting.insert(0, job)
            tell(tally, f"{name}: its worker left no record ({handle.why()}); it is run again")
        else:
            tally.lost[name] = handle.why()
            tell(tally, f"{name}: lost twice ({handle.why()}); left for the next run")


def _start(
    state: State,
    executor: Executor,
    running: dict[str, tuple[Job, Handle]],
    waiting: list[Job],
    tries: dict[str, int],
    tally: Tally,
    tell: Callable[[Tally, str], None],
) -> None:
    room = executor.room(len(running)) if waiting else 0
    note = executor.why_waiting() if waiting and not room and not running else ""
    if note != tally.note:
        tally.note = note
        if note:
            tell(tally, note)
    chosen: list[Job] = []
    finished = state.done() if room else {}
    while waiting and len(chosen) < room:
        job = waiting.pop(0)
        if job.id in finished:
            tally.done += 1
        elif state.claimed(job):
            # Another campaign in this folder is at it; its record, or its death, will show.
            waiting.append(job)
            if all(state.claimed(j) for j in waiting):
                break
        else:
            chosen.append(job)
    for job, handle in zip(chosen, executor.submit(state, chosen) if chosen else (), strict=True):
        tries[job.id] = tries.get(job.id, 0) + 1
        running[job.id] = (job, handle)
    tally.running = tuple(running)


def _news(path: Path) -> str:
    """One line on a record that has just been written."""
    import json

    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        failure = value.get("failure") or {}
        how = "passed" if value["passed"] else f"failed at {failure.get('rung', '?')}: {failure.get('symptom', '')}"
        flaky = " (flaky)" if value["passed"] and value.get("earlier") else ""
        odd = "" if value["passed"] == (value["expected"] != "bad") else f" -- expected {value['expected']}"
        return f"{value['cell']}: {how}{flaky}{odd}"
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return f"{path.name}: written"


def excused(error: EnvsmithError) -> bool:
    """A failure that says something of the machine, not of the cell."""
    return isinstance(error, (NetworkError, StorageError))
