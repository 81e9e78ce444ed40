"""What the agent writes: events as JSON lines, and the exit codes of a rank and of the agent."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

PROTOCOL = 1


class Exit(IntEnum):
    """How a rank or the agent ends. No rank chooses CRASH: a crash is a signal."""

    OK = 0
    ERROR = 1
    CONFIGURATION = 2
    MISMATCH = 3
    WRONG = 4
    HANG = 5
    CRASH = 6
    REGRESSED = 7
    MEMORY = 8


class Skip(Exception):
    """The case cannot be asked of this torch or machine; every rank comes to the same answer."""


class Wrong(Exception):
    """A value, a guard zone or an input is not what it must be."""


def one_line(error: BaseException, limit: int = 300) -> str:
    """Return `RuntimeError: first line of its message`, and what caused it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
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


class Lines:
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
