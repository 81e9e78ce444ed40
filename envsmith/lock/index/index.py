"""The package index that the user's own tools use: where it is, and what it has of a project.

No address stands here. The index is the one that uv or pip is configured with, and without any configuration the one
that uv itself falls back to: uv is asked for it. Simple pages (HTML or JSON) and the project document are understood.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from envsmith.base.schema import parse_json
from envsmith.base.text import clean
from envsmith.errors import NetworkError
from envsmith.lock.index.uv import SHOWN, Uv
from envsmith.model.project_name import normal_name
from envsmith.model.wheel_name import read_wheel_name, variant_of
from envsmith.net.address import follow, origin, parts_of, redact
from envsmith.net.http import Fetcher, HttpClient, NotFoundError, Reply
from envsmith.net.index_settings import index_addresses, uv_settings

# The longest page of the default index (a project with a file for every nightly build) is about 20 MiB.
MAX_PAGE = 64 << 20
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFile:
    """One file of a project.

    ``uploaded`` is an ISO time where the index tells; ``metadata`` is True when METADATA can be had alone.

    ``yanked`` is the reason, ``""`` when none is given, ``None`` when the file is not yanked.
    """

    filename: str
    url: str
    version: str
    sha256: str | None = None
    size: int | None = None
    uploaded: str | None = None
    requires_python: str | None = None
    yanked: str | None = None
    metadata: bool = False
    metadata_sha256: str | None = None

    @property
    def is_wheel(self) -> bool:
        """Tell whether it is a wheel, or else an sdist: other kinds of files are not listed."""
        return self.filename.endswith(".whl")

    @property
    def project(self) -> str:
        """Return the project that the file name states, normalised."""
        stated = _parsed(self.filename)
        return stated[0] if stated else ""

    @property
    def day(self) -> str | None:
        """Return the ISO day of the upload."""
        return self.uploaded[:10] if self.uploaded else None


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexProject:
    """All files of a project, in the order of the index, and what it lists that cannot be believed."""

    name: str
    files: tuple[IndexFile, ...]
    left_out: tuple[str, ...] = ()

    def releases(self) -> dict[str, tuple[IndexFile, ...]]:
        """Return files by version, oldest version first.

        ``69.3`` and ``69.3.0`` are one release, named as its longest spelling.
        """
        files: dict[Version, list[IndexFile]] = {}
        for file in self.files:
            files.setdefault(Version(file.version), []).append(file)
        return {max((f.version for f in files[v]), key=len): tuple(files[v]) for v in sorted(files)}


def yanked_text(files: Iterable[IndexFile]) -> str | bool | None:
    """Return ``None`` unless every file was withdrawn, then the reason, or ``True`` without one."""
    reasons = [f.yanked for f in files]
    if not reasons or any(r is None for r in reasons):
        return None
    return next((r for r in reasons if r), True)


def find_index(environ: Mapping[str, str] | None = None) -> str:
    """Return the simple index of the user: uv's settings, else pip's, else the default that is built into uv.

    It is the index that uv would ask where envsmith runs it. Raises ``EngineError`` without uv, ``NetworkError`` when
    no index is named.
    """
    user = os.environ if environ is None else environ
    settings = uv_settings(user)
    named = next((index["url"] for index in settings.get("index", []) if index.get("default")), None)
    named = named or settings.get("index-url") or settings.get("pip", {}).get("index-url")
    return str(named) if named else _index_of_uv(tuple(sorted(user.items())))


def quick_index(environ: Mapping[str, str] | None = None) -> PackageIndex:
    """Return the user's index, for a question whose answer nobody waits long for.

    ``NetworkError`` when no index is named, or ``UV_OFFLINE`` switches the network off.
    """
    user = os.environ if environ is None else environ
    return PackageIndex(_quick_client(user), find_index(user))


def _quick_client(environ: Mapping[str, str]) -> HttpClient:
    if environ.get("UV_OFFLINE", "").lower() in {"1", "true", "yes"}:
        raise NetworkError(
            "Cannot ask the package index: UV_OFFLINE switches the network off.",
            hint="Unset UV_OFFLINE to have it asked.",
        )
    return HttpClient(timeout=5, jobs=8, wait=lambda _seconds: None, environ=environ)


def is_published(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Tell whether one of the user's indexes has a project, without waiting long for an answer.

    ``NetworkError`` when an index that may have it gives none. ``UV_OFFLINE`` is honoured.
    """
    user = os.environ if environ is None else environ
    fetcher = _quick_client(user)
    for url in dict.fromkeys([*index_addresses(uv_settings(user)), find_index(user)]):
        try:
            PackageIndex(fetcher, url).project(name)
        except NotFoundError:
            continue
        return True
    return False


@lru_cache(maxsize=4)
def _index_of_uv(environ: tuple[tuple[str, str], ...]) -> str:
    """Return the index that uv would ask: it resolves nothing and names its index in the output.

    uv wants an interpreter for that. PATH may have none, but the one that envsmith runs in is there.
    """
    command = ["pip", "compile", "-", "--quiet", "--no-header", "--emit-index-url", "--python", sys.executable]
    answer = Uv(environ=dict(environ)).run(command)
    match = re.search(r"^--index-url\s+(\S+)", answer.stdout, re.MULTILINE)
    if not match:
        raise NetworkError(
            "Cannot find the package index: uv names none.",
            hint="Set UV_DEFAULT_INDEX or PIP_INDEX_URL.",
            details=[line[:SHOWN] for line in answer.lines[-3:]],
        )
    return match[1]


# -- pages -------------------------------------------------------------------------------------------------------------


def _parsed(filename: str) -> tuple[str, str] | None:
    """Return the project and version that a file name states, normalised. ``None`` for neither wheel nor sdist."""
    try:
        if filename.endswith(".whl"):
            wheel = read_wheel_name(filename)
            name, version = wheel.project, wheel.version
        elif filename.endswith((".tar.gz", ".zip")):
            name, version = parse_sdist_filename(filename)
        else:
            return None
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion, ValueError):
        return None
    return name, str(version)


def _text(value: object, limit: int = 400) -> str | None:
    return value[:limit] if isinstance(value, str) and value else None


def _digest(value: object) -> str | None:
    return value.lower() if isinstance(value, str) and _SHA256.fullmatch(value.lower()) else None


def _time(value: object) -> str | None:
    if isinstance(value, str) and len(value) <= 40 and _DAY.match(value):
        with contextlib.suppress(ValueError):
            dt.date.fromisoformat(value[:10])
            return value
    return None


def _yanked(value: object) -> str | None:
    if value is True:
        return ""
    return value[:200] if isinstance(value, str) else None


@dataclass(slots=True)
class Listing:
    """The files of a page, and in ``left_out`` what the page lists and cannot be believed, each with the reason.

    ``project`` is whose page it is: files of other projects are left out.
    """

    page: str
    project: str | None = None
    files: list[IndexFile] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _trusted: set[tuple[str, str]] = field(default_factory=set)

    def add(self, base: str, href: str, filename: str | None, **facts: Any) -> None:
        """Take a file in, unless it is neither wheel nor sdist, or a lie."""
        try:
            url, fragment = urldefrag(urljoin(base, href))
            address_name = unquote(parts_of(url).path.rpartition("/")[2])
            name = filename or address_name
            stated = None if "/" in name or len(name) > 300 else _parsed(name)
            if stated is None:
                return
            if origin(url) not in self._trusted:
                follow(self.page, url)
                self._trusted.add(origin(url))
        except (ValueError, NetworkError) as error:
            reason = error.message if isinstance(error, NetworkError) else "it has a malformed address"
            self.left_out.append(f"{clean(filename or href)[:200]}: {reason}")
            return
        if self.project and stated[0] != self.project:
            self.left_out.append(f"{name}: it is a file of another project")
        elif (_parsed(address_name) or stated) != stated:
            self.left_out.append(f"{name}: its address names {address_name}")
        elif label := variant_of(name):
            self.left_out.append(f"{name}: it is the variant {label} of its release, which installers do not take")
        else:
            match = re.search(r"(?:^|&)sha256=([0-9a-fA-F]{64})(?:&|$)", fragment)
            facts.setdefault("sha256", match[1].lower() if match else None)
            self.files.append(IndexFile(filename=name, url=url, version=stated[1], **facts))


class _Anchors(HTMLParser):
    """Collects ``<a>`` elements and the base address of a simple page."""

    def __init__(self, listing: Listing) -> None:
        super().__init__(convert_charrefs=True)
        self.base = listing.page
        self.listing = listing
        self.tags: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        fields = dict(attrs)
        if tag == "base" and fields.get("href"):
            with contextlib.suppress(ValueError):
                self.base = urljoin(self.listing.page, str(fields["href"]))
        if tag != "a" or not fields.get("href"):
            return
        named = next((n for n in ("data-core-metadata", "data-dist-info-metadata") if n in fields), None)
        alone = (fields[named] or "true") if named else "false"
        self.listing.add(
            self.base,
            str(fields["href"]),
            None,
            uploaded=_time(fields.get("data-upload-time")),
            requires_python=_text(fields.get("data-requires-python")),
            yanked=_yanked(fields["data-yanked"] or "") if "data-yanked" in fields else None,
            metadata=alone != "false",
            metadata_sha256=_digest(alone.partition("sha256=")[2]),
        )

    def handle_endtag(self, tag: str) -> None:
        self.tags[f"/{tag}"] += 1


def parse_html(text: str, listing: Listing) -> None:
    """Add the files of a simple page in HTML (PEP 503, 592, 658, 714). ``NetworkError`` when it is not one."""
    parser = _Anchors(listing)
    try:
        parser.feed(text)
        parser.close()
    except (AssertionError, ValueError) as error:  # marked sections and numbers that html.parser cannot take
        raise NetworkError(f"Cannot read {redact(listing.page)}: {error}.", hint="Use another index.") from None
    tags = parser.tags
    if text.rfind("<") > text.rfind(">") or tags["html"] > tags["/html"]:
        raise NetworkError(f"Cannot read {redact(listing.page)}: the page is cut.", hint="Run the command again.")
    if not listing.files and (not tags or tags.keys() & {"form", "input", "script", "iframe"}):
        raise NetworkError(
            f"Cannot read {redact(listing.page)}: it is not a page of a package index.",
            hint="Check the address of the index, its login and the proxy: this may be a login page.",
        )


def parse_simple_json(text: str | bytes, listing: Listing) -> None:
    """Add the files of a simple page in JSON (PEP 691, 700). ``NetworkError`` when it is not one."""
    items = _loads(text, listing.page).get("files")
    if not isinstance(items, list):
        raise NetworkError(f"Cannot read {redact(listing.page)}: it has no `files`.")
    for item in items:
        _add(item, listing)


def parse_project_json(text: str | bytes, listing: Listing) -> None:
    """Add the files of a project document (``…/pypi/NAME/json``). ``NetworkError`` when it is not one."""
    releases = _loads(text, listing.page).get("releases")
    if not isinstance(releases, dict):
        raise NetworkError(f"Cannot read {redact(listing.page)}: it has no `releases`.")
    for item in (item for files in releases.values() if isinstance(files, list) for item in files):
        if isinstance(item, dict):
            # The same facts as on a simple page, under other names.
            same = {
                "hashes": item.get("digests"),
                "upload-time": item.get("upload_time_iso_8601") or item.get("upload_time"),
                "requires-python": item.get("requires_python"),
                "yanked": item.get("yanked") is True and (item.get("yanked_reason") or True),
            }
            _add({**item, **same}, listing)


def _add(item: Any, listing: Listing) -> None:
    url, filename = (item.get("url"), item.get("filename")) if isinstance(item, dict) else (None, None)
    if not isinstance(url, str) or not isinstance(filename, str):
        return
    digests, size = item.get("hashes"), item.get("size")
    # A boolean or a table of hashes (PEP 714).
    metadata = item.get("core-metadata", item.get("data-dist-info-metadata", False))
    listing.add(
        listing.page,
        url,
        filename,
        sha256=_digest(digests.get("sha256")) if isinstance(digests, dict) else None,
        size=size if isinstance(size, int) and size >= 0 else None,
        uploaded=_time(item.get("upload-time")),
        requires_python=_text(item.get("requires-python")),
        yanked=_yanked(item.get("yanked")),
        metadata=bool(metadata),
        metadata_sha256=_digest(metadata.get("sha256")) if isinstance(metadata, dict) else None,
    )


def _loads(text: str | bytes, page: str) -> dict[str, Any]:
    try:
        document = parse_json(text)
    except ValueError:
        raise NetworkError(f"Cannot read {redact(page)}: it is not JSON, although it says so.") from None
    if not isinstance(document, dict):
        raise NetworkError(f"Cannot read {redact(page)}: it is a {type(document).__name__}, not an object.")
    return document


class PackageIndex:
    """Asks one simple index about projects. ``url`` is what :func:`find_index` gives."""

    def __init__(self, fetcher: Fetcher, url: str) -> None:
        self.fetcher = fetcher
        self.url = url.rstrip("/") + "/"

    def project(self, name: str) -> IndexProject:
        """Return every file of a project.

        ``NotFoundError`` when the index has none, ``NetworkError`` when it cannot be read.
        """
        page = urljoin(self.url, quote(normal_name(name)) + "/")
        listing = self._listing(page, name, _ACCEPT, _parse_page)
        files = tuple(listing.files)
        if any(file.uploaded is None or file.size is None for file in files) or not files:
            files = _joined(files, self._document(name))
        return IndexProject(name=normal_name(name), files=files, left_out=tuple(listing.left_out))

    def _document(self, name: str) -> tuple[IndexFile, ...]:
        """Return the project document, which tells times and sizes that a page in HTML does not, or nothing."""
        page = urljoin(self.url, f"../pypi/{quote(normal_name(name))}/json")
        try:
            listing = self._listing(page, name, "application/json", lambda body, _, li: parse_project_json(body, li))
        except NetworkError:
            return ()
        return tuple(listing.files)

    def _listing(self, page: str, name: str, accept: str, parse: Callable[[bytes, str, Listing], None]) -> Listing:
        """Return what a page lists. What does not parse is not kept in the cache."""
        listings: list[Listing] = []

        def read(reply: Reply) -> None:
            listing = Listing(_base(page, reply.url), normal_name(name))
            parse(reply.body, reply.content_type.lower(), listing)
            listings.append(listing)

        reply = self.fetcher.get(page, max_bytes=MAX_PAGE, accept=accept, check=read)
        if not listings:  # out of the cache
            read(reply)
        return listings[0]


def _parse_page(body: bytes, content_type: str, listing: Listing) -> None:
    if "json" in content_type:
        parse_simple_json(body, listing)
    elif not content_type or "html" in content_type:
        parse_html(body.decode("utf-8", "replace"), listing)
    else:
        raise NetworkError(
            f"Cannot read {redact(listing.page)}: {clean(content_type)[:60]!r} is not a page of a package index.",
            hint="Check the address of the index and the proxy.",
        )


def _base(page: str, place: str) -> str:
    """Return the address that links are relative to: with the user's credentials only where the server is the same."""
    return page if origin(page) == origin(place) else place


def _joined(files: tuple[IndexFile, ...], document: tuple[IndexFile, ...]) -> tuple[IndexFile, ...]:
    """Return ``files`` with what only ``document`` tells. A file that this gives another hash is left as it is."""
    if not files:
        return document
    by_name = {file.filename: file for file in document}
    return tuple(_completed(file, by_name.get(file.filename, file)) for file in files)


def _completed(file: IndexFile, same: IndexFile) -> IndexFile:
    if file.sha256 and same.sha256 and file.sha256 != same.sha256:
        return file
    return replace(
        file,
        sha256=file.sha256 or same.sha256,
        size=file.size if file.size is not None else same.size,
        uploaded=file.uploaded or same.uploaded,
        requires_python=file.requires_python or same.requires_python,
        yanked=file.yanked or same.yanked if same.yanked is not None else file.yanked,
        metadata=file.metadata or same.metadata,
        metadata_sha256=file.metadata_sha256 or same.metadata_sha256,
    )
