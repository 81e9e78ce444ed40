"""Polite HTTP for sources that are read often: cached on disk, conditional, a few requests at once, bounded in size.

Nothing here knows a host. A reply is at most ``max_bytes`` long, never follows a redirect from https to http, and is kept under the
user's cache folder so that a run that was interrupted continues where it stopped. Credentials of an address never reach a message.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import ssl
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, cast
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from envsmith import __version__
from envsmith.errors import ContentError, NetworkError, UsageError
from envsmith.pip_settings import pip_values

if TYPE_CHECKING:
    from urllib.request import HTTPRedirectHandler, OpenerDirector, Request


# A page that was read this recently is not asked for again; indexes tell their own clients about the same.
FRESH_SECONDS = 600.0
# Attempts for a reply that may come right by itself (timeout, 429, 5xx).
_ATTEMPTS = 4
_RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT = 30.0
_CHUNK = 1 << 16
# Where a CA bundle is named, the first first.
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")


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
    """What the index and wheel readers need of the network; tests give them a folder."""

    def get(
        self, url: str, *, max_bytes: int, accept: str | None = None, sha256: str | None = None, keep: bool = True
    ) -> Reply:
        """A whole body; with ``sha256`` it is checked, and kept for ever unless ``keep`` is false."""
        ...

    def open_range(
        self, url: str, start: int, stop: int | None = None
    ) -> contextlib.AbstractContextManager[RangeReply]:
        """Bytes ``start`` to ``stop`` (exclusive; ``None`` is the end); a negative ``start`` counts from the end."""
        ...


def cache_root(environ: Mapping[str, str] | None = None) -> Path:
    """``$XDG_CACHE_HOME/envsmith`` or ``~/.cache/envsmith``; a relative XDG_CACHE_HOME is ignored, as its specification says."""
    base = (environ if environ is not None else os.environ).get("XDG_CACHE_HOME", "")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "envsmith"


def redact(url: str) -> str:
    """The address without user, password and fragment."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    with contextlib.suppress(ValueError):
        if parts.port:
            host = f"{host}:{parts.port}"
    return urlunsplit(SplitResult(parts.scheme, host, parts.path, parts.query, ""))


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
        try:
            context.load_verify_locations(cafile=bundle)
        except (ssl.SSLError, OSError) as error:
            raise UsageError(
                f"{bundle}: no CA bundle that can be used: {error.strerror or error}",
                hint=f"mend the file, or the one of {', '.join(_CA_VARIABLES)} and pip's cert setting that names it",
            ) from None
    return context


class HttpClient:
    """A :class:`Fetcher` over the standard library. ``jobs`` requests at once at most; ``offline`` answers from the cache only.

    Raises ``NotFoundError``, ``NetworkError`` (no answer, or one that cannot be used) and ``ContentError`` (a hash differs).
    """

    def __init__(
        self,
        *,
        cache: Path | None = None,
        jobs: int = 4,
        offline: bool = False,
        timeout: float = 60.0,
        fresh_for: float = FRESH_SECONDS,
    ) -> None:
        self.offline = offline
        self._cache = (cache if cache is not None else cache_root()) / "http"
        self._slots = threading.BoundedSemaphore(max(1, jobs))
        self._timeout = timeout
        self._fresh_for = fresh_for
        self._opener: OpenerDirector | None = None
        self._lock = threading.Lock()
        self.requests = 0
        self.bytes_read = 0

    # -- the two verbs -------------------------------------------------------------------------------------------------

    def get(
        self, url: str, *, max_bytes: int, accept: str | None = None, sha256: str | None = None, keep: bool = True
    ) -> Reply:
        """See :class:`Fetcher`."""
        entry = _Entry(self._cache, url, accept)
        kept = entry.load(max_bytes)
        if kept and sha256 and hashlib.sha256(kept.body).hexdigest() != sha256:
            kept = None
        if kept and (self.offline or sha256 or kept.age() < self._fresh_for):
            return kept.reply()
        if self.offline:
            raise NetworkError(
                f"{redact(url)} is not in the cache, and the network is switched off",
                hint="run the same command once without --offline",
            )
        headers = {"Accept": accept} if accept else {}
        if kept:
            headers |= kept.conditions()
        reply, fields = self._download(url, headers, max_bytes, kept)
        if sha256 and hashlib.sha256(reply.body).hexdigest() != sha256:
            raise ContentError(
                f"{redact(url)}: its sha256 is not the one that the index names ({sha256[:16]}…)",
                hint="a proxy or mirror serves another file; nothing was taken from it",
            )
        if keep:
            entry.store(reply, fields)
        return reply

    @contextlib.contextmanager
    def open_range(self, url: str, start: int, stop: int | None = None) -> Iterator[RangeReply]:
        """See :class:`Fetcher`. A server that ignores ranges is refused unless the whole file is small."""
        if self.offline:
            raise NetworkError(f"{redact(url)} would have to be read, and the network is switched off")
        asked = f"bytes={start}" if start < 0 else f"bytes={start}-{'' if stop is None else stop - 1}"
        with self._open(url, {"Range": asked, "Accept-Encoding": "identity"}) as response:
            status = response.status
            if status != 206:
                raise NetworkError(
                    f"{redact(url)}: the server ignores range requests (status {status})",
                    hint="point the index setting of uv or pip at an index that serves ranges",
                )
            first, total = _content_range(response.headers.get("Content-Range", ""), url)
            if first != (start if start >= 0 else max(0, total + start)):
                raise NetworkError(f"{redact(url)}: the server answered with another range than the one asked for")
            yield RangeReply(stream=_Counted(self, response), start=first, total=total)  # type: ignore[arg-type]

    # -- underneath ----------------------------------------------------------------------------------------------------

    def _download(
        self, url: str, headers: dict[str, str], max_bytes: int, kept: _Kept | None
    ) -> tuple[Reply, Mapping[str, str]]:
        with self._open(url, {"Accept-Encoding": "gzip", **headers}) as response:
            fields = {k.lower(): v for k, v in response.headers.items()}
            if response.status == 304 and kept:
                return kept.reply(), {**kept.fields, **fields}
            body = _bounded(_Counted(self, response), fields.get("content-encoding", ""), max_bytes, url)
            return Reply(body=body, url=response.url, content_type=fields.get("content-type", "")), fields

    @contextlib.contextmanager
    def _open(self, url: str, headers: Mapping[str, str]) -> Iterator[_Response]:
        """One response, holding one of the client's slots while it is open."""
        import http.client

        with self._slots, contextlib.closing(self._answer(url, headers)) as response:
            try:
                yield response
            except (http.client.HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
                raise NetworkError(
                    f"{redact(url)}: the connection broke: {error}", hint="run the command again: it resumes"
                ) from None

    def _answer(self, url: str, headers: Mapping[str, str]) -> _Response:
        """The response to one request, after as many attempts as are sensible; 304 is an answer too."""
        import http.client
        import urllib.error

        for attempt in range(_ATTEMPTS):
            last = attempt == _ATTEMPTS - 1
            self.requests += 1
            try:
                answer: _Response = self._connect().open(self._request(url, headers), timeout=self._timeout)
            except urllib.error.HTTPError as error:
                if error.code == 304:
                    return cast("_Response", error)
                error.close()
                if error.code not in _RETRY or last:
                    raise _refused(url, error.code) from None
                time.sleep(_wait(attempt, error.headers.get("Retry-After")))
            except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
                if last or _hopeless(error):
                    reason = getattr(error, "reason", None) or error
                    hint = "check the network, the proxy and the CA settings"
                    raise NetworkError(f"{redact(url)} cannot be reached: {reason}", hint=hint) from None
                time.sleep(_wait(attempt, None))
            else:
                return answer
        raise AssertionError("the last attempt returns or raises")

    def _connect(self) -> OpenerDirector:
        with self._lock:
            if self._opener is None:
                import urllib.request

                self._opener = urllib.request.build_opener(
                    urllib.request.HTTPSHandler(context=ssl_context()), _redirects()
                )
            return self._opener

    def _request(self, url: str, headers: Mapping[str, str]) -> Request:
        import urllib.request

        parts = urlsplit(url)
        if parts.scheme not in {"https", "http"} or not parts.hostname:
            raise NetworkError(
                f"{redact(url)} is not an http address", hint="set the index of uv or pip to an http(s) address"
            )
        plain = urlunsplit(SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))
        request = urllib.request.Request(plain, headers={"User-Agent": f"envsmith/{__version__}", **headers})  # noqa: S310 - the scheme was checked
        secret = _credentials(parts)
        if secret:
            request.add_unredirected_header("Authorization", secret)
        return request


class _Response(Protocol):
    """The part of ``http.client.HTTPResponse`` that is used."""

    status: int
    url: str
    headers: Mapping[str, str]

    def read(self, size: int = -1, /) -> bytes: ...
    def close(self) -> None: ...


class _Counted:
    """A response that counts what was read, for the summary of a run."""

    def __init__(self, client: HttpClient, response: _Response) -> None:
        self._client = client
        self._response = response

    def read(self, size: int = -1) -> bytes:
        data = self._response.read(size)
        self._client.bytes_read += len(data)
        return data


def _redirects() -> type[HTTPRedirectHandler]:
    import urllib.error
    import urllib.request

    class Redirects(urllib.request.HTTPRedirectHandler):
        """Follows up to ten redirects, none from https to http."""

        def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202, PLR0917
            if urlsplit(req.full_url).scheme == "https" and urlsplit(newurl).scheme != "https":
                raise NetworkError(f"{redact(req.full_url)} redirects to an unencrypted address")
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    return Redirects


def _credentials(parts: SplitResult) -> str | None:
    """Basic credentials from the address, else from ``~/.netrc``, as pip and uv do."""
    user, password = parts.username, parts.password
    if user is None and parts.hostname:
        import netrc

        with contextlib.suppress(OSError, netrc.NetrcParseError):
            found = netrc.netrc().authenticators(parts.hostname)
            if found:
                user, password = found[0], found[2]
    if user is None:
        return None
    pair = f"{unquote(user)}:{unquote(password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _hopeless(error: BaseException) -> bool:
    """A certificate that is not trusted and a malformed address do not get better by asking again."""
    reason = getattr(error, "reason", error)
    return isinstance(reason, (ssl.SSLCertVerificationError, ValueError))


def _wait(attempt: int, told: str | None) -> float:
    if told and told.isdecimal():
        return min(float(told), _LONGEST_WAIT)
    return min(0.5 * 3.0**attempt, _LONGEST_WAIT)


def _refused(url: str, status: int) -> NetworkError:
    if status in {404, 410}:
        return NotFoundError(f"{redact(url)} does not exist (status {status})")
    hint = "check the credentials of the index in the settings of uv or pip" if status in {401, 403} else None
    return NetworkError(f"{redact(url)}: the server answers with status {status}", hint=hint)


def _bounded(stream: _Counted, encoding: str, max_bytes: int, url: str) -> bytes:
    """The whole body, decompressed, or ``NetworkError`` as soon as it is longer than allowed."""
    inflate = zlib.decompressobj(31) if encoding.lower() in {"gzip", "x-gzip"} else None
    if encoding and inflate is None and encoding.lower() != "identity":
        raise NetworkError(f"{redact(url)}: unknown encoding {encoding[:20]!r}")
    body = bytearray()
    while chunk := stream.read(_CHUNK):
        try:
            body += inflate.decompress(chunk, max_bytes + 1 - len(body)) if inflate else chunk
        except zlib.error as error:
            raise NetworkError(f"{redact(url)}: broken compression: {error}") from None
        if len(body) > max_bytes:
            raise NetworkError(f"{redact(url)} is longer than {max_bytes} bytes: refused")
    return bytes(body)


def _content_range(text: str, url: str) -> tuple[int, int]:
    unit, _, rest = text.partition(" ")
    span, _, total = rest.partition("/")
    first = span.partition("-")[0]
    if unit != "bytes" or not first.isdecimal() or not total.isdecimal():
        raise NetworkError(f"{redact(url)}: unusable Content-Range {text[:60]!r}")
    return int(first), int(total)


# -- the cache ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    body: bytes
    url: str
    stored: float
    fields: Mapping[str, str]

    def age(self) -> float:
        return max(0.0, time.time() - self.stored)

    def conditions(self) -> dict[str, str]:
        """Headers that let the server answer 304; empty when it named no validator."""
        pairs = {"If-None-Match": self.fields.get("etag"), "If-Modified-Since": self.fields.get("last-modified")}
        return {k: v for k, v in pairs.items() if v}

    def reply(self) -> Reply:
        return Reply(body=self.body, url=self.url, content_type=self.fields.get("content-type", ""), cached=True)


class _Entry:
    """One file of the cache: a line of JSON, then the body. Written beside and renamed, so that no reader sees half of it."""

    def __init__(self, folder: Path, url: str, accept: str | None) -> None:
        name = hashlib.sha256(f"{url}\n{accept or ''}".encode()).hexdigest()
        self._path = folder / name[:2] / name

    def load(self, max_bytes: int) -> _Kept | None:
        """What is kept, or ``None`` when nothing usable is; a damaged file is as good as none."""
        try:
            if self._path.stat().st_size > max_bytes + (1 << 16):
                return None
            head, _, body = self._path.read_bytes().partition(b"\n")
            known = json.loads(head)
            if hashlib.sha256(body).hexdigest() != known["sha256"]:
                return None
            fields = {str(k): str(v) for k, v in known["fields"].items()}
            return _Kept(body=body, url=str(known["url"]), stored=float(known["stored"]), fields=fields)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def store(self, reply: Reply, fields: Mapping[str, str]) -> None:
        """Keep it; a cache that cannot be written is no reason to fail."""
        wanted = {k: fields[k] for k in ("etag", "last-modified", "content-type") if k in fields}
        digest = hashlib.sha256(reply.body).hexdigest()
        head = {"url": redact(reply.url), "stored": time.time(), "fields": wanted, "sha256": digest}
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=".part-")
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(json.dumps(head).encode() + b"\n" + reply.body)
                Path(temporary).replace(self._path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
