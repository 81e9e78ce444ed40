"""What was tried, kept in a folder: a search that was interrupted repeats no finished trial."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.base.files import claim, digest_of, mark, read_text, storage_errors
from envsmith.base.json_types import JsonDict, JsonFields
from envsmith.base.schema import parse_json
from envsmith.errors import StorageError, UsageError

_KIND = "envsmith bisect"
_FILE = "trials.jsonl"
_LOCK = ".lock"


@dataclass(kw_only=True, slots=True)
class Journal:
    """The finished trials of a folder, by key. Each is written before the next one begins."""

    path: Path
    rows: dict[str, JsonDict] = field(default_factory=dict)

    def get(self, key: str) -> JsonDict | None:
        """Return a finished trial."""
        return self.rows.get(key)

    def add(self, key: str, row: JsonFields) -> None:
        """Keep a finished trial."""
        self.rows[key] = dict(row)
        line = json.dumps({"key": key, **row}, ensure_ascii=False) + "\n"
        with storage_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def open_journal(folder: Path) -> Iterator[Journal]:
    """Yield the journal of a folder, which is ours alone until the block ends. ``UsageError`` where another search runs."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        claim(folder, _KIND)
        mark(folder, _KIND, (_FILE, _LOCK))
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"Cannot search in {folder}: another search runs in it.",
                hint="Wait for it, or choose another --folder.",
            ) from None
        path = folder / _FILE
        text = read_text(path, failure=StorageError, errors="replace") if path.exists() else ""
        if text and not text.endswith("\n"):
            with path.open("a") as file:
                file.write("\n")  # a line that a kill cut off must not take the next one with it
        yield Journal(path=path, rows=dict(_finished(text)))
    finally:
        os.close(handle)


def key_of(pins: Mapping[str, str], python: str, command: Sequence[str], machine: str, attempt: int) -> str:
    """Return the name of a trial: equal for equal packages, Python, command and kind of machine."""
    return digest_of(json.dumps([sorted(pins.items()), python, list(command), machine, attempt]).encode())


def _finished(text: str) -> Iterator[tuple[str, JsonDict]]:
    """Yield the whole lines of a journal. A line that was cut off by a kill is a trial that did not finish."""
    yield from (row for row in map(_row, text.splitlines()) if row)


def _row(line: str) -> tuple[str, JsonDict] | None:
    try:
        row = parse_json(line)
        return str(row.pop("key")), row
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
