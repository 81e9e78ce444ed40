"""``releases/nccl.yaml``, ``cudnn.yaml`` and ``cuda.yaml``: what torch carries; ``toolkit.yaml``: the component wheels of CUDA.

NCCL is listed as the index has it, one project for each CUDA major; cuDNN and CUDA only as far as a build of torch carries them: a build that
names a release nobody listed brings it in. A toolkit release comes with the runtime it pins; drivers and compilers are written by people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from envsmith.matrix.refresh_base import Context, in_parallel, yanked_text
from envsmith.matrix.refresh_releases import by_version, ordered
from envsmith.matrix.tables import Table
from envsmith.model.platform import Platform
from envsmith.model.version import WORDS
from envsmith.sources.distributions import best_file, read_release
from envsmith.sources.http import NotFoundError
from envsmith.sources.index import IndexFile
from envsmith.sources.metadata import active

__all__ = ["TOOLKIT_PROJECT", "carried", "update_cuda", "update_cuda_wheels", "update_toolkit"]

# The project whose releases pin the component wheels of one toolkit release.
TOOLKIT_PROJECT = "cuda-toolkit"
_TOOLKIT_SOURCE = "METADATA of cuda-toolkit of that version on the package index: the runtime that it pins"
_TORCH_WHEELS = "torch/version.py and METADATA of the torch wheels on the package index"


def carried(torch: Table, component: str) -> set[str]:
    """The releases of a component that the builds in ``torch.yaml`` name."""
    return {str(r[component]) for r in torch.records if component in r and r[component] not in WORDS}


def _by_major(context: Context, component: str) -> dict[Version, dict[str, tuple[IndexFile, ...]]]:
    """Files of every release by CUDA major, out of the projects ``nvidia-<component>-cuNN``."""
    found: dict[Version, dict[str, tuple[IndexFile, ...]]] = {}
    for name in context.components.by_name[component].distributions:
        major = name.rpartition("-cu")[2]
        try:
            releases = context.project(name).releases()
        except NotFoundError:
            continue
        for version, files in releases.items():
            found.setdefault(Version(version), {})[major] = files
    return found


def _line(majors: Mapping[str, tuple[IndexFile, ...]]) -> dict[str, Any]:
    files = [f for listed in majors.values() for f in listed]
    line = {
        "version": max((f.version for f in files), key=len),
        "date": min((f.day for f in files if f.day), default=None),
        "yanked": yanked_text(files),
        "cuda_majors": sorted(majors, key=int),
    }
    return {k: v for k, v in line.items() if v is not None}


def update_cuda_wheels(table: Table, context: Context, component: str, torch: Table | None) -> list[str]:
    """NCCL or cuDNN. With ``torch`` only what its builds carry is added (that is how cuDNN is kept)."""
    lines = {Version(r["version"]): r for r in table.records if r["version"] not in WORDS}
    oldest = min(lines, default=Version("0"))
    wanted = {Version(v) for v in carried(torch, component)} if torch is not None else None
    named = table.named.get("index", {})
    summary = []
    for version, majors in sorted(_by_major(context, component).items()):
        fresh = _line(majors)
        line = lines.get(version)
        if line is None:
            if version < oldest or version.is_prerelease or (wanted is not None and version not in wanted):
                continue
            key = table.evidence_key("index", "declared", str(named.get("source")), context.today)
            table.insert(ordered({**fresh, "evidence": key}), by_version)
            summary.append(f"{component} {fresh['version']}: new, for CUDA {' and '.join(fresh['cuda_majors'])}")
            continue
        new = ordered({**{k: v for k, v in line.items() if k != "yanked"}, **fresh, "version": line["version"]})
        if table.replace(line, new):
            summary.append(f"{component} {line['version']}: {_shown(line, new)}")
    return summary


def _shown(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    names = [k for k in {**old, **new} if old.get(k) != new.get(k)]
    return ", ".join(f"{k}: {old.get(k, '-')} -> {new.get(k, '-')}" for k in names)


def update_cuda(table: Table, context: Context, torch: Table) -> list[str]:
    """Add the CUDA series of builds that no line names yet."""
    listed = {r["version"] for r in table.records}
    summary = []
    for series in sorted(carried(torch, "cuda") - listed, key=Version):
        key = table.evidence_key("torch", "measured", _TORCH_WHEELS, context.today)
        table.insert({"version": series, "evidence": key}, by_version)
        summary.append(f"cuda {series}: new, a build of torch is made with it")
    return summary


def update_toolkit(table: Table, context: Context) -> list[str]:
    """Add the toolkit releases that came as component wheels; lines that are there stay as people wrote them."""
    lines = {Version(r["version"]) for r in table.records}
    newest = max(lines, default=Version("0"))
    releases = {
        v: best_file(files)
        for v, files in context.project(TOOLKIT_PROJECT).releases().items()
        if Version(v) not in lines and not Version(v).is_prerelease and Version(v) > Version(newest.base_version)
    }
    found = {v: f for v, f in releases.items() if f is not None}
    read = in_parallel(
        context,
        "toolkit",
        {v: f"{TOOLKIT_PROJECT} {v}" for v in found},
        lambda v: read_release(context.index.fetcher, found[v]),
    )
    summary = []
    for version, facts in read.items():
        pinned = active(facts.requires, python="3.12", platform=Platform.LINUX_64, extras=["cudart"])
        runtime = next((r for n, r in pinned.items() if re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", n)), None)
        clause = next(iter(runtime.specifier), None) if runtime else None
        key = table.evidence_key("cuda_toolkit", "declared", _TOOLKIT_SOURCE, context.today)
        spelt = ".".join(str(n) for n in Version(version).release[:3])
        line: dict[str, Any] = {"version": spelt}
        if found[version].day:
            line["date"] = found[version].day
        if clause is not None and clause.operator == "==":
            line["cudart"] = clause.version.removesuffix(".*")
        table.insert({**line, "sha256": facts.sha256, "evidence": key}, by_version)
        summary.append(f"toolkit {spelt}: new")
    return summary
