"""Puts the files of a Conda lock into a folder: each whole, and none when one cannot be written."""

from __future__ import annotations

import tempfile
from pathlib import Path

from envsmith.errors import StorageError
from envsmith.lock.conda.model import CondaLock
from envsmith.lock.conda.render import files

__all__ = ["write"]


def write(lock: CondaLock, folder: Path) -> tuple[Path, ...]:
    """Write every file of :func:`files`; those that are equal already are left alone. ``StorageError`` keeps what was there."""
    texts = files(lock)
    paths = tuple(folder / name for name in texts)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".conda-", dir=folder) as scratch:
            for name, text in texts.items():
                (Path(scratch) / name).write_text(text, encoding="utf-8")
            for path in paths:
                fresh = Path(scratch) / path.name
                if not path.exists() or path.read_bytes() != fresh.read_bytes():
                    fresh.replace(path)
    except OSError as error:
        raise StorageError(f"the Conda lock cannot be written to {folder}: {error.strerror or error}") from error
    return paths
