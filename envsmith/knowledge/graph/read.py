"""All of ``matrix/`` -> one :class:`Knowledge`, or one error with every problem of every file."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from envsmith.base.json_types import JsonDict, JsonFields, object_in
from envsmith.base.schema import (
    Made,
    Parsed,
    Prepared,
    Problems,
    UnreadableError,
    WrongValueError,
    check,
    not_empty,
    parse_document,
    strict,
    text_of,
)
from envsmith.frameworks import CORE, FRAMEWORKS
from envsmith.knowledge.graph.fields import ComponentName, Sources, Specs, SpecText, check_file
from envsmith.knowledge.graph.later_bounds import later_rules
from envsmith.knowledge.graph.location import DataFiles, find_matrix, list_files
from envsmith.knowledge.graph.ready import Readiness
from envsmith.knowledge.graph.releases import (
    GpuFile,
    ReleaseLine,
    ReleasesFile,
    Short,
    declared_rules,
    extra_rules,
    in_order,
    ready_rules,
    yanked_rules,
)
from envsmith.knowledge.graph.runtime import RUNTIME_FILE, Runtime, lock_rules
from envsmith.knowledge.graph.torch_builds import Build, Device, TorchFile, torch_releases, torch_rules
from envsmith.knowledge.graph.wheel_files import catalogue
from envsmith.model.cell import CellId, Platform
from envsmith.model.component import CARRIED, Component, ComponentTable, Role
from envsmith.model.record import Record, Rung, Verdict, sound_records
from envsmith.model.rule import (
    Evidence,
    EvidenceKind,
    Knowledge,
    PassedRun,
    Release,
    Row,
    Rule,
    RuleKind,
    Severity,
    Tested,
)
from envsmith.model.version import Spec

_HINT = "See matrix/README.md for the schema."


def read_knowledge(root: Path | None = None) -> Knowledge:
    """Read and check every file below ``root`` (default: :func:`find_matrix`).

    ``DataError`` carries every problem as ``file: key path: what is wrong — what to do``.
    """
    files = list_files(root or find_matrix())
    problems = Problems()
    digest = hashlib.sha256()
    documents: JsonDict = {}
    records = files.records()
    for name in (name for name in files.names if name not in records):
        content = files.read(name)
        digest.update(f"{name} {len(content)}\n".encode() + content)
        try:
            documents[name] = parse_document(name, content)
        except UnreadableError as error:
            problems.add(name, str(error))
    table = _components(documents.get("components.yaml"), problems)
    sound, left_aside = sound_records(records)
    digest.update(repr(sorted(sound.items())).encode())
    knowledge = _assemble(documents, sound, table, problems) if table else None
    count = len(problems.lines)
    problems.refuse(f"Cannot read {files.root}: {count} of its values are wrong.", hint=_HINT)
    assert knowledge is not None  # noqa: S101 - without a table there is a problem
    return replace(knowledge, digest=digest.hexdigest(), left_aside=left_aside)


def read_components(root: Path) -> ComponentTable:
    """Read ``components.yaml`` alone. ``DataError`` lists its problems."""
    problems = Problems()
    table = _components(_document(root, "components.yaml", problems), problems)
    problems.refuse(f"Cannot read {root}/components.yaml: some of its values are wrong.", hint=_HINT)
    return table or ComponentTable.of([])


def read_wheels(root: Path) -> tuple[Sequence[Build], Sequence[Device]]:
    """Read what the wheels of torch carry, and which GPUs run what.

    ``DataError`` lists the problems of the two files.
    """
    table, problems = read_components(root), Problems()
    torch = check_file(TorchFile, _TORCH, _document(root, _TORCH, problems), problems, table)
    gpu = check_file(GpuFile, _GPU, _document(root, _GPU, problems), problems, table)
    problems.refuse(f"Cannot read the torch builds of {root}: some of their values are wrong.", hint=_HINT)
    return torch.builds if torch else (), gpu.runs_on if gpu else ()


def _document(root: Path, name: str, problems: Problems) -> Any:
    try:
        return parse_document(name, DataFiles(root, (name,)).read(name))
    except UnreadableError as error:
        problems.add(name, str(error))
        return None


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _ComponentsFile:
    components: tuple[Component, ...]


def _components(document: Any, problems: Problems) -> ComponentTable | None:
    """Return the frameworks, and what the file lists besides."""
    file = check(_ComponentsFile, document, "components.yaml", problems)
    frameworks = [
        Component(
            name=f.name,
            role=Role.CORE if f.name == CORE else Role.FRAMEWORK,
            short=f.short,
            title=f.title,
            distributions=f.distributions,
            aliases=f.aliases,
        )
        for f in FRAMEWORKS.values()
    ]
    try:
        return ComponentTable.of([*frameworks, *file.components]) if file else None
    except ValueError as error:
        problems.add("components.yaml", str(error), "a spelling belongs to one component")
        return None


def _assemble(
    documents: JsonFields, records: Mapping[str, Record], table: ComponentTable, problems: Problems
) -> Knowledge:
    releases: dict[str, tuple[Release, ...]] = {}
    lines_of: dict[str, list[ReleaseLine]] = {}
    rules: list[Rule] = []
    tested: list[Tested] = []
    devices: tuple[Device, ...] = ()
    gpus: Mapping[str, str] = {}
    on_arm: tuple[str, ...] = ()
    runtime: Runtime | None = None
    builds: Sequence[Build] = ()
    for name, document in documents.items():
        if name == _TORCH:
            torch = check_file(TorchFile, name, document, problems, table)
            builds = torch.builds if torch else ()
            releases["torch"] = tuple(torch_releases(builds))
            rules += torch_rules(builds, devices)
        elif name == RUNTIME_FILE:
            runtime = check_file(Runtime, name, document, problems, table)
        elif name.startswith("releases/"):
            file = check_file(GpuFile if name == _GPU else ReleasesFile, name, document, problems, table)
            if isinstance(file, GpuFile):
                devices, gpus, on_arm = file.runs_on, file.folded_names(), file.on_arm()
            if file:
                if file.component in releases:
                    problems.add(name, f"{file.component} has releases in another file too", "join them")
                lines = lines_of[file.component] = in_order(file.releases)
                releases[file.component] = tuple(line.release(file.component) for line in lines)
                for rules_of in (declared_rules, extra_rules, yanked_rules, ready_rules):
                    rules += rules_of(file.component, lines)
        elif name.startswith("rules/"):
            rules_file = check_file(_RulesFile, name, document, problems, table)
            rules += rules_file.rules if rules_file else ()
        elif name.startswith("tested/"):
            tested_file = check_file(_TestedFile, name, document, problems, table)
            tested += tested_file.values() if tested_file else ()
    for component, lines in lines_of.items():
        rules += later_rules(component, lines, releases)
    if runtime:
        ready = Readiness(catalogue(documents, problems, table), builds)
        rules = [*lock_rules(runtime, table, ready.unready), *rules]
    rules += failed_runs(records, table)
    passed = {name: record for name, record in records.items() if record.passed}
    runs = {name: passed_run(name, record, table) for name, record in passed.items()}
    tested += [t for name, record in passed.items() for t in _tested(record, runs[name].evidence, table)]
    for rule_id, count in Counter(rule.id for rule in rules).items():
        if count > 1:
            problems.add(f"rule {rule_id}", "this id is used twice", "an id is never reused: rename one")
    return Knowledge(
        components=table,
        releases=releases,
        rules=tuple(rules),
        tested=tuple(tested),
        runs=tuple(runs.values()),
        gpus=gpus,
        gpus_on_arm=on_arm,
    )


_TORCH, _GPU = "releases/torch.yaml", "releases/gpu.yaml"


# ``rules/<topic>.yaml`` -> :class:`Rule` values.


_Stage = Literal["install", "build", "import", "init", "communication", "train", "checkpoint", "inference", "lock"]
_Long = Annotated[str, text_of(4000)]
_RuleId = Annotated[
    str,
    text_of(80, re.compile(r"[a-z0-9]+(-[a-z0-9_.]+)*"), "kebab case, topic first: torch-elastic-log", "not a rule id"),
]


def _parse_signature(value: object, _context: object) -> str:
    text: str = text_of(4000).function(value, None)
    try:
        re.compile(text)
    except re.error as error:
        raise WrongValueError(f"not a regular expression: {error}") from None
    return text


def _platform_apart(line: object) -> object:
    """Take ``platform``, which stands among the components of ``when``, out of it."""
    when = line.get("when") if isinstance(line, dict) else None
    if not isinstance(line, dict) or not isinstance(when, dict) or "platform" not in when:
        return line
    specs = {name: spec for name, spec in when.items() if name != "platform"}
    return {**line, "when": specs, "platform": when["platform"]}


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _RowLine:
    when: Annotated[Specs, not_empty("speaks of no component")] | None = None
    platform: Platform | None = None
    needs: Specs | None = None
    severity: Severity | None = None
    feature: Short | None = None
    symptom: _Long | None = None
    cause: _Long | None = None
    fix: _Long | None = None
    evidence: Sources | None = None


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _RuleLine(_RowLine):
    id: _RuleId
    kind: RuleKind
    rows: tuple[Annotated[_RowLine, Prepared(_platform_apart)], ...] | None = None
    stage: _Stage | None = None
    signature: Annotated[str | None, Parsed(_parse_signature)] = None
    title: object = None


def _rule(line: _RuleLine, _context: object) -> Rule:
    """Return the rule of a line. Its rows take what they leave out from it."""
    if line.rows is not None and line.when is not None:
        raise WrongValueError("`when` and `rows` together", "move `when` into a row")
    if line.rows == ():
        raise WrongValueError("no rows", path=".rows")
    rows = {"": line} if line.rows is None else {f".rows[{number}]": row for number, row in enumerate(line.rows)}
    return Rule(
        id=line.id,
        kind=line.kind,
        rows=tuple(_row(line, row, path) for path, row in rows.items()),
        stage=line.stage,
        signature=line.signature,
        symptom=line.symptom,
        cause=line.cause,
        fix=line.fix,
    )


def _row(rule: _RuleLine, row: _RowLine, path: str) -> Row:
    if row.when is None:
        raise WrongValueError("`when` is missing", "add `when:`" if path else "add `when:` or `rows:`", path=path)
    if rule.kind is RuleKind.CONFLICTS and row.needs:
        text = "a rule of kind conflicts has no `needs`"
        raise WrongValueError(text, "write kind: requires", path=f"{path}.needs")
    if rule.kind is not RuleKind.CONFLICTS and row.needs is None:
        raise WrongValueError(f"a row of kind {rule.kind.value} needs `needs`", path=path)
    evidence = row.evidence or rule.evidence
    if evidence is None:
        raise WrongValueError("no evidence", "nothing is known without: add `evidence:`", path=path)
    severity, feature = row.severity or rule.severity or Severity.ERROR, row.feature or rule.feature
    if feature and severity is not Severity.NOTE:
        text = "what only concerns a feature is a note"
        raise WrongValueError(text, "write severity: note", path=f"{path}.feature")
    return Row(
        when=row.when,
        needs=row.needs or {},
        platforms=(row.platform,) if row.platform else (),
        severity=severity,
        feature=feature,
        symptom=row.symptom,
        cause=row.cause,
        fix=row.fix,
        evidence=evidence,
    )


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _RulesFile:
    rules: tuple[Annotated[Rule, Made(Annotated[_RuleLine, Prepared(_platform_apart)], _rule)], ...]
    evidence: object = None


# ``tested/<framework>.yaml`` -> what somebody ran.


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _TestedLine:
    version: SpecText
    torch: SpecText
    evidence: Sources
    cuda: SpecText | None = None
    python: SpecText | None = None
    kind: Annotated[str, text_of(40)] = "ci"
    note: object = None
    gpu: object = None
    companions: object = None


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _TestedFile:
    framework: ComponentName
    tested: tuple[_TestedLine, ...]
    evidence: object = None

    def values(self) -> list[Tested]:
        return [
            Tested(
                framework=self.framework,
                version=line.version,
                torch=line.torch,
                cuda=line.cuda,
                python=line.python,
                kind=line.kind,
                evidence=line.evidence,
            )
            for line in self.tested
        ]


# Records of runs: one that passed supports its own cell; one that failed makes its cell known bad, even before anybody
# knows why. That is a warning, not an error: it speaks of one cell on one machine. Where the cause is known there is a
# rule beside it, which says more.


_STAGES = {
    Rung.LOCKED: "install",
    Rung.INSTALLED: "install",
    Rung.IMPORTED: "import",
    Rung.COLLECTIVES_CPU: "communication",
    Rung.COLLECTIVES_GPU: "communication",
}
# Verdicts that a busy machine can cause.
_TRANSIENT = frozenset({Verdict.HANG, Verdict.CRASH, Verdict.NOT_RUN})


def failed_runs(records: Mapping[str, Record], table: ComponentTable) -> list[Rule]:
    """Return one rule a framework and stage, with a row for each cell whose newest run failed by its own fault.

    ``records`` are by file name.
    """
    newest: dict[str, tuple[str, str]] = {}
    for name, record in records.items():
        newest[record.cell] = max(newest.get(record.cell, ("", "")), (record.moment.isoformat(), name))
    rows: dict[tuple[str, str], list[Row]] = {}
    for _, name in newest.values():
        record = records[name]
        row = _failed_row(name, record, table)
        framework = next((c.name for c in table.with_role(Role.FRAMEWORK) if row and c.name in row.when), None)
        if row and framework and record.failure:
            rows.setdefault((framework, _STAGES.get(record.failure.rung, "train")), []).append(row)
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


def _failed_row(name: str, record: Record, table: ComponentTable) -> Row | None:
    failure = record.failure
    if record.passed or failure is None or failure.of_host or any(s.verdict in _TRANSIENT for s in record.steps):
        return None
    when = {
        component: spec
        for component, spec in _specs_of(record, table).items()
        if component not in CARRIED and table.by_name[component].role is not Role.HOST
    }
    evidence = Evidence(kind=EvidenceKind.VALIDATED, source=f"record of {record.cell}: {name}", date=record.day)
    return Row(when=when, severity=Severity.WARNING, symptom=failure.symptom[:300], evidence=(evidence,))


def _specs_of(record: Record, table: ComponentTable) -> dict[str, Spec]:
    return {
        component: Spec.exactly(version)
        for component, version in record.components.items()
        if component in table.by_name
    }


def passed_run(name: str, record: Record, table: ComponentTable) -> PassedRun:
    """Return every release that the record of a run names: of its cell, and of what was installed beside."""
    pairs = object_in(record.loaded, "installed").items()
    beside = {component.name: str(version) for spelling, version in pairs if (component := table.find(spelling))}
    source = f"record of {record.cell}, proved up to {record.rungs[-1].value}: {name}"
    evidence = Evidence(kind=EvidenceKind.VALIDATED, source=source, date=record.day)
    own = {component: version for component, version in record.components.items() if component in table.by_name}
    platform = CellId.parse(record.cell).platform
    return PassedRun(components={**beside, **own}, evidence=evidence, platform=platform)


def _tested(record: Record, evidence: Evidence, table: ComponentTable) -> list[Tested]:
    specs = _specs_of(record, table)
    return [
        Tested(
            framework=framework,
            version=specs[framework],
            torch=specs["torch"],
            cuda=specs.get("cuda"),
            python=specs.get("python"),
            kind="record",
            evidence=(evidence,),
        )
        for framework in (c.name for c in table.with_role(Role.FRAMEWORK))
        if framework in specs and "torch" in specs
    ]
