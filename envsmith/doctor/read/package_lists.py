"""Lists of packages: pip list, show and freeze, conda list and its files, requirements, Dockerfiles, pins of a project.

Locks too: uv.lock, poetry.lock, pylock.toml, Pipfile.lock, and envsmith's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.markers import InvalidMarker, Marker

from envsmith.base.files import read_bounded
from envsmith.base.json_types import JsonFields, object_in, text_in, texts_in
from envsmith.base.schema import UnreadableError, parse_json, parse_object
from envsmith.doctor.facts import Draft
from envsmith.doctor.read.lines import component_of, note_container, note_distribution, version_in
from envsmith.doctor.read.pasted import clean
from envsmith.errors import EnvsmithError
from envsmith.lock.conda import foreign as conda_read
from envsmith.lock.index.markers import holds_somewhere
from envsmith.model.cell import Platform
from envsmith.project.declared import MAX_BYTES, PYTHONS
from envsmith.project.demand import Demands
from envsmith.project.folder import ENVIRONMENTS
from envsmith.project.pip_format import logical_lines

# The name of a wheel in an address or a path: its release without a local part, a build, three tags, a variant.
_WHEEL = (
    r"[^\s\"'#]{1,500}/[A-Za-z0-9_.]{1,80}-(\d[A-Za-z0-9_.!]{0,40})(?:(?:\+|%2[Bb])[\w.]{1,80})?(?:-\d\w{0,20})?"
    r"-[A-Za-z][\w.]{0,80}-[\w.]{1,40}-[\w.]{1,200}(?:-[0-9a-z_.]{1,16})?\.whl"
)
# What another package requires is not what is installed.
_PIN = re.compile(
    r"(?<![\w.<>=/-])(?<!requires )(?<!depends on )([A-Za-z0-9][A-Za-z0-9._-]{0,80})(?:\[[\w,-]{0,60}\])?={2,3}(\d[\w.+!-]{0,60})"
)
_AT = re.compile(rf"(?<![\w./-])([A-Za-z0-9][A-Za-z0-9._-]{{0,80}})[ \t]{{0,4}}@[ \t]{{0,4}}{_WHEEL}")
_TABLE = re.compile(r"^[ \t]{0,60}Package[ \t]{1,80}Version(\s|$)", re.MULTILINE)
_ROW = re.compile(
    r"^\s{0,8}([A-Za-z0-9][A-Za-z0-9._-]{0,80})\s{1,80}(\d[\w.+!-]{0,60})(?:[ \t]{1,80}\S{1,200})?[ \t]{0,80}$"
)
_SHOWN = re.compile(
    r"^[ \t]{0,20}Name:[ \t]{0,8}([A-Za-z0-9][\w.-]{0,80})\s{1,8}Version:[ \t]{0,8}(\d[\w.+!-]{0,60})", re.MULTILINE
)
_CONDA_ROW = re.compile(
    r"^\s{0,8}(?:\[conda\][ \t]{1,80})?([a-z0-9_][a-z0-9_.-]{0,80})\s{1,60}(\d[\w.+!-]{0,60})\s{1,60}(\S{1,80})"
    r"(?:\s{1,60}([\w/.<>:-]{1,120}))?[ \t]{0,80}$",
    re.MULTILINE,
)
_FROM = re.compile(
    r"^[ \t]{0,60}FROM[ \t]{1,80}(?:--platform=\S{1,100}[ \t]{1,80})?(\S{1,200})", re.MULTILINE | re.IGNORECASE
)
# Files of Conda's tools that have every package. Requirements that stand in one are those of its packages.
_WHOLE = frozenset({"pixi-lock", "conda-lock", "conda-list-json"})
_MAX = 6_000_000


def read_whole(text: str, draft: Draft, source: str) -> str | None:
    """Read a text that is one lock or list as a whole, and return its kind. Nothing else in such a text is a fact.

    ``None`` for any other text: parts of it may still be lists.
    """
    if text.lstrip()[:1] == "[" and '"name"' in text[:400] and '"version"' in text[:400]:
        return "pip list --format json" if _pip_json(text, draft, source) else None
    if is_whole_lock(text):
        return read_locks(text, draft, source)
    kind = conda_read.kind_of(text)
    return _conda_document(kind, text, draft, source) if kind in _WHOLE else None


def read_packages(text: str, draft: Draft, source: str) -> list[str]:
    """Read every list of packages, and return the kinds that were recognised."""
    kinds = []
    if conda := _conda(text, draft, source):
        kinds.append(conda)
    if _TABLE.search(text):
        kinds.append("pip list")
        _table(text, draft, source)
    if listed := _SHOWN.findall(text[:_MAX]):
        kinds.append("pip show")
        for name, version in listed[:4000]:
            note_distribution(draft, name, version, f"{source}: pip show")
    if lock := read_locks(text, draft, source):
        kinds.append(lock)
    pins = _PIN.findall(text[:_MAX]) if "==" in text else []
    pins += _AT.findall(text[:_MAX]) if ".whl" in text else []
    if pins:
        kinds.append("pinned requirements" if len(pins) > 2 else "pinned requirement")
        for name, version in pins[:4000]:
            note_distribution(draft, name, version, f"{source}: pip", 3)
    return kinds


def _pip_json(text: str, draft: Draft, source: str) -> bool:
    try:
        rows = named_versions(parse_json(text[:_MAX]))
    except UnreadableError:
        return False
    for name, version in rows:
        note_distribution(draft, name, version, f"{source}: pip list")
    return bool(rows)


def _table(text: str, draft: Draft, source: str) -> None:
    inside = False
    for line in text.split("\n")[:60000]:
        if _TABLE.match(line):
            inside = True
        elif inside and line.strip() and not set(line.strip()) <= {"-", " "}:
            row = _ROW.match(line)
            if row:
                note_distribution(draft, row[1], row[2], f"{source}: pip list")
            elif len(line) > 400 or ":" in line:
                inside = False


def _conda(text: str, draft: Draft, source: str) -> str | None:
    if not re.search(
        r"^@EXPLICIT|^# packages in environment|^#[ \t]{0,20}Name[ \t]{1,80}Version|^dependencies:|content_hash:"
        r"|^environments:|\"dist_name\"|\bpypi_0\b|^\[conda\]"
        r"|^\S{1,200}[ \t]{1,80}\d\S{0,80}[ \t]{1,80}\S{1,200}[ \t]{1,80}(?:conda-forge|defaults|nvidia|pytorch"
        r"|<pip>|pypi)[ \t]{0,80}$",
        text[:400_000],
        re.MULTILINE,
    ):
        return None
    kind = conda_read.kind_of(text)
    if kind is not None and (read := _conda_document(kind, text, draft, source)):
        return read
    rows = 0
    for name, version, build, channel in _CONDA_ROW.findall(text)[:4000]:
        if not (channel or build.startswith(("py", "cuda", "h", "pypi"))) or not version[:1].isdigit():
            continue
        rows += 1
        if build.startswith("pypi") or channel in {"pypi", "<pip>"}:
            note_distribution(draft, name, version, f"{source}: conda list")
        else:
            for component, release in conda_read.components_of({name: version}, {}, {name: build}).items():
                _conda_component(draft, component, release, f"{source}: conda list")
    return "conda list" if rows else None


def _conda_document(kind: str, text: str, draft: Draft, source: str) -> str | None:
    """Read a file of one of Conda's tools. ``None`` where it is only part of one."""
    try:
        read = conda_read.read_conda_file(text, kind=kind, where=source)
    except (EnvsmithError, ValueError, TypeError, RecursionError):
        return None
    for name, version in read.components.items():
        _conda_component(draft, name, version, f"{source}: {kind}")
    for name, version in read.pip.items():
        note_distribution(draft, name, version, f"{source}: {kind}")
    return f"conda {kind}"


def _conda_component(draft: Draft, name: str, version: str, source: str) -> None:
    component = component_of(name)
    if version == "cpu" and name == "cuda":
        draft.component("cuda", "cpu", source, 3)
    elif component and (parsed := version_in(version)):
        draft.component(component, parsed[0], source, 3, exact=parsed[1])
    elif parsed := version_in(version):
        draft.distribution(name, parsed[0])


def is_dockerfile(text: str) -> bool:
    """Return whether there are a FROM line and one more instruction."""
    return bool(_FROM.search(text[:200_000])) and bool(
        re.search(r"^[ \t]{0,60}(RUN|ENV|COPY|CMD|ENTRYPOINT|ARG|WORKDIR|ADD)\s", text[:400_000], re.MULTILINE)
    )


def read_dockerfile(text: str, draft: Draft, source: str) -> None:
    """Read the base image (what its tag says of torch and CUDA) and the variables."""
    images = _FROM.findall(text[:400_000])
    if images:
        _image(draft, images[-1], source)
    for name, value in re.findall(
        r"^[ \t]{0,60}ENV[ \t]{1,80}([A-Z][A-Z0-9_]{1,60})[ =]\s*\"?([^\s\"\\]{1,300})", text[:400_000], re.MULTILINE
    )[:200]:
        draft.variable(name, value)


def _image(draft: Draft, image: str, source: str) -> None:
    where = f"{source}: FROM {image[:80]}"
    if "container" not in draft.host:
        note_container(draft, image, where)
    if match := re.search(r"nvidia/cuda:(\d+\.\d+(?:\.\d+)?)-(?:cudnn\d*-)?(devel|runtime|base)", image):
        if match[2] == "devel":
            draft.component("toolkit", match[1], where, 3)
        else:
            draft.tools["nvcc"] = None
    elif match := re.search(r"pytorch/pytorch:(\d+\.\d+\.\d+)-cuda(\d+\.\d+)-cudnn\d+-(devel|runtime)", image):
        draft.component("torch", match[1], where, 3)
        draft.component("cuda", match[2], where, 3)
        if match[3] == "devel":
            draft.component("toolkit", match[2], where, 3)
        else:
            draft.tools["nvcc"] = None
    elif match := re.match(r"(?:docker\.io/)?(?:library/)?python:(3\.\d+)", image):
        draft.component("python", match[1], where, 2)


def note_pins(path: Path, demands: Demands, draft: Draft) -> None:
    """Note every distribution that a file of a project pins, on Linux.

    Packages of Conda are pinned in their own words, and files by the names of the wheels.
    """
    for demand in demands.demands:
        version = demand.exact
        holds = holds_somewhere(demand.requirement.marker, PYTHONS, Platform.LINUX_64)
        if version and holds and not demand.is_bound:
            note_distribution(draft, demand.name, version, demand.where, 3)
    text = clean(read_bounded(path, MAX_BYTES).decode("utf-8", "replace"))
    if path.name in ENVIRONMENTS:
        read_packages(text, draft, str(path))
    elif path.suffix in {".txt", ".in"}:
        files = (line for _, line in logical_lines(text) if ".whl" in line)
        read_packages("\n".join(files), draft, str(path))


# Locks of package managers.

# What stands in every lock of a tool, and in no lock of another. Poetry before 1.1 wrote no lock-version.
_TOML_LOCKS = (
    ("pylock.toml", ("lock-version =", "[[packages]]")),
    ("poetry.lock", ("lock-version =", "[[package]]")),
    ("uv.lock", ("requires-python =", "[[package]]")),
    ("poetry.lock", ("content-hash =", "[[package]]")),
)
_MOST_LINES, _LONGEST_JSON = 200_000, 24_000_000
_ARCHIVE = re.compile(rf"archive\s*=\s*\{{.{{0,20}}url\s*=\s*\"{_WHEEL}")
_ENTRY = re.compile(r"\[\[packages?\]\]\s*$")
_NAME = re.compile(r"name\s*=\s*[\"']([\w.-]{1,80})[\"']")
_VERSION = re.compile(r"version\s*=\s*[\"']([\w.+!-]{1,60})[\"']")
_MARKER = re.compile(r"markers?\s*=\s*\"([^\"]{1,1000})\"")
# What no index gave: its version is that of a commit or a folder, and no release.
_UNRELEASED = re.compile(
    r"source\s*=\s*\{\s*(?:git|directory|editable|virtual)\b|(?:vcs|directory)\s*=\s*\{|type\s*=\s*\"(?:git|directory)\""
)
_LISTED_MARKER = re.compile(r"\s{1,20}\"([^\"]{1,1000})\",?\s*$")


# How a lock begins: with its version, its first package, or who wrote it. JSON is one value.
_BEGINNING = re.compile(r"\s{0,80}(?:\{|# This file (?:is|was) auto|(?:lock-)?version\s*=|\[\[packages?\]\])")


@dataclass(slots=True)
class _Entry:
    """One package of a lock. Without ``markers`` it is for every platform and Python."""

    name: str = ""
    version: str = ""
    markers: list[str] = field(default_factory=list)
    is_release: bool = True


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
        if entry.name and entry.version and entry.is_release:
            entries.setdefault(entry.name, []).append(entry)
    for name, listed in entries.items():
        if version := _version_of(listed):
            note_distribution(draft, name, version, f"{source}: {kind}", 4)
    return kind


def _read_json(text: str, draft: Draft, source: str) -> str | None:
    if text.lstrip()[:1] != "{" or not (('"cell"' in text and '"packages"' in text) or '"_meta"' in text):
        return None
    lock = parse_object(text[:_LONGEST_JSON])
    return _own(lock, draft, source) or _pipfile(lock, draft, source)


def _own(lock: JsonFields, draft: Draft, source: str) -> str | None:
    """Read a lock of envsmith."""
    components, packages = texts_in(object_in(lock, "cell"), "components"), lock.get("packages")
    if not components or packages is None:
        return None
    for name, version in components.items():
        if parsed := version_in(version):
            draft.component(name, version if version == "cpu" else parsed[0], f"{source}: lock", 4)
    for name, version in named_versions(packages):
        note_distribution(draft, name, version, f"{source}: lock", 4)
    return "envsmith lock"


def _pipfile(lock: JsonFields, draft: Draft, source: str) -> str | None:
    """Read a lock of pipenv: what is installed by default. What only developers need is left out."""
    if "default" not in lock:
        return None
    default = object_in(lock, "default")
    for name in default:
        version = text_in(object_in(default, name), "version")
        if version.startswith("=="):
            note_distribution(draft, name, version.lstrip("="), f"{source}: Pipfile.lock", 4)
    return "Pipfile.lock"


def named_versions(rows: object) -> list[tuple[str, str]]:
    """Return name and version of those members of a list in JSON that have both."""
    named = (row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()
    pairs = ((row.get("name"), row.get("version")) for row in named)
    return [(name, version) for name, version in pairs if isinstance(name, str) and isinstance(version, str)]


def _entries(lines: Iterable[str]) -> Iterator[_Entry]:
    """Yield the packages of a lock in TOML, read line by line: part of a lock is read as well as a whole one."""
    entry, is_head, is_listing, is_source = _Entry(), False, False, False
    for line in lines:
        if _ENTRY.match(line):
            yield entry
            entry, is_head, is_listing, is_source = _Entry(), True, False, False
        elif line.startswith("["):
            is_head, is_source = False, line.startswith("[package.source]")
        elif (is_head or is_source) and _UNRELEASED.match(line):
            entry.is_release = False
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
