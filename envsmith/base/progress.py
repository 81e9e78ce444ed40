"""What is announced while something runs: events, and the clock that announces steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum


class EventKind(str, Enum):
    """What an event says about its step."""

    START = "start"
    LINE = "line"
    DONE = "done"
    CACHED = "cached"
    FAILED = "failed"
    NOTE = "note"
    WARNING = "warning"


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgressEvent:
    """One thing worth showing while something is built.

    ``step`` names what is under way (``torch layer``). ``text`` is a line of its output or a sentence. ``seconds`` is
    how long a finished step took.
    """

    kind: EventKind
    step: str
    text: str = ""
    seconds: float | None = None


Progress = Callable[[ProgressEvent], None]


def silent(_event: ProgressEvent) -> None:
    """Show nothing."""


def lines_of(progress: Progress, step: str) -> Callable[[str], None]:
    """Return what announces each line of a step's output."""
    return lambda text: progress(ProgressEvent(kind=EventKind.LINE, step=step, text=text))


@contextmanager
def announced(progress: Progress, step: str, text: str = "") -> Iterator[None]:
    """Announce a step, and its end with its seconds: failed where something is raised in it."""
    started, kind = time.monotonic(), EventKind.FAILED
    progress(ProgressEvent(kind=EventKind.START, step=step, text=text))
    try:
        yield
        kind = EventKind.DONE
    finally:
        progress(ProgressEvent(kind=kind, step=step, seconds=time.monotonic() - started))


class Clock:
    """Announces steps and adds up their seconds."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.seconds: dict[str, float] = {}
        self._started = 0.0

    def start(self, step: str, text: str = "") -> None:
        """Announce a step."""
        self._started = time.monotonic()
        self.progress(ProgressEvent(kind=EventKind.START, step=step, text=text))

    def done(self, step: str, text: str = "", *, cached: bool = False) -> None:
        """Announce the end of the step that began last, ``cached`` when it had nothing to do."""
        self.seconds[step] = time.monotonic() - self._started
        kind = EventKind.CACHED if cached else EventKind.DONE
        self.progress(ProgressEvent(kind=kind, step=step, text=text, seconds=self.seconds[step]))

    def line(self, step: str, text: str) -> None:
        """Announce one line of a step's output."""
        lines_of(self.progress, step)(text)

    def note(self, text: str, *, warning: bool = False) -> None:
        """Announce something beside the steps."""
        self.progress(ProgressEvent(kind=EventKind.WARNING if warning else EventKind.NOTE, step="", text=text))
