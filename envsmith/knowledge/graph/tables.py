"""Tables that are made of files of ``matrix/``: read once, kept in the user's cache, brought along by a wheel.

A wheel of envsmith has them ready in ``_tables``, made when it was built. One of these is taken where the installed
files are those that it was made of: that is asked only when the user's cache has no table of the files as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from envsmith.base.about import VERSION
from envsmith.base.cache import cached, entry_of, load_entry
from envsmith.base.files import read_bounded
from envsmith.base.packed import pack
from envsmith.errors import EnvsmithError
from envsmith.knowledge.graph.location import MAX_FILE_BYTES, DataFiles

_Value = TypeVar("_Value")
# Where a wheel brings its tables.
BROUGHT = Path(__file__).resolve().parents[2] / "_tables"
# Raised when the same files make another value.
_MAKING = 14


class FileState(NamedTuple):
    """Files of the knowledge, and the stamp that they had when they were looked at."""

    files: DataFiles
    stamp: str


# The state of the installed files, by kind of table.
_STATES: ContextVar[dict[str, FileState] | None] = ContextVar("states", default=None)


@contextmanager
def one_state() -> Iterator[None]:
    """Answer all that is asked within from one state of the files. They are looked at once for each table."""
    if _STATES.get() is not None:
        yield
        return
    token = _STATES.set({})
    try:
        yield
    finally:
        _STATES.reset(token)


@dataclass(frozen=True, slots=True)
class Table(Generic[_Value]):
    """What ``make`` makes of files of the knowledge: a value of ``shape``, as :mod:`envsmith.base.packed` keeps it.

    ``files`` are the installed ones. ``beside`` tells what else it is made of.
    """

    kind: str
    files: Callable[[], DataFiles]
    shape: Any
    make: Callable[[DataFiles], _Value]
    beside: Callable[[], object] = str
    _values: dict[str, _Value] = field(default_factory=dict)

    def load(self, files: DataFiles | None = None) -> _Value:
        """Return the value of ``files``: in this process once, from the cache while none of them changes."""
        return self.of(self.state(files))

    def state(self, files: DataFiles | None = None) -> FileState:
        """Return ``files`` (default: the installed ones) as they are."""
        states = _STATES.get()
        if files is not None or states is None:
            files = files or self.files()
            return FileState(files, files.stamp())
        if self.kind not in states:
            installed = self.files()
            states[self.kind] = FileState(installed, installed.stamp())
        return states[self.kind]

    def of(self, state: FileState) -> _Value:
        """Return the value of a state of files, also when it is kept and they have changed since."""
        if state.stamp not in self._values:
            self._values[state.stamp] = cached(
                self.kind,
                self.key(state.stamp),
                lambda: self.make(state.files),
                shape=self.shape,
                brought=lambda: self._brought(state.files),
            )
        return self._values[state.stamp]

    def forget(self) -> None:
        """Forget what was loaded in this process."""
        self._values.clear()

    def entry(self, files: DataFiles | None = None) -> bytes:
        """Return what a wheel brings: the same bytes for the same files."""
        files = files or self.files()
        return entry_of(self.key(_digest(files)), pack(self.shape, self.load(files)), at=0)

    def key(self, state: str) -> str:
        """Return what a kept value is made of, for a state of the files."""
        return f"{self.kind} {VERSION} {_MAKING} {self.beside()} {state}"

    def _brought(self, files: DataFiles) -> bytes | None:
        path = BROUGHT / self.kind
        if not path.is_file():
            return None
        try:
            entry = load_entry(path, self.key(_digest(files)), own=False)
        except EnvsmithError:  # a file that cannot be read: who makes the table says so
            return None
        return entry.content if entry else None


def _digest(files: DataFiles) -> str:
    """Return a key from names and contents, which is the same wherever the files lie."""
    lines = (f"{name} {_digest_of(*_state(files.root / name))}" for name in files.names)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _state(path: Path) -> tuple[Path, int, int]:
    try:
        status = path.stat()
    except OSError:
        return path, -1, -1
    return path, status.st_size, status.st_ctime_ns


@lru_cache(maxsize=4096)
def _digest_of(path: Path, size: int, _changed: int) -> str:
    return hashlib.sha256(read_bounded(path, MAX_FILE_BYTES)).hexdigest() if size >= 0 else "absent"
