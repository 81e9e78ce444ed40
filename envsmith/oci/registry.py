"""A repository of an OCI registry: read it, and write into it in an order that leaves nothing half-published.

The distribution specification 1.1: blobs are uploaded where they are missing, taken over from a neighbouring repository where they are
there, and continued where a connection broke. Where a registry has no referrers API (``docker-registry`` 2.8), the tag ``sha256-…`` of the
specification's fallback lists what refers to an image.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode, urljoin, urlsplit

from envsmith import __version__
from envsmith.errors import ContentError, NetworkError
from envsmith.http import ssl_context
from envsmith.oci.lookup import API_HOSTS, Login, login
from envsmith.oci.spec import (
    IMAGE_INDEX,
    INDEX_TYPES,
    MANIFEST_TYPES,
    MAX_MANIFEST,
    Descriptor,
    Manifest,
    digest_of,
    index_bytes,
    parse_index,
)

if TYPE_CHECKING:
    from urllib.request import OpenerDirector


Opener = Callable[[], IO[bytes]]
_ACCEPT = ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))
_RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})
_ATTEMPTS = 5
_LONGEST_WAIT = 30.0
# A piece of an upload: large enough that the specification's smallest pieces (some stores want 5 MiB) never matter, small enough that a
# broken connection costs a minute.
_PIECE = 256 << 20
_MAX_PAGES = 20


class Repository:
    """One repository of a registry, a :class:`~envsmith.oci.layout.Store` that can also be written.

    ``also`` are repositories of the same registry whose blobs may be mounted. Raises ``NetworkError`` when the registry cannot be reached,
    refuses, or answers nonsense.
    """

    def __init__(
        self,
        registry: str,
        repository: str,
        *,
        push: bool = False,
        also: tuple[str, ...] = (),
        wire: Wire | None = None,
        piece: int = _PIECE,
        wait: Callable[[float], None] | None = None,
    ) -> None:
        host = API_HOSTS.get(registry, registry)
        scheme = "http" if is_loopback(urlsplit(f"//{host}").hostname or "") else "https"
        self.registry, self.repository, self.also = registry, repository, also
        self._root = f"{scheme}://{host}/v2/{repository}/"
        self._wire = wire or HttpWire()
        self._access = Access(registry, repository, "pull,push" if push else "pull", self._wire, also)
        self._piece, self._wait = piece, wait or time.sleep

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"{self.registry}/{self.repository}"

    # -- reading -------------------------------------------------------------------------------------------------------

    def resolve(self, tag: str) -> str | None:
        """The digest of the bytes behind a tag; what a header claims is not asked."""
        raw = self._document(f"manifests/{quote(tag, safe='')}")
        return None if raw is None else digest_of(raw)

    def manifest(self, digest: str) -> bytes | None:
        """See :class:`~envsmith.oci.layout.Store`."""
        return self._document(f"manifests/{digest}")

    def _document(self, path: str) -> bytes | None:
        with self._ask("GET", path, {"Accept": _ACCEPT}) as answer:
            if answer.status == 404:
                return None
            self._expect(answer, {200}, f"reading {path}")
            raw = _read(answer, MAX_MANIFEST + 1, self.name)
        if len(raw) > MAX_MANIFEST:
            raise ContentError(f"{self.name}: {path} is longer than {MAX_MANIFEST} bytes")
        return raw

    def has_blob(self, digest: str, size: int) -> bool:
        """True when the registry says that it has a blob of this digest and size."""
        with self._ask("HEAD", f"blobs/{digest}", {}) as answer:
            if answer.status == 404:
                return False
            if answer.status in {302, 303, 307, 308}:
                return True
            self._expect(answer, {200}, f"looking for {digest[:19]}…")
            told = answer.headers.get("content-length", str(size))
            return told == str(size)

    def blob(self, digest: str) -> IO[bytes] | None:
        """See :class:`~envsmith.oci.layout.Store`. A redirect to a store is followed without credentials."""
        answer = self._open("GET", f"blobs/{digest}", {})
        url, hops = self._root, 0
        while answer.status in {301, 302, 303, 307, 308}:
            answer.close()
            hops += 1
            url = urljoin(url, answer.headers.get("location", ""))
            parts = urlsplit(url)
            if hops > 5 or not (parts.scheme == "https" or is_loopback(parts.hostname or "")):
                raise NetworkError(f"{self.name}: {digest[:19]}… is redirected to a place that is not trusted")
            answer = self._try("GET", url, {})
        if answer.status == 404:
            answer.close()
            return None
        if answer.status != 200:
            with closing(answer):
                self._expect(answer, {200}, f"reading {digest[:19]}…")
        return _Told(answer.body, self.name)  # type: ignore[return-value]

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """What the referrers API lists, or the fallback tag where there is no such API."""
        listed = self._listed(digest)
        if listed is not None:
            return listed
        raw = self._document(f"manifests/{_fallback(digest)}")
        return () if raw is None else parse_index(raw, f"{self.name}:{_fallback(digest)}")

    def _listed(self, digest: str) -> tuple[Descriptor, ...] | None:
        """``None`` when the registry has no referrers API."""
        found: list[Descriptor] = []
        path = f"referrers/{digest}"
        for _ in range(_MAX_PAGES):
            with self._ask("GET", path, {"Accept": IMAGE_INDEX}) as answer:
                kind = answer.headers.get("content-type", "").partition(";")[0]
                if answer.status in {400, 404, 405} or (answer.status == 200 and kind != IMAGE_INDEX):
                    return None
                self._expect(answer, {200}, "listing what refers to the image")
                found += parse_index(_read(answer, MAX_MANIFEST + 1, self.name), f"{self.name}: referrers")
                link = answer.headers.get("link", "")
            if 'rel="next"' not in link:
                break
            following = urljoin(self._root, link.partition(">")[0].lstrip(" <"))
            if not following.startswith(self._root):
                break
            path = following[len(self._root) :]
        return tuple(found)

    # -- writing -------------------------------------------------------------------------------------------------------

    def push_blob(self, blob: Descriptor, opener: Opener) -> str:
        """Put a blob where it is missing: ``kept``, ``mounted`` (from a repository of :attr:`also`) or ``sent``."""
        if self.has_blob(blob.digest, blob.size):
            return "kept"
        for other in self.also:
            query = urlencode({"mount": blob.digest, "from": other})
            with self._ask("POST", f"blobs/uploads/?{query}", {}) as answer:
                if answer.status == 201:
                    return "mounted"
                self._expect(answer, {202, 401, 403, 404}, f"mounting {blob.digest[:19]}…")
        self._upload(blob, opener)
        return "sent"

    def _upload(self, blob: Descriptor, opener: Opener) -> None:
        """Send a blob in pieces. After a broken piece the registry is asked how far it got; an upload that it forgot begins again."""
        what = f"sending {blob.digest[:19]}…"
        location, at, failures = self._begin(what), 0, 0
        with closing(opener()) as file:
            while at < blob.size or blob.size == 0:
                length = min(self._piece, blob.size - at)
                file.seek(at)
                headers = {
                    "Content-Type": "application/octet-stream",
                    "Content-Range": f"{at}-{max(at + length - 1, 0)}",
                }
                done = self._piece_sent(location, headers, Body(file=file, length=length), what)
                if done is not None:
                    location, at = done, at + length
                    if blob.size == 0:
                        break
                    continue
                failures += 1
                if failures >= _ATTEMPTS:
                    raise NetworkError(
                        f"{self.name}: {what} broke {failures} times",
                        hint="run the same command again: what is there already is not sent again, and no tag was set",
                    )
                self._wait(_pause(failures))
                location, at = self._resume(location, what)
        joint = "&" if urlsplit(location).query else "?"
        with self._ask("PUT", f"{location}{joint}{urlencode({'digest': blob.digest})}", {}) as answer:
            self._expect(answer, {201}, what)

    def _begin(self, what: str) -> str:
        with self._ask("POST", "blobs/uploads/", {}) as answer:
            self._expect(answer, {202}, what)
            return self._location(answer, self._root)

    def _piece_sent(self, location: str, headers: Mapping[str, str], body: Body, what: str) -> str | None:
        """Where the next piece goes, or ``None`` when this one may have been lost."""
        try:
            answer = self._wire("PATCH", location, {**headers, **self._own(location)}, body)
        except OSError:
            return None
        with closing(answer):
            if answer.status == 401:
                self._access.answer(answer.headers.get("www-authenticate", ""), location)
                return None
            if answer.status in _RETRY or answer.status == 416:
                return None
            self._expect(answer, {202, 201, 204}, what)
            return self._location(answer, location)

    def _resume(self, location: str, what: str) -> tuple[str, int]:
        """Where to go on and from which byte."""
        with self._ask("GET", location, {}) as answer:
            if answer.status == 204:
                told = answer.headers.get("range", "").partition("-")[2]
                # `0-0` is what registries say of nothing as well as of one byte: sending that byte again would be refused, so begin again.
                if told.isdecimal() and int(told) > 0:
                    return self._location(answer, location), int(told) + 1
        return self._begin(what), 0

    def _location(self, answer: Response, base: str) -> str:
        url = urljoin(base, answer.headers.get("location", ""))
        parts = urlsplit(url)
        if not answer.headers.get("location") or not (parts.scheme == "https" or is_loopback(parts.hostname or "")):
            raise NetworkError(f"{self.name}: the registry names no usable place for an upload")
        return url

    def push_manifest(self, manifest: Manifest, tag: str | None = None) -> None:
        """Put a manifest under its digest, or under a tag; what it refers to is listed also where the registry has no API for that.

        ``ContentError`` when the registry gives it another digest, ``NetworkError`` when it cannot be reached.
        """
        target = tag if tag is not None else manifest.digest
        with self._ask(
            "PUT", f"manifests/{quote(target, safe=':')}", {"Content-Type": manifest.media_type}, manifest.raw
        ) as answer:
            self._expect(answer, {201}, f"setting {target}")
            told = answer.headers.get("docker-content-digest", manifest.digest)
            listed = "oci-subject" in answer.headers
        if told != manifest.digest:
            raise ContentError(f"{self.name}: the registry calls {manifest.digest[:19]}… {told[:19]}…")
        if manifest.subject is not None and not listed and self._listed(manifest.subject.digest) is None:
            self._list(manifest)

    def _list(self, manifest: Manifest) -> None:
        """Add a referrer to the fallback tag. Two writers at once may lose one: the list is read again and mended."""
        if manifest.subject is None:
            return
        tag = _fallback(manifest.subject.digest)
        for _ in range(_ATTEMPTS):
            raw = self._document(f"manifests/{tag}")
            there = () if raw is None else parse_index(raw, f"{self.name}:{tag}")
            if any(d.digest == manifest.digest for d in there):
                return
            with self._ask(
                "PUT", f"manifests/{tag}", {"Content-Type": IMAGE_INDEX}, index_bytes((*there, manifest.descriptor))
            ) as answer:
                self._expect(answer, {201}, f"setting {tag}")
        raise NetworkError(f"{self.name}: {tag} does not keep what is written", hint="does somebody else publish now?")

    # -- underneath ----------------------------------------------------------------------------------------------------

    def _own(self, url: str) -> Mapping[str, str]:
        """Credentials, only for the registry's own host."""
        return self._access.headers() if urlsplit(url).netloc == urlsplit(self._root).netloc else {}

    @contextmanager
    def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> Iterator[Response]:
        with closing(self._open(method, path, headers, body)) as answer:
            yield answer

    def _open(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> Response:
        """One request, after as many attempts as are sensible and the login that it takes."""
        url = urljoin(self._root, path)
        challenged = 0
        for attempt in range(_ATTEMPTS):
            answer = self._try(method, url, {**headers, **self._own(url)}, body, last=attempt == _ATTEMPTS - 1)
            if answer.status == 401 and challenged < 2:
                answer.close()
                challenged += 1
                self._access.answer(answer.headers.get("www-authenticate", ""), url)
            elif answer.status in _RETRY and attempt < _ATTEMPTS - 1:
                answer.close()
                self._wait(_pause(attempt + 1, answer.headers.get("retry-after")))
            else:
                return answer
        raise NetworkError(f"{self.name}: the registry asks for a login again and again")

    def _try(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None, *, last: bool = True
    ) -> Response:
        try:
            return self._wire(method, url, headers, body)
        except OSError as error:
            if last:
                reason = getattr(error, "reason", None) or error
                raise NetworkError(
                    f"registry {self.registry} cannot be reached: {str(reason)[:200]}",
                    hint="check the name, the network and the CA settings, then run the same command again: it resumes",
                ) from None
        self._wait(_pause(1))
        return Response(status=503, headers={}, body=_Nothing())

    def _expect(self, answer: Response, wanted: set[int], doing: str) -> None:
        if answer.status in wanted:
            return
        if answer.status in {401, 403}:
            raise NetworkError(
                f"{self.registry}: access to {self.repository} is denied while {doing}",
                hint=f"log in first: docker login {self.registry}",
            )
        raise NetworkError(
            f"{self.name}: status {answer.status} while {doing}{_reason(answer)}",
            hint="run the same command again: what is there already is not sent again",
        )


class _Told:
    """A body whose broken connection is an error of the family."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file, self._name = file, name

    def read(self, size: int = -1) -> bytes:
        import http.client

        try:
            return self._file.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise NetworkError(f"{self._name}: the connection broke: {error}", hint="run the command again") from None

    def close(self) -> None:
        self._file.close()


def _Nothing() -> IO[bytes]:  # noqa: N802
    import io

    return io.BytesIO()


def _read(answer: Response, limit: int, name: str) -> bytes:
    return _Told(answer.body, name).read(limit)


def _fallback(digest: str) -> str:
    """The tag under which the referrers of ``digest`` are listed (specification: "referrers tag schema")."""
    return digest.replace(":", "-")


def _pause(attempt: int, told: str | None = None) -> float:
    if told and told.isdecimal():
        return min(float(told), _LONGEST_WAIT)
    return min(0.5 * 2.0 ** (attempt - 1), _LONGEST_WAIT)


def _reason(answer: Response) -> str:
    """The registry's own words, a little of them."""
    try:
        errors = json.loads(answer.body.read(65536))["errors"]
        told = "; ".join(f"{e.get('code')} {e.get('message')}" for e in errors[:3])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    return f": {told[:200]}"


# How a registry lets somebody in: an anonymous or configured bearer token, or basic credentials, as its challenge asks.
#
# A token is asked for only over https, or from a registry on this machine; credentials are never sent anywhere else.


_FIELD = re.compile(r'([a-zA-Z]+)="([^"]*)"')
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,16384}")
_MAX_TOKEN = 1 << 17


@dataclass(slots=True)
class Access:
    """The ``Authorization`` header of one repository, renewed when the registry challenges again.

    ``actions`` is ``pull`` or ``pull,push``; ``also`` are repositories whose blobs may be mounted (``pull`` is asked for).
    """

    registry: str
    repository: str
    actions: str
    wire: Wire
    also: tuple[str, ...] = ()
    _header: str = field(default="", repr=False)

    def headers(self) -> Mapping[str, str]:
        """What goes with the next request."""
        return {"Authorization": self._header} if self._header else {}

    def answer(self, challenge: str, url: str) -> None:
        """Do what ``WWW-Authenticate`` asks; ``NetworkError`` when it cannot be done or must not."""
        kind, _, rest = challenge[:4000].partition(" ")
        fields = {key.lower(): value for key, value in _FIELD.findall(rest)}
        known = login(self.registry)
        if kind.lower() == "basic":
            if known is None or not known.basic:
                raise _denied(self.registry, self.repository)
            if self._header == f"Basic {known.basic}":
                raise _denied(self.registry, self.repository)
            if not _private(url):
                raise NetworkError(f"{self.registry}: credentials are not sent over an unencrypted connection")
            self._header = f"Basic {known.basic}"
        elif kind.lower() == "bearer":
            self._header = f"Bearer {self._token(fields, url, known)}"
        else:
            raise NetworkError(f"registry {self.registry} asks for a kind of login that is not understood")

    def _token(self, fields: Mapping[str, str], url: str, known: Login | None) -> str:
        realm = fields.get("realm", "")
        parts = urlsplit(realm)
        same = is_loopback(parts.hostname or "") and is_loopback(urlsplit(url).hostname or "")
        if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and same)):
            raise NetworkError(f"registry {self.registry} sends to a place for tokens that is not trusted")
        scopes = [("scope", f"repository:{self.repository}:{self.actions}")]
        scopes += [("scope", f"repository:{other}:pull") for other in self.also]
        query = [("service", fields.get("service", "")), *scopes]
        if known and known.identity:
            form = [("grant_type", "refresh_token"), ("refresh_token", known.identity), ("client_id", "envsmith")]
            form += [("service", fields.get("service", "")), ("scope", " ".join(value for _, value in scopes))]
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            response = self._send("POST", realm, headers, urlencode(form).encode())
        else:
            headers = {"Authorization": f"Basic {known.basic}"} if known else {}
            response = self._send("GET", f"{realm}{'&' if parts.query else '?'}{urlencode(query)}", headers, None)
        return self._read(response)

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Response:
        try:
            return self.wire(method, url, headers, body)
        except OSError as error:
            raise NetworkError(f"{self.registry}: the place for tokens cannot be reached: {error}") from None

    def _read(self, response: Response) -> str:
        try:
            data = json.loads(response.body.read(_MAX_TOKEN))
            token = data.get("token") or data.get("access_token")
        except (OSError, ValueError, AttributeError):
            token = None
        finally:
            response.close()
        if response.status in {401, 403}:
            raise _denied(self.registry, self.repository)
        if response.status != 200 or not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise NetworkError(f"registry {self.registry} gave no token (status {response.status})")
        return token


def _private(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def _denied(registry: str, repository: str) -> NetworkError:
    return NetworkError(f"{registry}: access to {repository} is denied", hint=f"log in first: docker login {registry}")


# One HTTP request to a registry, with a body that is streamed from a file and an answer that is streamed back.
#
# :mod:`envsmith.http` reads and caches small documents; layers are gigabytes, are sent as well as read, and are kept nowhere.


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
            handlers += [urllib.request.HTTPSHandler(context=ssl_context())] if kind[1] else []
            self._openers[kind] = urllib.request.build_opener(*handlers)
        return self._openers[kind]


def is_loopback(host: str) -> bool:
    """True for this machine: the only place that is spoken to without TLS."""
    return host in {"localhost", "127.0.0.1", "::1"}


def _lower(headers: Any) -> dict[str, str]:
    return {str(key).lower(): str(value) for key, value in headers.items()}
