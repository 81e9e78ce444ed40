"""The package index that the user's own tools use: where it is, and what it has of a project.

No address stands here. The index is the one that uv or pip is configured with, and without any configuration the one that uv itself
falls back to: uv is asked for it. Simple pages (HTML or JSON) and the project document are understood.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from envsmith.errors import EngineError, NetworkError
from envsmith.http import Fetcher, redact
from envsmith.pip_settings import pip_values

# The longest page of the default index (a project with a file for every nightly build) is about 20 MiB.
MAX_PAGE = 64 << 20
_MAX_FILES = 200_000
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexFile:
    """One file of a project. ``uploaded`` is an ISO time where the index tells; ``metadata`` is True when METADATA can be had alone.

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
        """Wheel, or else sdist: other kinds of files are not listed."""
        return self.filename.endswith(".whl")

    @property
    def day(self) -> str | None:
        """The ISO day of the upload."""
        return self.uploaded[:10] if self.uploaded else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """All files of a project, in the order of the index."""

    name: str
    files: tuple[IndexFile, ...]

    def releases(self) -> dict[str, tuple[IndexFile, ...]]:
        """Files by version, oldest version first. ``69.3`` and ``69.3.0`` are one release, named as its longest spelling."""
        found: dict[Version, list[IndexFile]] = {}
        for file in self.files:
            found.setdefault(Version(file.version), []).append(file)
        return {max((f.version for f in found[v]), key=len): tuple(found[v]) for v in sorted(found)}


@lru_cache(maxsize=4)
def _uv_index(*, configured: bool) -> str:
    """The index that uv would ask: it is told to resolve nothing and to name its index in the output."""
    try:
        import uv

        tool = uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        tool = "uv"
    command = [tool, "pip", "compile", "-", "--quiet", "--no-header", "--emit-index-url"]
    if not configured:
        command.append("--no-config")
    try:
        done = subprocess.run(command, input="", capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineError(
            f"uv cannot be run to learn the package index: {error}", hint="install uv: pip install uv"
        ) from None
    match = re.search(r"^--index-url\s+(\S+)", done.stdout, re.MULTILINE)
    if not match:
        raise NetworkError(
            "uv names no package index",
            hint="set UV_DEFAULT_INDEX or PIP_INDEX_URL",
            details=done.stderr.splitlines()[-3:],
        )
    return match[1]


def find_index(environ: Mapping[str, str] | None = None) -> str:
    """The simple index of the user: uv's settings, else pip's, else the default that is built into uv.

    ``UV_DEFAULT_INDEX``, ``UV_INDEX_URL`` and uv.toml come first because uv installs what envsmith locks; then ``PIP_INDEX_URL`` and
    pip.conf. Raises ``EngineError`` without uv, ``NetworkError`` when no index is named at all.
    """
    env = os.environ if environ is None else environ
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if env.get(name):
            # uv allows NAME=URL here.
            return re.sub(r"^[A-Za-z0-9_.-]+=(?=https?:)", "", env[name])
    pip = pip_values(env).get("index-url")
    if pip is None:
        return _uv_index(configured=True)
    configured = _uv_index(configured=True)
    return configured if configured != _uv_index(configured=False) else pip


# -- pages -------------------------------------------------------------------------------------------------------------


def _version_of(filename: str) -> str | None:
    """The version a file name states (PEP 440, normalised); ``None`` for what is neither wheel nor sdist."""
    try:
        if filename.endswith(".whl"):
            return str(parse_wheel_filename(filename)[1])
        if filename.endswith((".tar.gz", ".zip")):
            return str(parse_sdist_filename(filename)[1])
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion, ValueError):
        return None
    return None


def _text(value: object, limit: int = 400) -> str | None:
    return value[:limit] if isinstance(value, str) and value else None


def _digest(value: object) -> str | None:
    return value.lower() if isinstance(value, str) and _SHA256.fullmatch(value.lower()) else None


def _time(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= 40 and _DAY.match(value) else None


def _yanked(value: object) -> str | None:
    if value is True:
        return ""
    return value[:200] if isinstance(value, str) else None


def _file(page: str, href: str, filename: str | None, **facts: Any) -> IndexFile | None:
    """A file that can be used, or ``None``: another kind of file, another scheme, a name that is not a file name."""
    url, fragment = urldefrag(urljoin(page, href))
    name = filename or unquote(urlsplit(url).path.rpartition("/")[2])
    if "/" in name or len(name) > 300:
        return None
    scheme = urlsplit(url).scheme
    if scheme not in {"https", "http"} or (scheme == "http" and urlsplit(page).scheme == "https"):
        return None
    version = _version_of(name)
    if version is None:
        return None
    match = re.search(r"(?:^|&)sha256=([0-9a-fA-F]{64})(?:&|$)", fragment)
    facts.setdefault("sha256", match[1].lower() if match else None)
    return IndexFile(filename=name, url=url, version=version, **facts)


class _Anchors(HTMLParser):
    """Collects ``<a>`` elements and the base address of a simple page."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.base = page
        self.page = page
        self.files: list[IndexFile] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "base" and given.get("href"):
            self.base = urljoin(self.page, str(given["href"]))
        if tag != "a" or not given.get("href") or len(self.files) >= _MAX_FILES:
            return
        named = next((n for n in ("data-core-metadata", "data-dist-info-metadata") if n in given), None)
        alone = (given[named] or "true") if named else "false"
        file = _file(
            self.base,
            str(given["href"]),
            None,
            uploaded=_time(given.get("data-upload-time")),
            requires_python=_text(given.get("data-requires-python")),
            yanked=_yanked(given["data-yanked"] or "") if "data-yanked" in given else None,
            metadata=alone != "false",
            metadata_sha256=_digest(alone.partition("sha256=")[2]),
        )
        if file:
            self.files.append(file)


def parse_html(text: str, page: str) -> tuple[IndexFile, ...]:
    """The files of a simple page in HTML (PEP 503, 592, 658, 714)."""
    parser = _Anchors(page)
    parser.feed(text)
    parser.close()
    return tuple(parser.files)


def _alone(item: Mapping[str, Any]) -> dict[str, Any]:
    """``core-metadata`` is a boolean or a table of hashes (PEP 714)."""
    said = item.get("core-metadata", item.get("data-dist-info-metadata", False))
    return {"metadata": bool(said), "metadata_sha256": _digest(said.get("sha256")) if isinstance(said, dict) else None}


def _loads(text: str | bytes, page: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise NetworkError(f"{redact(page)} is not the JSON that it claims to be") from None
    if not isinstance(document, dict):
        raise NetworkError(f"{redact(page)}: an object was expected, not {type(document).__name__}")
    return document


def parse_simple_json(text: str | bytes, page: str) -> tuple[IndexFile, ...]:
    """The files of a simple page in JSON (PEP 691, 700). ``NetworkError`` when it is not one."""
    document = _loads(text, page)
    listed = document.get("files")
    if not isinstance(listed, list):
        raise NetworkError(f"{redact(page)}: `files` is missing")
    return _files(
        page,
        listed,
        hashes="hashes",
        uploaded=lambda item: item.get("upload-time"),
        requires="requires-python",
        yanked=lambda item: _yanked(item.get("yanked", False)),
    )


def _files(
    page: str,
    items: Sequence[Any],
    *,
    hashes: str,
    uploaded: Callable[[Mapping[str, Any]], Any],
    requires: str,
    yanked: Callable[[Mapping[str, Any]], str | None],
) -> tuple[IndexFile, ...]:
    """The files that ``items`` describe; the two JSON documents of an index differ only in how they spell a few fields."""
    found = []
    for item in items[:_MAX_FILES]:
        if not isinstance(item, dict):
            continue
        url, filename = item.get("url"), item.get("filename")
        if not isinstance(url, str) or not isinstance(filename, str):
            continue
        digests, size = item.get(hashes), item.get("size")
        found.append(
            _file(
                page,
                url,
                filename,
                sha256=_digest(digests.get("sha256")) if isinstance(digests, dict) else None,
                size=size if isinstance(size, int) and size >= 0 else None,
                uploaded=_time(uploaded(item)),
                requires_python=_text(item.get(requires)),
                yanked=yanked(item),
                **_alone(item),
            )
        )
    return tuple(f for f in found if f)


def parse_project_json(text: str | bytes, page: str) -> tuple[IndexFile, ...]:
    """The files of a project document (``…/pypi/NAME/json``). ``NetworkError`` when it is not one."""
    releases = _loads(text, page).get("releases")
    if not isinstance(releases, dict):
        raise NetworkError(f"{redact(page)}: `releases` is missing")
    return _files(
        page,
        [item for files in releases.values() if isinstance(files, list) for item in files],
        hashes="digests",
        uploaded=lambda item: item.get("upload_time_iso_8601") or item.get("upload_time"),
        requires="requires_python",
        yanked=lambda item: _yanked(item.get("yanked_reason") or True) if item.get("yanked") is True else None,
    )


class PackageIndex:
    """Asks one simple index about projects. ``url`` is what :func:`find_index` gives."""

    def __init__(self, fetcher: Fetcher, url: str) -> None:
        self.fetcher = fetcher
        self.url = url.rstrip("/") + "/"

    def project(self, name: str) -> Project:
        """Every file of a project. ``NotFoundError`` when the index has none, ``NetworkError`` when it cannot be read."""
        page = urljoin(self.url, quote(canonicalize_name(name)) + "/")
        reply = self.fetcher.get(page, max_bytes=MAX_PAGE, accept=_ACCEPT)
        base = self._base(page, reply.url)
        if "json" in reply.content_type.lower():
            files = parse_simple_json(reply.body, base)
        else:
            files = parse_html(reply.body.decode("utf-8", "replace"), base)
        if not files:
            files = self._document(name)
        elif any(f.uploaded is None for f in files) or any(f.size is None for f in files):
            files = _joined(files, self._document(name))
        return Project(name=canonicalize_name(name), files=files)

    def _base(self, asked: str, answered: str) -> str:
        """The address that links are relative to: with the user's credentials only where the host is the same."""
        return asked if urlsplit(asked).hostname == urlsplit(answered).hostname else answered

    def _document(self, name: str) -> tuple[IndexFile, ...]:
        """The project document, which tells times and sizes that a simple page in HTML does not; empty where it cannot be had."""
        page = urljoin(self.url, f"../pypi/{quote(canonicalize_name(name))}/json")
        try:
            reply = self.fetcher.get(page, max_bytes=MAX_PAGE, accept="application/json")
            return parse_project_json(reply.body, self._base(page, reply.url))
        except NetworkError:
            return ()


def _joined(files: Iterable[IndexFile], more: Iterable[IndexFile]) -> tuple[IndexFile, ...]:
    """``files`` with what only ``more`` knows; a file that ``more`` gives another hash is left as it is."""
    known = {f.filename: f for f in more}
    done = []
    for file in files:
        other = known.get(file.filename)
        if other is None or (file.sha256 and other.sha256 and file.sha256 != other.sha256):
            done.append(file)
            continue
        done.append(
            replace(
                file,
                sha256=file.sha256 or other.sha256,
                size=file.size if file.size is not None else other.size,
                uploaded=file.uploaded or other.uploaded,
                requires_python=file.requires_python or other.requires_python,
                yanked=file.yanked or other.yanked if other.yanked is not None else file.yanked,
                metadata=file.metadata or other.metadata,
                metadata_sha256=file.metadata_sha256 or other.metadata_sha256,
            )
        )
    return tuple(done)
