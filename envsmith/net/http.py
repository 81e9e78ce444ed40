"""The one way to the network: proxies, authorities, logins, retries, redirects, a cache, bounds on size and time.

Nothing here knows a host. :class:`HttpWire` sends one request and streams the answer, for layers as large as they
come. :class:`HttpClient` reads documents and stretches of files with it, follows redirects and keeps documents for the
next run.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import ipaddress
import json
import netrc
import os
import re
import socket
import ssl
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import SplitResult, unquote, urldefrag, urljoin, urlsplit, urlunsplit

from envsmith.base.about import VERSION
from envsmith.base.cache import Entry, cache_folder, load_entry, store_entry
from envsmith.base.text import without_secrets
from envsmith.errors import ContentError, NetworkError, UsageError, os_errors
from envsmith.net.index_settings import index_addresses, netrc_file, pip_values, uv_settings

if TYPE_CHECKING:
    import httpcore
    import httpx
    from typing_extensions import Self

# A page that was read this recently is not asked for again; indexes tell their own clients about the same.
FRESH_SECONDS = 600.0
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Answers that may come right by themselves.
RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT = 30.0
_HOPS = 10
_CHUNK = 1 << 16
# Bytes a second below which a server is as good as silent.
_SLOWEST = 8192
# Where a CA bundle is named, the first first.
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")


class NotFoundError(NetworkError):
    """The server answers, and says that it has no such thing (404, 410)."""


def ca_bundle(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the CA bundle that the user names, or ``None`` where the system's store is all there is.

    This is the one rule for the index, uv, registries, Conda channels and builds. The first of ``SSL_CERT_FILE``,
    ``REQUESTS_CA_BUNDLE``, ``CURL_CA_BUNDLE``, ``PIP_CERT`` and pip's ``cert`` setting that names a file is the bundle.
    """
    env = os.environ if environ is None else environ
    named = (*(env.get(name) for name in _CA_VARIABLES), pip_values(env).get("cert"))
    # Path.is_file raises where a folder on the way may not be entered.
    return next((Path(name) for name in named if name and os.path.isfile(name)), None)  # noqa: PTH113


def ssl_context() -> ssl.SSLContext:
    """Return a context that trusts the system's store and the bundle of :func:`ca_bundle`.

    ``UsageError`` when the bundle holds no certificate.
    """
    context = ssl.create_default_context()
    if bundle := ca_bundle():
        with os_errors(
            f"use {bundle} as CA bundle",
            UsageError,
            hint=f"Correct the file, or the setting that names it: {', '.join(_CA_VARIABLES)} or pip's cert.",
        ):
            context.load_verify_locations(cafile=bundle)
    return context


def redact(url: str) -> str:
    """Return the address without user, password, signature and fragment."""
    return without_secrets(urldefrag(url).url)


def is_loopback(host: str | None) -> bool:
    """Tell whether ``host`` is this machine: the only place that is spoken to without TLS and without a proxy."""
    return host in {"localhost", "127.0.0.1", "::1"}


# -- where an answer may lead ------------------------------------------------------------------------------------------


def parts_of(url: str) -> SplitResult:
    """Return the parts of an address. A malformed one is all path, and refused wherever a path is."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # a port that is not a number is found out when it is asked for
    except ValueError:
        return SplitResult("", "", url, "", "")
    return parts


def split(url: str) -> SplitResult:
    """Return the parts of an address. ``NetworkError`` for what is not one of http or https."""
    parts = parts_of(url)
    if parts.scheme in {"https", "http"} and parts.hostname and parts.port != 0:
        return parts
    raise NetworkError(
        f"Cannot read {url.rpartition('@')[2][:200]!r}: it is not an http address.",
        hint="Set the index, registry or channel to an http(s) address.",
    )


def origin(url: str) -> tuple[str, str]:
    """Return scheme, host and port: what a login is good for."""
    parts = parts_of(url)
    return parts.scheme, parts.netloc.rpartition("@")[2]


def follow(before: str, location: str, *, first: str | None = None) -> str:
    """Return the address to which the server of ``before`` leads: by a redirect, a link or a header.

    The user named ``first`` (default: ``before``). ``NetworkError`` where an encrypted way becomes an open one, or
    where the server would lead this machine to itself, or into a network that is closer to it than ``first``.
    """
    first, reason = first or before, "it leads to a malformed address"
    with contextlib.suppress(ValueError):
        place = urljoin(before, location)
        parts = split(place)
        is_local = is_loopback(parts.hostname)
        if parts.scheme == "http" and (
            parts_of(before).scheme == "https" or (is_loopback(parts_of(first).hostname) and not is_local)
        ):
            reason = f"it leads to the unencrypted address {redact(place)}"
        elif origin(place) != origin(first) and _reach(place) < _reach(first):
            reason = f"it leads to {redact(place)}, into a network that is closer to this machine"
        else:
            return place
    raise NetworkError(
        f"Cannot follow {redact(before)}: {reason}.", hint="Use another server, or tell the one who runs this one."
    )


def _reach(url: str) -> int:
    """Return from where a server can be seen: 0 this machine, 1 its link, 2 a private network, 3 everywhere.

    A name is resolved, unless a proxy does that. One that cannot be resolved counts as seen from everywhere.
    """
    host = parts_of(url).hostname or ""
    with contextlib.suppress(ValueError):
        return _reach_of(host)
    return 3 if _proxy_of(url) else _reach_of_name(host)


@lru_cache(maxsize=256)
def _reach_of_name(host: str) -> int:
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return 3
    return min(_reach_of(str(row[4][0])) for row in rows)


def _reach_of(text: str) -> int:
    address = ipaddress.ip_address(text)
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback or address.is_unspecified:
        return 0
    if address.is_link_local or address.is_multicast:
        return 1
    return 3 if address.is_global else 2


# -- one request -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """Status, headers with lower-case names, and the body, still open. A context manager that closes it."""

    status: int
    headers: Mapping[str, str]
    body: IO[bytes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.body.close()


class Wire(Protocol):
    """Sends one request, follows no redirect, and returns whatever status comes back."""

    def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: Iterable[bytes] | bytes | None = None
    ) -> Response:
        """Raise ``OSError`` when there is no answer, an ``ssl.SSLError`` when the server is not trusted."""
        ...


class HttpWire:
    """A :class:`Wire` with the user's proxies and authorities; at most ``connections`` answers are open at once."""

    def __init__(self, *, timeout: float = 60.0, connections: int | None = None) -> None:
        self.requests = 0
        self.bytes_read = 0
        self._timeout = timeout
        self._connections = connections
        self._lock = threading.Lock()
        # One for each proxy, and one without.
        self._clients: dict[str | None, httpx.Client] = {}

    def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: Iterable[bytes] | bytes | None = None
    ) -> Response:
        """Send it. The length of a body that is not bytes stands in ``headers``."""
        import httpx

        self.requests += 1
        client = self._connect(_proxy_of(url))
        try:
            request = client.build_request(method, url, headers=dict(headers), content=body)
            answer = client.send(request, stream=True)
            fields = dict(answer.headers)
            # An answer that is read to its end leaves the connection to the next request.
            is_empty = method == "HEAD" or fields.get("content-length") == "0" or answer.status_code in {204, 304}
            content = io.BytesIO(answer.read()) if is_empty else io.BufferedReader(_Body(self, answer, url), _CHUNK)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _no_answer(error) from None
        return Response(status=answer.status_code, headers=fields, body=content)

    def _connect(self, proxy: str | None) -> httpx.Client:
        import httpx

        with self._lock:
            if proxy not in self._clients:
                limits = httpx.Limits(max_connections=self._connections, max_keepalive_connections=self._connections)
                try:
                    transport = httpx.HTTPTransport(verify=ssl_context(), proxy=proxy, trust_env=False, limits=limits)
                    # httpx bounds each read, not the whole answer. Its pool gets connections that keep a clock.
                    transport._pool._network_backend = cast("Any", _Network(self._timeout))  # noqa: SLF001
                    client = httpx.Client(
                        transport=transport,
                        trust_env=False,
                        timeout=httpx.Timeout(self._timeout, pool=None),
                        headers={"User-Agent": f"envsmith/{VERSION}", "Accept-Encoding": "identity"},
                    )
                except (ValueError, ImportError, httpx.InvalidURL) as error:
                    raise UsageError(
                        f"Cannot use the proxy that the environment names: {error}.",
                        hint="Set HTTPS_PROXY, HTTP_PROXY and ALL_PROXY to addresses of proxies, or unset them.",
                    ) from None
                weakref.finalize(self, client.close)
                self._clients[proxy] = client
            return self._clients[proxy]


def _proxy_of(url: str) -> str | None:
    """Return the proxy for an address: of the environment, else of pip, the same that uv gets.

    httpx's own rule fails on IPv6 networks in ``NO_PROXY``.
    """
    from urllib.request import getproxies, proxy_bypass

    parts = parts_of(url)
    if is_loopback(parts.hostname) or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all") or pip_values(os.environ).get("proxy")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


@dataclass(frozen=True, slots=True)
class _Network:
    """httpcore's way to the network, with ``patience`` for each exchange."""

    patience: float

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **options: Any) -> _Paced:
        import httpcore

        start = time.monotonic()
        stream = _Paced(httpcore.SyncBackend().connect_tcp(host, port, timeout, **options), self.patience)
        stream.spend(start)
        return stream


class _Paced:
    """A connection on which an exchange waits for ``patience`` seconds, and longer only while bytes keep coming.

    An exchange begins with the connection, or with the first byte that is sent after an answer.
    """

    def __init__(self, inner: httpcore.NetworkStream, patience: float) -> None:
        self._inner, self._patience, self._left, self._is_answered = inner, patience, patience, False

    def spend(self, start: float, size: int = 0) -> None:
        """Take off the time since ``start``, and give back what ``size`` bytes need at the slowest."""
        import httpcore

        self._left = min(self._left - (time.monotonic() - start) + size / _SLOWEST, self._patience)
        if self._left <= 0:
            raise httpcore.ReadTimeout

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        start, self._is_answered = time.monotonic(), True
        content = self._inner.read(max_bytes, min(timeout or self._left, self._left))
        self.spend(start, len(content))
        return content

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._is_answered:
            self._left, self._is_answered = self._patience, False
        for place in range(0, len(buffer), _CHUNK):
            start = time.monotonic()
            self._inner.write(buffer[place : place + _CHUNK], min(timeout or self._left, self._left))
            self.spend(start, _CHUNK)

    def start_tls(self, ssl_context: ssl.SSLContext, server_hostname: str | None, timeout: float | None) -> _Paced:
        start = time.monotonic()
        self._inner = self._inner.start_tls(ssl_context, server_hostname, min(timeout or self._left, self._left))
        self.spend(start)
        return self

    def close(self) -> None:
        self._inner.close()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Body(io.RawIOBase):
    """The bytes of an answer as they come; a connection that breaks is a ``NetworkError``."""

    def __init__(self, wire: HttpWire, answer: httpx.Response, url: str) -> None:
        super().__init__()
        self._wire, self._answer, self._url = wire, answer, url
        self._chunks = answer.iter_raw()
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        import httpx

        try:
            while not self._rest:
                self._rest = next(self._chunks)
        except StopIteration:
            return 0
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise NetworkError(
                f"Cannot read {redact(self._url)}: the connection broke ({_no_answer(error)}).",
                hint="Run the command again. Use another mirror if this one stays slow.",
            ) from None
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        self._wire.bytes_read += size
        return size

    def close(self) -> None:
        self._answer.close()
        super().close()


def _no_answer(error: Exception) -> OSError:
    """Return what stopped a request, in the words of the lowest layer that has some."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return cause
        cause = cause.__cause__ or cause.__context__
    import httpx

    if isinstance(error, (httpx.ReadTimeout, httpx.WriteTimeout)):
        return TimeoutError("the server is silent or too slow")
    return ConnectionError(str(error) or type(error).__name__)


def ask(
    wire: Wire,
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
    *,
    attempts: int = 4,
    wait: Callable[[float], None] | None = None,
) -> Response:
    """Send a request as often as is sensible: again when there was no answer, or one that may come right by itself.

    Raise ``OSError`` as ``wire`` does. A server that is not trusted or too slow is not asked again.
    """
    for attempt in range(1, attempts + 1):
        try:
            response = wire(method, url, headers, body)
        except OSError as error:
            if attempt == attempts or isinstance(error, (ssl.SSLError, TimeoutError)):
                raise
            seconds = pause(attempt)
        else:
            if response.status not in RETRY or attempt == attempts:
                return response
            response.body.close()
            seconds = pause(attempt, response.headers.get("retry-after", ""))
        (wait or time.sleep)(seconds)
    raise AssertionError("the last attempt returns or raises")


def pause(attempt: int, retry_after: str = "") -> float:
    """Return how many seconds to wait after the failed ``attempt``, as the server says or ever longer."""
    return min(float(retry_after) if retry_after.isdecimal() else 0.5 * 2.0 ** (attempt - 1), _LONGEST_WAIT)


# -- documents and stretches of files ----------------------------------------------------------------------------------


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


# -- the cache: a line of JSON, then the body --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Entry:
    body: bytes
    url: str
    age: float
    fields: Mapping[str, str]

    @classmethod
    def of(cls, entry: Entry) -> _Entry:
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
