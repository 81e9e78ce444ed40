"""A second copy of an environment, and the one moment in which the packages of the two change places.

The copy is made of hard links, so it takes about a second and no room. uv works in the copy alone. Then each folder of
packages, and each other file that differs and that a package owns, is exchanged in one step of the kernel. The folder
of the environment itself stays, with all that is not of its packages.

The store ``.envsmith`` lies in the environment. A copy in it has the id that the mended environment notes in a file of
its own. So it is known after any kill whether a copy is the environment of before, or an attempt that came to nothing.
An exchange is written down before it begins, and the next call finishes one that was killed.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import read_text, storage_errors, write_whole
from envsmith.base.schema import parse_json
from envsmith.doctor.mend.environment import CONFIG
from envsmith.doctor.mend.owned import (
    carry_over,
    changed_meanwhile,
    is_same,
    link,
    owned_files,
    packages_folders,
    recorded,
    refuse_links,
    refuse_owners,
    refuse_residents,
    refuse_writers,
)
from envsmith.errors import EnvsmithError, UsageError

# In a mended environment: the id of the mend, and what it changed.
MARKER = "envsmith-mend.json"
_STORE = ".envsmith"
# In the folder of a copy: the exchange that is under way, and under its second name one that is done.
_BEGUN, _DONE = "exchange.json", "exchanged.json"
# What an environment consists of beside the files that its packages note.
_PARTS = frozenset({"bin", "lib", "lib64", "include", CONFIG, MARKER})
_ID = re.compile(r"[0-9a-f]{12}")
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_HERE = -100  # AT_FDCWD
_CLOCK_SECONDS = 1.0  # files are dated by a clock that may be this much behind
_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP})


@dataclass(frozen=True, slots=True)
class Twin:
    """A copy of ``environment`` in the store.

    ``handle`` is the open lock, which what works in it inherits. ``records`` are the packages of the environment when
    the copy was made.
    """

    environment: Path
    folder: Path
    handle: int
    records: Mapping[str, tuple[int, int]]

    @property
    def copy(self) -> Path:
        """Return the folder of the copy: before the exchange the new environment, after it the old one."""
        return self.folder / "env"


@dataclass(frozen=True, slots=True)
class _Step:
    """A file or folder that changes places. ``wanted`` is the inode that it has in the environment afterwards, or 0."""

    name: str
    wanted: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Exchange:
    """What changes places, what packages the environment had, and since when (in seconds) files may be new."""

    steps: Sequence[_Step]
    records: Sequence[str]
    since: float


def store_of(environment: Path) -> Path:
    """Return the folder in which copies of an environment lie."""
    return environment / _STORE


@contextmanager
def twin(environment: Path) -> Iterator[Twin]:
    """Yield a copy of an environment. It is removed unless :func:`exchange` was called on it.

    ``UsageError`` where something of it lies elsewhere, or another process works in it.
    """
    with _alone(environment) as handle:
        name = os.urandom(6).hex()
        records = recorded(environment)
        copied = Twin(environment, store_of(environment) / name, handle, records)
        files = owned_files(environment, records)
        refuse_links(environment, files)
        refuse_residents(environment, packages_folders(environment))
        try:
            with storage_errors(copied.folder):
                copied.copy.mkdir(parents=True)
                for part in {*_PARTS, *(name.partition("/")[0] for name in files)}:
                    _copy(environment / part, copied.copy / part)
                _make_relocatable(copied.copy)
            yield copied
        finally:
            _tidy(environment)


def exchange(copied: Twin, note: Mapping[str, object]) -> None:
    """Put the packages of the copy into the environment's place, and the others into the copy's. ``note`` stays there.

    ``UsageError`` where another program has changed the packages meanwhile, or works among them.
    """
    environment = copied.environment
    if names := changed_meanwhile(copied.records, environment):
        raise UsageError(
            f"Cannot change {environment}: another program has changed its packages meanwhile.",
            details=names,
            hint="Run the same command again. Nothing was changed.",
        )
    with storage_errors(environment):
        write_whole(copied.copy / MARKER, json.dumps({"id": copied.folder.name, **note}, indent=1) + "\n")
    _change_places(copied)


@contextmanager
def earlier(environment: Path) -> Iterator[Twin]:
    """Yield the environment of before the last mend. ``UsageError`` when there is none."""
    with _alone(environment) as handle:
        name = _note(environment)
        copied = Twin(environment, store_of(environment) / (name or "none"), handle, recorded(environment))
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
    """Put the packages of before the mend back into their place. The mended ones are removed."""
    _change_places(copied)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir() and source.is_symlink():  # lib64, which older tools made with its whole path
        target.symlink_to(os.path.relpath(source.resolve(), source.parent))
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=link)
    elif os.path.lexists(source):
        link(source, target)


def _make_relocatable(environment: Path) -> None:
    """Let uv write scripts that find their interpreter beside themselves: this folder will have another name."""
    config = environment / CONFIG
    text = read_text(config, 1 << 16, errors="replace")
    write_whole(config, f"{text.rstrip()}\nrelocatable = true\n", durable=False)


def _change_places(copied: Twin) -> None:
    """Exchange what differs and belongs to packages, and carry over what does not. It is done whole or not at all."""
    environment, records = copied.environment, copied.records
    refuse_residents(environment, packages_folders(environment))
    with storage_errors(environment):
        since = time.time() - _CLOCK_SECONDS
        refuse_writers(environment, copied.copy, records)
        carry_over(environment, copied.copy, records, in_use=False)
        steps = _steps(copied)
        before = [_Step(step.name, _inode(environment / step.name)) for step in steps]
        _begin(copied.folder, _Exchange(steps=steps, records=sorted(records), since=since))
        try:
            _exchange_all(copied, steps)
        except BaseException:
            _begin(copied.folder, _Exchange(steps=before, records=sorted(records), since=since))
            _exchange_all(copied, before)
            (copied.folder / _BEGUN).unlink()
            raise
        _finish(copied)


def _steps(copied: Twin) -> list[_Step]:
    environment, copy = copied.environment, copied.copy
    folders = packages_folders(environment)
    files = owned_files(environment, copied.records) | owned_files(copy, recorded(copy))
    outside = [name for name in files if not name.startswith(tuple(f"{folder}/" for folder in folders))]
    differing = [name for name in sorted(outside) if not is_same(environment / name, copy / name)]
    return [_Step(name, _inode(copy / name)) for name in (*folders, *differing, MARKER)]


def _inode(path: Path) -> int:
    return path.lstat().st_ino if os.path.lexists(path) else 0


def _begin(folder: Path, exchanged: _Exchange) -> None:
    write_whole(folder / _BEGUN, json.dumps(dataclasses.asdict(exchanged)) + "\n")


def _read(path: Path) -> _Exchange:
    document = parse_json(read_text(path, 64 << 20))
    steps = [_Step(step["name"], step["wanted"]) for step in document["steps"]]
    return _Exchange(steps=steps, records=document["records"], since=document["since"])


def _finish(copied: Twin) -> None:
    """Carry over what was written while the two changed places, and note that they have."""
    exchanged = _read(copied.folder / _BEGUN)
    carry_over(copied.copy, copied.environment, exchanged.records)
    (copied.folder / _BEGUN).replace(copied.folder / _DONE)


def _exchange_all(copied: Twin, steps: Collection[_Step]) -> None:
    for number, step in enumerate(steps):
        _exchange(step, copied.environment / step.name, copied.copy / step.name, copied.folder / f"aside-{number}")


def _exchange(step: _Step, original: Path, copy: Path, aside: Path) -> None:
    """Bring one thing to its place. What was done before a kill is not done again."""
    if os.path.lexists(aside):  # killed between two renames
        if not os.path.lexists(original):
            copy.rename(original)
        aside.rename(copy)
    elif _inode(original) == step.wanted:
        return
    elif not step.wanted:
        copy.parent.mkdir(parents=True, exist_ok=True)
        original.rename(copy)
    elif not os.path.lexists(original):
        original.parent.mkdir(parents=True, exist_ok=True)
        copy.rename(original)
    else:
        _swap(original, copy, aside)


def _swap(original: Path, copy: Path, aside: Path) -> None:
    """Exchange two files or folders in one step of the kernel. A file system without that step gets three renames."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.renameat2(_HERE, os.fsencode(original), _HERE, os.fsencode(copy), _EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number not in _UNSUPPORTED:
        raise OSError(number, os.strerror(number), str(original))
    _swap_by_renames(original, copy, aside)


def _swap_by_renames(original: Path, copy: Path, aside: Path) -> None:
    original.rename(aside)
    copy.rename(original)
    aside.rename(copy)


@contextmanager
def _alone(environment: Path) -> Iterator[int]:
    """Hold the lock of an environment's store, after putting right what a killed process left there."""
    store = store_of(environment)
    with storage_errors(store):
        refuse_owners(environment, packages_folders(environment))
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


def _put_right(environment: Path) -> None:
    """Finish every exchange that was killed."""
    for folder in _copies(environment):
        if not (folder / _BEGUN).exists():
            continue
        copied = Twin(environment, folder, -1, {})
        with storage_errors(environment):
            _exchange_all(copied, _read(folder / _BEGUN).steps)
            _finish(copied)


def _tidy(environment: Path) -> None:
    """Remove every copy but the environment of before the last mend, and the store when nothing is in it."""
    current = _note(environment)
    for folder in _copies(environment):
        if folder.name != current:
            _remove(environment, folder)


def _remove(environment: Path, folder: Path) -> None:
    """Remove a copy. What somebody wrote into an earlier environment after the exchange is carried over first."""
    if (folder / _DONE).exists():
        exchanged = _read(folder / _DONE)
        with storage_errors(environment):
            carry_over(folder / "env", environment, exchanged.records, since=exchanged.since)
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
