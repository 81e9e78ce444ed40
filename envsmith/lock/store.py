"""Write a cell's folder whole or not at all, and read it as hostile text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from envsmith.base.files import prepare_folder, read_text, write_together
from envsmith.errors import DataError, EnvsmithError, StorageError, os_errors
from envsmith.knowledge.graph.load import components, gpu_names
from envsmith.lock.kept_cell import Judge, broken_rules, judge_cell
from envsmith.lock.pip_files import parse_beside
from envsmith.model.cell import RUNTIME, Cell, Platform
from envsmith.model.lock import LOCK_FILE, MAX_BYTES, Lock, parse_lock
from envsmith.model.version import Spec

PYLOCK_FILE = "pylock.toml"
_AGAIN = "Delete it and lock again."


def write(directory: Path, files: Mapping[str, str]) -> None:
    """Make a cell's folder and write files of it together.

    ``lock.json`` takes its name last: where it stands, they belong to it. ``StorageError`` for a folder that cannot be
    written, also where every file is there already.
    """
    prepare_folder(directory)
    write_together(directory, dict(sorted(files.items(), key=lambda file: file[0] == LOCK_FILE)))


def read(directory: Path) -> Lock | None:
    """Return the lock of a cell's folder, completed from its ``pylock.toml``, or nothing. ``DataError`` if broken."""
    path = directory / LOCK_FILE
    if not path.is_file():
        return None
    lock = parse_lock(read_text(path, MAX_BYTES, hint=_AGAIN), where=str(path))
    beside = directory / PYLOCK_FILE
    if not beside.is_file():
        return lock
    text = read_text(beside, MAX_BYTES, hint=_AGAIN)
    return parse_beside(text).complete(lock)


def reusable(
    directory: Path, *, cell: Cell, request: str, exclude_newer: str, judge: Judge = judge_cell
) -> Lock | None:
    """Return the existing lock when it answers the same cell, request and date under today's rules."""
    try:
        lock = read(directory)
    except (DataError, StorageError):
        return None
    if lock is None or lock.exclude_newer != exclude_newer or meaning(lock.request) != meaning(request):
        return None
    if lock.cell.to_json() != cell.to_json():
        return None
    if any(a.url is None for pin in lock.pins for a in pin.artifacts):
        # Its pylock.toml is gone or older: written again it would have other bytes.
        return None

    return None if broken_rules(cell, lock.pins, components(), judge) else lock


# The locks that are in an output folder already: found by the request they were made from, as ``--locked`` and
# ``--frozen`` need.


def meaning(request: str) -> frozenset[tuple[str, object]]:
    """Return what the words of a request ask for: in any order, names and versions in one spelling, without defaults."""
    pairs = re.findall(r"--(\S+) (.*?)(?= --|$)", request) or [("", request)]
    return frozenset(_meaning(flag, value) for flag, value in pairs) - _DEFAULTS


_DEFAULTS = {("platform", Platform.LINUX_64.value), ("flavour", RUNTIME)}


def _meaning(flag: str, value: str) -> tuple[str, object]:
    table = components()
    if flag == "gpu":
        word = re.sub(r"[\s_-]", "", value.lower())
        return flag, gpu_names().get(word, word).replace("_", "")
    named = re.fullmatch(r"([A-Za-z][\w.-]*)(.*)", value) if flag in {"framework", "with"} else None
    name, spec = (named[1], named[2]) if named else (flag, value)
    component = table.find(name)
    if component is None:
        return flag, value
    try:
        return component.name, Spec.parse(spec.strip().removeprefix("@") or "*").meaning
    except ValueError:
        return component.name, value


def find(output: Path, request: str) -> tuple[Path, Lock] | None:
    """Return the newest lock below ``output`` that was made from ``request``, with its folder."""
    broken: EnvsmithError | None = None
    for directory in _folders(output):
        try:
            lock = read(directory)
        except EnvsmithError as error:
            broken = broken or error
            continue
        if lock is not None and meaning(lock.request) == meaning(request):
            return directory, lock
    if broken is not None:
        raise broken
    return None


def need(output: Path, request: str) -> tuple[Path, Lock]:
    """Return what :func:`find` finds. ``EnvsmithError`` (exit code 1) when that is nothing."""
    existing = find(output, request)
    if existing is None:
        raise EnvsmithError(
            f"Cannot use a lock in {output}: none of them is of this request ({request}).",
            hint="Run envsmith lock with the same request flags.",
        )
    return existing


def _folders(output: Path) -> Iterator[Path]:
    with os_errors(f"read {output}"):
        folders = [(p.stat().st_mtime_ns, p.parent) for p in output.glob(f"*/{LOCK_FILE}")]
    yield from (folder for _, folder in sorted(folders, reverse=True))
