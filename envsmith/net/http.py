"""Documents and stretches of files from servers: with logins, over redirects, bounded in size, and kept for the next run.

Nothing here knows a host. :class:`HttpClient` sends its requests over a :class:`envsmith.net.wire.HttpWire`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import netrc
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import unquote, urlunsplit

from envsmith.base.cache import CacheEntry, cache_folder, load_entry, store_entry
from envsmith.errors import ContentError, NetworkError
from envsmith.net.address import follow, origin, parts_of, redact, split
from envsmith.net.index_settings import index_addresses, netrc_file, uv_settings
from envsmith.net.wire import REDIRECTS, HttpWire, Response, ask

# A page that was read this recently is not asked for again; indexes tell their own clients about the same.
FRESH_SECONDS = 600.0
_HOPS = 10
_CHUNK = 1 << 16


class NotFoundError(NetworkError):
    """The server answers, and says that it has no such thing (404, 410)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """A whole body. ``url`` is where it came from in the end; ``cached`` when no byte of it crossed the network now."""

    body: bytes
    url: str
    content_type: str = ""
    cached: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeReply:
    """A body that is still open, from byte ``start``; ``total`` is the length of the whole file."""

    stream: IO[bytes]
    start: int
    total: int


class Fetcher(Protocol):
    """What the readers of indexes and wheels need of the network; tests give them a folder."""

    def get(
        self,
        url: str,
        *,
        max_bytes: int,
        accept: str | None = None,
        sha256: str | None = None,
        keep: bool = True,
        check: Callable[[Reply], object] | None = None,
    ) -> Reply:
        """Return a whole body. With ``sha256`` it is checked, and kept for ever unless ``keep`` is false.

        What ``check`` raises an error for is not kept.
        """
        ...

    def open_range(
        self, url: str, start: int, stop: int | None = None
    ) -> contextlib.AbstractContextManager[RangeReply]:
        """Open bytes from ``start`` up to ``stop``, or to the end. A negative ``start`` counts from the end."""
        ...


class HttpClient:
    """A :class:`Fetcher` over the network.

    At most ``jobs`` requests run at once; ``offline`` answers from the cache only.

    Raises ``NotFoundError``, ``NetworkError`` (no answer, or one that cannot be used) and ``ContentError`` (a hash
    differs).
    """

    def __init__(
        self,
        *,
        cache: Path | None = None,
        jobs: int = 4,
        offline: bool = False,
        timeout: float = 60.0,
        wait: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.time,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.offline = offline
        self._environ = os.environ if environ is None else environ
        self._clock = clock
        self._cache = (cache if cache is not None else cache_folder()) / "http"
        self.wire = HttpWire(timeout=timeout, connections=max(1, jobs))
        self._wait = wait

    def get(
        self,
        url: str,
        *,
        max_bytes: int,
        accept: str | None = None,
        sha256: str | None = None,
        keep: bool = True,
        check: Callable[[Reply], object] | None = None,
    ) -> Reply:
        """Return a body out of the cache while it is fresh or hashed, else ask the server whether it has changed."""
        key = f"{url}\n{accept or ''}"
        path = self._cache / _entry_name(key)
        stored = load_entry(path, key, limit=max_bytes + _CHUNK, clock=self._clock)
        entry = _Entry.of(stored) if stored else None
        if entry and (len(entry.body) > max_bytes or (sha256 and hashlib.sha256(entry.body).hexdigest() != sha256)):
            entry = None
        if entry and (self.offline or sha256 or entry.age < FRESH_SECONDS):
            return entry.reply()
        if self.offline:
            raise NetworkError(
                f"Cannot read {redact(url)}: it is not in the cache, and --offline switches the network off.",
                hint="Run the same command once without --offline.",
            )
        headers = {"Accept-Encoding": "gzip", **({"Accept": accept} if accept else {})}
        with self._open(url, headers | (entry.conditions() if entry else {})) as (response, place):
            fields = response.headers
            if response.status == 304 and entry:
                reply, fields = entry.reply(), {**entry.fields, **fields}
            else:
                body = _unpacked(response, max_bytes, url)
                reply = Reply(body=body, url=place, content_type=fields.get("content-type", ""))
        if sha256 and hashlib.sha256(reply.body).hexdigest() != sha256:
            raise ContentError(
                f"Cannot use {redact(url)}: its sha256 is not the one that the index names ({sha256[:16]}…).",
                hint="Check the proxy or mirror in between: it serves another file. Nothing was used of it.",
            )
        if check:
            check(reply)
        if keep:
            store_entry(path, key, _entry_content(reply, fields), clock=self._clock)
        return reply

    @contextlib.contextmanager
    def open_range(self, url: str, start: int, stop: int | None = None) -> Iterator[RangeReply]:
        """Open a stretch of a file. A server that ignores ranges is refused."""
        if self.offline:
            raise NetworkError(f"Cannot read {redact(url)}: --offline switches the network off.")
        span = f"bytes={start}" if start < 0 else f"bytes={start}-{'' if stop is None else stop - 1}"
        with self._open(url, {"Range": span}) as (response, _):
            if response.status != 206 or response.headers.get("content-encoding", "identity") != "identity":
                raise NetworkError(
                    f"Cannot read a part of {redact(url)}: the server ignores range requests (status "
                    f"{response.status}).",
                    hint="Point the index setting of uv or pip at an index that serves ranges.",
                )
            first, total = _content_range(response.headers.get("content-range", ""), url)
            if first != (start if start >= 0 else max(0, total + start)):
                raise NetworkError(f"Cannot read a part of {redact(url)}: the server sent another range.")
            yield RangeReply(stream=response.body, start=first, total=total)

    @contextlib.contextmanager
    def _open(self, url: str, headers: dict[str, str]) -> Iterator[tuple[Response, str]]:
        """Return the answer at the end of all redirects, and its address. A login does not follow to another server."""
        place = url
        split(url)
        if login := login_of(url, self._environ):
            headers["Authorization"] = "Basic " + base64.b64encode(":".join(login).encode()).decode()
        for _ in range(_HOPS):
            with self._answer(place, headers) as response:
                if response.status not in REDIRECTS:
                    if response.status >= 300 and response.status != 304:
                        raise _refused(url, response.status)
                    yield response, place
                    return
            before, place = place, follow(place, response.headers.get("location", ""), first=url)
            if origin(place) != origin(before):
                headers.pop("Authorization", None)
        raise NetworkError(f"Cannot read {redact(url)}: the server redirects more than {_HOPS} times.")

    def _answer(self, url: str, headers: Mapping[str, str]) -> Response:
        parts = split(url)
        plain = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))
        try:
            return ask(self.wire, "GET", plain, headers, wait=self._wait)
        except OSError as error:
            raise NetworkError(
                f"Cannot reach {redact(url)}: {error}.", hint="Check the network, the proxy and the CA settings."
            ) from None


def login_of(url: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return user and password: from the address, else from the user's index on its server, else from netrc."""
    place, logins = parts_of(url), [parts_of(url)]
    if place.username is None:
        indexes = [parts_of(index) for index in index_addresses(uv_settings(environ))]
        # Several indexes may be on one server: what the address has in common with one says which it belongs to.
        logins = sorted(
            (index for index in indexes if index.username is not None and origin(index.geturl()) == origin(url)),
            key=lambda index: len(os.path.commonpath([index.path or "/", place.path or "/"])),
        )
    if logins:
        return unquote(logins[-1].username or ""), unquote(logins[-1].password or "")
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        path = netrc_file(environ)
        if path and place.hostname and (entry := netrc.netrc(path).authenticators(place.hostname)):
            return entry[0], entry[2] or ""
    return None


def _refused(url: str, status: int) -> NetworkError:
    if status in {404, 410}:
        return NotFoundError(f"Cannot read {redact(url)}: it does not exist (status {status}).")
    hint = "Check the credentials of the index in the settings of uv or pip." if status in {401, 403} else None
    return NetworkError(f"Cannot read {redact(url)}: the server answers with status {status}.", hint=hint)


def _unpacked(response: Response, max_bytes: int, url: str) -> bytes:
    """Return the whole body, decompressed, or ``NetworkError`` as soon as it is longer than allowed."""
    encoding = response.headers.get("content-encoding", "").lower()
    if encoding not in {"", "identity", "gzip", "x-gzip"}:
        raise NetworkError(f"Cannot read {redact(url)}: its encoding {encoding[:20]!r} is unknown.")
    inflate = zlib.decompressobj(31) if "gzip" in encoding else None
    body = bytearray()
    while chunk := response.body.read(_CHUNK):
        try:
            body += inflate.decompress(chunk, max_bytes + 1 - len(body)) if inflate else chunk
        except zlib.error as error:
            raise NetworkError(f"Cannot read {redact(url)}: its compression is broken ({error}).") from None
        if len(body) > max_bytes:
            raise NetworkError(f"Cannot read {redact(url)}: it is longer than {max_bytes} bytes.")
    if inflate and (not inflate.eof or inflate.unused_data):
        raise NetworkError(f"Cannot read {redact(url)}: its compressed answer is cut.", hint="Run the command again.")
    return bytes(body)


def _content_range(text: str, url: str) -> tuple[int, int]:
    unit, _, span = text.partition(" ")
    first, total = span.partition("-")[0], span.partition("/")[2]
    if unit != "bytes" or not re.fullmatch(r"\d{1,18} \d{1,18}", f"{first} {total}", re.ASCII):
        raise NetworkError(f"Cannot read {redact(url)}: its Content-Range {text[:60]!r} is not valid.")
    return int(first), int(total)


@dataclass(frozen=True, slots=True)
class _Entry:
    body: bytes
    url: str
    age: float
    fields: Mapping[str, str]

    @classmethod
    def of(cls, entry: CacheEntry) -> _Entry:
        line, _, body = entry.content.partition(b"\n")
        head = json.loads(line)
        return cls(body, head["url"], entry.age, head["fields"])

    def conditions(self) -> dict[str, str]:
        """Return headers that let the server answer 304, none when it named no validator."""
        pairs = {"If-None-Match": self.fields.get("etag"), "If-Modified-Since": self.fields.get("last-modified")}
        return {key: value for key, value in pairs.items() if value}

    def reply(self) -> Reply:
        return Reply(body=self.body, url=self.url, content_type=self.fields.get("content-type", ""), cached=True)


def _entry_name(key: str) -> str:
    name = hashlib.sha256(key.encode()).hexdigest()
    return f"{name[:2]}/{name}"


def _entry_content(reply: Reply, fields: Mapping[str, str]) -> bytes:
    validators = {key: fields[key] for key in ("etag", "last-modified", "content-type") if key in fields}
    return json.dumps({"url": redact(reply.url), "fields": validators}).encode() + b"\n" + reply.body
