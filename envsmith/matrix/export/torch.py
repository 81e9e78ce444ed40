"""The torch builds for a selector: what each carries, on which GPUs it runs, which driver it needs at least."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envsmith.errors import DataError
from envsmith.graph.parse import Node, Problems, parse_yaml
from envsmith.graph.read import read_gpus
from envsmith.graph.torch import Build, Device, read_builds
from envsmith.model.rule import Knowledge
from envsmith.model.version import version_key

__all__ = ["gpus_json", "torch_json"]

_DRIVER_RULE = "cuda-driver-floor"
_GPU_RULE = "gpu-driver-floor"


def torch_json(root: Path, known: Knowledge) -> list[dict[str, Any]]:
    """One entry a build, newest first; a field that is not known is ``null``, never a guess. ``DataError`` as for the loader."""
    builds, devices = _read(root)
    gpus = [release.version for release in known.releases.get("gpu", ())]
    found = []
    for build in sorted(builds, key=lambda b: (version_key(b.version) or 0, b.platform.value), reverse=True):
        release, _, local = build.version.partition("+")
        pythons = build.facts.get("python")
        cuda = build.bundles.get("cuda")
        found.append(
            {
                "version": build.version,
                "release": release,
                "build": local or None,
                "platform": build.platform.value,
                "default": build.index == "default" and (cuda != "cpu" or build.platform.machine != "x86_64"),
                "index": build.index,
                "date": build.date,
                "python": list(pythons) if isinstance(pythons, list) else _pythons(build, known),
                **{name: build.bundles.get(name) for name in ("cuda", "nccl", "cudnn", "triton")},
                "glibc": build.glibc,
                "driver": _floor(known, _DRIVER_RULE, "cuda", cuda) if cuda and cuda != "cpu" else None,
                "archs": list(build.archs) or None,
                "gpus": _runs_on(build, devices, gpus),
            }
        )
    return found


def gpus_json(known: Knowledge) -> list[dict[str, Any]]:
    """Architectures with the names that people call them by and the oldest driver that knows them (``null``: any that CUDA needs)."""
    names: dict[str, list[str]] = {}
    for name, arch in known.gpus.items():
        names.setdefault(arch, []).append(name)
    return [
        {
            "gpu": release.version,
            "names": sorted(names.get(release.version, [])),
            "driver": _floor(known, _GPU_RULE, "gpu", release.version),
        }
        for release in known.releases.get("gpu", ())
    ]


def _read(root: Path) -> tuple[Sequence[Build], Sequence[Device]]:
    problems = Problems()
    torch, gpu = (_node(root, name, problems) for name in ("releases/torch.yaml", "releases/gpu.yaml"))
    builds = read_builds(torch) if torch else []
    devices, _names = read_gpus(gpu)
    if problems.lines:
        raise DataError(f"{root}: the torch builds cannot be read", details=problems.lines)
    return builds, devices


def _node(root: Path, name: str, problems: Problems) -> Node | None:
    try:
        return parse_yaml(name, (root / name).read_bytes(), problems)
    except OSError as error:
        raise DataError(f"{root / name}: cannot be read: {error.strerror or error}") from None


def _pythons(build: Build, known: Knowledge) -> list[str] | None:
    if build.python is None:
        return None
    spec = build.python
    return [r.version for r in known.releases.get("python", ()) if spec.contains(r.version)]


def _runs_on(build: Build, devices: Iterable[Device], gpus: Iterable[str]) -> list[str] | None:
    """The architectures that the machine code of a build (or its PTX, for later ones) runs on."""
    if not build.archs:
        return None
    cuda = build.bundles.get("cuda")
    specs = [
        device.runs_on
        for device in devices
        if device.arch in build.archs and (device.cuda is None or (cuda and device.cuda.contains(cuda)))
    ]
    later = [version_key(arch) for arch in build.ptx]
    found = []
    for gpu in gpus:
        key = version_key(gpu)
        by_ptx = key is not None and any(ptx is not None and key >= ptx for ptx in later)
        if by_ptx or any(spec.contains(gpu) for spec in specs):
            found.append(gpu)
    return found


def _floor(known: Knowledge, rule_id: str, component: str, version: str | None) -> str | None:
    """The driver that a row of a floor rule needs for a version, as the row says it (``>=580``)."""
    rule = next((r for r in known.rules if r.id == rule_id), None)
    for row in rule.rows if rule and version else ():
        wanted: Mapping[str, Any] = row.when
        if component in wanted and wanted[component].contains(version) and "driver" in row.needs:
            return str(row.needs["driver"].text)
    return None
