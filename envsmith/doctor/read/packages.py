"""Lists of packages: pip list and freeze, conda list and its files, locks, requirements, Dockerfiles."""

from __future__ import annotations

import re

from envsmith.conda import foreign as conda_read
from envsmith.doctor.facts import Draft
from envsmith.doctor.read.lines import component_of, note_container, note_distribution, version_in
from envsmith.errors import EnvsmithError
from envsmith.schema import UnreadableError, parse_json

_PIN = re.compile(r"(?<![\w.<>=/-])([A-Za-z0-9][A-Za-z0-9._-]{0,80})(?:\[[\w,-]{0,60}\])?={2,3}(\d[\w.+!-]{0,60})")
# The name of a wheel in an address or a path: its release without a local part, and three tags.
_WHEEL = r"[^\s\"'#]{1,500}/[A-Za-z0-9_.]{1,80}-(\d[A-Za-z0-9_.!]{0,40})(?:(?:\+|%2[Bb])[\w.]{1,80})?-[\w.]+-[\w.]+-[\w.]+\.whl"
_AT = re.compile(rf"(?<![\w./-])([A-Za-z0-9][A-Za-z0-9._-]{{0,80}})[ \t]{{0,4}}@[ \t]{{0,4}}{_WHEEL}")
_ARCHIVE = re.compile(rf"archive\s*=\s*\{{.{{0,20}}url\s*=\s*\"{_WHEEL}")
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
# What stands in every lock of a tool, and in no lock of another.
_TOML_LOCKS = {
    "pylock.toml": ("lock-version =", "[[packages]]"),
    "poetry.lock": ("lock-version =", "[[package]]"),
    "uv.lock": ("requires-python =", "[[package]]"),
}
_MAX = 6_000_000


def read_packages(text: str, draft: Draft, source: str) -> list[str]:
    """Read every list of packages, and return the kinds that were recognised."""
    kinds = []
    if _json_lock(text, draft, source):
        return ["envsmith lock"]
    if (
        text.lstrip()[:1] == "["
        and '"name"' in text[:400]
        and '"version"' in text[:400]
        and _pip_json(text, draft, source)
    ):
        return ["pip list --format json"]
    conda = _conda(text, draft, source)
    if conda:
        kinds.append(conda)
    if _TABLE.search(text):
        kinds.append("pip list")
        _table(text, draft, source)
    if kind := next((kind for kind, marks in _TOML_LOCKS.items() if all(mark in text for mark in marks)), ""):
        kinds.append(kind)
        _toml_lock(text, draft, f"{source}: {kind}")
    pins = _PIN.findall(text[:_MAX]) if "==" in text else []
    pins += _AT.findall(text[:_MAX]) if ".whl" in text else []
    if pins:
        kinds.append("pinned requirements" if len(pins) > 2 else "pinned requirement")
        for name, version in pins[:4000]:
            note_distribution(draft, name, version, f"{source}: pip", 3)
    return kinds


def _pip_json(text: str, draft: Draft, source: str) -> bool:
    try:
        rows = _named_versions(parse_json(text[:_MAX]))
    except UnreadableError:
        return False
    for name, version in rows:
        note_distribution(draft, name, version, f"{source}: pip list")
    return bool(rows)


def _named_versions(rows: object) -> list[tuple[str, str]]:
    """Return name and version of those members of a list in JSON that have both."""
    named = (row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()
    pairs = ((row.get("name"), row.get("version")) for row in named)
    return [(name, version) for name, version in pairs if isinstance(name, str) and isinstance(version, str)]


def _json_lock(text: str, draft: Draft, source: str) -> bool:
    if text.lstrip()[:1] != "{" or '"cell"' not in text or '"packages"' not in text:
        return False
    try:
        lock = parse_json(text[: _MAX * 4])
        components = lock["cell"]["components"].items()
        packages = lock["packages"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    for name, version in components:
        if isinstance(name, str) and isinstance(version, str) and (parsed := version_in(version)):
            draft.component(name, version if version == "cpu" else parsed[0], f"{source}: lock", 4)
    for name, version in _named_versions(packages):
        note_distribution(draft, name, version, f"{source}: lock", 4)
    return True


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
    if kind is not None:
        try:
            read = conda_read.read_conda_file(text, kind=kind, where=source)
        except (EnvsmithError, ValueError, TypeError, RecursionError):
            read = None
        if read is not None:
            for name, version in read.components.items():
                _conda_component(draft, name, version, f"{source}: {kind}")
            for name, version in read.pip.items():
                note_distribution(draft, name, version, f"{source}: {kind}")
            return f"conda {kind}"
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


def _conda_component(draft: Draft, name: str, version: str, source: str) -> None:
    component = component_of(name)
    if version == "cpu" and name == "cuda":
        draft.component("cuda", "cpu", source, 3)
    elif component and (parsed := version_in(version)):
        draft.component(component, parsed[0], source, 3, exact=parsed[1])
    elif parsed := version_in(version):
        draft.distribution(name, parsed[0])


def _toml_lock(text: str, draft: Draft, source: str) -> None:
    """Note the packages of a lock. One that it has in several versions, by platform, is left out."""
    versions: dict[str, set[str]] = {}
    name = None
    for line in text.split("\n")[:200_000]:
        if match := re.match(r"name\s*=\s*\"([\w.-]{1,80})\"", line):
            name = match[1]
        elif name and (match := re.match(r"version\s*=\s*\"([\w.+!-]{1,60})\"", line) or _ARCHIVE.match(line)):
            versions.setdefault(name, set()).add(match[1])
            name = None
    for name, (version, *others) in versions.items():
        if not others:
            note_distribution(draft, name, version, source, 4)


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
