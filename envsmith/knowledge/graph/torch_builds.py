"""``releases/torch.yaml`` -> releases of torch, and the rules that follow from what lies in each wheel.

A field that a line leaves out is not known: no row is made of it, and nothing follows. What a build is compiled for
becomes the set of GPUs it runs on through the table ``runs_on`` of ``releases/gpu.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from envsmith.base.json_types import JsonDict
from envsmith.base.schema import Day, Flag, Sha256, Text, each_once, strict, text_of
from envsmith.knowledge.graph.fields import Sources, SpecText, Version
from envsmith.model.cell import Platform
from envsmith.model.component import CARRIED
from envsmith.model.rule import WHEELS_ONLY, Evidence, Release, Row, Rule, RuleKind
from envsmith.model.version import Spec

_PTX = re.compile(r"compute_(\d+)[af]?")
_CAUSE = {
    "cuda": "the build is made with that CUDA",
    "nccl": "the wheel pins that NCCL exactly",
    "cudnn": "the wheel pins that cuDNN exactly",
    "triton": "the wheel pins that Triton exactly",
}
_PtxText = Annotated[str, text_of(20, _PTX, "compute_90", "not a PTX architecture")]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """Machine code for ``gpu`` (in builds with a CUDA of ``cuda``) runs on the GPUs of ``runs_on``."""

    gpu: Version
    runs_on: SpecText
    evidence: Sources
    cuda: SpecText | None = None


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """One line: a build of torch on one platform. ``evidence_of`` says where a single field is from."""

    version: Version
    platform: Platform
    index: Literal["default", "pytorch"]
    evidence: Sources
    date: Day | None = None
    yanked: Text | None = None
    cuda: Version | None = None
    nccl: Version | None = None
    cudnn: Version | None = None
    triton: Version | None = None
    python: SpecText | None = None
    gpu: tuple[Version, ...] | None = None
    ptx: tuple[_PtxText, ...] | None = None
    glibc: Version | None = None
    cxx11_abi: Flag | None = None
    sha256: Sha256 | None = None
    evidence_of: Mapping[str, Sources] = field(default_factory=dict)

    @property
    def ptx_archs(self) -> list[str]:
        """Return the architectures whose PTX lies in the build, as ``sm_90``."""
        return [_PTX.sub(r"sm_\1", entry) for entry in self.ptx or ()]

    @property
    def facts(self) -> JsonDict:
        """Return what a release shows beyond its version."""
        facts = {
            "cxx11_abi": self.cxx11_abi,
            "gpu": None if self.gpu is None else list(self.gpu),
            "ptx": None if self.ptx is None else list(self.ptx),
            "sha256": self.sha256,
        }
        return {name: value for name, value in facts.items() if value is not None}

    @property
    def sources(self) -> tuple[Evidence, ...]:
        """Return the evidence of the line, with the hash of the wheel."""
        return with_hash(self.evidence, self.sha256)

    def why(self, name: str) -> tuple[Evidence, ...]:
        """Return the evidence of one field."""
        return self.evidence_of.get(name, self.sources)


def with_hash(evidence: tuple[Evidence, ...], sha256: str | None) -> tuple[Evidence, ...]:
    """Return the evidence of a line with the hash that the line states in its first entry."""
    return (replace(evidence[0], sha256=sha256), *evidence[1:]) if sha256 else evidence


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class TorchFile:
    """``releases/torch.yaml``."""

    component: Text
    builds: Annotated[tuple[Build, ...], each_once(lambda build: f"{build.version} on {build.platform.value}")]
    evidence: object = None


def torch_releases(builds: Iterable[Build]) -> list[Release]:
    """Return one release per build and platform."""
    return [
        Release(
            component="torch",
            version=b.version,
            date=b.date,
            yanked=b.yanked,
            index=b.index,
            platforms=(b.platform,),
            facts=b.facts,
            evidence=b.sources,
        )
        for b in builds
    ]


def torch_rules(builds: Sequence[Build], devices: Sequence[Device]) -> list[Rule]:
    """Return the rules that every torch wheel carries in itself."""
    rules = []
    for name in CARRIED:
        carried = [(b, getattr(b, name)) for b in builds if getattr(b, name)]
        rows = [_needs(b, name, Spec.exactly(version), _CAUSE[name]) for b, version in carried]
        rules.append(Rule(id=f"torch-bundles-{name}", kind=RuleKind.BUNDLES, rows=tuple(rows), stage="install"))
    pythons = [_needs(b, "python", b.python, WHEELS_ONLY) for b in builds if b.python]
    glibcs = [
        _needs(b, "glibc", Spec.parse(f">={b.glibc}"), "the platform tag of the wheel") for b in builds if b.glibc
    ]
    platforms, gpus = _platform_rows(builds), _gpu_rows(builds, devices)
    rules += [
        Rule(id="torch-wheels-python", kind=RuleKind.REQUIRES, rows=tuple(pythons), stage="install"),
        Rule(id="torch-wheels-platform", kind=RuleKind.CONFLICTS, rows=tuple(platforms), stage="install"),
        Rule(id="torch-runs-on-gpu", kind=RuleKind.REQUIRES, rows=tuple(gpus), stage="init"),
        Rule(id="torch-needs-glibc", kind=RuleKind.REQUIRES, rows=tuple(glibcs), stage="install"),
    ]
    return [rule for rule in rules if rule.rows]


def _needs(build: Build, component: str, spec: Spec, cause: str) -> Row:
    return Row(
        when={"torch": Spec.exactly(build.version)},
        needs={component: spec},
        platforms=(build.platform,),
        cause=cause,
        evidence=build.why(component),
    )


def _platform_rows(builds: Sequence[Build]) -> list[Row]:
    """Return the rows by which a version that is not built for a platform is bad there."""
    by_version: dict[str, list[Build]] = {}
    for build in builds:
        by_version.setdefault(build.version, []).append(build)
    rows = []
    for version, published in by_version.items():
        for platform in Platform:
            if all(b.platform is not platform for b in published):
                cause = "published for " + ", ".join(b.platform.value for b in published) + " only"
                when = {"torch": Spec.exactly(version)}
                rows.append(Row(when=when, platforms=(platform,), cause=cause, evidence=published[0].sources))
    return rows


def _gpu_rows(builds: Sequence[Build], devices: Sequence[Device]) -> list[Row]:
    rows = []
    listed = {d.gpu for d in devices}
    for build in builds:
        cuda, archs = build.cuda or "none", build.gpu or ()
        runs = [d.runs_on.text for d in devices if d.gpu in archs and (d.cuda is None or d.cuda.contains(cuda))]
        runs += [f"=={arch}" for arch in archs if arch not in listed]
        runs += [f">={arch}" for arch in build.ptx_archs]
        if runs:
            cause = "compiled for " + " ".join(archs) + "".join(f" and PTX of {p}" for p in build.ptx_archs)
            rows.append(_needs(build, "gpu", Spec.parse(" || ".join(dict.fromkeys(runs))), cause))
    return rows
