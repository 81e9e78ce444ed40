"""Where a build's context lies while it is built: at a path that the next build has too.

BuildKit keeps what it was sent under the path of the folder and takes over again only files whose size or time changed. Of our contexts that
is a few kilobytes; uv, forty megabytes of them, is the same every time, and sending it took a tenth of the time of a second cell.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from envsmith.graph.cache import cache_folder

__all__ = ["context_folder"]

# Builds at one time that get a lasting path; more than that, or a cache that cannot be written, is only slower.
_SLOTS = 16


@contextlib.contextmanager
def context_folder(scratch: Path) -> Iterator[Path]:
    """An empty folder for one build, emptied again at the end; below ``scratch`` where no lasting one is free."""
    with contextlib.ExitStack() as held:
        folder = _slot(held)
        if folder is None:
            folder = scratch / "context"
            folder.mkdir()
        try:
            yield folder
        finally:
            _empty(folder)


def _slot(held: contextlib.ExitStack) -> Path | None:
    """The first folder that no build of this user has; it is theirs until ``held`` is closed, however they end."""
    shelf = cache_folder() / "context"
    with contextlib.suppress(OSError):
        shelf.mkdir(parents=True, exist_ok=True, mode=0o700)
        for number in range(_SLOTS):
            handle = os.open(shelf / f"{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(handle)
                continue
            held.callback(os.close, handle)
            folder = shelf / str(number)
            folder.mkdir(exist_ok=True, mode=0o700)
            _empty(folder)  # what a run that was killed left
            return folder
    return None


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
