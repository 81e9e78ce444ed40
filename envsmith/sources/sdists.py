"""Sdists on the index: the few members that say something are read while the archive streams, bounded, and nothing is unpacked to disk.

The whole archive is downloaded (range requests do not help with gzip), checked against the hash that the index names and dropped again: what was read
from it is remembered, not the archive.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator

from envsmith.errors import NetworkError
from envsmith.sources.http import Fetcher
from envsmith.sources.index import IndexFile

__all__ = ["inflating", "read_members"]

MAX_SDIST = 64 << 20
_MAX_MEMBER = 4 << 20
_MAX_MEMBERS = 100_000
# What an archive may unpack to while it is searched: an sdist of 64 MiB of real code stays far below.
_MAX_UNPACKED = 1 << 29


class _Inflating(io.RawIOBase):
    """A gzip stream that refuses to unpack to more than it may."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        import gzip

        self._inner = gzip.GzipFile(fileobj=io.BytesIO(data))
        self._left = _MAX_UNPACKED

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        data = self._inner.read(size if size and size > 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("it unpacks to more than 512 MiB")
        return data


def inflating(data: bytes) -> io.RawIOBase:
    """A gzip file's content as a stream; ``ValueError`` once it unpacks to more than 512 MiB."""
    return _Inflating(data)


def _tar_members(data: bytes) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    with tarfile.open(fileobj=inflating(data), mode="r|") as archive:
        for count, member in enumerate(archive):
            if count > _MAX_MEMBERS:
                raise ValueError("too many members")
            if member.isfile():

                def content(member: tarfile.TarInfo = member) -> bytes:
                    opened = archive.extractfile(member)
                    return opened.read() if opened else b""

                yield member.name, member.size, content


def _zip_members(data: bytes) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist()[:_MAX_MEMBERS]:
            if not info.is_dir():

                def content(info: zipfile.ZipInfo = info) -> bytes:
                    with archive.open(info) as opened:
                        return opened.read(_MAX_MEMBER + 1)

                yield info.filename, info.file_size, content


def read_members(fetcher: Fetcher, file: IndexFile, wanted: Iterable[str]) -> dict[str, bytes]:
    """The members of an sdist whose path below its top folder is in ``wanted``, or matches ``*/NAME`` there (any one folder).

    Missing members are missing from the answer. Raises ``NetworkError`` for what is no archive, ``ContentError`` for a wrong hash.
    """
    names = frozenset(wanted)
    reply = fetcher.get(file.url, max_bytes=MAX_SDIST, sha256=file.sha256, keep=False)
    members = _zip_members if file.filename.endswith(".zip") else _tar_members
    found: dict[str, bytes] = {}
    try:
        for path, size, content in members(reply.body):
            inner = path.removeprefix("./").partition("/")[2]
            key = inner if inner in names else f"*/{inner.partition('/')[2]}" if inner.count("/") == 1 else ""
            if key in names and key not in found and size <= _MAX_MEMBER:
                found[key] = content()
                if len(found) == len(names):
                    break
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        EOFError,
        ValueError,
        RuntimeError,
        NotImplementedError,
    ) as error:
        raise NetworkError(f"{file.filename} is not an archive that can be read: {error}") from None
    return found
