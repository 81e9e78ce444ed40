"""Ask rattler, in process; never a Conda that is installed."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from envsmith.errors import LockError
from envsmith.lock.conda.channels import Channels, refusals, run_async, to_package
from envsmith.lock.conda.copies import sealed
from envsmith.lock.conda.model import CondaLock, CondaPackage, CondaSpec, PlatformLock
from envsmith.lock.conda.names import (
    candidates,
    clean,
    component_version,
    cuda_of_build,
    fold,
    public_url,
    require_rattler,
    same_version,
)
from envsmith.lock.conda.specs import HOST, MOVABLE, CondaPlan
from envsmith.model.cell import Cell
from envsmith.model.finding import Finding
from envsmith.model.lock import Pin
from envsmith.model.rule import Severity
from envsmith.model.version import WORDS
from envsmith.net.address import parts_of

_MAX_LINES = 30
_SECONDS = 300


class Unsolvable(Exception):  # noqa: N818 - an answer, not a failure: the caller asks again with less
    """No solution. ``lines`` is rattler's explanation."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("no solution")
        self.lines = tuple(lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """The circumstances of a solve: the channels and the machine, by its virtual packages."""

    channels: Channels
    virtual: Mapping[str, str]


def solve(specs: Sequence[CondaSpec], limits: Sequence[CondaSpec], ask: Ask) -> tuple[CondaPackage, ...]:
    """Return the packages, dependencies first. ``Unsolvable`` or ``LockError`` otherwise."""
    rattler = require_rattler()
    from rattler.exceptions import SolverError

    channels = ask.channels

    async def answer() -> Any:
        return await rattler.solve(
            [rattler.Channel(base) for base in channels.bases],
            [_match(rattler, s) for s in specs],
            gateway=channels.gateway,
            platforms=channels.subdirs,
            virtual_packages=[_virtual(rattler, name, text) for name, text in ask.virtual.items()],
            constraints=[_match(rattler, s) for s in limits],
            exclude_newer=channels.exclude_newer,
            timestamp_policy="allow-missing",
            timeout=dt.timedelta(seconds=_SECONDS),
            channel_relations="disabled",
        )

    try:
        with refusals(", ".join(channels.labels)), sealed(channels.copies):
            records = run_async(answer)
    except SolverError as error:
        raise Unsolvable(_explanation(str(error))) from error
    return _ordered([_checked(record, channels) for record in records])


def _match(rattler: Any, spec: CondaSpec) -> Any:
    # Strict parsing refuses the dots in the pytorch channel's build strings (``py3.12_cuda12.4_cudnn9.1.0_0``).
    return rattler.MatchSpec(str(spec), strict=False)


def _virtual(rattler: Any, name: str, text: str) -> Any:
    version, _, build = text.partition(" ")
    return rattler.GenericVirtualPackage(
        rattler.PackageName(name), rattler.Version(version), rattler.BuildString(build or "0")
    )


def _explanation(text: str) -> list[str]:
    lines = [clean(line, 200) for line in text.splitlines() if line.strip()]
    return lines if len(lines) <= _MAX_LINES else [*lines[:_MAX_LINES], f"… {len(lines) - _MAX_LINES} more lines"]


def _checked(record: Any, channels: Channels) -> CondaPackage:
    """Return a record that may be locked: it has both hashes, and its file may be the channel's."""
    url = str(record.url)
    place = next((n for n, base in enumerate(channels.bases) if str(record.channel).rstrip("/") == base), 0)
    base, channel = channels.bases[place], channels.labels[place]
    package = dataclasses.replace(to_package(record, base), url=url if url.startswith(base + "/") else public_url(url))
    who = f"{clean(package.name)} {clean(package.version)} of the channel {clean(channel)}"
    if not package.sha256 or not package.md5:
        raise LockError(
            f"Cannot lock {who}: it has no {'sha256' if not package.sha256 else 'md5'}.",
            hint="Index the channel again.",
        )
    if package.subdir not in channels.subdirs:
        raise LockError(
            f"Cannot lock {who}: it is for {clean(package.subdir)!r}, which is not a platform of this request."
        )
    stem = f"{package.name}-{package.version}-{package.build}"
    if unquote(package.filename) not in {f"{stem}.conda", f"{stem}.tar.bz2"}:
        raise LockError(
            f"Cannot lock {who}: it names the file {clean(package.filename)!r}, which is not that package's."
        )
    if not url.startswith(base + "/") and parts_of(url).scheme not in {"http", "https"}:
        raise LockError(f"Cannot lock {who}: its address is outside the channel ({clean(public_url(url))}).")
    return package


def _ordered(packages: Sequence[CondaPackage]) -> tuple[CondaPackage, ...]:
    """Put dependencies first. Names decide otherwise, and a cycle is cut at the name that was met first."""
    by_name = {p.name: p for p in packages}
    ordered: dict[str, CondaPackage] = {}
    for start in sorted(by_name):
        stack = [(start, iter(_needs(by_name[start], by_name)))]
        entered = {start}
        while stack and start not in ordered:
            name, dependencies = stack[-1]
            child = next((c for c in dependencies if c not in ordered and c not in entered), None)
            if child is None:
                ordered.setdefault(name, by_name[name])
                stack.pop()
            else:
                entered.add(child)
                stack.append((child, iter(_needs(by_name[child], by_name))))
    return tuple(ordered.values())


def _needs(package: CondaPackage, by_name: Mapping[str, CondaPackage]) -> list[str]:
    return sorted({n for d in package.depends if (n := d.split(" ")[0]) in by_name and n != package.name})


# Asks the solver several times: as near to the pip lock as the channel allows, and for the help that a refusal gives.


_RELAXED = "Conda has dependencies in other releases than the pip lock; the components of the cell are equal"

Solved = tuple[tuple[CondaSpec, ...], tuple[CondaPackage, ...], tuple[str, ...]]


def nearest_to_pip(plan: CondaPlan, ask: Ask, what: str) -> Solved:
    """Return the specs that were solved, the packages, and notes. The releases of the cell are never given up.

    First with every release of the pip lock that the channel has, then only where Conda installs it anyway, then
    without. ``LockError`` carries rattler's explanation and, when one component alone stands in the way, what the
    channel would give.
    """
    everything = ((*plan.specs, *plan.extra), (*plan.limits, *plan.soft), ())
    tries: dict[tuple[tuple[CondaSpec, ...], tuple[CondaSpec, ...]], tuple[str, ...]] = {everything[:2]: ()}
    tries.setdefault((plan.specs, (*plan.limits, *plan.soft)), ())
    tries.setdefault((plan.specs, plan.limits), (_RELAXED,))
    reason: tuple[str, ...] = ()
    for (specs, limits), notes in tries.items():
        try:
            return specs, solve(specs, limits, ask), notes
        except Unsolvable as refusal:  # noqa: PERF203 - three rounds
            reason = refusal.lines
    instead, hint = _instead(plan, ask)
    raise LockError(
        f"Cannot solve {what} for Conda: the builds of the channel exclude each other.",
        details=[*instead, *reason],
        hint=hint,
    )


def _instead(plan: CondaPlan, ask: Ask) -> tuple[list[str], str]:
    """Find which Conda build exists when NCCL, cuDNN or Triton, or all of them, may be another release."""
    for free in (*((name,) for name in MOVABLE), MOVABLE):
        specs = [CondaSpec(s.name) if s.name in free else s for s in plan.specs]
        limits = [s for s in plan.limits if s.name not in {*free, *(["torchtriton"] if "triton" in free else [])}]
        if specs == list(plan.specs) and limits == list(plan.limits):
            continue
        try:
            packages = {p.name: p for p in solve(specs, limits, ask)}
        except Unsolvable:
            continue
        asked_versions = {s.name: s.version.removesuffix(".*").removeprefix("==") for s in (*plan.specs, *plan.limits)}
        moved = {n: component_version(n, packages[n].version) for n in free if n in packages and n in asked_versions}
        moved = {n: v for n, v in moved.items() if not v.startswith(asked_versions[n])}
        torch = packages.get("pytorch")
        build = f"pytorch {torch.version} {torch.build}" if torch else "its builds"
        lines = [
            f"{n}: the cell has {asked_versions[n]}, the channel's {build} goes with {v}" for n, v in moved.items()
        ]
        flags = " ".join(f"--nccl {v}" if n == "nccl" else f"--with {n}=={v}" for n, v in moved.items())
        accept = " ".join(f"--conda-tolerate {n}" for n in moved)
        hint = f"Run envsmith solve {flags} for a cell whose PyTorch wheel has it too, "
        return lines, f"{hint}accept the difference with {accept}, or give another --channel."
    return [], "Choose another cell (envsmith solve --all), or give another --channel."


# Are the pip lock and the Conda lock one cell? Every component whose version differs is a finding that names both.


_WHEELS = {"nccl": "nvidia-nccl-cu", "cudnn": "nvidia-cudnn-cu"}


def compare(cell: Cell, pip_pins: Sequence[Pin], conda_lock: CondaLock) -> tuple[Finding, ...]:
    """Compare both locks: no finding of severity error means proved equal."""
    pins = {fold(p.name): p for p in pip_pins}
    findings: list[Finding] = []
    for part in conda_lock.platforms:
        for component, version in cell.components.items():
            if component not in HOST and version not in WORDS:
                findings += _component(component, version, pins, part)
        findings += _files(pins, part, own=part.platform is cell.platform)
    return tuple(findings)


def _component(component: str, version: str, pins: dict[str, Pin], part: PlatformLock) -> list[Finding]:
    release = _pip_version(component, pins) or version
    version_and_file = _conda_version(component, part)
    if version_and_file is None:
        return _absent(component, release, part)
    have, source = version_and_file
    if same_version(component, release, have):
        return []
    return [
        _finding(
            "conda-differs-from-pip",
            Severity.ERROR,
            {component: f"pip {release}, conda {have}"},
            f"{component} on {part.platform.value}: the pip lock has {release}, the Conda lock has {have} ({source})",
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
    """Return the version in the Conda lock, and the file that says so."""
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


def _absent(component: str, release: str, part: PlatformLock) -> list[Finding]:
    """Judge a missing component: NCCL, cuDNN and Triton may be inside of a channel's PyTorch."""
    inside = component in {"nccl", "cudnn", "triton"}
    explanation = "its PyTorch may carry it inside" if inside else "it is in neither part of the Conda lock"
    return [
        _finding(
            "conda-lacks-component",
            Severity.WARNING if inside else Severity.ERROR,
            {component: f"pip {release}, conda none"},
            f"{component} on {part.platform.value}: the pip lock has {release}, "
            f"the Conda lock has no package of it; {explanation}",
            "use a channel that has it as a package of its own" if inside else "lock again",
        )
    ]


def _files(pins: dict[str, Pin], part: PlatformLock, *, own: bool) -> list[Finding]:
    """Compare the pip packages with the pip lock: by file, on another platform by release."""
    findings = []
    for wheel in part.pip:
        pin = pins.get(wheel.name)
        listed = pin is not None and wheel.sha256 in {a.sha256 for a in pin.artifacts}
        if not listed and (own or pin is None or pin.version != wheel.version):
            have = f"pip {pin.version if pin else 'none'}, conda {wheel.version}"
            file = f"the file in the Conda lock (sha256 {wheel.sha256[:12]}…)"
            message = f"{wheel.name} on {part.platform.value}: {file} is not in the pip lock"
            findings.append(
                _finding("conda-pip-file-differs", Severity.ERROR, {wheel.name: have}, message, "lock again")
            )
    return findings
