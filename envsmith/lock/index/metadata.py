"""What a distribution says of itself: ``METADATA``, ``PKG-INFO``, ``requires.txt``, bounded and parsed."""

from __future__ import annotations

import email.parser
import email.policy
import gzip
import io
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from envsmith.base.text import clean
from envsmith.errors import NetworkError
from envsmith.lock.index.index import IndexFile
from envsmith.lock.index.markers import environment_of
from envsmith.model.cell import Platform
from envsmith.model.project_name import normal_name
from envsmith.net.http import Fetcher

# The largest METADATA, setup.py and the like that is read.
MAX_MEMBER = 4 << 20
# ``>=1.7.*``, ``<2.*`` and ``>=3.``, which setuptools took until 66 and pip until 24.0.
_BOUND_BY_SERIES = re.compile(r"(>=|<(?!=)|>(?!=))(\s*\d+(?:\.\d+)*)\.(?:\*|(?!\w))")
# ``<=0.29.*``, the whole series. Python reads no number of thousands of digits.
_UP_TO_SERIES = re.compile(r"<=(\s*(?:\d+\.)*)(\d{1,9})\.\*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """The fields that rules are made of. ``requires`` are the lines with their extras and markers, as they are meant.

    ``refused`` are the lines in a form that pip refuses from 24.1 on and setuptools from 67 on.
    """

    name: str
    version: str
    requires_python: str | None = None
    requires: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()


def parse_metadata(data: bytes, where: str) -> Metadata:
    """Parse ``METADATA`` or ``PKG-INFO``. ``NetworkError`` names ``where`` when it has no name or version."""
    if len(data) > MAX_MEMBER:
        raise NetworkError(f"Cannot read {where}: its METADATA is too long ({len(data)} bytes).")
    headers = email.parser.BytesHeaderParser(policy=email.policy.compat32).parsebytes(data)

    def one(field: str) -> str:
        value = headers.get(field)
        return " ".join(str(value).split()) if value is not None else ""

    def several(field: str) -> tuple[str, ...]:
        return tuple(" ".join(str(value).split()) for value in headers.get_all(field) or [])

    if not one("Name") or not one("Version"):
        raise NetworkError(f"Cannot read {where}: its METADATA names no project or no version.")
    return Metadata(
        name=one("Name"),
        version=one("Version"),
        requires_python=as_meant(one("Requires-Python")) or None,
        requires=tuple(map(as_meant, several("Requires-Dist"))),
        refused=refused_lines(several("Requires-Dist")),
        extras=several("Provides-Extra"),
    )


def as_meant(text: str) -> str:
    """Return a requirement as it is meant where it bounds a series: ``torch (>=1.7.*)`` was published, ``>=1.7`` is valid."""
    text = _UP_TO_SERIES.sub(lambda match: f"<{match[1]}{int(match[2]) + 1}", text)
    return _BOUND_BY_SERIES.sub(r"\1\2", text)


def refused_lines(requires: Iterable[str]) -> tuple[str, ...]:
    """Return the requirements that are valid only as they are meant."""
    return tuple(line for line in requires if as_meant(line) != line)


def metadata_of(file: IndexFile, data: bytes) -> Metadata:
    """Parse ``METADATA`` or ``PKG-INFO`` of a file. ``NetworkError`` when it is of another project or version."""
    metadata = parse_metadata(data, file.filename)
    try:
        is_own = (normal_name(metadata.name), Version(metadata.version).public) == (
            file.project,
            Version(file.version).public,
        )
    except ValueError:  # not a version, or one of thousands of digits
        is_own = False
    if not is_own:
        raise NetworkError(
            f"Cannot believe {file.filename}: its METADATA says version {clean(metadata.version)[:80]} "
            f"of {clean(metadata.name)[:80]}.",
            hint="Ask who runs the index, or use another one.",
        )
    return metadata


def parse_requires_txt(data: bytes) -> tuple[str, ...]:
    """Return the requirements of setuptools' ``requires.txt``, its sections spelt as markers.

    ``[cuda]`` is an extra, ``[:python_version < "3.8"]`` a marker, ``[dev:sys_platform == "linux"]`` both.
    """
    requirements = []
    marker = ""
    for raw in data[:MAX_MEMBER].decode("utf-8", "replace").splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        section = re.fullmatch(r"\[([^:\]]*)(?::(.*))?\]", line)
        if section:
            clauses = [f"({section[2]})"] if section[2] else []
            if section[1]:
                clauses.append(f'extra == "{section[1]}"')
            marker = " and ".join(clauses)
        else:
            requirements.append(f"{line} ; {marker}" if marker else line)
    return tuple(requirements)


def active(
    requires: Iterable[str], *, python: str, platform: Platform, extras: Iterable[str] = ()
) -> dict[str, Requirement]:
    """Return what is asked for on a platform, by canonical name: without extras unless named.

    Lines that do not parse are skipped.

    Two lines of one name are joined (their specifiers intersect).
    """
    environment = environment_of(python, platform)
    by_name: dict[str, Requirement] = {}
    for line in requires:
        try:
            requirement = Requirement(line)
            is_active = requirement.marker is None or any(
                requirement.marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras)
            )
        except (InvalidRequirement, ValueError, KeyError):
            continue
        if not is_active:
            continue
        name = normal_name(requirement.name)
        if name in by_name:
            requirement.specifier &= by_name[name].specifier
        by_name[name] = requirement
    return by_name


# Sdists on the index: the few members that say something are read while the archive streams, bounded, and nothing is
# unpacked to disk.
#
# The whole archive is downloaded (range requests do not help with gzip), checked against the hash that the index names
# and dropped again: what was read from it is remembered, not the archive.


MAX_SDIST = 64 << 20
_MAX_MEMBERS = 100_000
# What an archive may unpack to while it is searched: an sdist of 64 MiB of real code stays far below.
_MAX_UNPACKED = 1 << 29


class _Inflating(io.RawIOBase):
    """A gzip file's content as a stream; ``ValueError`` once it unpacks to more than 512 MiB."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._inner = gzip.GzipFile(fileobj=io.BytesIO(data))
        self._left = _MAX_UNPACKED

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        data = self._inner.read(size if size and size > 0 else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("it unpacks to more than 512 MiB")
        return data


def tar_members(data: bytes) -> Iterator[tuple[tarfile.TarInfo, Callable[[], bytes]]]:
    """Yield the members of a ``.tar.gz`` as it streams, each with what reads it. ``ValueError`` for more than anybody has."""
    with tarfile.open(fileobj=_Inflating(data), mode="r|") as archive:
        for count, member in enumerate(archive):
            if count >= _MAX_MEMBERS:
                raise ValueError(f"more than {_MAX_MEMBERS} members")

            def content(member: tarfile.TarInfo = member) -> bytes:
                opened = archive.extractfile(member)
                return opened.read() if opened else b""

            yield member, content


def _files_of_tar(data: bytes) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    return ((member.name, member.size, content) for member, content in tar_members(data) if member.isfile())


def _files_of_zip(data: bytes) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                yield info.filename, info.file_size, partial(archive.read, info)


def read_members(fetcher: Fetcher, file: IndexFile, paths: Iterable[str]) -> dict[str, bytes]:
    """Return the members of an sdist by path below its top folder. ``*/NAME`` stands for any one folder.

    Missing members are missing from the answer. Raises ``NetworkError`` for what is not an archive, ``ContentError`` for a
    wrong hash.
    """
    names = frozenset(paths)
    reply = fetcher.get(file.url, max_bytes=MAX_SDIST, sha256=file.sha256, keep=False)
    members = _files_of_zip if file.filename.endswith(".zip") else _files_of_tar
    contents: dict[str, bytes] = {}
    try:
        for path, size, content in members(reply.body):
            inner = path.removeprefix("./").partition("/")[2]
            key = inner if inner in names else f"*/{inner.partition('/')[2]}" if inner.count("/") == 1 else ""
            if key in names and key not in contents and size <= MAX_MEMBER:
                contents[key] = content()
                if len(contents) == len(names):
                    break
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        EOFError,
        ValueError,
        RuntimeError,
        NotImplementedError,
    ) as error:
        raise NetworkError(f"Cannot read {file.filename}: it is not an archive ({error}).") from None
    return contents
