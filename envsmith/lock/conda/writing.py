"""Puts the files of a Conda lock into a folder: each whole, and none when one cannot be written."""

from __future__ import annotations

from pathlib import Path

from envsmith.lock import store
from envsmith.lock.conda.model import CondaLock
from envsmith.lock.conda.render import files

__all__ = ["write"]


def write(lock: CondaLock, folder: Path) -> tuple[Path, ...]:
    """Write every file of :func:`files`; those that are equal already are left alone. ``StorageError`` keeps what was there."""
    texts = files(lock)
    store.write(folder, texts)
    return tuple(folder / name for name in texts)
