"""Files: read up to a bound, written whole or not at all."""

from __future__ import annotations

import datetime as dt
import errno
import fcntl
import functools
import hashlib
import importlib
import io
import json
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from envsmith.errors import DataError, EnvsmithError, StorageError, UsageError, os_errors, storage_error


def now() -> dt.datetime:
    """Return the present in UTC, by which files are dated. ``SOURCE_DATE_EPOCH`` sets another, where it is a time."""
    epoch, utc = os.environ.get("SOURCE_DATE_EPOCH", ""), dt.timezone.utc
    is_time = re.fullmatch("[0-9]{1,11}", epoch)
    return dt.datetime.fromtimestamp(int(epoch), tz=utc) if is_time else dt.datetime.now(utc)


def expand_home(path: str, environ: Mapping[str, str] | None = None) -> Path:
    """Return a path with the user's home for ``~``: ``HOME``, else what the system knows of this user, else ``/``.

    A container's user often has neither.
    """
    if path != "~" and not path.startswith("~/"):
        return Path(path)
    home = (os.environ if environ is None else environ).get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    return Path(home if os.path.isabs(home) else "/") / path[2:]  # noqa: PTH117 - it is a text


def read_bounded(path: Path, limit: int, *, failure: type[EnvsmithError] = DataError) -> bytes:
    """Return the bytes of a file or pipe of at most ``limit`` bytes, or raise ``failure``. ``-`` is stdin."""
    with open_input(path, failure) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise failure(f"Cannot read {path}: it is larger than {limit} bytes.")
    return content


def read_text(
    path: Path,
    limit: int = 64 << 20,
    *,
    failure: type[EnvsmithError] = DataError,
    errors: str = "strict",
    hint: str | None = None,
) -> str:
    """Return the text of a file or pipe as :func:`read_bounded` reads it. What is not UTF-8 raises ``failure``, with ``hint``."""
    try:
        return read_bounded(path, limit, failure=failure).decode("utf-8", errors)
    except UnicodeDecodeError:
        raise failure(f"Cannot read {path}: it is not UTF-8.", hint=hint) from None


@contextmanager
def open_input(path: Path, failure: type[EnvsmithError], *, seconds: float = 60.0) -> Iterator[BinaryIO]:
    """Open what a user names: a file, a pipe that ends within ``seconds``, or ``-`` for stdin.

    A folder, a device, and a pipe without a writer raise ``failure``.
    """
    if str(path) == "-":
        with os_errors("read stdin", failure):
            yield sys.stdin.buffer
        return
    with os_errors(f"read {path}", failure, hint="Check that the path exists and that you may read it."):
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with io.BufferedReader(_Input(handle, seconds), 1 << 16) as file:
            mode = os.fstat(handle).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            is_null = stat.S_ISCHR(mode) and Path(os.devnull).samefile(path)
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or is_null):
                raise failure(f"Cannot read {path}: it is neither a file nor a pipe.")
            yield file


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. ``OSError`` at once for a pipe, a device or a folder."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


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


# What is written lies beside its place under a name of this form, locked by its writer, until it takes the final name.
# The kernel gives the lock back however the writer ends, and the next writer in the same folder removes the rest.
_TEMPORARY = re.compile(r"\.envsmith-[0-9a-f]{12}")


@contextmanager
def storage_errors(path: object) -> Iterator[None]:
    """Raise ``StorageError`` instead of an ``OSError`` while ``path`` is written."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


def write_whole(path: Path, content: str | bytes, *, mode: int | None = None, durable: bool = True) -> None:
    """Write a file so that it is complete or stays as it was, whatever happens. See :func:`writing`."""
    with writing(path, mode=mode, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def writing(path: Path, *, mode: int | None = None, durable: bool = True) -> Iterator[IO[bytes]]:
    """Yield a new file, which takes the name ``path`` when the block ends well. Otherwise nothing changes.

    Without ``mode`` the place is the user's: a device or a pipe is written as it is, a link stays and its target is
    replaced, an existing file keeps its mode. ``durable`` waits for the disk. ``StorageError``.
    """
    with storage_errors(path):
        if mode is None and _is_stream(path):
            with open(path, "ab", opener=_open_at_once) as file:
                yield file
            return
        target = Path(os.path.realpath(path)) if mode is None else path
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target.parent)
        handle, fresh = _locked(target.parent, lambda name: os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                _take_over(handle, target, mode)
                file.flush()
                if durable:
                    os.fsync(handle)
                fresh.replace(target)
            if durable:
                _sync(target.parent)
        except BaseException:
            with suppress(OSError):
                fresh.unlink()
            raise


def _is_stream(path: Path) -> bool:
    """Return whether a path names a device, a pipe or an open file of this process (``/dev/stdout``)."""
    return (path.exists() and not path.is_file()) or bool(re.match("/(dev/(std|fd)|proc)", str(path.absolute())))


def _open_at_once(path: str, flags: int) -> int:
    """Open a stream. ``OSError`` for a pipe without a reader, which would be waited for."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(handle, True)
    return handle


def _take_over(handle: int, target: Path, mode: int | None) -> None:
    """Give a new file ``mode``, or the owner and mode of the file that it replaces."""
    if mode is not None:
        os.fchmod(handle, mode)
        return
    with suppress(FileNotFoundError):
        status = target.stat()
        with suppress(PermissionError):
            os.fchown(handle, status.st_uid, status.st_gid)
        os.fchmod(handle, status.st_mode & 0o7777)


@contextmanager
def scratch(folder: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder of this user alone and remove it at the end. ``StorageError``.

    It lies in ``folder``, or where the system keeps temporary files. What a killed process left there is removed first.
    """
    with storage_errors(folder or "a temporary folder"):
        parent = folder or _temporary_folder()
        sweep(parent)
        handle, path = _locked(parent, _make_folder)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def _temporary_folder() -> Path:
    import tempfile  # costs a few milliseconds, which a warm solve does not need

    return Path(tempfile.gettempdir())


def _make_folder(path: Path) -> int:
    path.mkdir(mode=0o700)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def _locked(folder: Path, make: Callable[[Path], int]) -> tuple[int, Path]:
    """Make something with a temporary name in ``folder``. Return it open and locked, and its path."""
    while True:
        path = folder / f".envsmith-{os.urandom(6).hex()}"
        # A sweep of another process may come between making, opening and locking. Then the name is gone.
        try:
            handle = make(path)
        except FileNotFoundError:
            if folder.is_dir():
                continue
            raise
        if _lock(handle) is not False and path.exists():
            return handle, path
        os.close(handle)


def _lock(handle: int) -> bool | None:
    """Lock an open file. ``False`` while another process holds it, ``None`` where the filesystem has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@functools.cache
def sweep(folder: Path) -> None:
    """Remove the temporary files and folders of killed processes of this user from ``folder``, once a run."""
    with suppress(OSError):
        for path in [path for path in folder.iterdir() if _TEMPORARY.fullmatch(path.name)]:
            remove_abandoned(path)


def remove_abandoned(path: Path) -> None:
    """Remove a file or folder of this user that no running process holds by a lock."""
    with suppress(OSError):
        if path.lstat().st_uid != os.getuid():
            return
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if _lock(handle):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        finally:
            os.close(handle)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def prepare_folder(folder: Path) -> None:
    """Make ``folder`` and show that it can be written, before minutes are spent on what belongs into it."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with scratch(folder):
            pass


def holds(path: Path, text: str) -> bool:
    """Return whether a file has this text and nothing else."""
    try:
        return read_bounded(path, len(data := text.encode())) == data
    except DataError:
        return False


def write_together(folder: Path, texts: Mapping[str, str]) -> None:
    """Write ``texts`` (by plain names, or such in one folder below): all are complete on disk before the first takes its name.

    They take them in order. Files that have the same bytes are left alone, files that are not named stay. On
    ``StorageError`` everything that was there is there still.
    """
    for name in texts:
        parts = name.split("/")
        if len(parts) > 2 or any(Path(part).name != part or part in {"", ".", ".."} for part in parts):
            raise StorageError(f"Cannot write {name!r}: it is not a plain file name.")
        if len(parts) == 2 and (folder / parts[0]).is_symlink():
            raise StorageError(f"Cannot write {folder / name}: {parts[0]} is a link.", hint="Delete the link.")
    changed = {name: text.encode() for name, text in texts.items() if not holds(folder / name, text)}
    if not changed:
        return
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with scratch(folder) as staging:
            for name, data in changed.items():
                for place in (staging, folder):
                    (place / name).parent.mkdir(exist_ok=True)
                with (staging / name).open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
            _rename_all(folder, staging, changed)


def _rename_all(folder: Path, staging: Path, names: Iterable[str]) -> None:
    """Give the files their names in ``folder``, or put back all that were there before."""
    before: dict[str, Path] = {}
    renamed: list[str] = []
    for name in names:
        if (folder / name).exists():
            before[name] = staging / f"{name}.before"
            os.link(folder / name, before[name])
        try:
            (staging / name).replace(folder / name)
        except OSError:
            _restore(folder, renamed, before)
            raise
        renamed.append(name)


def _restore(folder: Path, renamed: list[str], before: Mapping[str, Path]) -> None:
    for name in renamed:
        with suppress(OSError):
            if name in before:
                before[name].replace(folder / name)
            else:
                (folder / name).unlink()


# What lies in a folder that envsmith writes again: of which kind it is, and which files envsmith wrote. Only these are
# ever replaced or removed.
MARK = ".envsmith.json"
_MARK_BYTES = 16 << 20


def claim(folder: Path, kind: str) -> frozenset[str]:
    """Make ``folder`` and return the files that envsmith wrote into it as a ``kind`` before.

    ``UsageError`` when it holds anything and is not marked as a ``kind``. ``StorageError`` when it cannot be written.
    """
    prepare_folder(folder)
    with storage_errors(folder):
        mark: object = None
        with suppress(FileNotFoundError, ValueError, RecursionError), (folder / MARK).open("rb") as file:
            mark = json.loads(file.read(_MARK_BYTES))
        if isinstance(mark, dict) and mark.get("kind") == kind and isinstance(mark.get("files"), list):
            return frozenset(name for name in mark["files"] if isinstance(name, str) and _is_inside(folder, name))
        if any(folder.iterdir()):
            hint = "Choose an empty folder, or empty this one if you need nothing in it."
            raise UsageError(
                f"Cannot replace {folder}: it is not empty and envsmith has not marked it as {kind}.", hint=hint
            )
    return frozenset()


def _is_inside(folder: Path, name: str) -> bool:
    return ".." not in Path(name).parts and (folder / name).parent.resolve().is_relative_to(folder.resolve())


def mark(folder: Path, kind: str, files: Iterable[str] = ()) -> None:
    """Note that ``folder`` is a ``kind`` in which envsmith wrote ``files``. ``StorageError``."""
    write_whole(folder / MARK, json.dumps({"kind": kind, "files": sorted(files)}, indent=0) + "\n", durable=False)


def write_folder(folder: Path, kind: str, texts: Mapping[str, str]) -> None:
    """Write every file of ``texts`` (by its path in ``folder``), in order, and remove those of an earlier run.

    Whatever envsmith did not write stays. Where it is in the way: ``UsageError``, as for :func:`claim`.
    """
    earlier = claim(folder, kind)
    for name in texts:
        if name not in earlier and os.path.lexists(folder / name):
            hint = "Move it away, or choose another folder."
            raise UsageError(f"Cannot replace {folder / name}: envsmith did not write it.", hint=hint)
    if earlier != texts.keys():  # the mark covers all that an interruption may leave
        mark(folder, kind, earlier | texts.keys())
    for name, text in texts.items():
        if not holds(folder / name, text):
            write_whole(folder / name, text, durable=False)
    with storage_errors(folder):
        for name in earlier - texts.keys():
            (folder / name).unlink(missing_ok=True)
    if earlier - texts.keys():
        mark(folder, kind, texts)


def digest_of(data: bytes) -> str:
    """Return ``sha256:…`` of some bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def sha256_of(file: IO[bytes]) -> bytes:
    """Hash an open file from where it stands to its end, piece by piece."""
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.digest()


class HashedWriter:
    """Writes on to an open file, and knows the hash and the length of what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        """Take some bytes."""
        self._digest.update(data)
        self.size += len(data)
        return self._file.write(data)

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self.size

    @property
    def sha256(self) -> str:
        """Return the hash so far."""
        return self._digest.hexdigest()


def read_toml(text: str) -> dict[str, Any]:
    """Return a TOML document. ``ValueError`` when it is not one."""
    # The standard library has a parser from 3.11 on; on 3.10 the distribution that it was taken from is a dependency.
    parser = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        document: dict[str, Any] = parser.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return document
