"""A repository of an OCI registry: read it, and write into it in an order that leaves nothing half-published.

The distribution specification 1.1: blobs are uploaded where they are missing, mounted from a neighbouring repository
where that has them, and continued where a connection broke. Where a registry has no referrers API (``docker-registry``
2.8), the tag ``sha256-…`` of the specification's fallback lists what refers to an image. Everything that a registry
says is hostile: sizes are bounded, and a digest is computed from what was sent.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import IO
from urllib.parse import quote, urlencode, urljoin

from envsmith.base.files import digest_of
from envsmith.base.schema import parse_json
from envsmith.errors import ContentError, NetworkError, UsageError
from envsmith.model import plain
from envsmith.net.address import follow, is_loopback, origin, parts_of
from envsmith.net.oci.access import DEFAULT_REGISTRY, RegistryAccess
from envsmith.net.oci.spec import (
    IMAGE_INDEX,
    INDEX_TYPES,
    MANIFEST_TYPES,
    MAX_MANIFEST,
    Descriptor,
    Manifest,
    index_bytes,
    is_digest,
    parse_index,
)
from envsmith.net.wire import REDIRECTS, RETRY, HttpWire, Response, Wire, ask, pause

Opener = Callable[[], IO[bytes]]
# The host that answers the API of a registry with another name.
_API_HOSTS = {DEFAULT_REGISTRY: f"registry-1.{DEFAULT_REGISTRY}"}
# An index first: its digest is that of all platforms, and the one that pins of others name.
_ACCEPT = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
_ATTEMPTS = 5
_HOPS = 5
_MAX_PAGES = 20
# A piece of an upload: large enough that the specification's smallest pieces (some stores want 5 MiB) never matter,
# small enough that a broken connection costs a minute.
_PIECE = 256 << 20
# Seconds without a byte in either direction; a registry that writes a layer to slow storage may think for a while.
_TIMEOUT = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """An image reference in its parts; ``registry`` and ``repository`` as the API wants them."""

    registry: str
    repository: str
    tag: str
    digest: str | None = None


def parse_reference(text: str) -> Reference:
    """Read ``python:3.12-slim`` as docker.io, library/python, 3.12-slim.

    ``UsageError`` for what is not an image reference.
    """
    name, _, digest = plain.image(text).partition("@")
    head, slash, path = name.partition("/")
    if slash and ("." in head or ":" in head or head == "localhost"):
        registry = head
    else:
        registry, path = DEFAULT_REGISTRY, name
    path, _, tag = path.partition(":")
    if registry == DEFAULT_REGISTRY and "/" not in path:
        path = f"library/{path}"
    return Reference(registry=registry, repository=path, tag=tag or "latest", digest=digest or None)


def resolve_digest(text: str, *, wire: Wire | None = None) -> str:
    """Return the digest behind a reference: of the multi-platform index where there is one.

    ``UsageError`` for a malformed reference or one that the registry does not have, ``NetworkError`` when it cannot be
    reached or answers nonsense, ``ContentError`` when a reference that names a digest leads to another.
    """
    reference = parse_reference(text)
    try:
        repository = Repository(reference.registry, reference.repository, wire=wire or HttpWire(timeout=15))
        raw = repository.manifest(reference.digest or reference.tag)
    except NetworkError as error:
        way_out = "Name the base by digest (--base NAME:TAG@sha256:…), or leave --base out to use the pinned one."
        raise NetworkError(error.message, hint=f"{error.hint} {way_out}" if error.hint else way_out) from None
    if raw is None:
        raise UsageError(f"Cannot find {text}: the registry has no such image.", hint="Check the name and the tag.")
    if not _is_document(raw):
        raise NetworkError(
            f"Cannot read {text}: the registry's answer is not a manifest.",
            hint="Check whether a login page or proxy answers instead.",
        )
    digest = digest_of(raw)
    if is_digest(repository.claim) and repository.claim != digest:
        raise ContentError(
            f"Cannot trust {text}: the registry says {repository.claim[:19]}… and sends {digest[:19]}….",
            hint="Check what stands between here and the registry: it changes manifests.",
        )
    if reference.digest and digest != reference.digest:
        raise ContentError(
            f"Cannot trust {text}: the registry answers with {digest[:19]}….", hint="Use another registry."
        )
    return digest


def _is_document(raw: bytes) -> bool:
    try:
        document = parse_json(raw)
        return document["schemaVersion"] == 2 and ("manifests" in document or "config" in document)
    except (ValueError, KeyError, TypeError):
        return False


class Repository:
    """One repository of a registry, a :class:`~envsmith.net.oci.store.Store` that can also be written.

    ``also`` are repositories of the same registry whose blobs may be mounted. Raises ``NetworkError`` when the
    registry cannot be reached, refuses, or answers nonsense, and ``ContentError`` when it does not send what it names.
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
        host = _API_HOSTS.get(registry, registry)
        scheme = "http" if is_loopback(parts_of(f"//{host}").hostname) else "https"
        self.registry, self.repository, self.also = registry, repository, also
        # What the registry said of the manifest that it sent last: evidence of a proxy that changes manifests, nothing else.
        self.claim = ""
        self._root = f"{scheme}://{host}/v2/{repository}/"
        self._wire = wire or HttpWire(timeout=_TIMEOUT)
        self._access = RegistryAccess(registry, repository, "pull,push" if push else "pull", self._wire, also)
        self._piece, self._wait = piece, wait

    @property
    def name(self) -> str:
        """Return what messages call it."""
        return f"{self.registry}/{self.repository}"

    @property
    def store(self) -> Repository:
        """Return what can be read back: the repository itself."""
        return self

    # -- reading -------------------------------------------------------------------------------------------------------

    def resolve(self, tag: str) -> str | None:
        """Return the digest of the bytes behind a tag. What a header claims is not believed."""
        raw = self.manifest(tag)
        return None if raw is None else digest_of(raw)

    def manifest(self, name: str) -> bytes | None:
        """Return the manifest or index with this digest or tag, or ``None``."""
        path = f"manifests/{quote(name, safe=':')}"
        with self._ask("GET", path, f"read {path}", {200, 404}, headers={"Accept": _ACCEPT}) as answer:
            if answer.status == 404:
                return None
            raw = answer.body.read(MAX_MANIFEST + 1)
        if len(raw) > MAX_MANIFEST:
            raise NetworkError(f"Cannot read {path} of {self.name}: it is longer than {MAX_MANIFEST} bytes.")
        self.claim = answer.headers.get("docker-content-digest", "")
        return raw

    def has_blob(self, digest: str, size: int) -> bool:
        """Tell whether the registry says that it has a blob of this digest and size."""
        with self._ask("HEAD", f"blobs/{digest}", f"looking for {digest[:19]}…", {200, 404, *REDIRECTS}) as answer:
            length = answer.headers.get("content-length", str(size))
            return answer.status in REDIRECTS or (answer.status == 200 and length == str(size))

    def blob(self, digest: str) -> IO[bytes] | None:
        """Open a blob, or return ``None``. A redirect to a store is followed without credentials."""
        work = f"read {digest[:19]}…"
        url, answer = self._root, self._ask("GET", f"blobs/{digest}", work, {200, 404, *REDIRECTS})
        for _ in range(_HOPS):
            if answer.status not in REDIRECTS:
                break
            answer.body.close()
            url = follow(url, answer.headers.get("location", ""), first=self._root)
            answer = self._send("GET", url, {})
        self._expect(answer, {200, 404}, work)
        if answer.status == 404:
            answer.body.close()
            return None
        return answer.body

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """Return what the referrers API lists, or the fallback tag where there is no such API."""
        listed = self._listed(digest)
        if listed is not None:
            return listed
        raw = self.manifest(_fallback(digest))
        return () if raw is None else parse_index(raw, f"{self.name}:{_fallback(digest)}")

    def _listed(self, digest: str) -> tuple[Descriptor, ...] | None:
        """Return ``None`` when the registry has no referrers API."""
        descriptors: list[Descriptor] = []
        path, work = f"referrers/{digest}", "list what refers to the image"
        for _ in range(_MAX_PAGES):
            with self._ask("GET", path, work, {200, 400, 404, 405}, headers={"Accept": IMAGE_INDEX}) as answer:
                if answer.status != 200 or answer.headers.get("content-type", "").partition(";")[0] != IMAGE_INDEX:
                    return None
                descriptors += parse_index(answer.body.read(MAX_MANIFEST + 1), f"{self.name}: referrers")
                link = answer.headers.get("link", "")
            if 'rel="next"' not in link:
                break
            following = follow(self._root, link.partition(">")[0].lstrip(" <"))
            if not following.startswith(self._root):
                break
            path = following[len(self._root) :]
        return tuple(descriptors)

    # -- writing -------------------------------------------------------------------------------------------------------

    def push_blob(self, blob: Descriptor, opener: Opener) -> str:
        """Put a blob where it is missing: ``kept``, ``mounted`` (from a repository of :attr:`also`) or ``sent``."""
        if self.has_blob(blob.digest, blob.size):
            return "kept"
        for neighbour in self.also:
            query = urlencode({"mount": blob.digest, "from": neighbour})
            work = f"mount {blob.digest[:19]}…"
            with self._ask("POST", f"blobs/uploads/?{query}", work, {201, 202, 401, 403, 404}) as answer:
                if answer.status == 201:
                    return "mounted"
        self._upload(blob, opener)
        return "sent"

    def _upload(self, blob: Descriptor, opener: Opener) -> None:
        """Send a blob in pieces.

        After a broken piece the registry is asked how far it got. An upload that it forgot begins again.
        """
        work = f"send {blob.digest[:19]}…"
        location, at, failures = self._begin(work), 0, 0
        with closing(opener()) as file:
            while at < blob.size:
                length = min(self._piece, blob.size - at)
                file.seek(at)
                following = self._sent_piece(location, _pieces(file, length), at, length, work)
                if following is not None:
                    location, at = following, at + length
                    continue
                failures += 1
                if failures >= _ATTEMPTS:
                    raise NetworkError(
                        f"Cannot {work} to {self.name}: the connection broke {failures} times.",
                        hint="Run the same command again. What was sent is not sent again, and no tag was set.",
                    )
                (self._wait or time.sleep)(pause(failures))
                location, at = self._resume(location, work)
        joint = "&" if parts_of(location).query else "?"
        with self._ask("PUT", f"{location}{joint}{urlencode({'digest': blob.digest})}", work, {201}):
            pass

    def _begin(self, work: str) -> str:
        with self._ask("POST", "blobs/uploads/", work, {202}) as answer:
            return self._location(answer, self._root)

    def _sent_piece(self, location: str, body: Iterator[bytes], at: int, length: int, work: str) -> str | None:
        """Return where the next piece goes, or ``None`` when this one may have been lost."""
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Range": f"{at}-{at + length - 1}",
            "Content-Length": str(length),
        }
        try:
            answer = self._wire("PATCH", location, {**headers, **self._login(location)}, body)
        except OSError:
            return None
        with answer:
            if answer.status == 401 and self._is_own(location):
                self._access.answer(answer.headers.get("www-authenticate", ""), location)
            if answer.status in {401, 416, *RETRY}:
                return None
            self._expect(answer, {201, 202, 204}, work)
            return self._location(answer, location)

    def _resume(self, location: str, work: str) -> tuple[str, int]:
        """Return where to go on and from which byte."""
        with self._ask("GET", location, work, set(range(200, 600))) as answer:
            last = answer.headers.get("range", "").partition("-")[2]
            # `0-0` is what registries say of nothing as well as of one byte: sending that byte again would be refused,
            # so begin again.
            if answer.status == 204 and re.fullmatch(r"[1-9][0-9]{0,17}", last):
                return self._location(answer, location), int(last) + 1
        return self._begin(work), 0

    def _location(self, answer: Response, base: str) -> str:
        if "location" not in answer.headers:
            raise NetworkError(f"Cannot upload to {self.name}: the registry names no place for it.")
        return follow(base, answer.headers["location"], first=self._root)

    def push_manifest(self, manifest: Manifest, tag: str | None = None) -> None:
        """Put a manifest under its digest, or under a tag.

        What it refers to is listed also where the registry has no API for that.

        ``ContentError`` when the registry gives it another digest, ``NetworkError`` when it cannot be reached.
        """
        target = tag if tag is not None else manifest.digest
        path, headers = f"manifests/{quote(target, safe=':')}", {"Content-Type": manifest.media_type}
        with self._ask("PUT", path, f"set {target}", {201}, headers=headers, body=manifest.raw) as answer:
            digest = answer.headers.get("docker-content-digest", manifest.digest)
        if digest != manifest.digest:
            raise ContentError(f"Cannot trust {self.name}: it calls {manifest.digest[:19]}… {digest[:19]}….")
        subject = manifest.subject
        if subject is not None and "oci-subject" not in answer.headers and self._listed(subject.digest) is None:
            self._list(_fallback(subject.digest), manifest)

    def _list(self, tag: str, manifest: Manifest) -> None:
        """Add a referrer to the fallback tag. Two writers at once may lose one: the list is read again and mended."""
        for _ in range(_ATTEMPTS):
            raw = self.manifest(tag)
            rows = () if raw is None else parse_index(raw, f"{self.name}:{tag}")
            if any(row.digest == manifest.digest for row in rows):
                return
            headers, body = {"Content-Type": IMAGE_INDEX}, index_bytes((*rows, manifest.descriptor))
            with self._ask("PUT", f"manifests/{tag}", f"set {tag}", {201}, headers=headers, body=body):
                pass
        raise NetworkError(
            f"Cannot set {tag} at {self.name}: the registry does not keep what is written.",
            hint="Check whether another publish is running.",
        )

    # -- underneath ----------------------------------------------------------------------------------------------------

    def _is_own(self, url: str) -> bool:
        return origin(url) == origin(self._root)

    def _login(self, url: str) -> Mapping[str, str]:
        """Return credentials, only for the registry's own host."""
        return self._access.headers if self._is_own(url) else {}

    def _ask(
        self,
        method: str,
        path: str,
        work: str,
        accepted: set[int],
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Response:
        """Send one request with the login that it takes. Its answer has one of the statuses ``accepted``."""
        url = urljoin(self._root, path)
        answer = self._send(method, url, {**(headers or {}), **self._login(url)}, body)
        for _ in range(2):
            if answer.status == 401 and self._is_own(url):
                answer.body.close()
                self._access.answer(answer.headers.get("www-authenticate", ""), url)
                answer = self._send(method, url, {**(headers or {}), **self._login(url)}, body)
        self._expect(answer, accepted, work)
        return answer

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Response:
        try:
            return ask(self._wire, method, url, headers, body, attempts=_ATTEMPTS, wait=self._wait)
        except OSError as error:
            raise NetworkError(
                f"Cannot reach the registry {self.registry}: {str(error)[:200]}.",
                hint="Check the name, the network and the CA settings, then run the same command again. It resumes.",
            ) from None

    def _expect(self, answer: Response, accepted: set[int], work: str) -> None:
        if answer.status in accepted:
            return
        with answer:
            if answer.status in {401, 403}:
                raise self._access.denied()
            raise NetworkError(
                f"Cannot {work} at {self.name}: the registry answers with status {answer.status}{_reason(answer)}.",
                hint="Run the same command again. What was sent is not sent again.",
            )


def _pieces(file: IO[bytes], length: int) -> Iterator[bytes]:
    """Yield the next ``length`` bytes, so that a piece of a layer is sent without being in memory."""
    while length > 0 and (data := file.read(min(length, 1 << 20))):
        length -= len(data)
        yield data


def _fallback(digest: str) -> str:
    """Return the tag under which the referrers of ``digest`` are listed (specification: "referrers tag schema")."""
    return digest.replace(":", "-")


def _reason(answer: Response) -> str:
    """Return the registry's own words, a little of them."""
    try:
        errors = parse_json(answer.body.read(65536))["errors"]
        words = "; ".join(f"{e.get('code')} {e.get('message')}" for e in errors[:3])
    except (NetworkError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    return f" ({words[:200]})" if words else ""
