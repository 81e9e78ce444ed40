"""Locks on disk: a cell's folder is written whole or not at all, and what is read back is hostile until it is parsed."""

from __future__ import annotations

import dataclasses
import errno
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from envsmith.errors import DataError, EnvsmithError, StorageError
from envsmith.graph.load import components
from envsmith.lock.files import parse_beside
from envsmith.lock.resolve import Judge, broken_rules, judge_cell
from envsmith.model.cell import Cell
from envsmith.model.lock import Lock, parse_lock

LOCK_FILE = "lock.json"
PYLOCK_FILE = "pylock.toml"
_MAX_BYTES = 32 << 20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def write(directory: Path, files: Mapping[str, str]) -> None:
    """Write ``files`` (plain names) into ``directory``: all are complete on disk before the first takes its name.

    Files that have the same bytes are left alone, files that are not named stay. On ``StorageError`` everything that was there is
    there still. ``lock.json`` takes its name last: where it stands, the files beside it belong to it.
    """
    for name in files:
        if Path(name).name != name or name in {"", ".", ".."}:
            raise StorageError(f"{name!r} is not a plain file name")
    changed = {name: text.encode() for name, text in files.items() if not _is(directory / name, text.encode())}
    if not changed:
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".envsmith-", dir=directory) as staging:
            for name, data in changed.items():
                _put(Path(staging) / name, data)
            _rename_all(directory, Path(staging), sorted(changed, key=lambda n: n == LOCK_FILE))
    except OSError as error:
        raise _storage(error, directory) from None


def _rename_all(directory: Path, staging: Path, names: Iterable[str]) -> None:
    """Give the files their names in ``directory``; when one cannot have its name, all that were there before are put back."""
    kept: dict[str, Path] = {}
    done: list[str] = []
    for name in names:
        if (directory / name).exists():
            kept[name] = staging / f"{name}.before"
            os.link(directory / name, kept[name])
        try:
            (staging / name).replace(directory / name)
        except OSError:
            _restore(directory, done, kept)
            raise
        done.append(name)


def prepare(directory: Path) -> None:
    """Make ``directory`` and show that it can be written, before minutes are spent on what belongs into it. ``StorageError`` says why not."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".envsmith-", dir=directory):
            pass
    except OSError as error:
        raise _storage(error, directory) from None


def _is(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def _put(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _restore(directory: Path, done: list[str], kept: Mapping[str, Path]) -> None:
    """Take back the names that were already given."""
    for name in done:
        with suppress(OSError):
            if name in kept:
                kept[name].replace(directory / name)
            else:
                (directory / name).unlink()


def _storage(error: OSError, directory: Path) -> StorageError:
    reason = "the disk is full" if error.errno in _FULL else (error.strerror or str(error))
    hint = (
        "free some space, or choose another --output"
        if error.errno in _FULL
        else "check the path and its permissions, or choose another --output"
    )
    return StorageError(f"{directory}: cannot be written: {reason}; nothing there was changed", hint=hint)


def read(directory: Path) -> Lock | None:
    """The lock of a cell's folder with what the ``pylock.toml`` beside it adds; ``None`` when there is none, ``DataError`` when it is broken."""
    text = _text(directory / LOCK_FILE)
    if text is None:
        return None
    lock = parse_lock(text, where=str(directory / LOCK_FILE))
    beside = _text(directory / PYLOCK_FILE)
    if beside is None:
        return lock
    more = parse_beside(beside)
    if more.lock != lock.digest:
        return lock
    return dataclasses.replace(lock, pins=tuple(more.complete(pin) for pin in lock.pins))


def _text(path: Path) -> str | None:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path}: larger than {_MAX_BYTES >> 20} MiB", hint="it is not a lock of ours: delete it")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8", hint="delete it and lock again") from None
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be read: {error.strerror or error}", hint="check the path and its permissions"
        ) from None


def up_to_date(lock: Lock, cell: Cell) -> bool:
    """True when ``lock`` pins exactly ``cell``: the same components, platform and index."""
    return lock.cell.to_json() == cell.to_json()


def reusable(
    directory: Path, *, cell: Cell, request: str, exclude_newer: str, judge: Judge = judge_cell
) -> Lock | None:
    """The lock that is there when it answers the same cell, request and date, and today's rules still hold for it.

    ``None`` when it must be made again, also when it is broken.
    """
    try:
        lock = read(directory)
    except (DataError, StorageError):
        return None
    if lock is None or not up_to_date(lock, cell) or lock.request != request or lock.exclude_newer != exclude_newer:
        return None
    if any(a.url is None for pin in lock.pins for a in pin.artifacts):
        # Its pylock.toml is gone or older: written again it would have other bytes.
        return None

    return None if broken_rules(cell, lock.pins, components(), judge) else lock


# The locks that are in an output folder already: found by the request they were made from, as ``--locked`` and ``--frozen`` need.


def find(output: Path, request: str) -> tuple[Path, Lock] | None:
    """The newest lock below ``output`` that was made from ``request`` (the flags as text), with its folder.

    A folder whose lock is broken raises ``DataError`` only when no other answers.
    """
    broken: EnvsmithError | None = None
    for directory in _folders(output):
        try:
            lock = read(directory)
        except EnvsmithError as error:
            broken = broken or error
            continue
        if lock is not None and lock.request == request:
            return directory, lock
    if broken is not None:
        raise broken
    return None


def need(output: Path, request: str) -> tuple[Path, Lock]:
    """As :func:`find`; ``EnvsmithError`` (exit code 1) when there is none."""
    found = find(output, request)
    if found is None:
        raise EnvsmithError(
            f"{output}: no lock of this request is there ({request})",
            hint="make one: run `envsmith lock` with the same request flags",
        )
    return found


def _folders(output: Path) -> Iterator[Path]:
    """Folders with a lock, newest first."""
    try:
        found = [(p.stat().st_mtime_ns, p.parent) for p in output.glob(f"*/{LOCK_FILE}")]
    except OSError as error:
        raise StorageError(f"{output}: cannot be read: {error.strerror or error}") from None
    yield from (folder for _, folder in sorted(found, reverse=True))
