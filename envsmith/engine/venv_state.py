"""What of a virtual environment is finished: one stamp a layer, with every file that stood there when the layer was done.

An environment is taken up at its last intact layer and never beyond: whatever a stamp does not list is removed, so that an install
that was killed half-way, or a package somebody added, cannot pass for a part of the lock.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Stamp", "content_digest", "finished", "remove", "reset", "snapshot", "stamp"]

STATE = ".envsmith"
_SKIPPED_FOLDERS = frozenset({STATE, "__pycache__"})
# uv takes this lock whenever it looks at an environment.
_SKIPPED_FILES = frozenset({".lock"})
_MAX_STAMP = 256 << 20
# What an installer writes about itself or for this place alone: scripts name the path of their interpreter.
_OF_THE_INSTALLER = re.compile(
    r"(?:^|/)(?:INSTALLER|REQUESTED|RECORD|direct_url\.json|uv_cache\.json|uv_build\.json)$|\.py[co]$|^\.\./"
)

Files = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Stamp:
    """A finished layer: ``key`` says what was installed, ``files`` maps path → (bytes, time of change in ns)."""

    key: str
    files: Files


def snapshot(environment: Path) -> dict[str, tuple[int, int]]:
    """Every file below ``environment`` except byte-code and our own notes. Raises ``OSError``."""
    found: dict[str, tuple[int, int]] = {}
    todo = [environment]
    while todo:
        with os.scandir(todo.pop()) as scanned:
            entries = list(scanned)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                todo += [Path(entry.path)] if entry.name not in _SKIPPED_FOLDERS else []
            elif entry.name not in _SKIPPED_FILES:
                status = entry.stat(follow_symlinks=False)
                found[os.path.relpath(entry.path, environment)] = (status.st_size, status.st_mtime_ns)
    return found


def stamp(environment: Path, number: int, key: str) -> None:
    """Note that layer ``number`` is finished; the note appears whole or not at all. Raises ``OSError``."""
    folder = environment / STATE
    folder.mkdir(exist_ok=True)
    text = json.dumps({"key": key, "files": snapshot(environment)})
    handle, name = tempfile.mkstemp(dir=folder, prefix=".writing-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(folder / f"{number}.json")
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def _read(path: Path) -> Stamp | None:
    try:
        if path.stat().st_size > _MAX_STAMP:
            return None
        told = json.loads(path.read_text(encoding="utf-8"))
        return Stamp(str(told["key"]), {str(k): (int(v[0]), int(v[1])) for k, v in told["files"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return None


def finished(environment: Path, keys: tuple[str, ...]) -> list[Stamp]:
    """The stamps of the leading layers that are what ``keys`` ask for and whose files are all still as they were."""
    try:
        now = snapshot(environment)
    except OSError:
        return []
    stamps: list[Stamp] = []
    for number, key in enumerate(keys):
        found = _read(environment / STATE / f"{number}.json")
        if found is None or found.key != key or any(now.get(name) != was for name, was in found.files.items()):
            break
        stamps.append(found)
    return stamps


def reset(environment: Path, last: Stamp, count: int) -> None:
    """Remove every file that is not of the first ``count`` layers, the last of which is ``last``. Raises ``OSError``."""
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
    """Remove an environment: our notes first, so that what is left of it is never taken for finished. Raises ``OSError``."""
    if environment.is_symlink() or environment.is_file():
        environment.unlink()
    if environment.is_dir():
        shutil.rmtree(environment / STATE, ignore_errors=True)
        shutil.rmtree(environment)


def content_digest(environment: Path) -> str:
    """``sha256:…`` over what every distribution says it installed (its ``RECORD``), without what only the installer or the place decides.

    The same wheels give the same digest on every machine and path. Raises ``OSError`` or ``ValueError`` for a damaged RECORD.
    """
    lines: list[str] = []
    for record in environment.glob("lib/python3*/site-packages/*.dist-info/RECORD"):
        rows = csv.reader(io.StringIO(record.read_text(encoding="utf-8")))
        told = [row for row in rows if len(row) == 3 and not _OF_THE_INSTALLER.search(row[0])]
        lines += [f"{name},{digest or _hash(record.parent.parent / name)}" for name, digest, _ in told]
    return "sha256:" + hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _hash(path: Path) -> str:
    """The hash that a RECORD leaves out (PEP 376 allows it), spelt as there."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256") if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read())
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")
