"""Whether what a project declares can be had together with what is pinned beside it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from envsmith.knowledge.graph.load import components, version_graph
from envsmith.model.cell import Platform, Request
from envsmith.model.component import Role
from envsmith.model.finding import Conflict, Finding, Judgement, Repair
from envsmith.model.rule import Severity
from envsmith.model.version import Spec
from envsmith.project.demand import Demands
from envsmith.project.division import divide
from envsmith.project.folder import ProjectPart, read_project_file
from envsmith.solver.refusal import conflict_members
from envsmith.solver.solver import Solver, default_solver
from envsmith.solver.words import join_words, name_release


@dataclass(frozen=True, kw_only=True, slots=True)
class Declarations:
    """What files of projects ask for, by part: all of a file's parts hold together with those of other files."""

    parts: tuple[tuple[str, Demands], ...] = ()
    always: Demands = field(default_factory=Demands)

    @classmethod
    def of(cls, path: Path) -> Declarations:
        """Read one file. ``DataError`` where it cannot be read."""
        (_, always), *further = read_project_file(path)
        return cls(parts=tuple((_part_words(part), demands) for part, demands in further), always=always)

    def naming(self, names: Collection[str]) -> Demands:
        """Return the smallest part that names all of some components: what is always asked for, or that and an extra."""
        for demands in (self.always, *(demands for _, demands in self.parts)):
            if set(names) <= {*_components(dict.fromkeys((demand.name for demand in demands.demands), ""))}:
                return demands
        return self.always

    def joined(self, further: Declarations) -> Declarations:
        """Return both as one."""
        return Declarations(parts=(*self.parts, *further.parts), always=self.always.joined(further.always))

    def judge(
        self, earlier: Judgement, versions: Mapping[str, str], platform: Platform, *, keep: Collection[str] = ()
    ) -> Judgement:
        """Return an earlier judgement of what is pinned with that of the ranges beside it.

        The ranges are judged without extras and groups, then with each. Every rule is named once. The repair leaves
        ``keep`` alone where it can.
        """
        graph = version_graph()
        names = _components(versions)
        pinned = {name: version for name, version in names.items() if graph.knows_release(name, f"=={version}")}
        # Of a pinned release that the graph does not know, what is pinned was judged already.
        judge = partial(_judge, pinned=pinned, left_out={*names} - {*pinned}, platform=platform, keep=keep)
        judgement = _joined(earlier, judge(self.always))
        for words, demands in self.parts:
            judgement = _joined(judgement, judge(self.always.joined(demands)), words)
        return judgement


def _part_words(part: ProjectPart) -> str:
    return f"with extra {part.extras[0]}" if part.extras else f"with group {part.groups[0]}"


def _components(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of components that are not of the host."""
    find = components().find
    pairs = ((find(name), version) for name, version in versions.items())
    return {c.name: version for c, version in pairs if c and c.role is not Role.HOST}


def _judge(
    demands: Demands, *, pinned: Mapping[str, str], left_out: Collection[str], platform: Platform, keep: Collection[str]
) -> Judgement:
    """Judge the ranges of some requirements beside what is pinned.

    What the project overrides is not held to what packages declare about it.
    """
    graph = version_graph()
    division = divide(demands, tuple(pinned), graph, platform)
    narrowed = dict(division.narrowed)
    for name, version in pinned.items():
        spec, earlier = Spec.parse(f"=={version}"), narrowed.get(name)
        if earlier is None or earlier[0].exact:  # a version that is stated beside a file wins over its pin
            narrowed[name] = spec, "given"
        elif earlier[0].text != spec.text:
            narrowed[name] = earlier[0].meet(spec), f"{earlier[1]} and given"
    away = {*left_out, *_components(dict.fromkeys(demands.overridden, ""))}
    narrowed = {name: wish for name, wish in narrowed.items() if name not in away}
    table = graph.components.by_name
    frameworks = {name: Spec.parse("*") for name in narrowed if table[name].role is Role.FRAMEWORK}
    return judge_ranges(replace(Request(frameworks=frameworks, platform=platform), narrowed=narrowed), keep=keep)


def _joined(first: Judgement, second: Judgement, words: str = "") -> Judgement:
    """Return two judgements as one: the worse status, each rule once. ``words`` say of what the second is."""
    rules = {finding.rule for finding in first.findings}
    further = tuple(_said(finding, words) for finding in second.findings if finding.rule not in rules)
    status = max((first.status, second.status), key=("ok", "unknown", "bad").index)
    return replace(
        first,
        status=status,
        findings=(*first.findings, *further),
        unknown=tuple(dict.fromkeys((*first.unknown, *second.unknown))),
        repair=first.repair or second.repair,
    ).settled()


def _said(finding: Finding, words: str) -> Finding:
    return replace(finding, message=f"{words}: {finding.message}") if words else finding


# Whether any releases that the graph knows meet all ranges together.

_Narrowed = Mapping[str, tuple[Spec, str]]


def judge_ranges(request: Request, *, keep: Collection[str] = ()) -> Judgement:
    """Judge the ranges of ``request.narrowed``: ``bad`` when rules leave no releases that meet all of them.

    Where only a missing fact stands against them, or a range is outside what the graph knows, the answer is
    ``unknown``. The repair gives up the fewest ranges, and none of ``keep`` where there is such a repair.
    """
    solver = default_solver()
    ranges, findings, unknown = _possible(solver, request.narrowed)
    bounded = replace(request, narrowed=ranges, lockable=False)
    posed = solver.pose(bounded)
    strict = solver.stuck(posed.problem) if ranges else None
    if strict is None:
        status = "bad" if findings else "unknown" if unknown else "ok"
        return Judgement(status=status, findings=findings, unknown=unknown)
    without_gaps = solver.pose(bounded, gaps=False).problem
    stuck = solver.stuck(without_gaps)
    if stuck is None:
        wishes = {wish.component: ranges[wish.component] for wish in strict.wishes if wish.component in ranges}
        sentence = f"no known releases meet {_words(wishes or ranges)} together, and no rule says that none can"
        return Judgement(status="bad" if findings else "unknown", findings=findings, unknown=(*unknown, sentence))
    members = conflict_members(solver, without_gaps, stuck)
    repairs = sorted(solver.repairs(posed), key=lambda r: any(change.component in keep for change in r.changes))
    repair = repairs[0] if repairs else None
    return Judgement(
        status="bad", findings=(*findings, _finding(members, ranges, repair)), repair=repair, unknown=unknown
    )


def _possible(solver: Solver, ranges: _Narrowed) -> tuple[_Narrowed, tuple[Finding, ...], tuple[str, ...]]:
    """Return the ranges that some known release meets, and what is to be said of the others."""
    possible: dict[str, tuple[Spec, str]] = {}
    findings: list[Finding] = []
    unknown: list[str] = []
    for name, (spec, where) in ranges.items():
        versions = solver.compiled.versions.get(name, ())
        if any(spec.contains(version) for version in versions):
            possible[name] = spec, where
        elif all(any(clause.contains(version) for version in versions) for clause in spec.clauses):
            findings.append(
                Finding(
                    rule=f"request:{name}",
                    severity=Severity.ERROR,
                    components={name: spec.text},
                    message=f"no release of {name} is {spec.text}",
                    where=where,
                )
            )
        else:
            unknown.append(f"whether {name_release(name, spec.text)} works ({where}): envsmith knows no such release")
    return possible, tuple(findings), tuple(unknown)


def _finding(members: Sequence[Conflict], ranges: _Narrowed, repair: Repair | None) -> Finding:
    """Return a contradiction as one finding: the ranges of the file, and the rules that do not allow them together."""
    wishes = [member for member in members if member.is_wish]
    rules = [member for member in members if not member.is_wish]
    names = [name for wish in wishes for name in wish.components if name in ranges]
    reasons = "; ".join(member.message for member in rules)
    verb = "cannot be met" if len(names) == 1 else "cannot be met together"
    return Finding(
        rule=rules[0].rule if rules else wishes[0].rule,
        severity=Severity.ERROR,
        components={name: ranges[name][0].text for name in names},
        message=f"{_words({name: ranges[name] for name in names})} {verb}: {reasons}",
        evidence=tuple(evidence for member in rules for evidence in member.evidence),
        fix=f"take {repair.message}" if repair else None,
        where=ranges[names[0]][1].partition(" and ")[0] if names else None,
    )


def _words(ranges: _Narrowed) -> str:
    return join_words([name_release(name, spec.text) for name, (spec, _) in ranges.items()])
