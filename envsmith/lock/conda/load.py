"""Reads a ``conda-lock.yml`` back as the values it was written from (as far as that format keeps them)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from envsmith.errors import DataError
from envsmith.lock.conda.content_hash import entries_digest
from envsmith.lock.conda.model import CondaLock, CondaPackage, PipPackage, PlatformLock
from envsmith.lock.conda.names import clean
from envsmith.model.platform import Platform

__all__ = ["load_lock"]

_HEX = {"md5": re.compile(r"[0-9a-f]{32}"), "sha256": re.compile(r"[0-9a-f]{64}")}


def load_lock(text: str, where: str = "conda-lock.yml") -> CondaLock:
    """The lock; ``DataError`` lists every entry that cannot be installed safely (no sha256, no address, a malformed name)."""
    from envsmith.sources.conda.parsing import load_yaml

    data = load_yaml(text, where)
    if not isinstance(data, Mapping) or data.get("version") != 1 or not isinstance(data.get("package"), list):
        raise DataError(f"{where}: not a conda-lock.yml of version 1", hint="make it with `envsmith lock`")
    metadata = data.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    custom = metadata.get("custom_metadata")
    custom = custom if isinstance(custom, Mapping) else {}
    problems: list[str] = []
    parts: dict[str, tuple[list[CondaPackage], list[PipPackage]]] = {}
    for number, entry in enumerate(data["package"]):
        _entry(entry, f"{where}: package[{number}]", parts, problems)
    if problems or not parts:
        raise DataError(f"{where}: this lock cannot be used", details=problems[:40] or ["it holds no package"])
    channels = metadata.get("channels")
    return CondaLock(
        cell_id=str(custom.get("envsmith_cell", "")),
        channels=tuple(str(c.get("url", "")) for c in channels if isinstance(c, Mapping))
        if isinstance(channels, list)
        else (),
        platforms=tuple(_part(name, *parts[name]) for name in sorted(parts)),
        request=str(custom.get("envsmith_request", "")),
        facts={"packages": str(custom.get("envsmith_packages", "")), "entries": entries_digest(data["package"])},
    )


def _part(name: str, conda: list[CondaPackage], pip: list[PipPackage]) -> PlatformLock:
    return PlatformLock(platform=Platform(name), specs=(), virtual_packages={}, packages=tuple(conda), pip=tuple(pip))


def _entry(
    entry: Any, where: str, parts: dict[str, tuple[list[CondaPackage], list[PipPackage]]], problems: list[str]
) -> None:
    from envsmith.sources.conda.parsing import split_filename

    if not isinstance(entry, Mapping):
        problems.append(f"{where}: not a mapping")
        return
    name, version, url = (entry.get(k) for k in ("name", "version", "url"))
    manager, platform = entry.get("manager"), entry.get("platform")
    hashes = entry.get("hash")
    hashes = hashes if isinstance(hashes, Mapping) else {}
    if not all(isinstance(v, str) and v for v in (name, version, url)) or manager not in ("conda", "pip"):
        problems.append(f"{where}: name, version, url and manager are needed")
        return
    if platform not in [p.value for p in Platform]:
        problems.append(f"{where}: {clean(str(platform), 40)!r} is not a platform of ours")
        return
    needed = ("md5", "sha256") if manager == "conda" else ("sha256",)
    wrong = [h for h in needed if not _HEX[h].fullmatch(str(hashes.get(h)))]
    if wrong:
        problems.append(f"{where} ({clean(str(name), 60)}): no valid {' and '.join(wrong)}")
        return
    if _scheme(str(url)) not in {"http", "https", "file"}:
        problems.append(
            f"{where} ({clean(str(name), 60)}): {clean(str(url), 100)!r} is not an address of http, https or file"
        )
        return
    conda, pip = parts.setdefault(str(platform), ([], []))
    depends = entry.get("dependencies")
    depends = depends if isinstance(depends, Mapping) else {}
    if manager == "pip":
        requires = tuple(str(n) for n in depends)
        pip.append(
            PipPackage(name=str(name), version=str(version), url=str(url), sha256=hashes["sha256"], requires=requires)
        )
        return
    named = split_filename(str(url))
    if named is None or named[:2] != (str(name), str(version)):
        problems.append(f"{where}: the file {clean(str(url).rsplit('/', 1)[-1], 100)!r} is not {name} {version}")
        return
    conda.append(_conda(named, str(url), hashes, [f"{n} {s}".strip() for n, s in depends.items()]))


def _scheme(url: str) -> str:
    try:
        return urlsplit(url).scheme
    except ValueError:
        return ""


def _conda(named: tuple[str, str, str], url: str, hashes: Mapping[str, str], depends: list[str]) -> CondaPackage:
    name, version, build = named
    base, subdir, _ = url.rsplit("/", 2)
    numbers = [
        part for part in build.split("_") if part.isdigit() and len(part) < 10
    ]  # h3c07f61_2_cpython: build number 2
    # The format does not keep it: ``pyhd8ed1ab_0`` and ``py_0`` are modules, ``py310h…`` and ``h…`` are not (rattler reads it so too).
    python = bool(re.match(r"py(?!\d)", build)) and any(d.split(" ")[0] == "python" for d in depends)
    noarch = ("python" if python else "generic") if subdir == "noarch" else None
    return CondaPackage(
        name=name,
        version=version,
        build=build,
        build_number=int(numbers[-1]) if numbers else 0,
        subdir=subdir,
        url=url,
        sha256=hashes["sha256"],
        md5=hashes["md5"],
        channel=base,
        depends=tuple(depends),
        noarch=noarch,
    )
