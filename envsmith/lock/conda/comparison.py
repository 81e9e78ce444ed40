"""Are the pip lock and the Conda lock one cell? Every component whose version differs is a finding that names both. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envsmith.lock.conda.model import CondaLock, CondaPackage, PlatformLock
from envsmith.lock.conda.names import candidates, component_version, cuda_of_build, fold, same_version
from envsmith.model.cell import Cell
from envsmith.model.finding import Finding
from envsmith.model.lock import Pin
from envsmith.model.rule import Severity
from envsmith.model.version import WORDS

__all__ = ["compare"]

_HOST = frozenset({"driver", "gpu", "toolkit", "gcc", "clang", "glibc", "cmake", "openmpi"})
_WHEELS = {"nccl": "nvidia-nccl-cu", "cudnn": "nvidia-cudnn-cu"}


def compare(cell: Cell, pip_pins: Sequence[Pin], conda_lock: CondaLock) -> tuple[Finding, ...]:
    """Findings, platforms in the lock's order and components in the cell's; none of severity error means proved equal."""
    pins = {fold(p.name): p for p in pip_pins}
    findings: list[Finding] = []
    for part in conda_lock.platforms:
        for component, version in cell.components.items():
            if component not in _HOST and version not in WORDS:
                findings += _component(component, version, pins, part)
        findings += _files(pins, part, own=part.platform is cell.platform)
    return tuple(findings)


def _component(component: str, version: str, pins: dict[str, Pin], part: PlatformLock) -> list[Finding]:
    wanted = _pip_version(component, pins) or version
    found = _conda_version(component, part)
    if found is None:
        return _absent(component, wanted, part)
    have, source = found
    if same_version(component, wanted, have):
        return []
    return [
        _finding(
            "conda-differs-from-pip",
            Severity.ERROR,
            {component: f"pip {wanted}, conda {have}"},
            f"{component} on {part.platform.value}: the pip lock has {wanted}, the Conda lock has {have} ({source})",
            "lock again; when the channel has no build with this release, choose a cell that it has",
        )
    ]


def _finding(rule: str, severity: Severity, components: dict[str, str], message: str, fix: str) -> Finding:
    return Finding(rule=rule, severity=severity, components=components, message=message, fix=fix)


def _pip_version(component: str, pins: dict[str, Pin]) -> str | None:
    if prefix := _WHEELS.get(component):
        return next((p.version for name, p in sorted(pins.items()) if name.startswith(prefix)), None)
    pin = pins.get(fold(component))
    return pin.version if pin else None


def _conda_version(component: str, part: PlatformLock) -> tuple[str, str] | None:
    """The version in the Conda lock, and the file that says so."""
    if component == "cuda":
        torch = part.package("pytorch")
        if torch is None:
            return None
        return cuda_of_build(torch.build) or "unknown", torch.filename
    for name in candidates("pytorch" if component == "torch" else component):
        package: CondaPackage | None = part.package(name)
        if package:
            return component_version(component, package.version), package.filename
    torch = part.package("pytorch")
    if component == "cudnn" and torch and (inside := re.search(r"_cudnn(\d+\.\d+\.\d+)", torch.build)):
        return inside[1], torch.filename
    wheel = next((w for w in part.pip if w.name == fold(component)), None)
    return (wheel.version, wheel.url.rsplit("/", 1)[-1]) if wheel else None


def _absent(component: str, wanted: str, part: PlatformLock) -> list[Finding]:
    """NCCL, cuDNN and Triton may be inside of a channel's PyTorch; anything else that is missing makes another cell."""
    inside = component in {"nccl", "cudnn", "triton"}
    said = "its PyTorch may carry it inside" if inside else "it is in neither part of the Conda lock"
    return [
        _finding(
            "conda-lacks-component",
            Severity.WARNING if inside else Severity.ERROR,
            {component: f"pip {wanted}, conda none"},
            f"{component} on {part.platform.value}: the pip lock has {wanted}, the Conda lock has no package of it; {said}",
            "use a channel that has it as a package of its own" if inside else "lock again",
        )
    ]


def _files(pins: dict[str, Pin], part: PlatformLock, *, own: bool) -> list[Finding]:
    """Every pip package of the Conda lock is a file of the pip lock; on a platform that is not the cell's own, of its release."""
    findings = []
    for wheel in part.pip:
        pin = pins.get(wheel.name)
        listed = pin is not None and wheel.sha256 in {a.sha256 for a in pin.artifacts}
        if not listed and (own or pin is None or pin.version != wheel.version):
            have = f"pip {pin.version if pin else 'none'}, conda {wheel.version}"
            message = f"{wheel.name} on {part.platform.value}: the file in the Conda lock (sha256 {wheel.sha256[:12]}…) is not in the pip lock"
            findings.append(
                _finding("conda-pip-file-differs", Severity.ERROR, {wheel.name: have}, message, "lock again")
            )
    return findings
