"""Downloads one index of a channel into a file: unpacked on the fly, never more than allowed, whole or not at all."""

from __future__ import annotations

import base64
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
from envsmith.lock.conda.model import RepoLimits
from envsmith.lock.conda.names import clean, public_url

__all__ = ["BadIndexError", "download"]

_CHUNK = 1 << 20


class BadIndexError(Exception):
    """The index is not one; the text says why."""


def download(url: str, target: Path, meta: Mapping[str, Any], limits: RepoLimits) -> dict[str, Any] | None:
    """``None``: there is no such file. ``{"unchanged": True}``: the copy is the newest. Else what to ask with next time."""
    if url.startswith("file:"):
        return _copy_file(url, target, meta, limits)
    for suffix in (".zst", "") if _zstd() is not None else ("",):
        for attempt in range(limits.attempts):
            try:
                return _get(url + suffix, target, meta, limits)
            except urllib.error.HTTPError as error:
                if error.code in {404, 410} or (error.code == 403 and suffix):
                    break
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


def _get(url: str, target: Path, meta: Mapping[str, Any], limits: RepoLimits) -> dict[str, Any]:
    parts = urllib.parse.urlsplit(url)
    plain = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]))
    request = urllib.request.Request(plain, headers={"User-Agent": "envsmith", "Accept-Encoding": "identity"})  # noqa: S310 - base_url() lets only http and https come here
    if parts.username is not None:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
    if meta.get("url") == public_url(url):
        for name, key in (("If-None-Match", "etag"), ("If-Modified-Since", "modified")):
            if isinstance(meta.get(key), str):
                request.add_header(name, meta[key])
    try:
        with urllib.request.urlopen(request, timeout=limits.connect_seconds) as answer:  # noqa: S310 - as above
            size = _receive(answer, target, limits, packed=url.endswith(".zst"))
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
    if announced and announced.isdigit() and int(announced) != got:
        raise BadIndexError(f"the download was cut: {got} of {announced} bytes came")
    if not packed:
        return got
    with raw.open("rb") as file, _unpacked(file) as body, target.open("wb") as out:
        size = _pour(body, out, limits.index_bytes)
    raw.unlink()
    return size


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
