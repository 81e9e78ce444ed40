"""A Conda lock as text: ``conda-lock.yml`` v1, ``@EXPLICIT``, ``pixi.lock`` v6, and the two inputs they come from.

Pure and deterministic: no time, no path of this machine, every list in a fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from envsmith.lock.conda.content_hash import content_hash, entries_digest
from envsmith.lock.conda.model import CondaLock, CondaPackage, PipPackage, PlatformLock
from envsmith.model.platform import Platform

__all__ = [
    "conda_lock_yml",
    "environment_yml",
    "explicit",
    "files",
    "pip_lines",
    "pixi_lock",
    "sums",
    "virtual_packages_yml",
]

# conda-lock's platform selectors, in the comment syntax of conda-build.
_SELECTOR = {Platform.LINUX_64: "linux64", Platform.LINUX_AARCH64: "aarch64"}


def files(lock: CondaLock) -> dict[str, str]:
    """Every file of the lock by name; ``conda-lock.yml`` and ``pixi.lock`` cover all platforms.

    ``@EXPLICIT`` files, checksums and pip sections are for one platform each.
    """
    texts = {
        "conda-lock.yml": conda_lock_yml(lock),
        "environment.yml": environment_yml(lock),
        "pixi.lock": pixi_lock(lock),
        "virtual-packages.yml": virtual_packages_yml(lock),
    }
    for part in lock.platforms:
        texts[f"conda-{part.platform.value}.lock"] = explicit(part)
        texts[f"conda-{part.platform.value}.sha256"] = sums(part)
        if part.pip:
            texts[f"conda-{part.platform.value}.pip.txt"] = pip_lines(part.pip)
    return texts


def sums(part: PlatformLock) -> str:
    """What ``sha256sum --check`` takes in a folder of downloaded packages: ``@EXPLICIT`` knows only MD5."""
    return "".join(sorted(f"{p.sha256}  {unquote(p.filename)}\n" for p in part.packages))


def pip_lines(packages: Sequence[PipPackage]) -> str:
    """The pip section as requirements with hashes: what ``uv pip install --no-deps --require-hashes -r`` takes."""
    return "".join(f"{p.name} @ {p.url} --hash=sha256:{p.sha256}\n" for p in packages)


def conda_lock_yml(lock: CondaLock) -> str:
    """The unified lock file that conda-lock, micromamba and pixi import."""
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
        },
    }
    head = (
        f"# Conda lock of the cell {lock.cell_id}, written by envsmith. Do not edit: make it again with `envsmith lock`.\n"
        "# Install it with `envsmith build --engine conda`, or with `conda-lock install -n NAME conda-lock.yml`.\n"
    )
    return head + _yaml({"version": 1, "metadata": metadata, "package": entries})


def _entries(part: PlatformLock) -> list[dict[str, Any]]:
    conda = [
        {
            "name": p.name,
            "version": p.version,
            "manager": "conda",
            "platform": part.platform.value,
            "dependencies": _dependencies(p),
            "url": p.url,
            "hash": {"md5": p.md5, "sha256": p.sha256},
            "category": "main",
            "optional": False,
        }
        for p in part.packages
    ]
    pip = [
        {
            "name": p.name,
            "version": p.version,
            "manager": "pip",
            "platform": part.platform.value,
            "dependencies": dict.fromkeys(p.requires, "*"),
            "url": p.url,
            "hash": {"sha256": p.sha256},
            "category": "main",
            "optional": False,
        }
        for p in part.pip
    ]
    return conda + pip


def _dependencies(package: CondaPackage) -> dict[str, str]:
    """Name to spec, without virtual packages' lines being lost: of two lines for one name the last counts, as in conda-lock."""
    pairs = (d.partition(" ") for d in package.depends)
    return dict(sorted((name, rest) for name, _, rest in pairs))


def explicit(part: PlatformLock) -> str:
    """What ``conda create --file`` takes: addresses with their MD5, which is the hash that format knows."""
    lines = [f"# platform: {part.platform.value}", "@EXPLICIT", *(f"{p.url}#{p.md5}" for p in part.packages)]
    lines += [f"# pip {p.name} @ {p.url} --hash=sha256:{p.sha256}" for p in part.pip]
    return "\n".join(lines) + "\n"


def pixi_lock(lock: CondaLock) -> str:
    """``pixi.lock`` version 6, which every pixi since 0.39 reads; pip hashes are kept."""
    listed = {
        p.platform.value: [{"conda": c.url} for c in sorted(p.packages, key=lambda c: c.url)]
        + [{"pypi": w.url} for w in p.pip]
        for p in lock.platforms
    }
    conda = {c.url: c for p in lock.platforms for c in p.packages}
    pip = {w.url: w for p in lock.platforms for w in p.pip}
    packages: list[dict[str, Any]] = [_pixi_conda(conda[url]) for url in sorted(conda)]
    packages += [{"pypi": u, "name": w.name, "version": w.version, "sha256": w.sha256} for u, w in sorted(pip.items())]
    environment = {"channels": [{"url": c} for c in _channel_urls(lock)], "packages": dict(sorted(listed.items()))}
    return _yaml({"version": 6, "environments": {"default": environment}, "packages": packages})


def _channel_urls(lock: CondaLock) -> list[str]:
    return list(dict.fromkeys(c.channel + "/" for p in lock.platforms for c in p.packages))


def _pixi_conda(package: CondaPackage) -> dict[str, Any]:
    told: dict[str, Any] = {
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
    return {key: value for key, value in told.items() if value not in (None, [])}


def environment_yml(lock: CondaLock) -> str:
    """The request in conda's own words; lines of one platform only carry conda-lock's selector."""
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
    """The machine that the lock is for, in the form that conda-lock reads from the folder it runs in."""
    subdirs = {p.platform.value: {"packages": dict(p.virtual_packages)} for p in lock.platforms}
    return _yaml({"subdirs": subdirs})


def _scalar(text: str) -> str:
    """A string on one line of YAML, quoted only when it must be."""
    import json

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
