"""A table in shared memory that says where every rank is, and the names of the places."""

from __future__ import annotations

import mmap
import struct
import time
from enum import IntEnum

MAX_RANKS = 1024
FINISHED = 1 << 30  # stands where a case number stands when a rank has run all cases


class Phase(IntEnum):
    """How far a rank is in a case. It is written to the board before it begins."""

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


class Board:
    """Who is where: a table in shared memory that outlives every rank. One writer per slot.

    Eight-byte stores are atomic. A slot is (case, step, monotonic nanoseconds, pid) and the signature of the call that
    the rank is about to make.
    """

    SLOT = 320
    HEAD = 64
    WORDS = 4

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, self.HEAD + self.SLOT * MAX_RANKS)

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

    def row(self, rank: int) -> tuple[int, int, float, str]:
        """Return case, step, seconds since the last mark, signature."""
        at = self._at(rank)
        case, step, at_ns = struct.unpack_from("qqq", self.memory, at)
        text = bytes(self.memory[at + 8 * self.WORDS : at + self.SLOT]).split(b"\0", 1)[0].decode(errors="replace")
        age = (time.monotonic_ns() - at_ns) / 1e9 if at_ns else 0.0
        return case, step, age, text

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
