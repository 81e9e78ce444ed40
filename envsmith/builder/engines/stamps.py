"""Which layers of a virtual environment are finished: one stamp a layer, with every file at the end of that layer.

A build resumes at the last intact layer: whatever its stamp does not list is removed, so that an install that was
killed half-way, or a package that somebody added, cannot pass for a part of the lock.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import write_whole

STATE = ".envsmith"
_SKIPPED_FOLDERS = frozenset({STATE, "__pycache__"})
# uv takes this lock whenever it looks at an environment.
_SKIPPED_FILES = frozenset({".lock"})
Files = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Stamp:
    """A finished layer: ``key`` says what was installed, ``files`` maps path → (bytes, time of change in ns)."""

    key: str
    files: Files


def snapshot(environment: Path) -> dict[str, tuple[int, int]]:
    """Return every file below ``environment`` except byte-code and the stamps. Raises ``OSError``."""
    return {name: (status.st_size, status.st_mtime_ns) for name, status in entries(environment)}


def entries(environment: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every file below ``environment`` except byte-code and the stamps, with its path from there."""
    todo = [environment]
    while todo:
        with os.scandir(todo.pop()) as scanned:
            inside = list(scanned)
        for entry in inside:
            if entry.is_dir(follow_symlinks=False):
                todo += [Path(entry.path)] if entry.name not in _SKIPPED_FOLDERS else []
            elif entry.name not in _SKIPPED_FILES:
                yield os.path.relpath(entry.path, environment), entry.stat(follow_symlinks=False)


def stamp(environment: Path, number: int, key: str) -> None:
    """Note that layer ``number`` is finished. Raises ``OSError`` or ``StorageError``."""
    write_whole(environment / STATE / f"{number}.json", json.dumps({"key": key, "files": snapshot(environment)}))


def _read(path: Path) -> Stamp | None:
    try:
        content = json.loads(path.read_bytes())
        return Stamp(content["key"], {name: (size, time_ns) for name, (size, time_ns) in content["files"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def finished(environment: Path, keys: tuple[str, ...]) -> list[Stamp]:
    """Return the stamps of the leading layers that are what ``keys`` ask for and whose files have not changed."""
    try:
        files = snapshot(environment)
    except OSError:
        return []
    stamps: list[Stamp] = []
    for number, key in enumerate(keys):
        layer = _read(environment / STATE / f"{number}.json")
        if layer is None or layer.key != key or not layer.files.items() <= files.items():
            break
        stamps.append(layer)
    return stamps


def reset(environment: Path, last: Stamp, count: int) -> None:
    """Remove every file that is not of the first ``count`` layers, the last of which is ``last``.

    Raises ``OSError``.
    """
    with suppress(FileNotFoundError):
        for entry in os.scandir(environment / STATE):
            number = entry.name.removesuffix(".json")
            if not number.isdigit() or int(number) >= count:
                Path(entry.path).unlink()
    extra = set(snapshot(environment)) - set(last.files)
    for name in extra:
        (environment / name).unlink()
    for folder in sorted({(environment / name).parent for name in extra}, key=lambda p: -len(p.parts)):
        _remove_empty(folder, environment)


def _remove_empty(folder: Path, top: Path) -> None:
    while folder != top:
        shutil.rmtree(folder / "__pycache__", ignore_errors=True)
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def remove(environment: Path) -> None:
    """Remove an environment, its stamps first, so that no rest of it passes for finished. Raises ``OSError``."""
    if environment.is_symlink() or environment.is_file():
        environment.unlink()
    if environment.is_dir():
        shutil.rmtree(environment / STATE, ignore_errors=True)
        shutil.rmtree(environment)
