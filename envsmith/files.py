"""Files: read up to a bound, written whole or not at all."""

from __future__ import annotations

import datetime as dt
import hashlib
import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from envsmith.errors import DataError, EnvsmithError, os_errors


def now() -> dt.datetime:
    """Return the present in UTC, by which files are dated. ``SOURCE_DATE_EPOCH`` sets another."""
    epoch, utc = os.environ.get("SOURCE_DATE_EPOCH", ""), dt.timezone.utc
    return dt.datetime.fromtimestamp(int(epoch), tz=utc) if epoch.isdigit() else dt.datetime.now(utc)


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
