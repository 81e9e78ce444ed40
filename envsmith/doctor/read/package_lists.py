"""Lists of packages: pip list and freeze, conda list and its files, requirements, Dockerfiles, pins of a project."""

from __future__ import annotations

import re
from pathlib import Path

from envsmith.conda import foreign as conda_read
from envsmith.doctor.facts import Draft
from envsmith.doctor.read.lines import component_of, note_container, note_distribution, version_in
from envsmith.doctor.read.locks import WHEEL, is_whole_lock, named_versions, read_locks
from envsmith.doctor.read.pasted import clean
from envsmith.errors import EnvsmithError
from envsmith.files import read_bounded
from envsmith.model.cell import Platform
from envsmith.project.declared import MAX_BYTES, PYTHONS
from envsmith.project.demand import Demands
from envsmith.project.folder import ENVIRONMENTS
from envsmith.project.pip_format import logical_lines
from envsmith.python.metadata import holds_somewhere
from envsmith.schema import UnreadableError, parse_json

_PIN = re.compile(r"(?<![\w.<>=/-])([A-Za-z0-9][A-Za-z0-9._-]{0,80})(?:\[[\w,-]{0,60}\])?={2,3}(\d[\w.+!-]{0,60})")
_AT = re.compile(rf"(?<![\w./-])([A-Za-z0-9][A-Za-z0-9._-]{{0,80}})[ \t]{{0,4}}@[ \t]{{0,4}}{WHEEL}")
_TABLE = re.compile(r"^[ \t]{0,60}Package[ \t]{1,80}Version(\s|$)", re.MULTILINE)
_ROW = re.compile(
    r"^\s{0,8}([A-Za-z0-9][A-Za-z0-9._-]{0,80})\s{1,80}(\d[\w.+!-]{0,60})(?:[ \t]{1,80}\S{1,200})?[ \t]{0,80}$"
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
