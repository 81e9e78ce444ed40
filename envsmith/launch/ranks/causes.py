"""The verdict on a launch: which ranks failed first, where, why, and what only follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum


class Cause(str, Enum):
    """Why a rank failed first. The value is what JSON and labels say."""

    RAISED = "raised"  # an error of Python that no other cause explains
    EXITED = "exited"  # a status other than 0, without an error
    LEFT = "left"  # status 0 while the others go on
    UNEVEN_DATA = "uneven-data"  # it came out of the loop that the others are still in
    KILLED = "killed"  # SIGKILL from somebody; the kernel counted no lack of memory
    OUT_OF_MEMORY = "out-of-memory"  # the kernel's count, or an allocation that failed
    CRASHED = "crashed"  # SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL
    SHM_FULL = "shm-full"
    DISK_FULL = "disk-full"
    PORT = "port-in-use"
    LOADER = "loader"  # a worker of its data loader died or hangs
    STOPPED = "stopped"  # SIGSTOP or a debugger
    BLOCKED = "blocked"  # it sleeps in a call that is not a collective
    BUSY = "busy"  # it computes and does not come to the collective
    GIL_HELD = "gil-held"  # a thread keeps Python's lock
    FEWER_CALLS = "fewer-calls"  # it made fewer collectives than the others
    DIFFERENT_CALLS = "different-calls"  # another collective than the others, at the same place in the sequence
    DIFFERENT_SHAPES = "different-shapes"
    DIFFERENT_DTYPES = "different-dtypes"
    DIFFERENT_GROUPS = "different-groups"  # it waits in another process group than the others
    DIFFERENT_ENVIRONMENT = "different-environment"
    ABSENT = "absent"  # it did not come to init_process_group
    WORLD_SIZE = "world-size"  # the ranks do not agree on how many they are
    LATE = "late"  # it did not come to a collective; what it did is not in the evidence
    SLOW = "slow"  # it is the last one at almost every collective
    UNKNOWN = "unknown"

    @property
    def kind(self) -> str:
        """Return the doctor's kind of finding."""
        return _KINDS.get(self, "rank-late")


_DIED = "rank-died"
_DIFFER = "ranks-differ"
_KINDS = {
    Cause.RAISED: "rank-failed",
    Cause.SHM_FULL: "rank-failed",
    Cause.DISK_FULL: "rank-failed",
    Cause.PORT: "rank-failed",
    Cause.OUT_OF_MEMORY: "rank-failed",
    Cause.LOADER: "rank-failed",
    Cause.EXITED: _DIED,
    Cause.KILLED: _DIED,
    Cause.CRASHED: _DIED,
    Cause.LEFT: "rank-left",
    Cause.UNEVEN_DATA: "rank-left",
    Cause.FEWER_CALLS: _DIFFER,
    Cause.DIFFERENT_CALLS: _DIFFER,
    Cause.DIFFERENT_SHAPES: _DIFFER,
    Cause.DIFFERENT_DTYPES: _DIFFER,
    Cause.DIFFERENT_GROUPS: _DIFFER,
    Cause.DIFFERENT_ENVIRONMENT: _DIFFER,
    Cause.WORLD_SIZE: _DIFFER,
    Cause.SLOW: "rank-slow",
}
_DISAGREEMENTS = frozenset(
    {
        Cause.DIFFERENT_CALLS,
        Cause.DIFFERENT_SHAPES,
        Cause.DIFFERENT_DTYPES,
        Cause.DIFFERENT_GROUPS,
        Cause.FEWER_CALLS,
        Cause.UNEVEN_DATA,
        Cause.WORLD_SIZE,
    }
)


@dataclass(frozen=True)
class Blame:
    """What is said of a launch. ``ranks`` are empty where the evidence does not say which rank it is.

    ``message`` is one or two sentences, ``fix`` begins with an imperative, ``place`` is ``file:line (function)``,
    ``evidence`` are the lines that decided. ``line`` and ``quote`` are where a text says it. ``is_hang`` tells that
    the launch stands still and cannot go on by itself.
    """

    cause: Cause
    ranks: tuple[int, ...]
    message: str
    fix: str
    place: str = ""
    evidence: tuple[str, ...] = ()
    line: int = 1
    quote: str = ""
    confidence: str = "high"
    is_hang: bool = False
    kind: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Derive the kind from the cause unless the judge knows better."""
        if not self.kind:
            object.__setattr__(self, "kind", self.cause.kind)

    @property
    def is_lasting(self) -> bool:
        """Tell whether no wait can end it: ranks in different calls do not meet, however long it takes."""
        return self.is_hang and self.confidence == "high" and self.cause in _DISAGREEMENTS

    @property
    def rank(self) -> int | None:
        """Return the rank where it is exactly one."""
        return self.ranks[0] if len(self.ranks) == 1 else None


def ranks_text(ranks: Iterable[int], start: str = "R") -> str:
    """Return ``Rank 2`` or ``Ranks 0, 1, 3``, and a span where they are many. ``start="r"`` stands within a sentence."""
    numbers = sorted(ranks)
    word = f"{start}ank{'s' if len(numbers) > 1 else ''}"
    if len(numbers) > 8:
        first, last = numbers[0], numbers[-1]
        gaps = "" if last - first + 1 == len(numbers) else f" ({len(numbers)} of them)"
        return f"{word} {first} to {last}{gaps}"
    return f"{word} {', '.join(map(str, numbers))}"


def at_place(place: str) -> str:
    """Return ``at train.py:10`` after a space, or nothing."""
    return f" at {place}" if place else ""
