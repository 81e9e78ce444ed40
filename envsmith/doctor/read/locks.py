"""Locks of package managers: uv.lock, poetry.lock, pylock.toml, Pipfile.lock, and envsmith's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from packaging.markers import InvalidMarker, Marker

from envsmith.doctor.facts import Draft
from envsmith.doctor.read.lines import note_distribution, version_in
from envsmith.model.cell import Platform
from envsmith.project.declared import PYTHONS
from envsmith.python.metadata import holds_somewhere
from envsmith.schema import UnreadableError, parse_json

# What stands in every lock of a tool, and in no lock of another. Poetry before 1.1 wrote no lock-version.
_TOML_LOCKS = (
    ("pylock.toml", ("lock-version =", "[[packages]]")),
    ("poetry.lock", ("lock-version =", "[[package]]")),
    ("uv.lock", ("requires-python =", "[[package]]")),
    ("poetry.lock", ("content-hash =", "[[package]]")),
)
_MOST_LINES, _LONGEST_JSON = 200_000, 24_000_000
# The name of a wheel in an address or a path: its release without a local part, a build, three tags, a variant.
WHEEL = (
    r"[^\s\"'#]{1,500}/[A-Za-z0-9_.]{1,80}-(\d[A-Za-z0-9_.!]{0,40})(?:(?:\+|%2[Bb])[\w.]{1,80})?(?:-\d\w{0,20})?"
    r"-[A-Za-z][\w.]{0,80}-[\w.]{1,40}-[\w.]{1,200}(?:-[0-9a-z_.]{1,16})?\.whl"
)
_ARCHIVE = re.compile(rf"archive\s*=\s*\{{.{{0,20}}url\s*=\s*\"{WHEEL}")
_ENTRY = re.compile(r"\[\[packages?\]\]\s*$")
_NAME = re.compile(r"name\s*=\s*[\"']([\w.-]{1,80})[\"']")
_VERSION = re.compile(r"version\s*=\s*[\"']([\w.+!-]{1,60})[\"']")
_MARKER = re.compile(r"markers?\s*=\s*\"([^\"]{1,1000})\"")
_LISTED_MARKER = re.compile(r"\s{1,20}\"([^\"]{1,1000})\",?\s*$")


# How a lock begins: with its version, its first package, or who wrote it. JSON is one value.
_BEGINNING = re.compile(r"\s{0,80}(?:\{|# This file (?:is|was) auto|(?:lock-)?version\s*=|\[\[packages?\]\])")


@dataclass(slots=True)
class _Entry:
    """One package of a lock. Without ``markers`` it is for every platform and Python."""

    name: str = ""
    version: str = ""
    markers: list[str] = field(default_factory=list)


def is_whole_lock(text: str) -> bool:
    """Return whether a text can be a lock from its first line on."""
    return _BEGINNING.match(text) is not None


def read_locks(text: str, draft: Draft, source: str) -> str | None:
    """Note the packages of a lock and return its kind. ``None`` for a text that is not one.

    Of a package that the lock has in several versions, the one for Linux counts. Where several are, none does.
    """
    if kind := _read_json(text, draft, source):
        return kind
    kind = next((kind for kind, marks in _TOML_LOCKS if all(mark in text for mark in marks)), None)
    if kind is None:
        return None
    entries: dict[str, list[_Entry]] = {}
    for entry in _entries(text.split("\n")[:_MOST_LINES]):
        if entry.name and entry.version:
            entries.setdefault(entry.name, []).append(entry)
    for name, listed in entries.items():
        if version := _version_of(listed):
            note_distribution(draft, name, version, f"{source}: {kind}", 4)
    return kind


def _read_json(text: str, draft: Draft, source: str) -> str | None:
    if text.lstrip()[:1] != "{" or not (('"cell"' in text and '"packages"' in text) or '"_meta"' in text):
        return None
    try:
        lock = parse_json(text[:_LONGEST_JSON])
    except UnreadableError:
        return None
    if not isinstance(lock, dict):
        return None
    return _own(lock, draft, source) or _pipfile(lock, draft, source)


def _own(lock: Mapping[str, object], draft: Draft, source: str) -> str | None:
    """Read a lock of envsmith."""
    cell, packages = lock.get("cell"), lock.get("packages")
    components = cell.get("components") if isinstance(cell, dict) else None
    if not isinstance(components, dict) or packages is None:
        return None
    for name, version in components.items():
        if isinstance(name, str) and isinstance(version, str) and (parsed := version_in(version)):
            draft.component(name, version if version == "cpu" else parsed[0], f"{source}: lock", 4)
    for name, version in named_versions(packages):
        note_distribution(draft, name, version, f"{source}: lock", 4)
    return "envsmith lock"


def _pipfile(lock: Mapping[str, object], draft: Draft, source: str) -> str | None:
    """Read a lock of pipenv: what is installed by default. What only developers need is left out."""
    default = lock.get("default")
    if not isinstance(default, dict):
        return None
    for name, entry in default.items():
        version = entry.get("version") if isinstance(entry, dict) else None
        if isinstance(version, str) and version.startswith("=="):
            note_distribution(draft, name, version.lstrip("="), f"{source}: Pipfile.lock", 4)
    return "Pipfile.lock"


def named_versions(rows: object) -> list[tuple[str, str]]:
    """Return name and version of those members of a list in JSON that have both."""
    named = (row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()
    pairs = ((row.get("name"), row.get("version")) for row in named)
    return [(name, version) for name, version in pairs if isinstance(name, str) and isinstance(version, str)]


def _entries(lines: Iterable[str]) -> Iterator[_Entry]:
    """Yield the packages of a lock in TOML, read line by line: part of a lock is read as well as a whole one."""
    entry, is_head, is_listing = _Entry(), False, False
    for line in lines:
        if _ENTRY.match(line):
            yield entry
            entry, is_head, is_listing = _Entry(), True, False
        elif line.startswith("["):
            is_head = False
        elif is_listing and (match := _LISTED_MARKER.match(line)):
            entry.markers.append(match[1])
        elif is_head:
            is_listing = line.startswith("resolution-markers")
            if match := _NAME.match(line):
                entry.name = entry.name or match[1]
            elif match := _VERSION.match(line) or _ARCHIVE.match(line):
                entry.version = entry.version or match[1]
            elif match := _MARKER.match(line):
                entry.markers.append(match[1])
    yield entry


def _version_of(listed: list[_Entry]) -> str | None:
    """Return the version for Linux, without the local part where builds of one release are left."""
    versions = {entry.version for entry in listed}
    if len(versions) > 1:
        versions = {entry.version for entry in listed if _is_for_linux(entry)}
    if len(versions) > 1:
        versions = {version.partition("+")[0] for version in versions}
    return versions.pop() if len(versions) == 1 else None


def _is_for_linux(entry: _Entry) -> bool:
    return not entry.markers or any(_holds(text) for text in entry.markers)


def _holds(text: str) -> bool:
    try:
        return holds_somewhere(Marker(text), PYTHONS, Platform.LINUX_64)
    except InvalidMarker:
        return True
