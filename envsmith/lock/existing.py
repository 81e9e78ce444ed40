"""The locks that are in an output folder already: found by the request they were made from, as ``--locked`` and ``--frozen`` need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from envsmith.errors import EnvsmithError, StorageError
from envsmith.lock import store
from envsmith.model.lock import Lock

__all__ = ["find", "need"]


def find(output: Path, request: str) -> tuple[Path, Lock] | None:
    """The newest lock below ``output`` that was made from ``request`` (the flags as text), with its folder.

    A folder whose lock is broken raises ``DataError`` only when no other answers.
    """
    broken: EnvsmithError | None = None
    for directory in _folders(output):
        try:
            lock = store.read(directory)
        except EnvsmithError as error:
            broken = broken or error
            continue
        if lock is not None and lock.request == request:
            return directory, lock
    if broken is not None:
        raise broken
    return None


def need(output: Path, request: str) -> tuple[Path, Lock]:
    """As :func:`find`; ``EnvsmithError`` (exit code 1) when there is none."""
    found = find(output, request)
    if found is None:
        raise EnvsmithError(
            f"{output}: no lock of this request is there ({request})",
            hint="make one: run `envsmith lock` with the same request flags",
        )
    return found


def _folders(output: Path) -> Iterator[Path]:
    """Folders with a lock, newest first."""
    try:
        found = [(p.stat().st_mtime_ns, p.parent) for p in output.glob(f"*/{store.LOCK_FILE}")]
    except OSError as error:
        raise StorageError(f"{output}: cannot be read: {error.strerror or error}") from None
    yield from (folder for _, folder in sorted(found, reverse=True))
