"""Locks of the Conda world: ``conda-lock.yml``, ``pixi.lock``, ``@EXPLICIT``; each names one package a line or record, pinned."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping

from envsmith.errors import DataError
from envsmith.lock.conda.names import clean, fold
from envsmith.sources.conda.parsing import NAME, as_list, as_mapping, as_name, as_version, load_yaml, split_filename
from envsmith.sources.conda.values import CondaFile

__all__ = ["read_conda_lock", "read_explicit", "read_pixi_lock"]


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
