"""One release of a distribution, read: what its metadata declares and what its own code enforces while it is built.

The metadata comes from where it is cheapest: alone from the index (PEP 658), out of a wheel by range requests, or out
of the sdist, whose ``setup.py`` and, where a framework has one, table of toolkits are read as well. No code of a
distribution is ever run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from envsmith.base.schema import strict
from envsmith.base.text import clean
from envsmith.errors import ContentError, NetworkError
from envsmith.frameworks import FRAMEWORKS
from envsmith.lock.index.index import IndexFile
from envsmith.lock.index.metadata import (
    MAX_MEMBER,
    Metadata,
    as_meant,
    metadata_of,
    parse_requires_txt,
    read_members,
    refused_lines,
)
from envsmith.lock.index.remote_wheel import RemoteWheel
from envsmith.lock.index.torch_wheel import linux_wheels
from envsmith.model.cell import Platform
from envsmith.net.http import Fetcher, NotFoundError

_TOOLKIT_TABLES = tuple(f.toolkit_table for f in FRAMEWORKS.values() if f.toolkit_table is not None)
_SDIST_MEMBERS = ("PKG-INFO", "*/requires.txt", "setup.py", *(table.file for table in _TOOLKIT_TABLES))
_TRIPLE = re.compile(r'''("""|\'\'\').*?\1''', re.DOTALL)


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseFacts:
    """What one file of a release says. ``refused`` are requirements that today's pip and setuptools refuse.

    ``setup_imports`` are modules that ``setup.py`` imports unguarded at its top.

    ``cuda_minors`` is a framework's table of toolkits: for a CUDA major the minors that it takes for one another.
    """

    filename: str
    sha256: str
    requires_python: str | None = None
    requires: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    setup_imports: tuple[str, ...] = ()
    cuda_minors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def best_file(files: Iterable[IndexFile], *, sdist: bool = False) -> IndexFile | None:
    """Return the file to read: a wheel for Linux or for everywhere, else the sdist. ``sdist`` turns that round."""
    listed = [f for f in files if f.sha256]
    archives = sorted((f for f in listed if not f.is_wheel), key=lambda f: not f.filename.endswith(".tar.gz"))
    wheels = linux_wheels(listed)
    linux = next(iter(wheels.get(Platform.LINUX_64, ())), None) or next(
        iter(wheels.get(Platform.LINUX_AARCH64, ())), None
    )
    anywhere = next((f for f in listed if f.filename.endswith("-none-any.whl")), None)
    for_linux = next((f for f in listed if f.is_wheel and "linux" in f.filename), None)
    wheel = anywhere or linux or for_linux
    first = archives[0] if archives else None
    return (first or wheel) if sdist else (wheel or first)


def setup_imports(source: bytes) -> tuple[str, ...]:
    """Return modules that a ``setup.py`` imports at its left margin, that is without a guard.

    Read line by line and not parsed: Python's parser can be made to crash by code that nests deeply, and this code is
    anybody's.
    """
    text = _TRIPLE.sub('""', source.decode("utf-8", "replace"))
    names: list[str] = []
    for line in text.splitlines():
        plain = re.match(r"import\s+([\w.]+(?:\s+as\s+\w+)?(?:\s*,\s*[\w.]+(?:\s+as\s+\w+)?)*)", line)
        member = re.match(r"from\s+([A-Za-z_][\w.]*)\s+import\b", line)
        listed = plain[1].split(",") if plain else [member[1]] if member else []
        names += [name.split()[0].partition(".")[0] for name in listed]
    return tuple(dict.fromkeys(names))


def _toolkit_table(members: Mapping[str, bytes]) -> dict[str, tuple[str, ...]]:
    """Return the table of the framework whose sdist this is, and nothing for any other."""
    tables = (table.read(members[table.file]) for table in _TOOLKIT_TABLES if table.file in members)
    return next((minors for minors in tables if minors), {})


def _from_sdist(fetcher: Fetcher, file: IndexFile) -> ReleaseFacts:
    members = read_members(fetcher, file, _SDIST_MEMBERS)
    if "PKG-INFO" not in members:
        raise NetworkError(f"Cannot read {file.filename}: it has no PKG-INFO.")
    metadata = metadata_of(file, members["PKG-INFO"])
    # Old setuptools wrote requirements only beside PKG-INFO.
    if not metadata.requires:
        lines = parse_requires_txt(members.get("*/requires.txt", b""))
        metadata = replace(metadata, requires=tuple(map(as_meant, lines)), refused=refused_lines(lines))
    return replace(
        _facts(file, metadata),
        setup_imports=setup_imports(members.get("setup.py", b"")),
        cuda_minors=_toolkit_table(members),
    )


def _facts(file: IndexFile, metadata: Metadata) -> ReleaseFacts:
    """Return what a release declares. ``ContentError`` where it cannot be read: a release that needs nothing differs."""
    requires_python = metadata.requires_python or file.requires_python
    text = requires_python or ""
    try:
        SpecifierSet(text)
        for text in metadata.requires:
            Requirement(text)
    except ValueError:  # InvalidSpecifier, InvalidRequirement, or more digits than Python reads
        message = f"Cannot read what {file.filename} requires: {clean(text)[:80]!r} is not a requirement."
        raise ContentError(message) from None
    return ReleaseFacts(
        filename=file.filename,
        sha256=file.sha256 or "",
        requires_python=requires_python,
        requires=metadata.requires,
        refused=metadata.refused,
    )


def read_release(fetcher: Fetcher, file: IndexFile) -> ReleaseFacts:
    """Read one file of a release. Raises ``NetworkError`` or ``ContentError``."""
    if not file.is_wheel:
        return _from_sdist(fetcher, file)
    if file.metadata:
        try:
            reply = fetcher.get(
                file.url + ".metadata",
                max_bytes=MAX_MEMBER,
                sha256=file.metadata_sha256,
                check=lambda reply: metadata_of(file, reply.body),
            )
            return _facts(file, metadata_of(file, reply.body))
        except NotFoundError:
            # Some mirrors announce it and do not have it.
            pass
    with RemoteWheel(fetcher, file.url) as wheel:
        return _facts(file, metadata_of(file, wheel.metadata()))
