"""One request: sent with the user's proxies and authorities, again when that is sensible, within a bound on time.

:class:`HttpWire` streams the answer, for layers as large as they come, and follows no redirect.
"""

from __future__ import annotations

import io
import re
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from envsmith.base.about import VERSION
from envsmith.errors import NetworkError, UsageError
from envsmith.net.address import proxy_of, redact
from envsmith.net.authorities import ssl_context

if TYPE_CHECKING:
    import httpcore
    import httpx
    from typing_extensions import Self


REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Answers that may come right by themselves.
RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT = 30.0
_CHUNK = 1 << 16
# Bytes a second below which a server is as good as silent.
_SLOWEST = 8192


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
        # One for each proxy, and one without: with the user's authorities, which take long to read, where TLS is spoken.
        self._clients: dict[tuple[str | None, bool], httpx.Client] = {}

    def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: Iterable[bytes] | bytes | None = None
    ) -> Response:
        """Send it. The length of a body that is not bytes stands in ``headers``."""
        import httpx

        self.requests += 1
        proxy = proxy_of(url)
        client = self._connect(proxy, trusting=any(to.lower().startswith("https") for to in (url, proxy or "")))
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

    def _connect(self, proxy: str | None, *, trusting: bool) -> httpx.Client:
        import httpx

        with self._lock:
            if (proxy, trusting) not in self._clients:
                limits = httpx.Limits(max_connections=self._connections, max_keepalive_connections=self._connections)
                try:
                    trust = ssl_context() if trusting else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                    transport = httpx.HTTPTransport(verify=trust, proxy=proxy, trust_env=False, limits=limits)
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
                self._clients[proxy, trusting] = client
            return self._clients[proxy, trusting]


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
    return ConnectionError(re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__)


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
