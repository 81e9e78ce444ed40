"""All of ``matrix/`` -> one :class:`Knowledge`, or one error with every problem of every file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from envsmith.errors import DataError
from envsmith.graph.data import DataFiles, find_matrix, list_files
from envsmith.graph.evidence import named_evidence, read_evidence
from envsmith.graph.failed import failed_runs
from envsmith.graph.parse import Node, Problems, parse_json, parse_yaml
from envsmith.graph.releases import declared_rules, read_gpu_names, read_releases
from envsmith.graph.rules import read_rules
from envsmith.graph.torch import Device, read_builds, read_devices, torch_releases, torch_rules
from envsmith.model.component import Component, ComponentTable, Role
from envsmith.model.evidence import Evidence, EvidenceKind
from envsmith.model.rule import Knowledge, Release, Rule, Tested
from envsmith.model.version import Spec, parse_version

__all__ = ["read_components", "read_gpus", "read_knowledge"]


def read_knowledge(root: Path | None = None) -> Knowledge:
    """Read and check every file below ``root`` (default: :func:`find_matrix`).

    :class:`DataError` carries every problem as ``file: key path: what is wrong — what to do``.
    """
    files = list_files(root or find_matrix())
    problems = Problems()
    digest = hashlib.sha256()
    roots: dict[str, Node] = {}
    for name in files.names:
        content = files.read(name)
        digest.update(f"{name} {len(content)}\n".encode() + content)
        parse = parse_json if name.endswith(".json") else parse_yaml
        node = parse(name, content, problems)
        if node is not None:
            roots[name] = node
    knowledge = _assemble(files, roots, problems, digest.hexdigest())
    if problems.lines:
        count = len(problems.lines)
        raise DataError(
            f"{files.root}: {count} problem{'s' * (count > 1)} in the knowledge",
            details=problems.lines,
            hint="the schema is described in matrix/README.md",
        )
    return knowledge


def _assemble(files: DataFiles, roots: Mapping[str, Node], problems: Problems, digest: str) -> Knowledge:
    table = read_components(roots.get("components.yaml"), problems)
    releases: dict[str, tuple[Release, ...]] = {}
    rules: list[Rule] = []
    gpu = roots.get("releases/gpu.yaml")
    devices, gpus = read_gpus(gpu)
    for name in _of(files, roots, "releases/"):
        if name == "releases/torch.yaml":
            builds = read_builds(roots[name])
            releases["torch"] = tuple(torch_releases(builds))
            rules += torch_rules(builds, devices)
            continue
        declared = read_releases(roots[name], table)
        if declared:
            component = declared[0].release.component
            if component in releases:
                problems.add(name, f"{component} has releases in another file too", "join them")
            releases[component] = tuple(d.release for d in declared)
            rules += declared_rules(component, declared)
    for name in _of(files, roots, "rules/"):
        rules += read_rules(roots[name], table)
    rules += failed_runs({name: roots[name].value for name in _of(files, roots, "records/")}, table)
    _unique(rules, problems)
    tested = [t for name in _of(files, roots, "tested/") for t in _tested(roots[name], table)]
    tested += [t for name in _of(files, roots, "records/") for t in _record(roots[name], table)]
    return Knowledge(
        components=table, releases=releases, rules=tuple(rules), tested=tuple(tested), gpus=gpus, digest=digest
    )


def _of(files: DataFiles, roots: Mapping[str, Node], folder: str) -> list[str]:
    return [name for name in files.names if name.startswith(folder) and name in roots]


def read_gpus(root: Node | None) -> tuple[list[Device], dict[str, str]]:
    """What each architecture runs on, and the names of GPUs, of releases/gpu.yaml."""
    fields = dict(root.items()) if root else {}
    return read_devices(fields.get("runs_on")), read_gpu_names(fields.get("names"))


def _unique(rules: list[Rule], problems: Problems) -> None:
    seen: set[str] = set()
    for rule in rules:
        if rule.id in seen:
            problems.add(f"rule {rule.id}", "this id is used twice", "an id is never reused: rename one")
        seen.add(rule.id)


def read_components(root: Node | None, problems: Problems) -> ComponentTable:
    """The table of components.yaml; problems are collected."""
    if root is None:
        return ComponentTable.of([])
    fields = root.fields(("components",))
    found = []
    for line in fields["components"].sequence() if "components" in fields else []:
        own = line.fields(("name", "role", "short", "title"), ("distributions", "aliases"))
        name, role = (
            (own["name"].text() if "name" in own else None),
            (own["role"].choice(Role) if "role" in own else None),
        )
        short, title = (own[k].text() if k in own else None for k in ("short", "title"))
        lists = {
            k: tuple(filter(None, (n.text() for n in own[k].sequence())))
            for k in ("distributions", "aliases")
            if k in own
        }
        if name and role and short and title:
            found.append(Component(name=name, role=role, short=short, title=title, **lists))
    try:
        return ComponentTable.of(found)
    except ValueError as error:
        problems.add(root.file, str(error), "a spelling belongs to one component")
        return ComponentTable({c.name: c for c in found}, {c.name: c.name for c in found})


def _tested(root: Node, table: ComponentTable) -> list[Tested]:
    fields = root.fields(("framework", "tested"), ("evidence",))
    framework = fields["framework"].text() if "framework" in fields else None
    if framework is not None and framework not in table.by_name:
        fields["framework"].wrong("unknown component", "see components.yaml")
    named = named_evidence(fields.get("evidence"))
    found = []
    for line in fields["tested"].sequence() if "tested" in fields else []:
        own = line.fields(("version", "torch", "evidence"), ("cuda", "python", "kind", "note", "gpu", "companions"))
        specs: dict[str, Spec | None] = {n: own[n].spec() for n in ("version", "torch", "cuda", "python") if n in own}
        evidence = read_evidence(own["evidence"], named, owner=line) if "evidence" in own else ()
        kind = own["kind"].text(maximum=40) if "kind" in own else "ci"
        version, torch = specs.get("version"), specs.get("torch")
        if framework and version and torch and evidence:
            found.append(
                Tested(
                    framework=framework,
                    version=version,
                    torch=torch,
                    cuda=specs.get("cuda"),
                    python=specs.get("python"),
                    kind=kind or "ci",
                    evidence=evidence,
                )
            )
    return found


def _record(root: Node, table: ComponentTable) -> list[Tested]:
    """A record of a run that passed supports its own cell; one that failed supports nothing."""
    value = root.value
    if not isinstance(value, dict) or value.get("passed") is not True:
        if not isinstance(value, dict):
            root.wrong("a record is an object")
        return []
    components, cell = value.get("components"), value.get("cell")
    if not isinstance(components, dict) or not isinstance(cell, str):
        root.wrong("no record: `cell` or `components` is missing")
        return []
    try:
        specs = {
            name: Spec.exactly(parse_version(version))
            for name, version in components.items()
            if isinstance(version, str) and name in ("torch", "cuda", "python", *table.by_name)
        }
    except ValueError as error:
        root.wrong(str(error))
        return []
    day = str(value.get("started", ""))[:10]
    rungs = value.get("rungs")
    reached = f", proved up to {rungs[-1]}" if isinstance(rungs, list) and rungs and isinstance(rungs[-1], str) else ""
    evidence = Evidence(kind=EvidenceKind.VALIDATED, source=f"record of {cell}{reached}: {root.file}", date=day)
    return [
        Tested(
            framework=name,
            version=specs[name],
            torch=specs["torch"],
            cuda=specs.get("cuda"),
            python=specs.get("python"),
            kind="record",
            evidence=(evidence,),
        )
        for name in (c.name for c in table.with_role(Role.FRAMEWORK))
        if name in specs and "torch" in specs
    ]
