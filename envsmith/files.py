"""Files: read up to a bound, written whole or not at all."""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import importlib
import io
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from envsmith.errors import DataError, EnvsmithError, os_errors


def now() -> dt.datetime:
    """Return the present in UTC, by which files are dated. ``SOURCE_DATE_EPOCH`` sets another, where it is a time."""
    epoch, utc = os.environ.get("SOURCE_DATE_EPOCH", ""), dt.timezone.utc
    is_time = re.fullmatch("[0-9]{1,11}", epoch)
    return dt.datetime.fromtimestamp(int(epoch), tz=utc) if is_time else dt.datetime.now(utc)


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
    """Return the bytes of a file or pipe of at most ``limit`` bytes, or raise ``failure``. ``-`` is stdin."""
    with open_input(path, failure) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise failure(f"{path}: larger than {limit} bytes")
    return content


def read_text(path: Path, limit: int = 64 << 20, *, failure: type[EnvsmithError] = DataError) -> str:
    """Return the text of a file or pipe as :func:`read_bounded` reads it. What is not UTF-8 is replaced."""
    return read_bounded(path, limit, failure=failure).decode("utf-8", errors="replace")


@contextmanager
def open_input(path: Path, failure: type[EnvsmithError], *, seconds: float = 60.0) -> Iterator[BinaryIO]:
    """Open what a user names: a file, a pipe that ends within ``seconds``, or ``-`` for stdin.

    A folder, a device, and a pipe that nobody writes to raise ``failure``.
    """
    if str(path) == "-":
        if sys.stdin is None:
            raise failure("Cannot read stdin: it is closed.")
        with os_errors("stdin: cannot be read", failure):
            yield sys.stdin.buffer
        return
    with os_errors(f"{path}: cannot be read", failure):
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with io.BufferedReader(_Input(handle, seconds), 1 << 16) as file:
            mode = os.fstat(handle).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            is_null = stat.S_ISCHR(mode) and Path(os.devnull).samefile(path)
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or is_null):
                raise failure(f"Cannot read {path}: it is neither a file nor a pipe.")
            yield file


class _Input(io.RawIOBase):
    """An open file. Where it is a pipe, its writer has two seconds to come and a deadline for the whole."""

    def __init__(self, handle: int, seconds: float) -> None:
        super().__init__()
        self._handle = handle
        self._first, self._last = time.monotonic() + 2.0, time.monotonic() + seconds
        self._is_pipe = stat.S_ISFIFO(os.fstat(handle).st_mode)
        self._begun = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            with suppress(BlockingIOError):  # a writer is at work
                count = os.readv(self._handle, [buffer])
                self._begun |= count > 0
                if count or self._begun or not self._is_pipe or time.monotonic() > self._first:
                    return count
            if time.monotonic() > self._last:
                raise TimeoutError(errno.ETIMEDOUT, "the pipe's writer did not end in time")
            time.sleep(0.01)

    def close(self) -> None:
        if not self.closed:
            os.close(self._handle)
        super().close()


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
    try:
        document: dict[str, Any] = parser.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return document
