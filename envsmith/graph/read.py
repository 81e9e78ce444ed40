"""All of ``matrix/`` -> one :class:`Knowledge`, or one error with every problem of every file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from packaging.version import Version

from envsmith.errors import DataError
from envsmith.frameworks import FRAMEWORKS
from envsmith.graph.fields import Node, Problems, named_evidence, parse_json, parse_yaml, read_evidence, with_hash
from envsmith.graph.files import DataFiles, find_matrix, list_files
from envsmith.graph.torch import Device, read_builds, read_devices, torch_releases, torch_rules
from envsmith.model.cell import Platform
from envsmith.model.component import Component, ComponentTable, Role
from envsmith.model.rule import Evidence, EvidenceKind, Knowledge, Release, Row, Rule, RuleKind, Severity, Tested
from envsmith.model.version import Spec, parse_version, version_key


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
    """Read components.yaml into a table, with the frameworks before it; problems are collected."""
    if root is None:
        return ComponentTable.of([])
    fields = root.fields(("components",))
    found = [
        Component(
            name=f.name,
            role=Role.FRAMEWORK,
            short=f.short,
            title=f.title,
            distributions=f.distributions,
            aliases=f.aliases,
        )
        for f in FRAMEWORKS.values()
    ]
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


# Runs that failed -> known-bad cells: what failed here once is not chosen again, even before anybody knows why.
#
# A warning, not an error: it speaks of one cell on one machine. Where the cause is known there is a rule beside it, which says more.


# What follows from torch stands in no row: the cell is named by what was chosen.
_FOLLOWS = frozenset({"cuda", "nccl", "cudnn", "triton"})
_STAGES = {
    "locked": "install",
    "installed": "install",
    "imported": "import",
    "collectives(cpu)": "communication",
    "collectives(gpu)": "communication",
}
# Verdicts that a busy machine can cause.
_TRANSIENT = frozenset({"hang", "crash", "not-run"})


def failed_runs(records: Mapping[str, object], table: ComponentTable) -> list[Rule]:
    """One rule a framework and stage, a row for each cell whose newest run failed by its own fault. ``records`` maps file names to documents."""
    newest: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for name, value in records.items():
        if isinstance(value, dict) and isinstance(value.get("cell"), str):
            found = (str(value.get("started", "")), name, value)
            newest[value["cell"]] = max(newest.get(value["cell"], found), found, key=lambda f: f[:2])
    rows: dict[tuple[str, str], list[Row]] = {}
    for _, name, value in newest.values():
        row = _row(name, value, table)
        framework = next((c.name for c in table.with_role(Role.FRAMEWORK) if row and c.name in row.when), None)
        if row and framework:
            stage = _STAGES.get(str(value["failure"].get("rung")), "train")
            rows.setdefault((framework, stage), []).append(row)
    return [
        Rule(
            id=f"{framework}-run-failed-{stage}",
            kind=RuleKind.CONFLICTS,
            rows=tuple(rows[framework, stage]),
            stage=stage,
            cause="a run of this very cell failed",
            fix="Take another release of one of them; `envsmith matrix show CELL` tells what was seen.",
        )
        for framework, stage in sorted(rows)
    ]


def _row(name: str, record: Mapping[str, Any], table: ComponentTable) -> Row | None:
    failure, components = record.get("failure"), record.get("components")
    if record.get("passed") is not False or not isinstance(failure, dict) or not isinstance(components, dict):
        return None
    verdicts = {str(s.get("verdict")) for s in record.get("steps") or () if isinstance(s, dict)}
    if failure.get("of_host") is True or verdicts & _TRANSIENT:
        return None
    try:
        when = {
            str(n): Spec.exactly(parse_version(str(v)))
            for n, v in components.items()
            if n in table.by_name and n not in _FOLLOWS and table.by_name[n].role is not Role.HOST
        }
    except ValueError:
        return None  # the reader of records has told it
    day = str(record.get("started", ""))[:10]
    evidence = Evidence(kind=EvidenceKind.VALIDATED, source=f"record of {record['cell']}: {name}", date=day)
    return Row(
        when=when, severity=Severity.WARNING, symptom=str(failure.get("symptom", ""))[:300], evidence=(evidence,)
    )


# ``releases/<component>.yaml`` -> releases, and the rules that they declare themselves.


_OPTIONAL = (
    "date", "yanked", "requires", "python", "sdist_only", "build_imports", "evidence", "sha256",
    "cuda_majors", "driver", "runfile_driver", "cudart", "cuda_shown", "family",
)  # fmt: skip
_PLAIN = ("cuda_majors", "driver", "runfile_driver", "cudart", "cuda_shown", "family", "build_imports")


@dataclass(frozen=True, slots=True)
class Declared:
    """A release and what it says it needs."""

    release: Release
    requires: Mapping[str, Spec]
    python: Spec | None


def read_releases(root: Node, table: ComponentTable) -> list[Declared]:
    """Every release of a file (except torch's), in version order; a version that stands there twice is a problem."""
    fields = root.fields(("component", "releases"), ("evidence", "names", "runs_on"))
    component = fields["component"].text() if "component" in fields else None
    if component is None or component not in table.by_name:
        if component:
            fields["component"].wrong("unknown component", "see components.yaml")
        return []
    named = named_evidence(fields.get("evidence"))
    found: dict[str, Declared] = {}
    for line in fields["releases"].sequence() if "releases" in fields else []:
        own = line.fields(("version", "evidence"), _OPTIONAL)
        version = own["version"].version() if "version" in own else None
        evidence = read_evidence(own["evidence"], named, owner=line) if "evidence" in own else ()
        evidence = with_hash(evidence, own.get("sha256"))
        if not version or not evidence:
            continue
        requires, _ = read_specs(own["requires"], table) if "requires" in own else ({}, ())
        release = Release(
            component=component,
            version=version,
            date=own["date"].day() if "date" in own else None,
            yanked=_yanked(own.get("yanked")),
            facts=_facts(own),
            evidence=evidence,
        )
        declared = Declared(release, requires, own["python"].spec() if "python" in own else None)
        if found.setdefault(version, declared) is not declared:
            line.wrong(f"{version} stands in this file twice", "remove one line")
    return in_order(found.values())


def in_order(declared: Iterable[Declared]) -> list[Declared]:
    """Oldest version first; words such as ``cpu`` come first of all."""
    return sorted(declared, key=lambda d: version_key(d.release.version) or Version("0.dev0"))


def _yanked(node: Node | None) -> str | None:
    if node is None or node.value is False:
        return None
    return "yanked" if node.value is True else node.text()


def _facts(fields: Mapping[str, Node]) -> dict[str, object]:
    facts: dict[str, object] = {}
    if "sdist_only" in fields:
        facts["sdist_only"] = fields["sdist_only"].flag()
    for name in _PLAIN:
        node = fields.get(name)
        if node is not None:
            many = isinstance(node.value, list)
            facts[name] = [entry.text() for entry in node.sequence()] if many else node.text()
    return facts


def declared_rules(component: str, declared: Sequence[Declared]) -> list[Rule]:
    """``<component>-declares-<target>``: one row per run of consecutive releases that declare the same."""
    targets = dict.fromkeys(t for d in declared for t in [*d.requires, *(["python"] if d.python else [])])
    rules = []
    for target in targets:
        rows: list[Row] = []
        for spec, group in groupby(declared, key=lambda d, t=target: _declares(d, t)):  # type: ignore[misc]
            run = list(group)
            if spec is not None:
                rows.append(_release_row(component, target, spec, run))
        if rows:
            rules.append(
                Rule(id=f"{component}-declares-{target}", kind=RuleKind.REQUIRES, rows=tuple(rows), stage="install")
            )
    return rules


def _declares(declared: Declared, target: str) -> Spec | None:
    """What one release asks of ``target``, or ``None`` when that bars no version."""
    spec = declared.requires.get(target)
    if target == "python" and spec is None:
        spec = declared.python
    return None if spec is None or spec.is_any else spec


def _release_row(component: str, target: str, spec: Spec, run: Sequence[Declared]) -> Row:
    first, last = run[0].release, run[-1].release
    when = f"=={first.version}" if first is last else f">={first.version},<={last.version}"
    evidence = tuple(dict.fromkeys(e for d in run for e in d.release.evidence))
    return Row(
        when={component: Spec.parse(when)}, needs={target: spec}, cause="its metadata says so", evidence=evidence[:4]
    )


def read_gpu_names(node: Node | None) -> dict[str, str]:
    """Folded name of a GPU -> ``sm_NN``; a name that stands for two architectures is a problem."""
    names: dict[str, str] = {}
    for line in node.sequence() if node else []:
        fields = line.fields(("gpu", "names", "evidence"))
        arch = fields["gpu"].version() if "gpu" in fields else None
        for entry in fields["names"].sequence() if "names" in fields else []:
            name = entry.text(maximum=60)
            if name and arch:
                folded = re.sub(r"[-_\s]+", "", name.lower())
                if names.setdefault(folded, arch) != arch:
                    entry.wrong(f"names both {names[folded]} and {arch}")
    return names


# ``rules/<topic>.yaml`` -> :class:`Rule` values.


STAGES = ("install", "build", "import", "init", "communication", "train", "checkpoint", "inference")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9_.]+)*")
_ROW = ("when", "needs", "severity", "symptom", "cause", "fix", "evidence")
_RULE = ("id", "kind", "rows", "stage", "signature", "platform", "title", *_ROW)


def read_rules(root: Node, table: ComponentTable) -> list[Rule]:
    """Every rule of one file; what is malformed is noted and left out."""
    fields = root.fields(("rules",), ("evidence",))
    named = named_evidence(fields.get("evidence"))
    rules = [_rule(node, named, table) for node in fields["rules"].sequence()] if "rules" in fields else []
    return [rule for rule in rules if rule]


def read_specs(node: Node, table: ComponentTable) -> tuple[dict[str, Spec], tuple[Platform, ...]]:
    """A mapping of component to spec; ``platform`` stands apart."""
    specs: dict[str, Spec] = {}
    platforms: tuple[Platform, ...] = ()
    for name, value in node.items():
        if name == "platform":
            member = value.choice(Platform)
            platforms = (member,) if member else ()
        elif name not in table.by_name:
            near = table.nearest(name)
            value.wrong(f"unknown component `{name}`", f"did you mean {near[0]}?" if near else "see components.yaml")
        else:
            spec = value.spec()
            if spec is not None:
                specs[name] = spec
    return specs, platforms


def _rule(node: Node, named: Mapping[str, Evidence], table: ComponentTable) -> Rule | None:
    fields = node.fields(("id", "kind"), _RULE)
    rule_id = fields["id"].text(maximum=80) if "id" in fields else None
    kind = fields["kind"].choice(RuleKind) if "kind" in fields else None
    if rule_id and not _ID.fullmatch(rule_id):
        fields["id"].wrong("not a rule id", "kebab case, topic first: deepspeed-elastic-log")
    stage = _text(fields, "stage")
    if stage and stage not in STAGES:
        fields["stage"].wrong("unknown stage", "choose " + ", ".join(STAGES))
    rows = _rows(node, fields, named, table, kind)
    signature = _signature(fields)
    if not rule_id or kind is None or not rows:
        return None
    return Rule(
        id=rule_id,
        kind=kind,
        rows=rows,
        stage=stage,
        signature=signature,
        symptom=_text(fields, "symptom"),
        cause=_text(fields, "cause"),
        fix=_text(fields, "fix"),
    )


def _signature(fields: Mapping[str, Node]) -> str | None:
    text = _text(fields, "signature")
    if text:
        try:
            re.compile(text)
        except re.error as error:
            fields["signature"].wrong(f"not a regular expression: {error}")
            return None
    return text


def _text(fields: Mapping[str, Node], name: str) -> str | None:
    return fields[name].text(maximum=4000) if name in fields else None


@dataclass(frozen=True, slots=True)
class _Reader:
    """What every row of one rule shares."""

    named: Mapping[str, Evidence]
    table: ComponentTable
    kind: RuleKind | None
    rule: Mapping[str, Node]
    shared: tuple[Evidence, ...]

    def row(self, line: Node, own: Mapping[str, Node]) -> Row | None:
        """One statement; ``own`` are its fields, which are those of the rule itself when that has no table."""
        if "when" not in own:
            if own is self.rule:
                line.problems.add(line.where, "`when` is missing", "add `when:` or `rows:`")
            return None
        when, platforms = read_specs(own["when"], self.table)
        needs, _ = read_specs(own["needs"], self.table) if "needs" in own else ({}, ())
        self.check_needs(line, own, needs)
        evidence = self.evidence(line, own)
        if not when and not own["when"].value:
            own["when"].wrong("speaks of no component")
        if not when or not evidence:
            return None
        inherited: dict[str, Any] = {}
        for name in ("symptom", "cause", "fix"):
            inherited[name] = _text(own, name) or _text(self.rule, name)
        severity = own.get("severity") or self.rule.get("severity")
        level = (severity.choice(Severity) if severity else None) or Severity.ERROR
        return Row(when=when, needs=needs, platforms=platforms, severity=level, evidence=evidence, **inherited)

    def check_needs(self, line: Node, own: Mapping[str, Node], needs: Mapping[str, Spec]) -> None:
        """Whether ``needs`` fits the kind of the rule."""
        if self.kind is RuleKind.CONFLICTS and needs:
            own["needs"].wrong("a rule of kind conflicts has no `needs`", "write kind: requires")
        if self.kind in (RuleKind.REQUIRES, RuleKind.BUNDLES) and "needs" not in own:
            line.problems.add(line.where, f"a row of kind {self.kind.value} needs `needs`")

    def evidence(self, line: Node, own: Mapping[str, Node]) -> tuple[Evidence, ...]:
        """The row's own evidence, else the rule's; none at all is a problem."""
        if own is not self.rule and "evidence" in own:
            return read_evidence(own["evidence"], self.named, owner=line)
        if "evidence" not in self.rule:
            read_evidence(None, self.named, owner=line)
        return self.shared


def _rows(
    node: Node, fields: dict[str, Node], named: Mapping[str, Evidence], table: ComponentTable, kind: RuleKind | None
) -> tuple[Row, ...]:
    has_table = "rows" in fields
    if has_table and "when" in fields:
        node.problems.add(node.where, "`when` and `rows` together", "move `when` into a row")
    lines = fields["rows"].sequence() if has_table else [node]
    if has_table and not lines:
        fields["rows"].wrong("no rows")
    shared = read_evidence(fields["evidence"], named, owner=node) if "evidence" in fields else ()
    reader = _Reader(named, table, kind, fields, shared)
    rows = [reader.row(line, line.fields(("when",), _ROW) if has_table else fields) for line in lines]
    return tuple(row for row in rows if row)
