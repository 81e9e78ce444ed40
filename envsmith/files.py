"""Files: read up to a bound, written whole or not at all, and kept in the cache between runs.

Without the cache everything still works, only slower. A cache file is found by a key that changes with what it was made
of. One that is damaged, or that somebody else may have written, is ignored and made again. Nothing from a cache is ever
executed.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import importlib
import io
import json
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from envsmith.errors import DataError, EnvsmithError, os_errors

_Value = TypeVar("_Value")
# Raised when the shape of what is kept changes.
SCHEMA = 3
_KEEP = 12


def now() -> dt.datetime:
    """Return the present in UTC, by which files are dated. ``SOURCE_DATE_EPOCH`` sets another."""
    epoch, utc = os.environ.get("SOURCE_DATE_EPOCH", ""), dt.timezone.utc
    return dt.datetime.fromtimestamp(int(epoch), tz=utc) if epoch.isdigit() else dt.datetime.now(utc)


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/envsmith`` (default ``~/.cache/envsmith``). It need not exist."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "envsmith"


def read_cached(name: str) -> bytes | None:
    """Return the bytes kept under ``name``. ``None`` without them, or when somebody else could have written them."""
    try:
        with (cache_folder() / name).open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                return None
            return file.read()
    except OSError:
        return None


def write_cached(kind: str, key: str, content: bytes) -> None:
    """Keep bytes as ``<kind>-<key>`` and remove old files of the kind.

    A folder that cannot be written is not an error.
    """
    folder = cache_folder()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{kind}-{key}", content)
        for path in sorted(folder.glob(f"{kind}-*"), key=lambda p: p.stat().st_mtime, reverse=True)[_KEEP:]:
            path.unlink(missing_ok=True)


def cached(kind: str, made_of: str, make: Callable[[], _Value], *, modules: tuple[str, ...]) -> _Value:
    """Return what was kept of ``kind`` for the same ``made_of``, else what ``make`` returns, which is kept.

    The value consists of classes of ``modules`` (prefixes of their names) and of plain values.
    """
    key = hashlib.sha256(made_of.encode()).hexdigest()[:32]
    content = read_cached(f"{kind}-{key}") or b""
    if content[:32] == hashlib.sha256(content[32:]).digest():
        with suppress(Exception):  # a foreign pickle can fail in any way, and is then made again
            kept_value: _Value = unpickle(content[32:], modules)
            return kept_value
    value = make()
    body = pickle.dumps(value, 5)
    write_cached(kind, key, hashlib.sha256(body).digest() + body)
    return value


def unpickle(content: bytes, modules: tuple[str, ...]) -> Any:
    """Return a value of classes of ``modules`` and nothing else, so that a foreign file runs no code."""
    return _Unpickler(content, modules).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, modules: tuple[str, ...]) -> None:
        super().__init__(io.BytesIO(content))
        self._modules = modules

    def find_class(self, module: str, name: str) -> Any:
        kind = super().find_class(module, name) if module.startswith(self._modules) else None
        if not isinstance(kind, type):
            raise pickle.UnpicklingError(f"{module}.{name} has no place in the cache")
        return kind


def read_cache(kind: str, key: str) -> Any | None:
    """Return the JSON kept under ``key``, or ``None``."""
    try:
        data = json.loads(read_cached(f"{kind}-{key[:32]}.json") or b"null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or data.get("key") != key:
        return None
    return data.get("value")


def write_cache(kind: str, key: str, value: Any) -> None:
    """Keep ``value`` (JSON) under ``key``."""
    text = json.dumps({"schema": SCHEMA, "key": key, "value": value}, separators=(",", ":"))
    write_cached(kind, f"{key[:32]}.json", text.encode())


def replace_file(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Write a file beside its place, then move it there. ``durable`` waits for the disk."""
    import tempfile  # costs a few milliseconds, which a warm solve does not need

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def read_bounded(path: Path, limit: int, *, failure: type[EnvsmithError] = DataError) -> bytes:
    """Return the bytes of a file of at most ``limit`` bytes, or raise ``failure``."""
    with os_errors(f"{path}: cannot be read", failure), path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise failure(f"{path}: larger than {limit} bytes")
    return content


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there complete or not at all, also after a power cut. ``StorageError``."""
    with os_errors(
        f"{path}: cannot be written",
        hint="free some space or mend the permissions, then run the same command again: it resumes",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode(), mode=0o644, durable=True)
        _sync(path.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest_of(data: bytes) -> str:
    """Return ``sha256:…`` of some bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def sha256_of(file: IO[bytes]) -> bytes:
    """Hash an open file from where it stands to its end, piece by piece."""
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.digest()


def read_toml(text: str) -> dict[str, Any]:
    """Return a TOML document. ``ValueError`` when it is not one."""
    # The standard library has a parser from 3.11 on; on 3.10 the distribution that it was taken from is a dependency.
    parser = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    document: dict[str, Any] = parser.loads(text)
    return document
