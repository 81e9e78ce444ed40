"""What rattler keeps of channels, believed only while it is what was fetched.

rattler 0.28 keeps a shard unpacked under the hash of the packed one and reads it without a check, and it knows a whole
index again by size and time (``fetch_package_records`` in its repodata gateway). So envsmith writes down the sha256 of
every file that a run leaves, and a run begins without the files that are not in that list.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from envsmith.base.cache import load_entry, store_entry
from envsmith.base.files import sha256_of
from envsmith.errors import NetworkError, os_errors

_LIST, _KEY = "sealed", "copies of what channels offer"


def drop_changed(folder: Path, *, offline: bool) -> None:
    """Remove what differs from the list that :func:`sealed` wrote. It is fetched again.

    ``NetworkError`` when that is not allowed, ``StorageError`` when a file cannot be removed.
    """
    digests = dict(_digests(folder))
    entry = load_entry(folder / _LIST, _KEY)
    listed = json.loads(entry.content) if entry else {}
    for path in (folder / name for name, digest in digests.items() if digest is None or listed.get(name) != digest):
        if offline:
            raise NetworkError(
                f"Cannot use the copy of a channel's index: {path} is not what was fetched.",
                hint="Run the same command once without --offline.",
            )
        with os_errors(f"remove {path}", hint="Remove it, then run the same command again."):
            path.unlink(missing_ok=True)


@contextmanager
def sealed(folder: Path) -> Iterator[None]:
    """Write down what the folder holds after a step, also one that failed.

    Files that others may write, as some umasks have them, are closed first.
    """
    try:
        yield
    finally:
        for path in _files(folder):
            with suppress(OSError):  # another envsmith fetched it again
                if stat.S_ISREG(mode := path.lstat().st_mode) and mode & 0o022:
                    path.chmod(stat.S_IMODE(mode) & ~0o022)
        digests = {name: digest for name, digest in _digests(folder) if digest is not None}
        store_entry(folder / _LIST, _KEY, json.dumps(digests).encode())


def _digests(folder: Path) -> Iterator[tuple[str, str | None]]:
    """Yield every file with its sha256, nothing for one that others may write."""
    for path in _files(folder):
        yield str(path.relative_to(folder)), _digest(path)


def _files(folder: Path) -> Iterator[Path]:
    """Yield all files and links, but for the list itself."""
    for place, folders, names in os.walk(folder):
        for name in (*names, *(name for name in folders if os.path.islink(f"{place}/{name}"))):  # noqa: PTH114
            if (path := Path(place, name)) != folder / _LIST:
                yield path


def _digest(path: Path) -> str | None:
    """Return the sha256 of a file that only this user may write."""
    with suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return _digest_in_state(path, (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return None


@lru_cache(maxsize=1 << 16)
def _digest_in_state(path: Path, _state: tuple[int, ...]) -> str:
    with path.open("rb") as file:
        return sha256_of(file).hex()
