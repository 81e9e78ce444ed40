"""Compiled forms of the knowledge, kept between runs outside the project; without them everything still works, only slower.

A cache file is JSON, found by a key that changes with every file of the knowledge, and written whole or not at all. What is not
readable, not JSON or of another schema is ignored and made again; nothing from a cache is ever executed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from envsmith.errors import DataError, EnvsmithError, StorageError

# Raised when the shape of what is kept changes.
SCHEMA = 3
_KEEP = 12


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/envsmith`` (default ``~/.cache/envsmith``); it need not exist."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "envsmith"


def read_cache(kind: str, key: str) -> Any | None:
    """What was kept under ``key``, or ``None``."""
    try:
        data = json.loads((cache_folder() / f"{kind}-{key[:32]}.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or data.get("key") != key:
        return None
    return data.get("value")


def write_cache(kind: str, key: str, value: Any) -> None:
    """Keep ``value`` (JSON) under ``key``; a folder that cannot be written is no error. Old files of the kind are removed."""
    folder = cache_folder()
    text = json.dumps({"schema": SCHEMA, "key": key, "value": value}, separators=(",", ":"))
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".new-", delete=False, encoding="utf-8") as file:
            temporary = file.name
            file.write(text)
        Path(temporary).replace(folder / f"{kind}-{key[:32]}.json")
        temporary = None
        _prune(folder, kind)
    except OSError:
        pass
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()


def _prune(folder: Path, kind: str) -> None:
    files = sorted(folder.glob(f"{kind}-*.json"), key=lambda p: p.stat().st_mtime, reverse=True)
    for path in files[_KEEP:]:
        with contextlib.suppress(OSError):
            path.unlink()


def read_bounded(path: Path, limit: int, *, failure: type[EnvsmithError] = DataError) -> bytes:
    """Return the bytes of a file of at most ``limit`` bytes, or raise ``failure``."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise failure(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > limit:
        raise failure(f"{path}: larger than {limit} bytes")
    return content


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there complete or not at all, also after a power cut. ``StorageError``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
        _sync(path.parent)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written: {error.strerror or error}",
            hint="free some space or mend the permissions, then run the same command again: it resumes",
        ) from None


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_toml(text: str) -> dict[str, Any]:
    """A TOML document; ``ValueError`` when it is not one."""
    # The standard library has a parser from 3.11 on; on 3.10 the distribution that it was taken from is a dependency.
    parser = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    document: dict[str, Any] = parser.loads(text)
    return document
