"""Write a Conda lock as ``conda-lock.yml`` v1, ``@EXPLICIT``, ``pixi.lock`` v6, and their two inputs.

Pure and deterministic: no time, no path of this machine, every list in a fixed order.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from envsmith.base.schema import Problems, Text, check, exactly, text_of
from envsmith.errors import DataError
from envsmith.lock.conda.foreign import load_document, split_filename
from envsmith.lock.conda.model import CondaLock, CondaPackage, CondaSpec, PipPackage, PlatformLock
from envsmith.lock.conda.names import clean
from envsmith.model.cell import Platform

# conda-lock's platform selectors, in the comment syntax of conda-build.
_SELECTOR = {Platform.LINUX_64: "linux64", Platform.LINUX_AARCH64: "aarch64"}


def files(lock: CondaLock) -> dict[str, str]:
    """Return every file of the lock by name. ``conda-lock.yml`` has the digests of the others."""
    texts = {
        "environment.yml": environment_yml(lock),
        "pixi.lock": pixi_lock(lock),
        "virtual-packages.yml": virtual_packages_yml(lock),
    }
    for part in lock.platforms:
        texts[f"conda-{part.platform.value}.lock"] = explicit(part)
        texts[f"conda-{part.platform.value}.sha256"] = sums(part)
        if part.pip:
            texts[f"conda-{part.platform.value}.pip.txt"] = pip_lines(part.pip)
    beside = "".join(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in sorted(texts.items()))
    return {"conda-lock.yml": _conda_lock_yml(lock, beside), **texts}


def sums(part: PlatformLock) -> str:
    """Return what ``sha256sum --check`` takes in a folder of downloaded packages: ``@EXPLICIT`` knows only MD5."""
    return "".join(sorted(f"{p.sha256}  {unquote(p.filename)}\n" for p in part.packages))


def pip_lines(packages: Sequence[PipPackage]) -> str:
    """Return the pip section as requirements with hashes, as ``uv pip install --require-hashes -r`` takes them."""
    return "".join(f"{p.name} @ {p.url} --hash=sha256:{p.sha256}\n" for p in packages)


def _conda_lock_yml(lock: CondaLock, beside: str) -> str:
    """Return the unified lock file that conda-lock, micromamba and pixi import, with the digests of the files beside it."""
    hashes = {
        p.platform.value: content_hash(lock.channels, p.specs, p.pip, p.virtual_packages, p.platform)
        for p in lock.platforms
    }
    entries = [entry for part in lock.platforms for entry in _entries(part)]
    entries.sort(key=lambda e: (e["manager"], e["name"], e["platform"]))
    metadata: dict[str, Any] = {
        "content_hash": dict(sorted(hashes.items())),
        "channels": [{"url": channel, "used_env_vars": []} for channel in lock.channels],
        "platforms": sorted(p.platform.value for p in lock.platforms),
        "sources": ["environment.yml"],
        "custom_metadata": {
            "envsmith_cell": lock.cell_id,
            "envsmith_request": lock.request,
            "envsmith_packages": entries_digest(entries),
            "envsmith_files": beside,
        },
    }
    head = (
        f"# Conda lock of the cell {lock.cell_id}, written by envsmith. "
        "Do not edit: make it again with `envsmith lock`.\n"
        "# Install it with `envsmith build --engine conda`, or with `conda-lock install -n NAME conda-lock.yml`.\n"
    )
    return head + _yaml({"version": 1, "metadata": metadata, "package": entries})


def _entries(part: PlatformLock) -> list[dict[str, Any]]:
    def entry(package: CondaPackage | PipPackage, depends: Mapping[str, str], **hashes: str) -> dict[str, Any]:
        return {
            "name": package.name,
            "version": package.version,
            "manager": "conda" if isinstance(package, CondaPackage) else "pip",
            "platform": part.platform.value,
            "dependencies": depends,
            "url": package.url,
            "hash": hashes,
            "category": "main",
            "optional": False,
        }

    conda = [entry(p, _dependencies(p), md5=p.md5, sha256=p.sha256) for p in part.packages]
    return conda + [entry(p, dict.fromkeys(p.requires, "*"), sha256=p.sha256) for p in part.pip]


def _dependencies(package: CondaPackage) -> dict[str, str]:
    """Map names to specs: of two lines for one name the last counts, as in conda-lock."""
    pairs = (d.partition(" ") for d in package.depends)
    return dict(sorted((name, spec) for name, _, spec in pairs))


def explicit(part: PlatformLock) -> str:
    """Return what ``conda create --file`` takes: addresses with their MD5, which is the hash that format knows."""
    lines = [f"# platform: {part.platform.value}", "@EXPLICIT", *(f"{p.url}#{p.md5}" for p in part.packages)]
    lines += [f"# pip {p.name} @ {p.url} --hash=sha256:{p.sha256}" for p in part.pip]
    return "\n".join(lines) + "\n"


def pixi_lock(lock: CondaLock) -> str:
    """Return ``pixi.lock`` version 6, which every pixi since 0.39 reads. Pip hashes are kept."""
    listed = {
        p.platform.value: [{"conda": c.url} for c in sorted(p.packages, key=lambda c: c.url)]
        + [{"pypi": w.url} for w in p.pip]
        for p in lock.platforms
    }
    conda = {c.url: c for p in lock.platforms for c in p.packages}
    pip = {w.url: w for p in lock.platforms for w in p.pip}
    packages: list[dict[str, Any]] = [_pixi_conda(conda[url]) for url in sorted(conda)]
    packages += [{"pypi": u, "name": w.name, "version": w.version, "sha256": w.sha256} for u, w in sorted(pip.items())]
    environment = {
        "channels": [{"url": c} for c in dict.fromkeys(c.channel + "/" for p in lock.platforms for c in p.packages)],
        "packages": dict(sorted(listed.items())),
    }
    return _yaml({"version": 6, "environments": {"default": environment}, "packages": packages})


def _pixi_conda(package: CondaPackage) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "conda": package.url,
        "subdir": package.subdir,
        "noarch": package.noarch,
        "sha256": package.sha256,
        "md5": package.md5,
        "depends": list(package.depends),
        "constrains": list(package.constrains),
        "license": package.license,
        "size": package.size,
        "timestamp": package.timestamp,
        "python_site_packages_path": package.python_site_packages_path,
    }
    return {key: value for key, value in entry.items() if value not in (None, [])}


def environment_yml(lock: CondaLock) -> str:
    """Return the request in conda's own words. Lines of one platform only carry conda-lock's selector."""
    lines = [f"# What the cell {lock.cell_id} asks of Conda, written by envsmith.", "channels:"]
    lines += [f"  - {_scalar(c)}" for c in lock.channels]
    lines += ["platforms:", *(f"  - {p.platform.value}" for p in lock.platforms), "dependencies:"]
    lines += _selected([[str(s) for s in p.specs] for p in lock.platforms], lock.platforms, "  - ")
    pip = _selected([[f"{w.name}=={w.version}" for w in p.pip] for p in lock.platforms], lock.platforms, "      - ")
    return "\n".join([*lines, *(["  - pip:", *pip] if pip else [])]) + "\n"


def _selected(columns: Sequence[Sequence[str]], parts: Sequence[PlatformLock], indent: str) -> list[str]:
    lines = []
    for item in dict.fromkeys(item for column in columns for item in column):
        where = [p.platform for p, column in zip(parts, columns, strict=True) if item in column]
        selector = "" if len(where) == len(parts) else f"  # [{_SELECTOR[where[0]]}]"
        lines.append(f"{indent}{_scalar(item)}{selector}")
    return lines


def virtual_packages_yml(lock: CondaLock) -> str:
    """Return the machine that the lock is for, in the form that conda-lock reads from the folder it runs in."""
    subdirs = {p.platform.value: {"packages": dict(p.virtual_packages)} for p in lock.platforms}
    return _yaml({"subdirs": subdirs})


def _scalar(text: str) -> str:
    """Return a string on one line of YAML, quoted only when it must be."""
    import yaml

    try:
        plain = yaml.safe_load(text) == text
    except yaml.YAMLError:
        plain = False
    return text if plain else json.dumps(text)


def _yaml(value: Mapping[str, Any]) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(value, Dumper=dumper, sort_keys=False, default_flow_style=False, width=1000)
    return text


# conda-lock's ``content_hash``, so that ``conda-lock lock --check-input-hash`` agrees with envsmith's lock.
#
# The algorithm is conda-lock 4's: SHA-256 over the JSON of channels, specs and virtual packages. A test compares it
# with conda-lock's own code; it is written out here because importing conda-lock takes most of a second and it is no
# dependency.


_TIME = 1577854800000  # conda-lock stamps every virtual package with 2020-01-01


def content_hash(
    channels: Sequence[str],
    specs: Sequence[CondaSpec],
    pip: Sequence[PipPackage],
    virtual: Mapping[str, str],
    platform: Platform,
) -> str:
    """Hash what ``environment.yml`` and ``virtual-packages.yml`` ask on one platform."""
    conda = {spec.name: _dependency(spec.name, "conda", _as_conda_reads(spec), spec.build) for spec in specs}
    if pip:  # conda-lock adds pip wherever there is a pip section
        conda["pip"] = _dependency("pip", "conda", "*", None)
    by_pip = {p.name: _dependency(p.name, "pip", f"=={p.version}", None) for p in pip}
    content = {
        "channels": [json.dumps({"url": c, "used_env_vars": []}, separators=(",", ":")) for c in channels],
        "specs": [conda[name] for name in sorted(conda)] + [by_pip[name] for name in sorted(by_pip)],
        "virtual_package_hash": {
            "noarch": {"info": {"subdir": "noarch"}, "packages": {}},
            platform.value: {
                "info": {"subdir": platform.value},
                "packages": dict(_virtual(name, text, platform) for name, text in virtual.items()),
            },
        },
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def entries_digest(entries: object) -> str:
    """Hash the package entries of a ``conda-lock.yml``: a lock that was edited since has another hash."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True, default=str).encode()).hexdigest()


def _as_conda_reads(spec: CondaSpec) -> str:
    """Return the version as conda's ``MatchSpec`` reads it: without ``==``, but only where no build follows."""
    return spec.version.removeprefix("==") if spec.build is None else spec.version


def _dependency(name: str, manager: str, version: str, build: str | None) -> dict[str, object]:
    return {
        "name": name,
        "manager": manager,
        "category": "main",
        "extras": [],
        "version": version,
        "build": build,
        "conda_channel": None,
        "hash": None,
    }


def _virtual(name: str, text: str, platform: Platform) -> tuple[str, dict[str, object]]:
    version, _, build = text.partition(" ")
    full_build = f"{build}_0" if build else "0"
    record: dict[str, object] = {
        "name": name,
        "version": version,
        "build_string": build,
        "build_number": 0,
        "build": full_build,
        "noarch": "",
        "depends": [],
        "timestamp": _TIME,
        "package_type": "virtual_system",
        "subdir": platform.value,
    }
    return f"{name}-{version}-{full_build}.tar.bz2", record


# A ``conda-lock.yml`` read back as the values it was written from (as far as that format keeps them).

_Digest = Annotated[str, text_of(64, re.compile("[0-9a-f]{64}"), complaint="no valid sha256")]
_MD5 = Annotated[str, text_of(32, re.compile("[0-9a-f]{32}"), complaint="no valid md5")]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Hashes:
    sha256: _Digest
    md5: _MD5 | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """One package of a lock. What makes it unsafe to install is a problem."""

    name: Text
    version: Text
    manager: Literal["conda", "pip"]
    platform: Platform
    url: Text
    hash: _Hashes
    dependencies: dict[str, str] = field(default_factory=dict)

    def problem(self) -> str:
        """Say why the package cannot be installed safely, or nothing."""
        if not re.match(r"(?:https?|file)://", self.url):
            return f"{clean(self.url, 100)!r} is not an address of http, https or file"
        if self.manager == "pip":
            return ""
        if self.hash.md5 is None:
            return "no valid md5"
        parts = split_filename(self.url)
        if parts is None or parts[:2] != (self.name, self.version):
            return f"the file {clean(self.url.rsplit('/', 1)[-1], 100)!r} is not {self.name} {self.version}"
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Custom:
    envsmith_cell: str = ""
    envsmith_request: str = ""
    envsmith_packages: str = ""
    envsmith_files: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Channel:
    url: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Metadata:
    channels: tuple[_Channel, ...] = ()
    custom_metadata: _Custom = field(default_factory=_Custom)


@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    version: Annotated[int, exactly(1, "not a conda-lock.yml of version 1")]
    package: tuple[_Entry, ...]
    metadata: _Metadata = field(default_factory=_Metadata)


def load_lock(text: str, where: str = "conda-lock.yml") -> CondaLock:
    """Return the lock. ``DataError`` lists every entry that cannot be installed safely."""
    data = load_document(text, where)
    problems = Problems()
    file = check(_File, data, where, problems)
    for number, entry in enumerate(file.package if file else ()):
        if why := entry.problem():
            problems.add(f"{where}: package[{number}] ({clean(entry.name, 60)})", why)
    if file is None or problems.lines or not file.package:
        lines = [clean(line) for line in problems.lines[:40]] or ["it holds no package"]
        raise DataError(
            f"Cannot use {where}: it is not a lock that envsmith wrote.",
            details=lines,
            hint="Make it with envsmith lock.",
        )
    custom = file.metadata.custom_metadata
    return CondaLock(
        cell_id=custom.envsmith_cell,
        channels=tuple(channel.url for channel in file.metadata.channels),
        platforms=tuple(
            _part(platform, [e for e in file.package if e.platform is platform])
            for platform in sorted({e.platform for e in file.package}, key=lambda p: p.value)
        ),
        request=custom.envsmith_request,
        facts={
            "packages": custom.envsmith_packages,
            "entries": entries_digest(data["package"]),
            "files": custom.envsmith_files,
        },
    )


def _part(platform: Platform, entries: Sequence[_Entry]) -> PlatformLock:
    pip = (
        PipPackage(name=e.name, version=e.version, url=e.url, sha256=e.hash.sha256, requires=tuple(e.dependencies))
        for e in entries
        if e.manager == "pip"
    )
    conda = tuple(_conda(entry) for entry in entries if entry.manager == "conda")
    return PlatformLock(platform=platform, specs=(), virtual_packages={}, packages=conda, pip=tuple(pip))


def _conda(entry: _Entry) -> CondaPackage:
    base, subdir, filename = entry.url.rsplit("/", 2)
    build = (split_filename(filename) or ("", "", ""))[2]
    depends = tuple(f"{name} {spec}".strip() for name, spec in entry.dependencies.items())
    # h3c07f61_2_cpython: build number 2
    numbers = [part for part in build.split("_") if part.isdigit() and len(part) < 10]
    # The format does not keep it: ``pyhd8ed1ab_0`` and ``py_0`` are modules, ``py310h…`` and ``h…`` are not (rattler
    # reads it so too).
    python = bool(re.match(r"py(?!\d)", build)) and any(d.split(" ")[0] == "python" for d in depends)
    noarch = ("python" if python else "generic") if subdir == "noarch" else None
    return CondaPackage(
        name=entry.name,
        version=entry.version,
        build=build,
        build_number=int(numbers[-1]) if numbers else 0,
        subdir=subdir,
        url=entry.url,
        sha256=entry.hash.sha256,
        md5=entry.hash.md5 or "",
        channel=base,
        depends=depends,
        noarch=noarch,
    )
