"""Wheels on the index, opened where they lie: their directory and single members by range requests.

A remote wheel is hostile until parsed: members, the number of entries and all bytes read for one wheel are bounded,
and what zipfile finds broken is a ``NetworkError`` with the name of the file.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import zipfile
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager

from envsmith.errors import NetworkError
from envsmith.lock.index.metadata import MAX_MEMBER
from envsmith.net.address import redact
from envsmith.net.http import Fetcher, RangeReply

# Enough for the end record and, in most wheels, the whole central directory.
_TAIL = 1 << 16
# A wheel up to this size costs one request as a whole, less than its directory and a few members of it.
SMALL = 4 << 20
_BLOCK = 1 << 16
# libtorch_python.so has up to 30 MiB compressed; nothing that is read here comes near the double of that.
DEFAULT_BUDGET = 96 << 20
# The central directory of a torch wheel has 2 MiB. zipfile makes an object of each entry, so its length bounds the
# memory.
_MAX_DIRECTORY = 16 << 20
# A forward seek up to this far reads on instead of asking again.
_SKIP = 1 << 18
# The local header repeats name and extra field; 4 KiB are more than it has in any wheel, and a miss costs one request.
_HEADER = 4096


class RemoteFile(io.RawIOBase):
    """A file behind an address, seekable, read by ranges, of which at most ``budget`` bytes are read.

    :meth:`expect` opens one answer for a stretch that will be read in order, so that a member costs one request.
    """

    def __init__(self, fetcher: Fetcher, url: str, *, budget: int = DEFAULT_BUDGET, tail: int = _TAIL) -> None:
        super().__init__()
        self._fetcher = fetcher
        self._url = url
        self._left = budget
        self._pos = 0
        self._open: AbstractContextManager[RangeReply] | None = None
        self._reply: RangeReply | None = None
        self._at = 0
        self._blocks: list[tuple[int, bytes]] = []
        with fetcher.open_range(url, -tail) as reply:
            self.total = reply.total
            self._keep(reply.start, self._take(reply, reply.total - reply.start))

    def _take(self, reply: RangeReply, size: int) -> bytes:
        parts = []
        while size > 0:
            data = reply.stream.read(min(size, _BLOCK))
            if not data:
                break
            self._left -= len(data)
            if self._left < 0:
                raise NetworkError(
                    f"Cannot read {redact(self._url)}: more would be read than a wheel of this kind needs."
                )
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def _keep(self, start: int, data: bytes) -> None:
        self._blocks = [*self._blocks[-3:], (start, data)]

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the next byte that is read."""
        return self._pos

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the place of the next read. Nothing is asked of the server yet."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._pos, io.SEEK_END: self.total}[whence]
        self._pos = max(0, base + offset)
        return self._pos

    def allow(self, budget: int) -> None:
        """Set how many bytes may be read from here on."""
        self._left = budget

    def expect(self, start: int, stop: int) -> None:
        """Prepare for reading bytes ``start`` to ``stop`` in order, unless they are kept."""
        self.release()
        if self._is_kept(start, min(stop, self.total)):
            return
        self._open = self._fetcher.open_range(self._url, start, min(stop, self.total))
        self._reply = self._open.__enter__()
        self._at = start

    def release(self) -> None:
        """Close the answer that :meth:`expect` opened."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = self._reply = None

    def close(self) -> None:
        """Close the answer that may still be open."""
        self.release()
        super().close()

    def read(self, size: int | None = -1) -> bytes:
        """Read on: out of a block that is kept, the open answer, or a new request.

        ``NetworkError`` when the server does not send it, or sends what is not a wheel.
        """
        end = self.total if size is None or size < 0 else min(self.total, self._pos + size)
        if end <= self._pos:
            return b""
        data = self._kept(end)
        if data is None:
            data = self._streamed(end)
        if data is None:
            stop = min(self.total, max(end, self._pos + _BLOCK))
            with self._fetcher.open_range(self._url, self._pos, stop) as reply:
                block = self._take(reply, stop - self._pos)
            self._keep(self._pos, block)
            data = block[: end - self._pos]
        if len(data) != end - self._pos:
            raise NetworkError(
                f"Cannot read {redact(self._url)}: the connection broke.", hint="Run the command again. It resumes."
            )
        self._pos = end
        return data

    def _kept(self, end: int) -> bytes | None:
        for start, data in self._blocks:
            if start <= self._pos and end <= start + len(data):
                return data[self._pos - start : end - start]
        return None

    def _is_kept(self, start: int, stop: int) -> bool:
        return any(first <= start and stop <= first + len(data) for first, data in self._blocks)

    def _streamed(self, end: int) -> bytes | None:
        if self._reply is None or not 0 <= self._pos - self._at <= _SKIP:
            return None
        self._take(self._reply, self._pos - self._at)
        data = self._take(self._reply, end - self._pos)
        self._at = self._pos + len(data)
        return data


class RemoteWheel:
    """The members of a wheel on the index. A context manager; every method may raise ``NetworkError``.

    One whose ``size`` is known to be small is read at once.
    """

    def __init__(self, fetcher: Fetcher, url: str, *, budget: int = DEFAULT_BUDGET, size: int | None = None) -> None:
        self._url = url
        tail = size if size and _TAIL < size <= SMALL else _TAIL
        self._file = RemoteFile(fetcher, url, budget=min(budget, _MAX_DIRECTORY), tail=tail)
        with self._readable():
            self._zip = zipfile.ZipFile(self._file)
        self._file.allow(budget)

    def __enter__(self) -> RemoteWheel:  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn whatever a broken or hostile archive makes zipfile raise into one kind of failure."""
        try:
            yield
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            NotImplementedError,
            RuntimeError,
            ValueError,
            OverflowError,
        ) as error:
            raise NetworkError(f"Cannot read {redact(self._url)}: it is not a wheel ({error}).") from None

    def names(self) -> list[str]:
        """Return every member, in the order of the archive."""
        return self._zip.namelist()

    def entries(self) -> list[tuple[str, int, int]]:
        """Return every member with its CRC-32 and its size, as the directory of the archive states them."""
        return [(i.filename, i.CRC, i.file_size) for i in self._zip.infolist()]

    def find(self, suffix: str) -> str | None:
        """Return the first member whose path is ``suffix`` or ends with ``/suffix``, the shallowest first."""
        members = [n for n in self.names() if n == suffix or n.endswith("/" + suffix)]
        return min(members, key=lambda n: n.count("/"), default=None)

    def small_members(self, kind: str, *, below: int, limit: int) -> list[str]:
        """Return up to ``limit`` members with ``kind`` in their name and fewer than ``below`` bytes, largest first."""
        members = [i for i in self._zip.infolist() if kind in i.filename.rpartition("/")[2] and i.compress_size < below]
        return [i.filename for i in sorted(members, key=lambda i: -i.compress_size)[:limit]]

    def smallest(self, names: Iterable[str], size: int) -> list[str]:
        """Return the smallest of some members, as many as have up to ``size`` bytes together in the archive."""
        members = sorted(map(self._info, names), key=lambda info: info.compress_size)
        totals = itertools.accumulate(info.compress_size for info in members)
        return [info.filename for info, total in zip(members, totals, strict=True) if total <= size]

    def read(self, name: str, *, max_bytes: int) -> bytes:
        """Read a member, which is refused when it unpacks to more than ``max_bytes``, whatever its header says.

        ``NetworkError`` when the server does not send it, or sends what is not a wheel.
        """
        data = bytearray()
        for chunk in self.stream(name):
            data += chunk
            if len(data) > max_bytes:
                raise NetworkError(f"Cannot read {redact(self._url)}: {name} is longer than {max_bytes} bytes.")
        return bytes(data)

    def stream(self, name: str) -> Generator[bytes, None, None]:
        """Yield a member piece by piece, decompressed. Close the generator when enough was seen."""
        with self._readable():
            info = self._info(name)
            self._file.expect(info.header_offset, info.header_offset + info.compress_size + _HEADER + len(name))
            try:
                with self._zip.open(info) as member:
                    while data := member.read(1 << 18):
                        yield data
            finally:
                self._file.release()

    def read_all(self, names: Iterable[str], *, max_bytes: int) -> Iterator[tuple[str, bytes]]:
        """Yield many members, in the order of the archive. Those that lie near each other cost one request together.

        ``NetworkError`` when the server does not send it, or sends what is not a wheel.
        """
        infos = sorted((self._info(name) for name in names), key=lambda info: info.header_offset)
        with self._readable():
            for run in _runs(infos):
                last = run[-1]
                self._file.expect(run[0].header_offset, last.header_offset + last.compress_size + _HEADER)
                try:
                    for info in run:
                        with self._zip.open(info) as member:
                            data = member.read(max_bytes + 1)
                        if len(data) > max_bytes:
                            raise NetworkError(
                                f"Cannot read {redact(self._url)}: {info.filename} is longer than {max_bytes} bytes."
                            )
                        yield info.filename, data
                finally:
                    self._file.release()

    def _info(self, name: str) -> zipfile.ZipInfo:
        try:
            return self._zip.getinfo(name)
        except KeyError:
            raise NetworkError(f"Cannot read {redact(self._url)}: it has no member {name}.") from None

    def metadata(self) -> bytes:
        """Return ``METADATA`` of the wheel's own ``dist-info``.

        ``NetworkError`` when the server does not send it, or sends what is not a wheel.
        """
        name = next((n for n in self.names() if n.count("/") == 1 and n.endswith(".dist-info/METADATA")), None)
        if name is None:
            raise NetworkError(f"Cannot read {redact(self._url)}: it has no METADATA.")
        return self.read(name, max_bytes=MAX_MEMBER)


def _runs(infos: list[zipfile.ZipInfo]) -> Iterator[list[zipfile.ZipInfo]]:
    """Yield members in the order of the archive, parted where too much lies between two to be read over."""
    run: list[zipfile.ZipInfo] = []
    for info in infos:
        if run and info.header_offset - (run[-1].header_offset + run[-1].compress_size) > _SKIP // 2:
            yield run
            run = []
        run.append(info)
    if run:
        yield run
