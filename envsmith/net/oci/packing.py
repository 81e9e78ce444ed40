"""Layers packed and unpacked: by gzip, by zstd, or not at all. What a layer unpacks to does not depend on it."""

from __future__ import annotations

import gzip
import shutil
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

from envsmith.base.about import command_for
from envsmith.errors import ContentError, EngineError

if TYPE_CHECKING:
    from io import BufferedReader

# What stands behind the media type of a layer, by the word of --compress.
SUFFIXES = {"none": "", "gzip": "+gzip", "zstd": "+zstd"}
# Docker's own name of a layer that is packed by gzip; one that is not packed says "tar" at its end.
_DOCKER_GZIP = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_CHUNK = 1 << 20
# zlib's own default, and zstd's.
_GZIP_LEVEL, _ZSTD_LEVEL = 6, 3


def packing_of(media_type: str) -> str | None:
    """Return how a layer of this type is packed, ``None`` where its type does not say what it unpacks to."""
    if media_type == _DOCKER_GZIP:
        return "gzip"
    kind, _, suffix = media_type.partition("+")
    words = {suffix: word for word, suffix in SUFFIXES.items()}
    return words.get(suffix and f"+{suffix}") if kind.endswith(".tar") else None


def packing_seen(file: BufferedReader) -> str:
    """Return how the bytes that come next are packed, as the first of them say."""
    first = file.peek(4)
    return next((word for magic, word in _MAGIC.items() if first.startswith(magic)), "none")


@contextmanager
def unpacked(file: IO[bytes], packing: str) -> Iterator[IO[bytes]]:
    """Yield what ``file`` unpacks to, piece by piece.

    Raises ``ContentError`` for what cannot be unpacked, ``EngineError`` where zstd's library is missing.
    """
    try:
        if packing == "gzip":
            with gzip.GzipFile(fileobj=file, mode="rb") as plain:
                yield cast("IO[bytes]", plain)
        elif packing == "zstd":
            yield _zstd_reader(file)
        else:
            yield file
    except (zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise ContentError(f"Cannot unpack a layer: {error}.") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise ContentError(f"Cannot unpack a layer: {error}.") from None


def pack(source: IO[bytes], target: IO[bytes], packing: str) -> None:
    """Write ``source`` to ``target``, packed: the same bytes for the same version of the library."""
    if packing == "zstd":
        with _zstd_writer(target) as out:
            shutil.copyfileobj(source, out, _CHUNK)
    elif packing == "gzip":
        # 31: a gzip header, which zlib writes without time and name.
        deflate = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31)
        while piece := source.read(_CHUNK):
            target.write(deflate.compress(piece))
        target.write(deflate.flush())
    else:
        shutil.copyfileobj(source, target, _CHUNK)


def _zstd_reader(file: IO[bytes]) -> Any:
    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdFile

        return ZstdFile(file)
    return _zstandard().ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False)


def _zstd_writer(file: IO[bytes]) -> Any:
    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdFile

        return ZstdFile(file, "wb", level=_ZSTD_LEVEL)
    return _zstandard().ZstdCompressor(level=_ZSTD_LEVEL, threads=-1).stream_writer(file, closefd=False)


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise EngineError(
            "Cannot read or write zstd: the Python package zstandard is not installed.",
            hint=f"Install it: {command_for('zstd')}.",
        ) from error
    return zstandard
