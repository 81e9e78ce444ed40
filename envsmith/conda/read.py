"""Locks of the Conda world: ``conda-lock.yml``, ``pixi.lock``, ``@EXPLICIT``; each names one package a line or record, pinned."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envsmith.conda.names import clean, component_version, cuda_of_build, fold
from envsmith.errors import DataError


def _pick(platforms: list[str], wanted: str | None, where: str) -> str | None:
    if wanted is None:
        return "linux-64" if "linux-64" in platforms else (platforms[0] if platforms else None)
    if wanted not in platforms:
        raise DataError(f"{where}: nothing for {wanted}; the file covers {', '.join(platforms[:8]) or 'no platform'}")
    return wanted


def read_conda_lock(text: str, platform: str | None, where: str) -> CondaFile:
    """Format 1 of ``conda-lock.yml``; of several platforms ``platform``, else linux-64. Raises ``DataError``."""
    data = as_mapping(load_yaml(text, where), where, "the file")
    if data.get("version") != 1:
        raise DataError(
            f"{where}: version {clean(repr(data.get('version')), 20)} of conda-lock.yml is not known (1 is)"
        )
    packages = [
        as_mapping(p, where, f"package[{i}]") for i, p in enumerate(as_list(data.get("package"), where, "package"))
    ]
    platforms = list(dict.fromkeys(str(p.get("platform")) for p in packages))
    chosen = _pick(platforms, platform, where)
    conda: dict[str, str] = {}
    pip: dict[str, str] = {}
    builds: dict[str, str] = {}
    for i, package in enumerate(packages):
        if package.get("platform") != chosen:
            continue
        name = as_name(package.get("name"), where, f"package[{i}].name")
        version = as_version(package.get("version"), where, f"package[{i}].version")
        if package.get("manager") == "pip":
            pip[fold(name)] = version
        else:
            conda[name] = version
            parts = split_filename(str(package.get("url", "")))
            builds |= {name: parts[2]} if parts else {}
    return CondaFile(kind="conda-lock", conda=conda, pip=pip, builds=builds, platforms=tuple(platforms))


def read_pixi_lock(text: str, platform: str | None, where: str) -> CondaFile:
    """The environment ``default`` (else the first) of ``pixi.lock``. Raises ``DataError``."""
    data = as_mapping(load_yaml(text, where), where, "the file")
    environments = as_mapping(data.get("environments"), where, "environments")
    name = "default" if "default" in environments else next(iter(environments), "default")
    environment = as_mapping(environments.get(name), where, f"environments.{name}")
    by_platform = as_mapping(environment.get("packages"), where, f"environments.{name}.packages")
    chosen = _pick([str(p) for p in by_platform], platform, where)
    told = {}
    for entry in as_list(data.get("packages"), where, "packages"):
        if isinstance(entry, Mapping) and isinstance(entry.get("pypi"), str):
            told[entry["pypi"]] = entry
    conda: dict[str, str] = {}
    pip: dict[str, str] = {}
    builds: dict[str, str] = {}
    for i, item in enumerate(as_list(by_platform.get(chosen or ""), where, f"environments.{name}.packages.{chosen}")):
        what = f"environments.{name}.packages.{chosen}[{i}]"
        pair = as_mapping(item, where, what)
        if isinstance(pair.get("conda"), str):
            parts = split_filename(pair["conda"])
            if parts:
                conda[parts[0]], builds[parts[0]] = parts[1], parts[2]
        elif isinstance(pair.get("pypi"), str):
            entry = told.get(pair["pypi"], {})
            pip[fold(as_name(entry.get("name"), where, f"{what}.name"))] = as_version(
                entry.get("version"), where, f"{what}.version"
            )
    return CondaFile(
        kind="pixi-lock", conda=conda, pip=pip, builds=builds, platforms=tuple(str(p) for p in by_platform)
    )


def read_explicit(text: str, platform: str | None, where: str) -> CondaFile:
    """Addresses of packages, one a line; envsmith's own pip lines too. Raises ``DataError``."""
    conda: dict[str, str] = {}
    pip: dict[str, str] = {}
    builds: dict[str, str] = {}
    platforms = re.findall(r"^#\s*platform:\s*(\S{1,40})\s*$", text, re.MULTILINE)
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if match := re.fullmatch(r"# pip (\S{1,128}) @ (\S+)(?: --hash=\S+)?", line):
            parts = urllib.parse.unquote(match[2].rsplit("/", 1)[-1]).split("-")
            if len(parts) > 1 and NAME.fullmatch(match[1]):
                pip[fold(match[1])] = as_version(re.sub(r"\.(tar\.gz|zip)$", "", parts[1]), where, f"line {number}")
        elif line and not line.startswith("#") and line != "@EXPLICIT":
            found = split_filename(line.split("#", maxsplit=1)[0])
            if found is None:
                raise DataError(f"{where}: line {number}: {clean(line, 100)!r} is not the address of a Conda package")
            conda[found[0]], builds[found[0]] = found[1], found[2]
    if platform and platforms and platform not in platforms:
        raise DataError(f"{where}: nothing for {platform}; the file is for {clean(platforms[0], 40)}")
    return CondaFile(kind="explicit", conda=conda, pip=pip, builds=builds, platforms=tuple(platforms))


# ``environment.yml``: what somebody wants, with selectors of conda-build and a section for pip; some of it pinned.


def read_environment(text: str, platform: str | None, where: str) -> CondaFile:
    """Exact pins are versions, everything else is wanted. Raises ``DataError``."""
    data = as_mapping(load_yaml(_for_platform(text, platform or "linux-64"), where), where, "the file")
    conda: dict[str, str] = {}
    pip: dict[str, str] = {}
    builds: dict[str, str] = {}
    wanted: dict[str, str] = {}
    for i, item in enumerate(as_list(data.get("dependencies"), where, "dependencies")):
        if isinstance(item, str):
            name, version, build, spec = _match_spec(item, where, f"dependencies[{i}]")
            if version:
                conda[name] = version
                builds |= {name: build} if build else {}
            elif spec:
                wanted[name] = spec
            else:
                wanted.setdefault(name, "*")
        elif isinstance(item, Mapping) and "pip" in item:
            for line in as_list(item["pip"] or [], where, f"dependencies[{i}].pip"):
                _requirement(str(line), pip, wanted)
        elif item is not None:
            raise DataError(f"{where}: dependencies[{i}] is neither a spec nor a pip section")
    platforms = data.get("platforms") if isinstance(data.get("platforms"), list) else []
    return CondaFile(
        kind="environment",
        conda=conda,
        pip=pip,
        builds=builds,
        wanted=wanted,
        platforms=tuple(str(p) for p in platforms or []),
    )


# What ``conda list`` prints, as a table and as JSON.


def read_list(text: str, _platform: str | None, where: str) -> CondaFile:
    """Columns name, version, build, channel; rows of channel ``pypi`` were installed by pip. Raises ``DataError``."""
    conda: dict[str, str] = {}
    pip: dict[str, str] = {}
    builds: dict[str, str] = {}
    for line in text.splitlines():
        columns = line.split()
        if len(columns) < 2 or line.lstrip().startswith("#") or not NAME.fullmatch(columns[0]):
            continue
        if not VERSION.fullmatch(columns[1]) or not columns[1][0].isdigit():
            continue
        if columns[-1] in {"pypi", "<pip>"} or columns[2:3] == ["<pip>"] or columns[2:3] == ["pypi_0"]:
            pip[fold(columns[0])] = columns[1]
        else:
            conda[columns[0].lower()] = columns[1]
            builds |= {columns[0].lower(): columns[2]} if len(columns) > 2 else {}
    if not conda and not pip:
        raise DataError(f"{where}: no line of it reads NAME VERSION BUILD, as `conda list` prints them")
    return CondaFile(kind="conda-list", conda=conda, pip=pip, builds=builds)


def read_list_json(text: str, _platform: str | None, where: str) -> CondaFile:
    """Rows of channel or platform ``pypi`` were installed by pip. Raises ``DataError``."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {clean(str(error), 120)}") from error
    conda: dict[str, str] = {}
    pip: dict[str, str] = {}
    builds: dict[str, str] = {}
    platforms: dict[str, None] = {}
    for i, item in enumerate(as_list(rows, where, "the file")):
        row = as_mapping(item, where, f"[{i}]")
        name, version = (
            as_name(row.get("name"), where, f"[{i}].name"),
            as_version(row.get("version"), where, f"[{i}].version"),
        )
        if row.get("channel") == "pypi" or row.get("platform") == "pypi":
            pip[fold(name)] = version
            continue
        conda[name.lower()] = version
        builds[name.lower()] = str(row.get("build_string") or row.get("build") or "")
        if _PLATFORM.fullmatch(str(row.get("platform"))) and row.get("platform") != "noarch":
            platforms[str(row["platform"])] = None
    return CondaFile(kind="conda-list-json", conda=conda, pip=pip, builds=builds, platforms=tuple(platforms))


# Reads what the Conda world leaves lying around and gives the versions in it, in the words of the cell.
#
# ``conda-lock.yml``, ``pixi.lock``, ``environment.yml``, ``conda list`` (text and ``--json``) and ``@EXPLICIT`` files. The text is
# hostile: size, depth and aliases are bounded before anything is built from it, and every failure is a ``DataError``.


_READERS: Mapping[str, Callable[[str, str | None, str], CondaFile]] = {
    "conda-lock": read_conda_lock,
    "pixi-lock": read_pixi_lock,
    "environment": read_environment,
    "conda-list": read_list,
    "conda-list-json": read_list_json,
    "explicit": read_explicit,
}


def kind_of(text: str) -> str | None:
    """``conda-lock``, ``pixi-lock``, ``environment``, ``conda-list``, ``conda-list-json``, ``explicit``; ``None`` for something else."""
    head = text[:20000]
    if re.search(r"^@EXPLICIT\s*$", head, re.MULTILINE):
        return "explicit"
    if head.lstrip().startswith("["):
        return "conda-list-json" if '"base_url"' in head or '"dist_name"' in head or '"channel"' in head else None
    if re.search(r"^# packages in environment at ", head, re.MULTILINE) or re.search(
        r"^#\s*Name\s+Version\s+Build", head, re.MULTILINE
    ):
        return "conda-list"
    if re.search(r"^environments:", head, re.MULTILINE) and re.search(r"^version:\s*\d", head, re.MULTILINE):
        return "pixi-lock"
    if re.search(r"^metadata:", head, re.MULTILINE) and re.search(r"^\s+content_hash:", head, re.MULTILINE):
        return "conda-lock"
    if re.search(r"^dependencies:", text, re.MULTILINE):
        return "environment"
    return None


def read_conda_file(
    text: str, *, kind: str | None = None, platform: str | None = None, where: str = "input"
) -> CondaFile:
    """The versions of a file, its kind recognised unless given; of a lock for several platforms those of ``platform``.

    ``DataError`` names ``where`` and what is wrong.
    """
    if len(text) > MAX_BYTES:
        raise DataError(f"{where}: {len(text)} characters are more than a Conda file has ({MAX_BYTES})")
    found = kind or kind_of(text)
    reader = _READERS.get(found or "")
    if reader is None:
        raise DataError(
            f"{where}: not a Conda file",
            hint="known are conda-lock.yml, pixi.lock, environment.yml, conda list, @EXPLICIT",
        )
    return reader(text, platform, where)


def _for_platform(text: str, platform: str) -> str:
    """Without the lines whose conda-build selector (``# [aarch64]``) is another platform's."""
    mine = {"linux-64": {"linux64", "linux", "unix"}, "linux-aarch64": {"aarch64", "linux", "unix"}}.get(
        platform, {"unix"}
    )
    kept = []
    for line in text.splitlines():
        match = re.search(r"#[^\[\]]{0,80}\[([a-z0-9]{1,20})\]\s*$", line)
        if not match or match[1] in mine:
            kept.append(line)
    return "\n".join(kept)


def _match_spec(text: str, where: str, what: str) -> tuple[str, str, str, str]:
    """``(name, exact version or "", build or "", the rest of the spec)`` of ``channel::name=version=build`` and its kin."""
    body = text.strip().rsplit("::", 1)[-1].split("[", maxsplit=1)[0]
    match = re.match(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})\s*(.{0,400})$", body, re.DOTALL)
    if not match:
        raise DataError(f"{where}: {what}: {clean(text, 100)!r} is not a Conda spec")
    name, rest = match[1].lower(), match[2].strip()
    exact = re.fullmatch(r"(?:={1,2}\s*|)([0-9][A-Za-z0-9_.!+-]*)(?:[=\s]+([A-Za-z0-9_.*+]+))?", rest)
    if not exact:
        return name, "", "", rest
    full = rest.startswith("==") or exact[2] is not None or exact[1].count(".") > 1
    build = exact[2] or ""
    if not full and not rest.startswith("="):
        full = True  # "name 1.2" is exactly 1.2 for conda; "name=1.2" is 1.2.*
    return (name, exact[1], build, "") if full else (name, "", build, f"{exact[1]}.*")


def _requirement(line: str, pip: dict[str, str], wanted: dict[str, str]) -> None:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]{0,127})\s*(?:\[[^\]]{0,200}\])?\s*([^;#]{0,400})", line)
    if not match or line.lstrip().startswith("-"):
        return
    exact = re.fullmatch(r"={2,3}\s*([A-Za-z0-9][A-Za-z0-9_.!+-]{0,127})\s*(?:--hash.*)?", match[2].strip())
    if exact:
        pip[fold(match[1])] = exact[1]
    else:
        wanted[fold(match[1])] = match[2].strip() or "*"


_PLATFORM = re.compile(r"(?:linux|osx|win|noarch|freebsd|emscripten|wasi)(?:-[a-z0-9]+)?")


# Hostile text -> plain values: bounded YAML, names, versions and the file names of Conda packages, or a ``DataError``.


MAX_BYTES = 64 << 20
_MAX_DEPTH = 60
_MAX_NODES = 4_000_000
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.!+-]{0,127}")


def load_yaml(text: str, where: str) -> Any:
    """YAML of plain values: no aliases (one line of them can stand for gigabytes), no tags, bounded in depth and size. Raises ``DataError``."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    if len(text) > MAX_BYTES:
        raise DataError(f"{where}: {len(text)} characters are too many")
    depth = nodes = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            nodes += 1
            if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                depth += 1
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                depth -= 1
            elif isinstance(event, yaml.AliasEvent):
                raise DataError(f"{where}: YAML aliases are not read")
            if depth > _MAX_DEPTH or nodes > _MAX_NODES:
                raise DataError(f"{where}: nested or filled beyond what such a file has")
        return yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader in either case
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f" (line {mark.line + 1})" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise DataError(f"{where}: not YAML: {clean(str(problem), 120)}{at}") from error
    except (ValueError, RecursionError, OverflowError) as error:
        raise DataError(f"{where}: not readable: {clean(str(error), 120)}") from error


def as_mapping(value: Any, where: str, what: str) -> Mapping[str, Any]:
    """``value`` as a mapping; ``DataError`` names ``where`` (the file) and ``what`` (the key path)."""
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: {what} is not a mapping")
    return value


def as_list(value: Any, where: str, what: str) -> list[Any]:
    """``value`` as a list; ``DataError`` as in :func:`as_mapping`."""
    if not isinstance(value, list):
        raise DataError(f"{where}: {what} is not a list")
    return value


def as_name(value: Any, where: str, what: str) -> str:
    """``value`` as a package's name; ``DataError`` as in :func:`as_mapping`."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise DataError(f"{where}: {what}: {clean(repr(value), 80)} is not a package name")
    return value


def as_version(value: Any, where: str, what: str) -> str:
    """``value`` as a version; ``DataError`` as in :func:`as_mapping`."""
    if not isinstance(value, str) or not VERSION.fullmatch(value):
        raise DataError(
            f"{where}: {what}: {clean(repr(value), 80)} is not a version (quote it, if it looks like a number)"
        )
    return value


def split_filename(url: str) -> tuple[str, str, str] | None:
    """``(name, version, build)`` of the last part of a Conda package's address, or ``None``."""
    try:
        filename = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rsplit("/", 1)[-1])
    except ValueError:
        return None
    stem = re.sub(r"\.(?:conda|tar\.bz2)$", "", filename)
    parts = stem.rsplit("-", 2)
    if stem == filename or len(parts) != 3 or not NAME.fullmatch(parts[0]) or not VERSION.fullmatch(parts[1]):
        return None
    return parts[0].lower(), parts[1], parts[2]


# The versions in a Conda file, and which components of a cell they are.


# Conda names that are components under another name. `pytorch` also tells the CUDA it was built with.
_COMPONENTS = {
    "pytorch": "torch",
    "libtorch": "torch",
    "torchtriton": "triton",
    "cuda-nvcc": "toolkit",
    "cudatoolkit": "cuda",
    "pytorch-cuda": "cuda",
    "cuda-version": "cuda",
    "gcc": "gcc",
    "gxx": "gcc",
    "gcc_linux-64": "gcc",
    "gcc_linux-aarch64": "gcc",
    "gxx_linux-64": "gcc",
    "gxx_linux-aarch64": "gcc",
    "transformer-engine-torch": "transformer-engine",
    "mpi4py": "mpi4py",
    "openmpi": "openmpi",
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
    """The versions in a file.

    ``conda`` and ``pip`` map names to versions; ``builds`` Conda names to build strings; ``wanted`` names to specs that fix no
    version (``environment.yml``). ``platforms`` are those the file speaks of; the versions are of the one that was asked for.
    """

    kind: str
    conda: Mapping[str, str] = field(default_factory=dict)
    pip: Mapping[str, str] = field(default_factory=dict)
    builds: Mapping[str, str] = field(default_factory=dict)
    wanted: Mapping[str, str] = field(default_factory=dict)
    platforms: tuple[str, ...] = ()

    @property
    def components(self) -> dict[str, str]:
        """The versions by component of the cell, other distributions under their own names."""
        return components_of(self.conda, self.pip, self.builds)


def components_of(conda: Mapping[str, str], pip: Mapping[str, str], builds: Mapping[str, str]) -> dict[str, str]:
    """Component or distribution to version. What pip installed shadows Conda's package of the same name, as on ``sys.path``."""
    found: dict[str, str] = {}
    ordered = sorted(conda, key=lambda n: (_RANK.index(n) if n in _RANK else len(_RANK), n))
    build_cuda = next((cuda_of_build(builds.get(n, "")) for n in ("pytorch", "libtorch") if n in conda), None)
    if build_cuda:
        found["cuda"] = build_cuda
    for name in ordered:
        component = _COMPONENTS.get(name, fold(name))
        found.setdefault(component, component_version(component, conda[name]))
    for name, version in pip.items():
        folded = fold(name)
        if match := re.fullmatch(r"nvidia-(nccl|cudnn)-cu\d+", folded):
            found[match[1]] = version
        elif folded == "torch":
            found["torch"] = version
            if "+cu" in version or "+cpu" in version:
                found["cuda"] = _local_cuda(version)
        else:
            found[folded] = version
    return found


def _local_cuda(version: str) -> str:
    local = version.split("+", maxsplit=1)[1]
    digits = local.removeprefix("cu").split(".")[0]
    return (
        "cpu" if local.startswith("cpu") or len(digits) < 3 or not digits.isdigit() else f"{digits[:-1]}.{digits[-1]}"
    )
