"""Read the files of Conda's tools: the versions in them, in the words of the cell.

``conda-lock.yml``, ``pixi.lock``, ``environment.yml``, ``conda list`` (text and ``--json``) and ``@EXPLICIT`` files.
The text is hostile: size, depth and aliases are bounded before anything is built from it, and every failure is a
``DataError``.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from envsmith.base.schema import (
    Parsed,
    Problems,
    UnreadableError,
    WrongValueError,
    check,
    exactly,
    parse_document,
    text_of,
)
from envsmith.errors import DataError
from envsmith.lock.conda.names import clean, component_version, cuda_of_build, fold
from envsmith.model.version import local_cuda
from envsmith.net.address import parts_of

MAX_BYTES = 64 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.!+-]{0,127}")
_PLATFORM = "linux-64"
_Name = Annotated[str, text_of(128, _NAME, complaint="not a package name")]
_Version = Annotated[str, text_of(128, _VERSION, complaint="not a version")]

# Conda names that are components under another name. `pytorch` also tells the CUDA it was built with.
_COMPONENTS = {
    "pytorch": "torch",
    "libtorch": "torch",
    "torchtriton": "triton",
    "cuda-nvcc": "toolkit",
    "cudatoolkit": "cuda",
    "pytorch-cuda": "cuda",
    "cuda-version": "cuda",
    "gxx": "gcc",
    "gcc_linux-64": "gcc",
    "gcc_linux-aarch64": "gcc",
    "gxx_linux-64": "gcc",
    "gxx_linux-aarch64": "gcc",
    "transformer-engine-torch": "transformer-engine",
}
# Of several packages that tell one component the first in this order is believed.
_RANK = (
    "pytorch",
    "libtorch",
    "pytorch-cuda",
    "cuda-version",
    "cudatoolkit",
    "gcc_linux-64",
    "gcc",
    "gxx_linux-64",
    "gxx",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CondaFile:
    """The versions in a file: ``conda`` and ``pip`` map names to them, ``builds`` Conda names to build strings."""

    conda: dict[str, str] = field(default_factory=dict)
    pip: dict[str, str] = field(default_factory=dict)
    builds: dict[str, str] = field(default_factory=dict)

    @property
    def components(self) -> dict[str, str]:
        """Return the versions by component of the cell, other distributions under their own names."""
        return components_of(self.conda, self.pip, self.builds)

    def add(self, name: str, version: str, build: str = "") -> None:
        """Note a Conda package."""
        self.conda[name] = version
        if build:
            self.builds[name] = build


def kind_of(text: str) -> str | None:
    """Return which of the kinds of :func:`read_conda_file` a text is, or ``None`` for something else."""
    head = text[:20000]

    def has(pattern: str) -> bool:
        return re.search(pattern, head, re.MULTILINE) is not None

    if has(r"^@EXPLICIT\s*$"):
        return "explicit"
    if head.lstrip().startswith("["):
        return "conda-list-json" if any(f'"{key}"' in head for key in ("base_url", "dist_name", "channel")) else None
    if has(r"^# packages in environment at ") or has(r"^#\s*Name\s+Version\s+Build"):
        return "conda-list"
    if has(r"^environments:") and has(r"^version:\s*\d"):
        return "pixi-lock"
    if has(r"^metadata:") and has(r"^\s+content_hash:"):
        return "conda-lock"
    return "environment" if re.search(r"^dependencies:", text, re.MULTILINE) else None


def read_conda_file(text: str, *, kind: str | None = None, where: str = "input") -> CondaFile:
    """Return the versions of a file: of a lock for several platforms those of linux-64, else of the first."""
    reader = _READERS.get(kind or kind_of(text) or "")
    if reader is None:
        raise DataError(
            f"Cannot read {where}: it is not a Conda file.",
            hint="Give conda-lock.yml, pixi.lock, environment.yml, an @EXPLICIT file or the output of conda list.",
        )
    if len(text) > MAX_BYTES:
        raise DataError(
            f"Cannot read {where}: its {len(text)} characters are more than a Conda file has ({MAX_BYTES})."
        )
    return reader(text, where)


def load_document(text: str, where: str, *, name: str = ".yml") -> Any:
    """Parse a text as YAML, or as JSON where ``name`` ends so. ``DataError`` says what is wrong, and where."""
    try:
        return parse_document(name, text.encode(errors="replace"))
    except UnreadableError as error:
        raise DataError(f"Cannot read {where}: {clean(str(error))}.") from None


def _read_document(kind: Any, text: str, where: str, *, name: str = ".yml") -> Any:
    """Parse a text and check it. ``DataError`` lists every problem with its key path."""
    problems = Problems()
    value = check(kind, load_document(text, where, name=name), where, problems)
    if problems.lines:
        lines = [clean(line) for line in problems.lines]
        raise DataError(f"Cannot read {where}: {len(lines)} of its values cannot be used.", details=lines[:40])
    return value


def _platform(platforms: Iterable[str]) -> str:
    return min(platforms, key=lambda platform: platform != _PLATFORM, default="")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Locked:
    name: _Name
    version: _Version
    platform: str
    manager: str = "conda"
    url: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _CondaLock:
    version: Annotated[int, exactly(1, "version 1 of conda-lock.yml is the one that is known")]
    package: tuple[_Locked, ...]


def _read_conda_lock(text: str, where: str) -> CondaFile:
    packages = _read_document(_CondaLock, text, where).package
    chosen = _platform(p.platform for p in packages)
    file = CondaFile()
    for package in packages:
        if package.platform == chosen and package.manager == "pip":
            file.pip[fold(package.name)] = package.version
        elif package.platform == chosen:
            parts = split_filename(package.url)
            file.add(package.name, package.version, parts[2] if parts else "")
    return file


@dataclass(frozen=True, kw_only=True, slots=True)
class _PixiPackage:
    """A package in a list of pixi. Until version 5 of the format it has its address in ``url``."""

    conda: str = ""
    pypi: str = ""
    url: str = ""
    name: Any = None
    version: Any = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _PixiEnvironment:
    packages: dict[str, tuple[_PixiPackage, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _PixiLock:
    environments: dict[str, _PixiEnvironment]
    packages: tuple[_PixiPackage, ...] = ()


def _read_pixi_lock(text: str, where: str) -> CondaFile:
    """Read the environment ``default``, else the first."""
    lock = _read_document(_PixiLock, text, where)
    name = "default" if "default" in lock.environments else next(iter(lock.environments), "")
    if not name:
        raise DataError(f"Cannot read {where}: it has no environments.")
    by_platform = lock.environments[name].packages
    chosen = _platform(by_platform)
    pypi = {entry.pypi or entry.url: entry for entry in lock.packages}
    file = CondaFile()
    for number, item in enumerate(by_platform.get(chosen, ())):
        if parts := split_filename(item.conda):
            file.add(*parts)
        elif item.pypi:
            entry = pypi.get(item.pypi)
            if entry is not None and entry.version is None:  # a folder, whose version only its build says
                continue
            pair = (str(entry.name), str(entry.version)) if entry else ("", "")
            if not _NAME.fullmatch(pair[0]) or not _VERSION.fullmatch(pair[1]):
                raise DataError(
                    f"Cannot read {where}: environments.{name}.packages.{chosen}[{number}] has no name and version "
                    "in packages."
                )
            file.pip[fold(pair[0])] = pair[1]
    return file


def _read_explicit(text: str, where: str) -> CondaFile:
    """Read addresses of packages, one a line, and envsmith's own pip lines."""
    file = CondaFile()
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if match := re.fullmatch(r"# pip (\S{1,128}) @ (\S+)(?: --hash=\S+)?", line):
            parts = urllib.parse.unquote(match[2].rsplit("/", 1)[-1]).split("-")
            if len(parts) > 1 and _NAME.fullmatch(match[1]):
                version = re.sub(r"\.(tar\.gz|zip)$", "", parts[1])
                if not _VERSION.fullmatch(version):
                    raise DataError(f"Cannot read line {number} of {where}: {clean(version, 80)!r} is not a version.")
                file.pip[fold(match[1])] = version
        elif line and not line.startswith("#") and line != "@EXPLICIT":
            package = split_filename(line.split("#", maxsplit=1)[0])
            if package is None:
                raise DataError(
                    f"Cannot read line {number} of {where}: {clean(line, 100)!r} is not the address of a Conda package."
                )
            file.add(*package)
    return file


def _dependency(value: object, _context: object) -> str | tuple[str, ...]:
    """Return a spec, or the lines of the section for pip."""
    if value is None or isinstance(value, str):
        return value or ()
    if isinstance(value, dict) and "pip" in value and isinstance(value["pip"] or [], list):
        return tuple(str(line) for line in value["pip"] or ())
    raise WrongValueError("neither a spec nor a pip section")


@dataclass(frozen=True, kw_only=True, slots=True)
class CondaEnvironment:
    """An ``environment.yml``: specs of Conda, and in place of a section for pip its lines."""

    name: Any = None
    dependencies: tuple[Annotated[Any, Parsed(_dependency)], ...] | None = None

    @classmethod
    def read(cls, text: str, where: str) -> CondaEnvironment:
        """Return what a file wants. ``DataError`` tells what is no such file."""
        environment: CondaEnvironment = _read_document(cls, text, where)
        return environment

    @property
    def entries(self) -> tuple[str | tuple[str, ...], ...]:
        """Return the specs and sections in their order."""
        return self.dependencies or ()


def _read_environment(text: str, where: str) -> CondaFile:
    """Read what somebody wants: exact pins are versions."""
    file = CondaFile()
    for number, item in enumerate(CondaEnvironment.read(_of_platform(text), where).entries):
        if isinstance(item, tuple):
            for line in item:
                _note_requirement(line, file)
            continue
        name, version, build = _match_spec(item, where, f"dependencies[{number}]")
        if version:
            file.add(name, version, build)
    return file


def _of_platform(text: str) -> str:
    """Leave out the lines whose conda-build selector (``# [aarch64]``) is another platform's."""
    own = {"linux64", "linux", "unix"}
    selectors = ((line, re.search(r"#[^\[\]]{0,80}\[([a-z0-9]{1,20})\]\s*$", line)) for line in text.splitlines())
    return "\n".join(line for line, selector in selectors if not selector or selector[1] in own)


def _match_spec(text: str, where: str, what: str) -> tuple[str, str, str]:
    """Split ``channel::name=version=build`` into name, version and build, which are empty where they are not exact."""
    body = text.strip().rsplit("::", 1)[-1].split("[", maxsplit=1)[0]
    match = re.match(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})\s*(.{0,400})$", body, re.DOTALL)
    if not match:
        raise DataError(f"Cannot read {what} of {where}: {clean(text, 100)!r} is not a Conda spec.")
    name, spec = match[1].lower(), match[2].strip()
    exact = re.fullmatch(r"(?:={1,2}\s*|)([0-9][A-Za-z0-9_.!+-]*)(?:[=\s]+([A-Za-z0-9_.*+]+))?", spec)
    if not exact:
        return name, "", ""
    # "name 1.2" is exactly 1.2 for conda; "name=1.2" is 1.2.*
    full = not spec.startswith("=") or spec.startswith("==") or exact[2] is not None or exact[1].count(".") > 1
    return (name, exact[1], exact[2] or "") if full else (name, "", "")


def _note_requirement(line: str, file: CondaFile) -> None:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]{0,127})\s*(?:\[[^\]]{0,200}\])?\s*([^;#]{0,400})", line)
    if not match or line.lstrip().startswith("-"):
        return
    exact = re.fullmatch(r"={2,3}\s*([A-Za-z0-9][A-Za-z0-9_.!+-]{0,127})\s*(?:--hash.*)?", match[2].strip())
    if exact:
        file.pip[fold(match[1])] = exact[1]


def _read_list(text: str, where: str) -> CondaFile:
    """Read columns name, version, build, channel. Rows of channel ``pypi`` were installed by pip."""
    file = CondaFile()
    for line in text.splitlines():
        columns = line.split()
        if len(columns) < 2 or line.lstrip().startswith("#") or not _NAME.fullmatch(columns[0]):
            continue
        if not _VERSION.fullmatch(columns[1]) or not columns[1][0].isdigit():
            continue
        if columns[-1] in {"pypi", "<pip>"} or columns[2:3] in (["<pip>"], ["pypi_0"]):
            file.pip[fold(columns[0])] = columns[1]
        else:
            file.add(columns[0].lower(), columns[1], columns[2] if len(columns) > 2 else "")
    if not file.conda and not file.pip:
        raise DataError(
            f"Cannot read {where}: no line of it is NAME VERSION BUILD.", hint="Give what conda list prints."
        )
    return file


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    name: _Name
    version: _Version
    channel: str | None = None
    platform: str | None = None
    build_string: str | None = None
    build: str | None = None


def _read_list_json(text: str, where: str) -> CondaFile:
    """Read rows. Those of channel or platform ``pypi`` were installed by pip."""
    file = CondaFile()
    for row in _read_document(tuple[_Row, ...], text, where, name=".json"):
        if "pypi" in {row.channel, row.platform}:
            file.pip[fold(row.name)] = row.version
        else:
            file.add(row.name.lower(), row.version, row.build_string or row.build or "")
    return file


_READERS: Mapping[str, Callable[[str, str], CondaFile]] = {
    "conda-lock": _read_conda_lock,
    "pixi-lock": _read_pixi_lock,
    "environment": _read_environment,
    "conda-list": _read_list,
    "conda-list-json": _read_list_json,
    "explicit": _read_explicit,
}


def split_filename(url: str) -> tuple[str, str, str] | None:
    """Return ``(name, version, build)`` of the last part of a Conda package's address, or ``None``."""
    try:
        filename = urllib.parse.unquote(parts_of(url).path.rsplit("/", 1)[-1])
    except ValueError:
        return None
    stem = re.sub(r"\.(?:conda|tar\.bz2)$", "", filename)
    parts = stem.rsplit("-", 2)
    if stem == filename or len(parts) != 3 or not _NAME.fullmatch(parts[0]) or not _VERSION.fullmatch(parts[1]):
        return None
    return parts[0].lower(), parts[1], parts[2]


def components_of(conda: Mapping[str, str], pip: Mapping[str, str], builds: Mapping[str, str]) -> dict[str, str]:
    """Map component or distribution to version. What pip installed shadows Conda's package, as on ``sys.path``."""
    components: dict[str, str] = {}
    ordered = sorted(conda, key=lambda n: (_RANK.index(n) if n in _RANK else len(_RANK), n))
    build_cuda = next((cuda_of_build(builds.get(n, "")) for n in ("pytorch", "libtorch") if n in conda), None)
    if build_cuda:
        components["cuda"] = build_cuda
    for name in ordered:
        component = _COMPONENTS.get(name, fold(name))
        components.setdefault(component, component_version(component, conda[name]))
    for name, version in pip.items():
        folded = fold(name)
        match = re.fullmatch(r"nvidia-(nccl|cudnn)-cu\d+", folded)
        components[match[1] if match else folded] = version
        if folded == "torch" and (cuda := local_cuda(version)):
            components["cuda"] = cuda
    return components
