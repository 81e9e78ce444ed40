"""The torch builds for a selector: what each carries, on which GPUs it runs, which driver it needs at least."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from envsmith.knowledge.graph.read import read_wheels
from envsmith.knowledge.graph.torch_builds import Build, Device
from envsmith.model.component import CARRIED
from envsmith.model.rule import Knowledge
from envsmith.model.version import version_key

_DRIVER_RULE = "cuda-driver-floor"
_GPU_RULE = "gpu-driver-floor"


def torch_json(root: Path, knowledge: Knowledge) -> list[dict[str, Any]]:
    """Return one entry a build, newest first. A field that is not known is ``null``, never a guess."""
    builds, devices = read_wheels(root)
    gpus = [release.version for release in knowledge.releases.get("gpu", ())]
    entries = []
    for build in sorted(builds, key=lambda b: (version_key(b.version) or 0, b.platform.value), reverse=True):
        release, _, local = build.version.partition("+")
        pythons = build.facts.get("python")
        cuda = build.cuda
        entries.append(
            {
                "version": build.version,
                "release": release,
                "build": local or None,
                "platform": build.platform.value,
                "default": build.index == "default" and (cuda != "cpu" or build.platform.machine != "x86_64"),
                "index": build.index,
                "date": build.date,
                "python": list(pythons) if isinstance(pythons, list) else _pythons(build, knowledge),
                **{name: getattr(build, name) for name in CARRIED},
                "glibc": build.glibc,
                "driver": _floor(knowledge, _DRIVER_RULE, "cuda", cuda) if cuda and cuda != "cpu" else None,
                "archs": list(build.gpu or ()) or None,
                "gpus": _runs_on(build, devices, gpus),
            }
        )
    return entries


def gpus_json(knowledge: Knowledge) -> list[dict[str, Any]]:
    """Return architectures with their names and the oldest driver that knows them (``null``: any)."""
    names: dict[str, list[str]] = {}
    for name, arch in knowledge.gpus.items():
        names.setdefault(arch, []).append(name)
    return [
        {
            "gpu": release.version,
            "names": sorted(names.get(release.version, [])),
            "driver": _floor(knowledge, _GPU_RULE, "gpu", release.version),
        }
        for release in knowledge.releases.get("gpu", ())
    ]


def _pythons(build: Build, knowledge: Knowledge) -> list[str] | None:
    if build.python is None:
        return None
    spec = build.python
    return [r.version for r in knowledge.releases.get("python", ()) if spec.contains(r.version)]


def _runs_on(build: Build, devices: Iterable[Device], gpus: Iterable[str]) -> list[str] | None:
    """Return the architectures that the machine code of a build (or its PTX, for later ones) runs on."""
    if not build.gpu:
        return None
    cuda = build.cuda
    specs = [
        device.runs_on
        for device in devices
        if device.gpu in build.gpu and (device.cuda is None or (cuda and device.cuda.contains(cuda)))
    ]
    later = [version_key(arch) for arch in build.ptx_archs]
    runnable = []
    for gpu in gpus:
        key = version_key(gpu)
        by_ptx = key is not None and any(ptx is not None and key >= ptx for ptx in later)
        if by_ptx or any(spec.contains(gpu) for spec in specs):
            runnable.append(gpu)
    return runnable


def _floor(knowledge: Knowledge, rule_id: str, component: str, version: str | None) -> str | None:
    """Return the driver that a row of a floor rule needs for a version, as the row says it (``>=580``)."""
    rule = next((r for r in knowledge.rules if r.id == rule_id), None)
    for row in rule.rows if rule and version else ():
        when: Mapping[str, Any] = row.when
        if component in when and when[component].contains(version) and "driver" in row.needs:
            return str(row.needs["driver"].text)
    return None
