"""What the agent's processes tell each other: JSON lines, exit codes, and a shared table of where each rank is."""

from __future__ import annotations

import json
import mmap
import os
import re
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

from envsmith.agent.compiler_words import refusal_of

PROTOCOL = 1

# JSON that envsmith wrote: the plan, and the cases, steps and the fault in it.
PlanJson = Mapping[str, Any]
CaseJson = Mapping[str, Any]
StepJson = Mapping[str, Any]
FaultJson = Mapping[str, Any]
# What a rank is told, in a file or by the process that it comes from.
JobJson = dict[str, Any]
# What is written: a row, an event or a part of one, and facts of a machine or of what is loaded.
Row = dict[str, Any]
Facts = dict[str, object]


class Exit(IntEnum):
    """How a rank, the agent or a smoke test ends. They are documented, and other programs rely on them.

    No rank chooses CRASH, which is a signal or an end without a word, or SLOW and HOST, which are judged outside.
    """

    OK = 0
    ERROR = 1
    CONFIGURATION = 2
    MISMATCH = 3
    WRONG = 4
    HANG = 5
    CRASH = 6
    REGRESSED = 7
    MEMORY = 8
    SLOW = 9
    HOST = 10


# Why a case was not begun, for people.
TIME_IS_OVER = "the time of this run was over"
# What a case or a step that was not run would have needed, as its row says it.
NO_TIME, NO_MEMORY, NO_GPU = "time", "memory", "gpu"


class Skip(Exception):
    """The case cannot be asked of this torch or machine; every rank comes to the same answer.

    ``unmet`` is what it would have needed, where that is one of :data:`NO_TIME` and those beside it.
    """

    def __init__(self, reason: str, unmet: str = "") -> None:
        super().__init__(reason)
        self.unmet = unmet

    def row(self) -> dict[str, str]:
        """Return what a row says of it."""
        return {"status": "skipped", "detail": str(self), **({"unmet": self.unmet} if self.unmet else {})}


class Wrong(Exception):
    """A value, a guard zone or an input is not what it must be."""


def one_line(error: BaseException, limit: int = 300) -> str:
    """Return `RuntimeError: first line of its message`, and what caused it.

    Where a compiler was started, its first refusal stands for its output.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    refusal = refusal_of(str(error)) if len(lines) > 2 else None
    if refusal:
        begin = re.match(r"Error building extension '[^']+'", lines[0])
        return f"{type(error).__name__}: {begin[0] if begin else lines[0][:120]}: {refusal.line}"[:limit]
    return f"{type(error).__name__}: {' | '.join(lines[:2])}"[:limit]


class Log:
    """JSON lines, each written at once by one system call: a killed rank leaves its history."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.lock = threading.Lock()

    def write(self, row: Mapping[str, object]) -> None:
        data = json.dumps(row, separators=(",", ":"), default=str).encode() + b"\n"
        with self.lock:
            while data:
                data = data[os.write(self.fd, data) :]

    def emit(self, event: str, **fields: object) -> None:
        """Write an event."""
        self.write({"event": event, **fields})

    def row(self, row: str, **fields: object) -> None:
        """Write a row of a rank."""
        self.write({"row": row, **fields})


class JsonLines:
    """Whole JSON lines out of a non-blocking socket or file."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)


class KeepingLog(Log):
    """Remembers what it wrote, for the nodes that cannot read this one's output."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.events: list[Mapping[str, object]] = []

    def write(self, row: Mapping[str, object]) -> None:
        self.events.append(row)
        super().write(row)


class TaggedLog(Log):
    """Rows of a rank that has no supervisor go straight to its output."""

    def __init__(self, out: Log, run: str) -> None:
        super().__init__(out.fd)
        self.out, self.run = out, run

    def write(self, row: Mapping[str, object]) -> None:
        self.out.write({"event": "row", "run": self.run, **row})


MAX_RANKS = 1024
FINISHED = 1 << 30  # stands where a case number stands when a rank has run all cases


class Phase(IntEnum):
    """How far a rank is in a case. It is written to the board before it begins.

    In a framework's step PREP is the import of the framework, and ENTERED every stage after it.
    """

    PREP = 0
    ENTERED = 1
    ISSUED = 2
    SYNCED = 3
    VERIFIED = 4
    DONE = 5
    RAISED = 6

    @property
    def word(self) -> str:
        """Return the name that events use."""
        return self.name.lower()


class Startup(IntEnum):
    """What a rank does before its first case. It stands where a case number stands, so that one table tells all."""

    START = -6
    STORE = -5
    MANIFEST = -4
    GROUP = -3
    SUBGROUPS = -2
    BUDGET = -1


Position = tuple[int, int, float, str]  # case, step, seconds since the last mark, signature


def place_of(position: Position) -> dict[str, Any]:
    """Return a position as events say it."""
    case, step, age, signature = position
    return {"case": case, "step": Phase(step).word, "age": round(age, 3), "signature": signature}


class Board:
    """Who is where: a table in shared memory that outlives every rank. One writer per slot.

    Eight-byte stores are atomic. A slot is (case, step, monotonic nanoseconds, pid, exit code) and the signature of the
    call that the rank is about to make. Pid and exit code are those of a rank that a launcher started. Such a rank
    opens the table by the ``path`` of its file.
    """

    SLOT = 320
    HEAD = 64
    WORDS = 5
    _ENDED = 1 << 20  # added to an exit code, so that none is zero

    def __init__(self, path: str = "") -> None:
        self.path, size = path, self.HEAD + self.SLOT * MAX_RANKS
        if not path:
            self.memory = mmap.mmap(-1, size)
            return
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            os.ftruncate(fd, size)
            self.memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)

    def clear(self) -> None:
        self.memory[:] = bytes(len(self.memory))
        for rank in range(MAX_RANKS):
            struct.pack_into("q", self.memory, self._at(rank), Startup.START)

    def _at(self, rank: int) -> int:
        return self.HEAD + self.SLOT * rank

    def mark(self, rank: int, case: int, step: int) -> None:
        struct.pack_into("qqq", self.memory, self._at(rank), case, step, time.monotonic_ns())

    def sign(self, rank: int, text: str) -> None:
        data = text.encode()[: self.SLOT - 8 * self.WORDS - 1]
        start = self._at(rank) + 8 * self.WORDS
        self.memory[start : self._at(rank) + self.SLOT] = data.ljust(self.SLOT - 8 * self.WORDS, b"\0")

    def row(self, rank: int) -> Position:
        at = self._at(rank)
        case, step, at_ns = struct.unpack_from("qqq", self.memory, at)
        text = bytes(self.memory[at + 8 * self.WORDS : at + self.SLOT]).split(b"\0", 1)[0].decode(errors="replace")
        age = (time.monotonic_ns() - at_ns) / 1e9 if at_ns else 0.0
        return case, step, age, text

    def enter(self, rank: int, pid: int) -> None:
        """Write down that this process is the rank."""
        struct.pack_into("q", self.memory, self._at(rank) + 24, pid)

    def leave(self, rank: int, code: int) -> None:
        """Write down how the rank ended."""
        struct.pack_into("q", self.memory, self._at(rank) + 32, code + self._ENDED)

    def process(self, rank: int) -> tuple[int, int | None]:
        """Return the rank's pid, 0 before it has one, and its exit code, `None` until it has ended by itself."""
        pid, code = struct.unpack_from("qq", self.memory, self._at(rank) + 24)
        return int(pid), int(code) - self._ENDED if code else None

    @property
    def port(self) -> int:
        return int(struct.unpack_from("q", self.memory, 0)[0])

    @port.setter
    def port(self, value: int) -> None:
        struct.pack_into("q", self.memory, 0, value)

    @property
    def dump(self) -> bool:
        """Set by the supervisor when every rank shall write down what it knows."""
        return bool(struct.unpack_from("q", self.memory, 8)[0])

    @dump.setter
    def dump(self, value: bool) -> None:
        struct.pack_into("q", self.memory, 8, int(value))
