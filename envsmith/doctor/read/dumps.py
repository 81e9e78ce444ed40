"""A dump of torch's flight recorder, a pickle or JSON of any size, as one line of text that holds what is compared."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from itertools import islice
from typing import Any

from envsmith.base.json_types import JsonDict, JsonFields, objects_in
from envsmith.base.schema import parse_json
from envsmith.launch.ranks.recorder import MOST_CALLS

# A recorder of 20,000 entries with stacks is a tenth of this.
MOST_BYTES = 64 << 20
_KEYS = (
    "process_group", "collective_seq_id", "p2p_seq_id", "seq_id", "profiling_name", "time_created_ns", "input_sizes",
    "input_dtypes", "state", "retired", "is_p2p",
)  # fmt: skip
_MOST_FRAMES, _MOST_VALUES, _MOST_GROUPS = 40, 64, 4096


def is_dump(head: bytes) -> bool:
    """Tell whether a file may be a dump, by its beginning."""
    start = head[: 1 << 16].lstrip()
    return is_pickle(head) or (start.startswith(b"{") and b'"profiling_name"' in head and b'"entries"' in head)


def dump_line(data: bytes) -> str:
    """Return a dump as one line of JSON. ``ValueError`` says why it is none."""
    value = read_plain(data) if is_pickle(data) else parse_json(data)
    entries = value.get("entries") if isinstance(value, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it is not a dump of torch's flight recorder")  # noqa: TRY004 - the file's fault
    rows = [_entry(entry) for entry in entries[-MOST_CALLS:] if isinstance(entry, dict)]
    document = {"entries": rows, "pg_config": _groups(value.get("pg_config")), "version": _plain(value.get("version"))}
    return json.dumps(document)


def _entry(entry: JsonFields) -> JsonDict:
    row = {key: _plain(entry[key]) for key in _KEYS if key in entry}
    if frames := objects_in(entry, "frames"):
        row["frames"] = [_frame(frame) for frame in frames[:_MOST_FRAMES]]
    return row


def _frame(frame: JsonFields) -> JsonDict:
    return {key: _plain(frame[key]) for key in ("name", "filename", "line") if key in frame}


def _groups(config: object) -> JsonDict:
    rows = config.items() if isinstance(config, dict) else ()
    return {
        str(name)[:200]: {key: _plain(row[key], 1 << 16) for key in ("name", "desc", "ranks") if key in row}
        for name, row in islice(rows, _MOST_GROUPS)
        if isinstance(row, dict)
    }


def _plain(value: object, most: int = 400, depth: int = 2) -> Any:
    """Return a value without what is too long or too deep."""
    if isinstance(value, str):
        return value[:most]
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    if isinstance(value, list | tuple) and depth:
        return [_plain(each, most, depth - 1) for each in value[: max(_MOST_VALUES, most >> 4)]]
    return None


# Pickles that hold nothing but plain values, read without Python's unpickler: a file from outside runs no code.

# The opcodes that read a number of fixed size, and how `struct` calls it.
_NUMBERS = {b"J": "<i", b"K": "<B", b"M": "<H", b"G": ">d"}
# Those that are followed by a length and as many bytes: its size, and whether they are a text.
_SIZED = {b"X": (4, True), b"\x8c": (1, True), b"\x8d": (8, True), b"U": (1, True), b"T": (4, True), b"C": (1, False)}
_SIZED |= {b"B": (4, False), b"\x8e": (8, False)}
_CONSTANTS = {b"N": None, b"\x88": True, b"\x89": False}
_GETS = {b"h": 1, b"j": 4}
_PUTS = {b"q": 1, b"r": 4}
_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}


def is_pickle(data: bytes) -> bool:
    """Tell whether bytes begin as a pickle of protocol 2 to 5 does."""
    return len(data) > 2 and data[0] == 0x80 and 2 <= data[1] <= 5


def read_plain(data: bytes) -> Any:
    """Return the value of a pickle of plain values. ``ValueError`` for one that calls anything, or that is cut off."""
    try:
        return _Reader(data).run()
    except (IndexError, struct.error, KeyError, OverflowError):
        raise ValueError("it is not a whole pickle") from None


class _Reader:
    """A machine with a stack and a memo, as the format describes it, without the opcodes that name or call things."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._acts: dict[bytes, Callable[[], None]] = {
            b"}": lambda: self._stack.append({}),
            b"]": lambda: self._stack.append([]),
            b")": lambda: self._stack.append(()),
            b"(": lambda: self._marks.append(len(self._stack)),
            b"t": lambda: self._stack.append(tuple(self._to_mark())),
            b"\x8a": lambda: self._stack.append(int.from_bytes(self._take(self._take(1)[0]), "little", signed=True)),
            b"\x94": lambda: self._memo.__setitem__(len(self._memo), self._stack[-1]),
            b"\x95": lambda: self._skip(8),
            b"\x80": lambda: self._skip(1),
            b"a": lambda: self._append([self._stack.pop()]),
            b"e": lambda: self._append(self._to_mark()),
            b"s": lambda: self._update([self._stack.pop(-2), self._stack.pop()]),
            b"u": lambda: self._update(self._to_mark()),
        }

    def run(self) -> Any:
        while (code := self._take(1)) != b".":
            if code in _NUMBERS:
                kind = _NUMBERS[code]
                self._stack.append(struct.unpack(kind, self._take(struct.calcsize(kind)))[0])
            elif code in _SIZED:
                self._stack.append(self._sized(*_SIZED[code]))
            elif code in _CONSTANTS:
                self._stack.append(_CONSTANTS[code])
            elif code in _GETS:
                self._stack.append(self._memo[self._number(_GETS[code])])
            elif code in _PUTS:
                self._memo[self._number(_PUTS[code])] = self._stack[-1]
            elif code in _TUPLES:
                count = _TUPLES[code]
                self._stack[-count:] = [tuple(self._stack[-count:])]
            elif code in self._acts:
                self._acts[code]()
            else:
                raise ValueError("it holds more than plain values")
        return self._stack[-1]

    def _take(self, count: int) -> bytes:
        piece = self._data[self._at : self._at + count]
        if len(piece) < count:
            raise ValueError("it is cut off")
        self._at += count
        return piece

    def _skip(self, count: int) -> None:
        self._take(count)

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _sized(self, size: int, is_text: bool) -> str | bytes:  # noqa: FBT001 - a row of the table
        piece = self._take(self._number(size))
        return piece.decode("utf-8", "replace") if is_text else piece

    def _to_mark(self) -> list[Any]:
        place = self._marks.pop()
        values = self._stack[place:]
        del self._stack[place:]
        return values

    def _append(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise ValueError("it appends to what is not a list")  # noqa: TRY004 - the file's fault, not a caller's
        target.extend(values)

    def _update(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise ValueError("it sets keys of what is not a dictionary")  # noqa: TRY004 - as above
        for key, value in zip(values[::2], values[1::2], strict=False):
            if isinstance(key, str | int):
                target[key] = value
