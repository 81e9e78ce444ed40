"""Downloads one index of a channel into a file: unpacked on the fly, never more than allowed, whole or not at all."""

from __future__ import annotations

import functools
import http.client
import importlib
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from envsmith.errors import EnvsmithError
from envsmith.lock.conda.access import Access
from envsmith.lock.conda.model import RepoLimits
from envsmith.lock.conda.names import clean, public_url

__all__ = ["BadIndexError", "can_unpack", "download", "unpacked"]

_CHUNK = 1 << 20


class BadIndexError(Exception):
    """The index is not one; the text says why."""


def download(
    url: str, target: Path, meta: Mapping[str, Any], limits: RepoLimits, access: Access, *, packed: bool | None = None
) -> dict[str, Any] | None:
    """``None``: there is no such file. ``{"unchanged": True}``: the copy is the newest. Else what to ask with next time.

    ``packed``: the file is zstd's and is unpacked (True) or kept as it came (False); by default the packed form of ``url`` is asked
    for first. Mirrors are tried in order; one that cannot be reached or answers 5xx is passed over.
    """
    if url.startswith("file:"):
        return _copy_file(url, target, meta, limits)
    both = packed is None and _zstd() is not None
    *others, last = access.settings.places(url) or (url,)

    def ask(place: str) -> dict[str, Any] | None:
        if both and (told := _attempts(f"{place}.zst", target, meta, limits, access, packed=True)) is not None:
            return told
        return _attempts(place, target, meta, limits, access, packed=bool(packed))

    for place in others:
        try:
            return ask(place)
        except urllib.error.HTTPError as error:  # noqa: PERF203 - a handful of mirrors
            if error.code < 500:
                raise
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            continue
    return ask(last)


def _attempts(
    url: str, target: Path, meta: Mapping[str, Any], limits: RepoLimits, access: Access, *, packed: bool
) -> dict[str, Any] | None:
    """``None`` when the server says that there is no such file."""
    for attempt in range(limits.attempts):
        try:
            return _get(url, target, meta, limits, access, packed=packed)
        except urllib.error.HTTPError as error:
            if error.code in {404, 410} or (error.code == 403 and url.endswith(".zst")):
                return None
            if error.code < 500 or attempt + 1 == limits.attempts:
                raise
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            if attempt + 1 == limits.attempts:
                raise
        time.sleep(0.3 * (attempt + 1))
    return None


def _copy_file(url: str, target: Path, meta: Mapping[str, Any], limits: RepoLimits) -> dict[str, Any] | None:
    source = Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path))
    try:
        state = source.stat()
        stamp = f"{state.st_size}-{state.st_mtime_ns}-{state.st_ino}"
        if meta.get("stamp") == stamp:
            return {"unchanged": True}
        with source.open("rb") as file, target.open("wb") as out:
            size = _pour(file, out, limits.index_bytes)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (PermissionError, IsADirectoryError) as error:
        raise BadIndexError(str(error.strerror)) from error
    return {"stamp": stamp, "size": size}


def _get(
    url: str, target: Path, meta: Mapping[str, Any], limits: RepoLimits, access: Access, *, packed: bool
) -> dict[str, Any]:
    headers = {"User-Agent": "envsmith", "Accept-Encoding": "identity"}
    if meta.get("url") == public_url(url):
        for name, key in (("If-None-Match", "etag"), ("If-Modified-Since", "modified")):
            if isinstance(meta.get(key), str):
                headers[name] = meta[key]
    try:
        with access.open(url, headers, limits.connect_seconds) as answer:
            size = _receive(answer, target, limits, packed=packed)
            told = {"etag": answer.headers.get("ETag"), "modified": answer.headers.get("Last-Modified")}
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 304:
            return {"unchanged": True}
        raise
    return {"url": public_url(url), "size": size, **{k: v for k, v in told.items() if v}}


def _receive(answer: Any, target: Path, limits: RepoLimits, *, packed: bool) -> int:
    """Write the body to ``target``; a body shorter than announced, or larger than allowed, is refused."""
    announced = answer.headers.get("Content-Length")
    raw = target.with_suffix(".raw") if packed else target
    try:
        with raw.open("wb") as out:
            got = _pour(answer, out, limits.download_bytes if packed else limits.index_bytes)
    except http.client.HTTPException as error:
        raise BadIndexError(f"the download was cut ({clean(str(error))})") from error
    if announced and announced.isdecimal() and int(announced) != got:
        raise BadIndexError(f"the download was cut: {got} of {announced} bytes came")
    if not packed:
        return got
    size = unpacked(raw, target, limits.index_bytes)
    raw.unlink()
    return size


def unpacked(source: Path, target: Path, limit: int) -> int:
    """Unpack a zstd file of at most ``limit`` bytes; ``BadIndexError`` when it is larger or damaged."""
    with source.open("rb") as file, _unpacked(file) as body, target.open("wb") as out:
        return _pour(body, out, limit)


def _pour(source: Any, out: IO[bytes], limit: int) -> int:
    total = 0
    while chunk := source.read(_CHUNK):
        total += len(chunk)
        if total > limit:
            raise BadIndexError(f"it is larger than {limit >> 20} MiB")
        out.write(chunk)
    return total


@functools.cache
def _zstd() -> Any:
    """A function that opens a zstd stream for reading, or ``None``: then only the unpacked index is asked for."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name).ZstdFile
        except ImportError:  # noqa: PERF203 - two names
            continue
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        return None
    return lambda file: zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file, read_across_frames=True)


def can_unpack() -> bool:
    """True when some zstd is installed."""
    return _zstd() is not None


@contextmanager
def _unpacked(file: IO[bytes]) -> Iterator[Any]:
    """The unpacked stream; whatever the decompressor raises becomes ``BadIndexError`` (each has its own family)."""
    try:
        with _zstd()(file) as body:
            yield body
    except (EnvsmithError, BadIndexError):
        raise
    except OSError as error:
        if error.errno is not None:
            raise
        raise BadIndexError(f"its zstd stream is damaged: {error}") from error
    except Exception as error:
        raise BadIndexError(f"its zstd stream is damaged: {clean(str(error))}") from error
