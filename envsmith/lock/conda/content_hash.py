"""conda-lock's ``content_hash``, so that ``conda-lock lock --check-input-hash`` agrees with a lock of ours.

The algorithm is conda-lock 4's: SHA-256 over the JSON of channels, specs and virtual packages. A test compares it with
conda-lock's own code; it is written out here because importing conda-lock takes most of a second and it is no dependency.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from envsmith.lock.conda.model import CondaSpec, PipPackage
from envsmith.model.platform import Platform

__all__ = ["content_hash", "entries_digest"]

_TIME = 1577854800000  # conda-lock stamps every virtual package with 2020-01-01


def content_hash(
    channels: Sequence[str],
    specs: Sequence[CondaSpec],
    pip: Sequence[PipPackage],
    virtual: Mapping[str, str],
    platform: Platform,
) -> str:
    """64 hex digits for what ``environment.yml`` and ``virtual-packages.yml`` ask on one platform."""
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
    """64 hex digits over the package entries of a ``conda-lock.yml``: a lock that was edited since tells it."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True, default=str).encode()).hexdigest()


def _as_conda_reads(spec: CondaSpec) -> str:
    """Conda's ``MatchSpec`` drops the ``==`` of an exact version, but only where no build follows."""
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
    shown = f"{build}_0" if build else "0"
    record: dict[str, object] = {
        "name": name,
        "version": version,
        "build_string": build,
        "build_number": 0,
        "build": shown,
        "noarch": "",
        "depends": [],
        "timestamp": _TIME,
        "package_type": "virtual_system",
        "subdir": platform.value,
    }
    return f"{name}-{version}-{shown}.tar.bz2", record
