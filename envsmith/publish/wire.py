"""One HTTP request to a registry, with a body that is streamed from a file and an answer that is streamed back.

:mod:`envsmith.sources.http` reads and caches small documents; layers are gigabytes, are sent as well as read, and are kept nowhere.
"""

from __future__ import annotations

import contextlib
import io
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from envsmith import __version__

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

__all__ = ["Body", "HttpWire", "Response", "Wire", "is_loopback"]

# Seconds without a byte in either direction; a registry that writes a layer to slow storage may think for a while.
_TIMEOUT = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """``length`` bytes of ``file`` from where it stands."""

    file: IO[bytes]
    length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """Status, headers with lower-case names, and the body, still open; whoever asked closes it."""

    status: int
    headers: Mapping[str, str]
    body: IO[bytes]

    def close(self) -> None:
        """Give the connection back."""
        with contextlib.suppress(OSError):
            self.body.close()


class Wire(Protocol):
    """One request; follows no redirect and raises ``OSError`` when there is no answer."""

    def __call__(self, method: str, url: str, headers: Mapping[str, str], body: Body | bytes | None = None) -> Response:
        """Send it, return whatever status comes back."""
        ...


class _Slice(io.RawIOBase):
    """At most ``length`` bytes of a file, so that a chunk of a layer is sent without being in memory."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self._file, self._left = body.file, body.length

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted) if wanted else b""
        self._left -= len(data)
        return data


class HttpWire:
    """A :class:`Wire` over the standard library: the system's proxies and CA bundles, no proxy for this machine itself."""

    def __init__(self) -> None:
        self._openers: dict[tuple[bool, bool], OpenerDirector] = {}

    def __call__(self, method: str, url: str, headers: Mapping[str, str], body: Body | bytes | None = None) -> Response:
        """See :class:`Wire`."""
        import http.client
        import urllib.error
        import urllib.request

        sent: Any = body
        length = {}
        if isinstance(body, Body):
            sent, length = _Slice(body), {"Content-Length": str(body.length)}
        elif body is not None:
            length = {"Content-Length": str(len(body))}
        elif method in {"POST", "PUT", "PATCH"}:
            sent, length = b"", {"Content-Length": "0"}
        told = {"User-Agent": f"envsmith/{__version__}", **length, **headers}
        request = urllib.request.Request(url, data=sent, headers=told, method=method)  # noqa: S310 - the client checked the scheme
        try:
            answer = self._opener(url).open(request, timeout=_TIMEOUT)
        except urllib.error.HTTPError as error:
            return Response(status=error.code, headers=_lower(error.headers), body=error)
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"no usable answer: {error}") from error
        return Response(status=answer.status, headers=_lower(answer.headers), body=answer)

    def _opener(self, url: str) -> OpenerDirector:
        import urllib.request

        parts = urlsplit(url)
        kind = (is_loopback(parts.hostname or ""), parts.scheme == "https")
        if kind not in self._openers:

            class NoRedirect(urllib.request.HTTPRedirectHandler):
                def redirect_request(self, *_args: object, **_more: object) -> None:
                    """The client follows it itself, without the credentials."""

            handlers: list[urllib.request.BaseHandler] = [NoRedirect()]
            handlers += [urllib.request.ProxyHandler({})] if kind[0] else []
            # Reading the bundle of authorities takes longer than a request does.
            handlers += [urllib.request.HTTPSHandler(context=_context())] if kind[1] else []
            self._openers[kind] = urllib.request.build_opener(*handlers)
        return self._openers[kind]


def is_loopback(host: str) -> bool:
    """True for this machine: the only place that is spoken to without TLS."""
    return host in {"localhost", "127.0.0.1", "::1"}


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if (bundle := os.environ.get(name)) and Path(bundle).is_file():
            context.load_verify_locations(cafile=bundle)
    return context


def _lower(headers: Any) -> dict[str, str]:
    return {str(key).lower(): str(value) for key, value in headers.items()}
