"""A second copy of an environment, and the one moment in which the two change places.

The copy is made of hard links, so it takes about a second and no room. uv works in the copy alone. The kernel exchanges
the two folders in one step: a process that is killed leaves the environment as it was before, or as it is after.

The store ``.NAME.envsmith`` lies beside the environment NAME. A copy in it has the id that the mended environment notes
in a file of its own. So it is known after any kill whether a copy is the environment of before, or an attempt that came
to nothing.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import read_text, write_whole
from envsmith.base.json_types import JsonFields
from envsmith.base.schema import parse_json
from envsmith.doctor.mend.environment import CONFIG
from envsmith.errors import EnvsmithError, UsageError, storage_errors

# In a mended environment: the id of the mend, and what it changed.
MARKER = "envsmith-mend.json"
_ID = re.compile(r"[0-9a-f]{12}")
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_HERE = -100  # AT_FDCWD
_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})


@dataclass(frozen=True, slots=True)
class Twin:
    """A copy of ``environment`` in the store. ``handle`` is the open lock, which what works in it inherits."""

    environment: Path
    folder: Path
    handle: int

    @property
    def copy(self) -> Path:
        """Return the folder of the copy: before the exchange the new environment, after it the old one."""
        return self.folder / "env"


def store_of(environment: Path) -> Path:
    """Return the folder in which copies of an environment lie."""
    return environment.parent / f".{environment.name}.envsmith"


@contextmanager
def twin(environment: Path) -> Iterator[Twin]:
    """Yield a copy of an environment. It is removed unless :func:`exchange` was called on it."""
    with _alone(environment) as handle:
        name = os.urandom(6).hex()
        copied = Twin(environment, store_of(environment) / name, handle)
        try:
            with storage_errors(copied.folder):
                copied.folder.mkdir()
                shutil.copytree(environment, copied.copy, symlinks=True, copy_function=_link)
                _make_relocatable(copied.copy)
            yield copied
        finally:
            _tidy(environment)


def exchange(copied: Twin, note: JsonFields) -> None:
    """Put the copy into the environment's place, and the environment into the copy's. ``note`` stays in it."""
    with storage_errors(copied.environment):
        _restore_config(copied.environment, copied.copy)
        write_whole(copied.copy / MARKER, json.dumps({"id": copied.folder.name, **note}, indent=1) + "\n")
        _swap(copied)


@contextmanager
def earlier(environment: Path) -> Iterator[Twin]:
    """Yield the environment of before the last mend. ``UsageError`` when there is none."""
    with _alone(environment) as handle:
        name = _note(environment)
        copied = Twin(environment, store_of(environment) / (name or "none"), handle)
        if name is None or not copied.copy.is_dir():
            raise UsageError(
                f"Cannot undo a change of {environment}: envsmith has not mended it, or its former state was removed.",
                hint="Give the environment that envsmith doctor --apply has mended.",
            )
        try:
            yield copied
        finally:
            _tidy(environment)


def undo(copied: Twin) -> None:
    """Put the environment of before the mend back into its place. The mended one is removed."""
    with storage_errors(copied.environment):
        _swap(copied)


def _link(source: str, target: str) -> None:
    """Link a file, or copy it where the system allows no link."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def _make_relocatable(environment: Path) -> None:
    """Let uv write scripts that find their interpreter beside themselves: this folder will have another name."""
    config = environment / CONFIG
    text = read_text(config, 1 << 16, errors="replace")
    write_whole(config, f"{text.rstrip()}\nrelocatable = true\n", durable=False)


def _restore_config(environment: Path, copy: Path) -> None:
    write_whole(copy / CONFIG, read_text(environment / CONFIG, 1 << 16, errors="replace"), durable=False)


def _swap(copied: Twin) -> None:
    """Exchange two folders in one step of the kernel. A file system without that step gets three renames."""
    library = ctypes.CDLL(None, use_errno=True)
    paths = (os.fsencode(copied.environment), os.fsencode(copied.copy))
    if library.renameat2(_HERE, paths[0], _HERE, paths[1], _EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number not in _UNSUPPORTED:
        raise OSError(number, os.strerror(number), str(copied.environment))
    _swap_by_renames(copied)


def _swap_by_renames(copied: Twin) -> None:
    """Exchange two folders where the kernel cannot: killed between two renames, the next call finishes it."""
    aside = _aside(copied.folder)
    copied.environment.rename(aside)
    copied.copy.rename(copied.environment)
    aside.rename(copied.copy)


def _aside(folder: Path) -> Path:
    return folder / "aside"


@contextmanager
def _alone(environment: Path) -> Iterator[int]:
    """Hold the lock of an environment's store, after putting right what a killed process left there."""
    store = store_of(environment)
    with storage_errors(store):
        handle = _locked(store)
    try:
        if handle is None:
            raise UsageError(
                f"Cannot change {environment}: another envsmith is changing it.", hint="Wait until it has ended."
            )
        _put_right(environment)
        _tidy(environment)
        yield handle
    finally:
        with suppress(OSError):
            store.rmdir()  # where nothing is in it
        if handle is not None:
            os.close(handle)


def _locked(store: Path) -> int | None:
    """Make the store and return it open and locked, or nothing while another process holds it."""
    while True:
        store.mkdir(exist_ok=True)
        handle = os.open(store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        with suppress(FileNotFoundError):
            if store.stat().st_ino == os.fstat(handle).st_ino:
                return handle
        os.close(handle)  # its last user removed it before we had the lock


def recover(environment: Path) -> None:
    """Bring back an environment that a kill between two renames left without its name."""
    if not environment.exists() and store_of(environment).is_dir():
        with _alone(environment):
            pass


def _put_right(environment: Path) -> None:
    for folder in _copies(environment):
        aside = _aside(folder)
        if aside.is_dir() and not environment.exists():
            aside.rename(environment)
        elif aside.is_dir() and not (folder / "env").exists():
            aside.rename(folder / "env")


def _tidy(environment: Path) -> None:
    """Remove every copy but the environment of before the last mend, and the store when nothing is in it."""
    if not environment.is_dir():
        return
    current = _note(environment)
    for folder in _copies(environment):
        if folder.name != current:
            shutil.rmtree(folder, ignore_errors=True)


def _copies(environment: Path) -> list[Path]:
    return [path for path in sorted(store_of(environment).iterdir()) if _ID.fullmatch(path.name)]


def _note(environment: Path) -> str | None:
    """Return the id of the mend that an environment notes of itself."""
    try:
        name = str(parse_json(read_text(environment / MARKER, 1 << 20))["id"])
    except (EnvsmithError, ValueError, TypeError, KeyError):
        return None
    return name if _ID.fullmatch(name) else None
