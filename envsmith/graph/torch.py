"""``releases/torch.yaml`` -> releases of torch, and the rules that follow from what lies in each wheel.

A field that a line leaves out is not known: no row is made of it, and nothing follows. What a build is compiled for becomes the set of
GPUs it runs on through the table ``runs_on`` of ``releases/gpu.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from envsmith.graph.fields import Node, named_evidence, read_evidence, with_hash
from envsmith.model.cell import Platform
from envsmith.model.rule import Evidence, Release, Row, Rule, RuleKind
from envsmith.model.version import Spec

# What a torch wheel carries or pins, in the order in which rules are made of it.
BUNDLED = ("cuda", "nccl", "cudnn", "triton")
_OPTIONAL = (*BUNDLED, "date", "python", "gpu", "ptx", "glibc", "cxx11_abi", "sha256", "evidence_of", "yanked")
_PTX = re.compile(r"compute_(\d+)[af]?")
_CAUSE = {
    "cuda": "the build is made with that CUDA",
    "nccl": "the wheel pins that NCCL exactly",
    "cudnn": "the wheel pins that cuDNN exactly",
    "triton": "the wheel pins that Triton exactly",
}


@dataclass(frozen=True, slots=True)
class Device:
    """Machine code for ``arch`` (in builds with a CUDA of ``cuda``) runs on the GPUs of ``runs_on``."""

    arch: str
    runs_on: Spec
    cuda: Spec | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """One line: a build of torch on one platform. ``fields`` are the parsed facts, ``evidence`` where each is from."""

    version: str
    platform: Platform
    index: str
    date: str | None
    yanked: str | None
    bundles: Mapping[str, str]
    python: Spec | None
    archs: tuple[str, ...]
    ptx: tuple[str, ...]
    glibc: str | None
    facts: Mapping[str, object]
    evidence: tuple[Evidence, ...]
    evidence_of: Mapping[str, tuple[Evidence, ...]]

    def why(self, field: str) -> tuple[Evidence, ...]:
        """The evidence of one field."""
        return self.evidence_of.get(field, self.evidence)


def read_devices(node: Node | None) -> list[Device]:
    """The table ``runs_on`` of ``releases/gpu.yaml``."""
    devices = []
    for line in node.sequence() if node else []:
        fields = line.fields(("gpu", "runs_on", "evidence"), ("cuda",))
        arch = fields["gpu"].version() if "gpu" in fields else None
        runs_on = fields["runs_on"].spec() if "runs_on" in fields else None
        cuda = fields["cuda"].spec() if "cuda" in fields else None
        if arch and runs_on:
            devices.append(Device(arch, runs_on, cuda))
    return devices


def read_builds(root: Node) -> list[Build]:
    """Every line of ``builds:``; two lines for one version and platform are a problem."""
    fields = root.fields(("component", "builds"), ("evidence",))
    named = named_evidence(fields.get("evidence"))
    builds: dict[tuple[str, Platform], Build] = {}
    for line in fields["builds"].sequence() if "builds" in fields else []:
        build = _build(line, named)
        if build and builds.setdefault((build.version, build.platform), build) is not build:
            line.wrong(f"{build.version} on {build.platform.value} stands in this file twice", "remove one line")
    return list(builds.values())


def _build(line: Node, named: Mapping[str, Evidence]) -> Build | None:
    fields = line.fields(("version", "platform", "index", "evidence"), _OPTIONAL)
    if not {"version", "platform", "index"} <= fields.keys():
        return None
    version = fields["version"].version()
    platform = fields["platform"].choice(Platform)
    index = fields["index"].text()
    if index not in (None, "default", "pytorch"):
        fields["index"].wrong("unknown index", "choose default, pytorch")
    evidence = with_hash(read_evidence(fields.get("evidence"), named, owner=line), fields.get("sha256"))
    apart = {
        name: read_evidence(node, named, owner=line)
        for name, node in (fields["evidence_of"].items() if "evidence_of" in fields else ())
    }
    bundles = {name: fields[name].version() for name in BUNDLED if name in fields}
    if not version or not platform or not index or not evidence:
        return None
    return Build(
        version=version,
        platform=platform,
        index=index,
        date=fields["date"].day() if "date" in fields else None,
        yanked=fields["yanked"].text() if "yanked" in fields else None,
        bundles={name: value for name, value in bundles.items() if value},
        python=fields["python"].spec() if "python" in fields else None,
        archs=_archs(fields.get("gpu")),
        ptx=tuple(filter(None, (_ptx(n) for n in fields["ptx"].sequence()))) if "ptx" in fields else (),
        glibc=fields["glibc"].version() if "glibc" in fields else None,
        facts=_facts(fields),
        evidence=evidence,
        evidence_of=apart,
    )


def _archs(node: Node | None) -> tuple[str, ...]:
    return tuple(filter(None, (entry.version() for entry in node.sequence()))) if node else ()


def _ptx(node: Node) -> str | None:
    text = node.text()
    match = _PTX.fullmatch(text or "")
    if text and not match:
        node.wrong("not a PTX architecture", "compute_90")
    return f"sm_{match[1]}" if match else None


def _facts(fields: Mapping[str, Node]) -> dict[str, object]:
    facts: dict[str, object] = {}
    if "cxx11_abi" in fields:
        facts["cxx11_abi"] = fields["cxx11_abi"].flag()
    for name in ("gpu", "ptx"):
        if name in fields and isinstance(fields[name].value, list):
            facts[name] = [str(v) for v in fields[name].value]
    if "sha256" in fields:
        facts["sha256"] = fields["sha256"].text()
    return facts


def torch_releases(builds: Iterable[Build]) -> list[Release]:
    """One release per build and platform."""
    return [
        Release(
            component="torch",
            version=b.version,
            date=b.date,
            yanked=b.yanked,
            index=b.index,
            platforms=(b.platform,),
            facts=b.facts,
            evidence=b.evidence,
        )
        for b in builds
    ]


def torch_rules(builds: Sequence[Build], devices: Sequence[Device]) -> list[Rule]:
    """The rules that every torch wheel carries in itself."""
    rules = []
    for name in BUNDLED:
        rows = [
            _needs(b, name, Spec.exactly(b.bundles[name]), b.why(name), _CAUSE[name])
            for b in builds
            if name in b.bundles
        ]
        rules.append(_rule(f"torch-bundles-{name}", RuleKind.BUNDLES, rows, stage="install"))
    pythons = [
        _needs(b, "python", b.python, b.why("python"), "there are wheels for these only") for b in builds if b.python
    ]
    rules.append(_rule("torch-wheels-python", RuleKind.REQUIRES, pythons, stage="install"))
    rules.append(_rule("torch-wheels-platform", RuleKind.CONFLICTS, _platform_rows(builds), stage="install"))
    rules.append(_rule("torch-runs-on-gpu", RuleKind.REQUIRES, _gpu_rows(builds, devices), stage="init"))
    glibcs = [
        _needs(b, "glibc", Spec.parse(f">={b.glibc}"), b.why("glibc"), "the platform tag of the wheel")
        for b in builds
        if b.glibc
    ]
    rules.append(_rule("torch-needs-glibc", RuleKind.REQUIRES, glibcs, stage="install"))
    return [rule for rule in rules if rule.rows]


def _rule(rule_id: str, kind: RuleKind, rows: list[Row], *, stage: str) -> Rule:
    return Rule(id=rule_id, kind=kind, rows=tuple(rows), stage=stage)


def _needs(build: Build, component: str, spec: Spec, evidence: tuple[Evidence, ...], cause: str) -> Row:
    return Row(
        when={"torch": Spec.exactly(build.version)},
        needs={component: spec},
        platforms=(build.platform,),
        cause=cause,
        evidence=evidence,
    )


def _platform_rows(builds: Sequence[Build]) -> list[Row]:
    """A version that is not built for a platform is bad there."""
    where: dict[str, list[Build]] = {}
    for build in builds:
        where.setdefault(build.version, []).append(build)
    rows = []
    for version, there in where.items():
        for platform in Platform:
            if all(b.platform is not platform for b in there):
                cause = "published for " + ", ".join(b.platform.value for b in there) + " only"
                when = {"torch": Spec.exactly(version)}
                rows.append(Row(when=when, platforms=(platform,), cause=cause, evidence=there[0].evidence))
    return rows


def _gpu_rows(builds: Sequence[Build], devices: Sequence[Device]) -> list[Row]:
    rows = []
    for build in builds:
        cuda = build.bundles.get("cuda", "none")
        runs = [d.runs_on.text for d in devices if d.arch in build.archs and (d.cuda is None or d.cuda.contains(cuda))]
        known = {d.arch for d in devices}
        runs += [f"=={arch}" for arch in build.archs if arch not in known]
        runs += [f">={arch}" for arch in build.ptx]
        if runs:
            cause = "compiled for " + " ".join(build.archs) + "".join(f" and PTX of {p}" for p in build.ptx)
            spec = Spec.parse(" || ".join(dict.fromkeys(runs)))
            rows.append(_needs(build, "gpu", spec, build.why("gpu"), cause))
    return rows
