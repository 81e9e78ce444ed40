"""What is kept between runs, and believed only when it is whole, the user's own and of the key that is looked for.

Without the cache everything still works, only slower. An entry is one file: the sha256 of what it was made of and of
all that follows, the time, the content. One that is damaged, moved to another key, or that somebody else may have
written is ignored and made again. Nothing from a cache is ever executed: :mod:`envsmith.base.packed` reads what is no JSON.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import stat
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from envsmith.base.files import expand_home, write_whole
from envsmith.base.packed import pack, unpack
from envsmith.errors import StorageError

_Value = TypeVar("_Value")
# Another one when the shape of an entry changes.
_SCHEMA = b"envsmith cache 5\0"
_TIME = struct.Struct(">d")
_DIGEST = hashlib.sha256().digest_size
# The largest entry of our own (the compiled graph) has 2 MB.
_LIMIT = 64 << 20
_KEEP = 12


class CacheEntry(NamedTuple):
    """The content of an entry, and its age in seconds: infinite where a clock was ahead when it was stored."""

    content: bytes
    age: float


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/envsmith`` (default ``~/.cache/envsmith``). It need not exist."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else expand_home("~/.cache")) / "envsmith"


def load_entry(
    path: Path, made_of: str, *, limit: int = _LIMIT, own: bool = True, clock: Callable[[], float] = time.time
) -> CacheEntry | None:
    """Return what :func:`store_entry` kept for the same ``made_of``. ``None`` when anything about the file is off.

    A file that is not the user's ``own`` came with the program, and is trusted as its code is.
    """
    try:
        # Not through a link, and without waiting for the other end of a pipe.
        with open(path, "rb", opener=_open_own if own else None) as file:
            digest, stored, content = file.read(_DIGEST), file.read(_TIME.size), file.read(limit + 1)
    except OSError:
        return None
    if len(content) > limit or digest != _digest(made_of, stored, content):
        return None
    age = clock() - _TIME.unpack(stored)[0]
    return CacheEntry(content, age if age >= 0 else math.inf)


def store_entry(path: Path, made_of: str, content: bytes, *, clock: Callable[[], float] = time.time) -> None:
    """Keep ``content`` until it is stored again. A folder that cannot be written is not an error."""
    with suppress(StorageError):
        write_whole(path, entry_of(made_of, content, at=clock()), mode=0o600, durable=False)


def entry_of(made_of: str, content: bytes, *, at: float) -> bytes:
    """Return the file of an entry that was stored at a time."""
    stored = _TIME.pack(at)
    return _digest(made_of, stored, content) + stored + content


def _digest(made_of: str, stored: bytes, content: bytes) -> bytes:
    digest = hashlib.sha256(_SCHEMA + hashlib.sha256(made_of.encode()).digest() + stored)
    digest.update(content)
    return digest.digest()


def _open_own(path: str, flags: int) -> int:
    """Open a file that is this user's and that no other user may write. ``PermissionError`` for any other."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
        return handle
    os.close(handle)
    raise PermissionError(path)


def cached(
    kind: str,
    made_of: str,
    make: Callable[[], _Value],
    *,
    shape: Any,
    brought: Callable[[], bytes | None] = lambda: None,
) -> _Value:
    """Return what was kept of ``kind`` for the same ``made_of``, else what ``make`` returns, which is kept.

    The value is of the type ``shape``. ``brought`` returns it packed, where the program came with it. What cannot be
    read is made again, and what cannot be kept is returned all the same.
    """
    path = _place(kind, made_of)
    if entry := load_entry(path, made_of):
        with suppress(Exception):  # it can be wrong in any way
            kept_value: _Value = unpack(shape, entry.content)
            return kept_value
    with suppress(Exception):
        if content := brought():
            brought_value: _Value = unpack(shape, content)
            _keep(kind, path, made_of, content)
            return brought_value
    value = make()
    with suppress(Exception):
        _keep(kind, path, made_of, pack(shape, value))
    return value


def _keep(kind: str, path: Path, made_of: str, content: bytes) -> None:
    store_entry(path, made_of, content)
    _remove_old(kind)


def read_cache(kind: str, key: str, folder: Path | None = None) -> Any | None:
    """Return the JSON kept under ``key``, or ``None``."""
    entry = load_entry(_place(kind, key, folder), key)
    return json.loads(entry.content) if entry else None


def write_cache(kind: str, key: str, value: Any, folder: Path | None = None) -> None:
    """Keep ``value`` (JSON) under ``key``. Without a ``folder`` only the newest few of a kind stay."""
    store_entry(_place(kind, key, folder), key, json.dumps(value, separators=(",", ":")).encode())
    if folder is None:
        _remove_old(kind)


def _place(kind: str, made_of: str, folder: Path | None = None) -> Path:
    key = hashlib.sha256(made_of.encode()).hexdigest()
    return folder / kind / key if folder else _entries(cache_folder()) / f"{kind}-{key[:32]}"


@functools.cache
def _entries(folder: Path) -> Path:
    """Return the folder of our own entries: ``folder``, or where it cannot be written one of this user's in TMPDIR.

    Without it every command would compile the knowledge anew.
    """
    if _is_writable(folder):
        return folder
    import tempfile  # and random with it: only who cannot write to the cache waits for them

    substitute = Path(tempfile.gettempdir()) / f"envsmith-{os.getuid()}"
    return substitute if _is_writable(substitute) and _is_private(substitute) else folder


def _is_writable(folder: Path) -> bool:
    """Return whether this user may write in a folder, which is made. Root writes nothing of its own into another's."""
    with suppress(OSError):
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        if os.getuid() == 0 != nearest.stat().st_uid:
            return False
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.access(folder, os.W_OK)
    return False


def _is_private(folder: Path) -> bool:
    """Return whether a folder is this user's, and no other user may write in it."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022


def _remove_old(kind: str) -> None:
    """Remove all but the newest entries of a kind. A file from the future is the oldest."""
    with suppress(OSError):
        folder = _entries(cache_folder())
        ages = {path: time.time() - path.stat().st_mtime for path in folder.glob(f"{kind}-*")}
        for path in sorted(ages, key=lambda p: ages[p] if ages[p] >= 0 else math.inf)[_KEEP:]:
            path.unlink(missing_ok=True)
