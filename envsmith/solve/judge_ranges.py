"""Judging ranges of releases: whether any releases that the graph knows meet all of them together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from envsmith.model.cell import Request
from envsmith.model.finding import Conflict, Finding, Judgement, Repair
from envsmith.model.rule import Severity
from envsmith.model.version import Spec
from envsmith.solve.explain import conflict_members
from envsmith.solve.solver import Solver, default_solver
from envsmith.solve.words import join_words, name_release

_Narrowed = Mapping[str, tuple[Spec, str]]


def judge_ranges(request: Request, *, keep: Collection[str] = (), solver: Solver | None = None) -> Judgement:
    """Judge the ranges of ``request.narrowed``: ``bad`` when rules leave no releases that meet all of them.

    Where only a missing fact stands against them, or a range is outside what the graph knows, the answer is
    ``unknown``. The repair gives up the fewest ranges, and none of ``keep`` where there is such a repair.
    """
    solver = solver or default_solver()
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
        elif all(any(clause.contains(version) for version in versions) for clause in _clauses(spec)):
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


def _clauses(spec: Spec) -> list[Spec]:
    parts = (part.strip() for part in spec.text.replace("||", ",").split(","))
    return [Spec.parse(part) for part in parts if part]


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
