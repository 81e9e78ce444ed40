"""Source archives that a user names (``--source``): fetched, hashed, looked into, never run.

What is read here is what the lock needs before anything is built: the version, the requirements at run time, whether
there is CUDA code. A project that computes these only while its setup runs cannot be asked; then the version has to be
given, and the wheel is judged instead.
"""

from __future__ import annotations

import ast
import configparser
import contextlib
import hashlib
import posixpath
import re
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import url2pathname

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from envsmith.base.files import expand_home, read_bounded, read_toml
from envsmith.errors import ContentError, LockError, NetworkError, UsageError
from envsmith.lock.index.index import PackageIndex, find_index
from envsmith.lock.index.metadata import MAX_MEMBER, tar_members
from envsmith.model.lock import Artifact, GivenArchive
from envsmith.model.project_name import normal_name
from envsmith.net.address import parts_of
from envsmith.net.http import HttpClient

if TYPE_CHECKING:
    from envsmith.net.http import Fetcher


_WISH = re.compile(
    r"\s*(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:==\s*(?P<version>[^@\s]+)\s*)?@\s*(?P<place>\S.*?)#sha256=(?P<sha256>[0-9A-Fa-f]{64})\s*"
)
_ADDRESS = re.compile(r"https://[^\s@#/\x00-\x20]+/[^\s@#\x00-\x20]{1,1900}")
_LONGEST = 4000
_EXAMPLE = "Type for example --source 'apex@apex.tar.gz#sha256=…' with the 64 digits that sha256sum prints."
# The largest that is known, flash-attn with its templates, has 8 MB.
MAX_ARCHIVE = 256 << 20
_METADATA = ("PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceWish:
    """``--source NAME[==VERSION]@PLACE#sha256=HEX`` as it was typed; ``place`` is a path or an https address."""

    name: str
    version: str | None
    place: str
    sha256: str

    @property
    def text(self) -> str:
        """Return what a lock says it was made from: no folder of this machine."""
        version = f"=={self.version}" if self.version else ""
        return f"--source {self.name}{version}@sha256:{self.sha256}"


def parse_wish(text: str) -> SourceWish:
    """Parse what was typed. ``UsageError`` for anything that is not a name, a place and a hash."""
    match = _WISH.fullmatch(text) if len(text) <= _LONGEST else None
    if not match:
        fault = "it has no #sha256=HEX (64 digits)" if "#sha256=" not in text else "it is not NAME@ARCHIVE#sha256=HEX"
        raise UsageError(f"Cannot read --source {text[:80]!r}: {fault}.", hint=_EXAMPLE)
    place = match["place"]
    parts = parts_of(place)
    if "://" in place and parts.scheme not in {"https", "file"}:
        raise UsageError(
            f"Cannot use --source {match['name']}: envsmith does not read {parts.scheme} addresses.",
            hint="Give a path or an https address.",
        )
    if parts.scheme == "https" and (parts.username or parts.password or not _ADDRESS.fullmatch(place)):
        raise UsageError(
            f"Cannot use --source {match['name']}: a lock cannot hold this address, because it names a user or is "
            "not plain https.",
            hint="Download the archive and give its path.",
        )
    try:
        version = str(Version(match["version"])) if match["version"] else None
    except InvalidVersion:
        raise UsageError(f"Cannot use --source {match['name']}: {match['version'][:40]!r} is not a version.") from None
    return SourceWish(name=normal_name(match["name"]), version=version, place=place, sha256=match["sha256"].lower())


def read_archive(wish: SourceWish, fetcher: Fetcher) -> GivenArchive:
    """Fetch and look into it.

    ``UsageError`` when the file is not there, ``NetworkError`` when the address does not answer, ``ContentError`` when
    the hash differs or a member is unsafe, ``LockError`` when it is not a source archive, or that of another
    distribution.
    """
    data, address = _fetch(wish, fetcher)
    metadata, cuda = _members(data, wish)
    project = _stated(metadata, wish.name)
    name = project.name or wish.name
    if normal_name(name) != wish.name:
        raise LockError(
            f"Cannot use --source {wish.name}: the archive is that of {name[:80]!r}.",
            hint="Give it under its own name.",
        )
    return GivenArchive(
        name=wish.name,
        version=_version(project.version, wish),
        address=address,
        sha256=wish.sha256,
        size=len(data),
        requires=_requires(project.requires, wish.name),
        cuda=cuda,
    )


def _fetch(wish: SourceWish, fetcher: Fetcher) -> tuple[bytes, str]:
    if wish.place.startswith("https:"):
        try:
            return fetcher.get(wish.place, max_bytes=MAX_ARCHIVE, sha256=wish.sha256).body, wish.place
        except ContentError:
            raise ContentError(
                f"Cannot use --source {wish.name}: {wish.place[:200]} is not the file with sha256 {wish.sha256[:16]}….",
                hint="Compare the hash with the one that the project publishes. Nothing of the file was used.",
            ) from None
    path = expand_home(parts_of(wish.place).path if wish.place.startswith("file:") else wish.place)
    try:
        data = read_bounded(path, MAX_ARCHIVE, failure=UsageError)
    except UsageError as error:
        raise UsageError(error.message, hint=_EXAMPLE) from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != wish.sha256:
        raise ContentError(
            f"Cannot use --source {wish.name}: the sha256 of {path} is {digest}, not {wish.sha256}.",
            hint="Compare the file with the one that you mean: it is another one, or it changed.",
        )
    return data, path.resolve().as_uri()


def _members(data: bytes, wish: SourceWish) -> tuple[dict[str, bytes], bool]:
    """Return the files at the top that say what it is, and whether CUDA code is anywhere.

    Every member is looked at: the builder unpacks them all.
    """
    tops: set[str] = set()
    metadata: dict[str, bytes] = {}
    cuda = False
    hint = f"Make one of a checkout: git archive --format=tar.gz --prefix={wish.name}/ -o {wish.name}.tar.gz HEAD."
    try:
        for member, content in tar_members(data):
            top, inner = _place(member, wish)
            tops.add(top)
            cuda = cuda or inner.endswith(".cu")
            if inner in _METADATA and member.isfile() and member.size <= MAX_MEMBER:
                metadata[inner] = content()
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as error:
        raise LockError(
            f"Cannot use --source {wish.name}: it is not a .tar.gz ({str(error)[:120]}).", hint=hint
        ) from None
    if len(tops) != 1 or not {"pyproject.toml", "setup.py"} & set(metadata):
        raise LockError(
            f"Cannot use --source {wish.name}: it is not a source archive with one folder that holds pyproject.toml "
            "or setup.py.",
            hint=hint,
        )
    return metadata, cuda


def _place(member: tarfile.TarInfo, wish: SourceWish) -> tuple[str, str]:
    """Return the top folder and the path below it.

    ``ContentError`` for a member that would be written, or lead, elsewhere.
    """
    path = member.name.removeprefix("./").rstrip("/")
    steps = path.split("/")
    bad = (
        path.startswith("/")
        or ".." in steps
        or not (member.isfile() or member.isdir() or member.issym() or member.islnk())
    )
    if member.issym():
        to = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.linkname))
        bad = bad or member.linkname.startswith("/") or to.split("/")[0] != steps[0]
    elif member.islnk():
        to = posixpath.normpath(member.linkname)
        bad = bad or member.linkname.startswith("/") or to.split("/")[0] != steps[0]
    if bad:
        raise ContentError(
            f"Cannot use --source {wish.name}: its member {member.name[:120]!r} leads out of its folder, or is not "
            "a file.",
            hint="Use another archive. No source distribution has such a member, and nothing was unpacked.",
        )
    return steps[0], "/".join(steps[1:])


@dataclass(frozen=True, slots=True)
class _Project:
    """What a project states of itself without being run; ``None`` is not known."""

    name: str | None = None
    version: str | None = None
    requires: tuple[str, ...] | None = None


def _stated(metadata: Mapping[str, bytes], name: str) -> _Project:
    """Return the first of PKG-INFO, pyproject.toml, setup.cfg and setup.py that says each."""
    readers = {
        "PKG-INFO": _of_pkg_info,
        "pyproject.toml": _of_pyproject,
        "setup.cfg": _of_setup_cfg,
        "setup.py": _of_setup_py,
    }
    project = _Project()
    for file, parse in readers.items():
        if file not in metadata:
            continue
        try:
            part = parse(metadata[file].decode("utf-8"))
        except (SyntaxError, ValueError, RecursionError, MemoryError, configparser.Error):
            if file == "setup.py":  # a script of an old Python says nothing to us
                continue
            raise LockError(f"Cannot use --source {name}: its {file} is not valid.") from None
        requires = part.requires if project.requires is None else project.requires
        project = _Project(project.name or part.name, project.version or part.version, requires)
    return project


def _of_pkg_info(text: str) -> _Project:
    fields = HeaderParser().parsestr(text)
    requires = fields.get_all("Requires-Dist")
    return _Project(fields.get("Name"), fields.get("Version"), tuple(map(str, requires)) if requires else None)


def _of_pyproject(text: str) -> _Project:
    return _of_fields(read_toml(text).get("project"), "dependencies")


def _of_fields(fields: object, requires: str) -> _Project:
    """Return the fields that are plain values. Anything else is computed, or wrong."""
    if not isinstance(fields, dict):
        return _Project()
    name, version, lines = fields.get("name"), fields.get("version"), fields.get(requires)
    return _Project(
        name if isinstance(name, str) else None,
        version if isinstance(version, str) else None,
        tuple(line for line in lines if isinstance(line, str)) if isinstance(lines, (list, tuple)) else None,
    )


def _of_setup_cfg(text: str) -> _Project:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text)
    version = parser.get("metadata", "version", fallback=None)
    requires = parser.get("options", "install_requires", fallback=None)
    return _Project(
        parser.get("metadata", "name", fallback=None),
        None if version is not None and version.partition(":")[0] in {"attr", "file"} else version,
        None if requires is None else tuple(line.strip() for line in requires.splitlines() if line.strip()),
    )


def _of_setup_py(text: str) -> _Project:
    """Return literal arguments of the one call of ``setup``."""
    calls = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and _callee(n.func) == "setup"]
    fields = {keyword.arg: _literal(keyword.value) for keyword in calls[0].keywords} if len(calls) == 1 else None
    return _of_fields(fields, "install_requires")


def _callee(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _literal(node: ast.expr) -> object:
    with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ast.literal_eval(node)
    return None


def _version(stated: str | None, wish: SourceWish) -> str:
    try:
        version = str(Version(stated)) if stated else None
    except InvalidVersion:
        version = None
    if version and wish.version and version != wish.version:
        raise LockError(
            f"Cannot use --source {wish.name}: the archive is of version {version}, not {wish.version}.",
            hint="Give the version of the archive, or none.",
        )
    if not (version or wish.version):
        raise LockError(
            f"Cannot use --source {wish.name}: only its setup knows its version.",
            hint=f"Say which it is: --source '{wish.name}==VERSION@…'. The wheel is compared with it.",
        )
    return version or wish.version or ""


def _requires(stated: Iterable[str] | None, name: str) -> tuple[str, ...]:
    """Return requirements as the resolver takes them. One that names an address could not be hashed."""
    requirements = []
    for text in stated or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            raise LockError(
                f"Cannot use --source {name}: {text[:80]!r}, which it requires, is not a requirement."
            ) from None
        if requirement.url:
            raise LockError(
                f"Cannot use --source {name}: it requires {requirement.name} from an address without a hash.",
                hint=f"Give that one with --source {requirement.name}@… too, and an archive that requires it by name.",
            )
        requirements.append(str(requirement))
    return tuple(sorted(requirements))


# -- the archives of a lock --------------------------------------------------------------------------------------------


def fetch_archive(name: str, artifact: Artifact) -> bytes:
    """Return a distribution's source archive, from where the lock found it or looked up on the index by its file name.

    ``NetworkError`` when it cannot be had, ``ContentError`` when it is not the file of the lock.
    """
    url = artifact.url
    if url is None or not url.startswith("file:"):
        fetcher = HttpClient()
        return fetcher.get(url or _address(name, artifact, fetcher), max_bytes=MAX_ARCHIVE, sha256=artifact.sha256).body
    path = Path(url2pathname(parts_of(url).path))
    try:
        data = read_bounded(path, MAX_ARCHIVE, failure=ContentError)
    except ContentError as error:
        raise ContentError(
            error.message, hint=f"Lock the cell again. The lock took {artifact.filename} from this path."
        ) from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != artifact.sha256:
        raise ContentError(
            f"Cannot use {path}: its sha256 is {digest[:16]}…, and the lock says {artifact.sha256[:16]}….",
            hint="Lock the cell again.",
        )
    return data


def _address(name: str, artifact: Artifact, fetcher: Fetcher) -> str:
    """Ask the index for the file by its name: a lock that was published names no addresses."""
    for file in PackageIndex(fetcher, find_index()).project(name).files:
        if file.filename == artifact.filename:
            return file.url
    raise NetworkError(
        f"Cannot fetch {artifact.filename}: the index does not have it.",
        hint="Set the index that the lock was made with (UV_DEFAULT_INDEX), or lock the cell again.",
    )
