"""Rules that a given set breaks, as findings: one a rule, and what is only told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envsmith.model.finding import Finding
from envsmith.model.platform import Platform
from envsmith.model.rule import Row, Rule, Severity
from envsmith.solve.case import CARRIED, Case
from envsmith.solve.kernel import Domains, Net
from envsmith.solve.problem import Group
from envsmith.solve.words import join_words, name_release, rule_sentence, strongest

__all__ = ["finding_of_row", "notes", "violated"]


def violated(case: Case, masks: Sequence[tuple[int, int]], inferred: Mapping[str, str]) -> list[Finding]:
    """A finding per rule that the masks break by themselves."""
    problem = case.problem
    domains = problem.full
    for variable, mask in masks:
        domains[variable] &= mask
    changed = {v for v, _ in masks}
    found = []
    for group in problem.groups:
        # Only what all of the given releases meet can be broken by them; that is next to nothing of most rules.
        met = [n for _, n in group.nogoods if all(domains[v] & m for v, m in n) and any(v in changed for v, _ in n)]
        if group.severity is Severity.WARNING:
            # That every listed release of something nobody named would be trouble is no trouble that anybody has.
            met = [n for n in met if all(v in changed for v, _ in n)]
        if met and not _holds(Net(problem.full, met), domains, changed):
            found.append(_finding(case, group, dict(masks), inferred))
    return sorted(found, key=lambda f: f.severity is not Severity.ERROR)


def _holds(net: Net, domains: Domains, changed: set[int]) -> bool:
    under = [a & b for a, b in zip(net.start, domains, strict=True)]
    return all(under) and net.propagate(under, set(changed)) and net.solvable(under) is not None


def _finding(case: Case, group: Group, masks: Mapping[int, int], inferred: Mapping[str, str]) -> Finding:
    rule = case.rules[group.rule]
    numbers = [n for n, nogood in group.nogoods if n >= 0 and all(v in masks and masks[v] & m for v, m in nogood)]
    rows = [rule.rows[n] for n in dict.fromkeys(numbers)] or list(rule.rows[:1])
    scope = dict.fromkeys(c for row in rows for c in row.scope)
    shown = _shown(case, scope, inferred)
    affected = {c: [v] for c, v in shown.items()}
    fixes = [row.fix for row in rows if row.fix]
    symptoms = [row.symptom for row in rows if row.symptom]
    return Finding(
        rule=rule.id,
        severity=group.severity,
        components=shown,
        message=message_of(rule, rows, affected),
        evidence=strongest(e for row in rows for e in row.evidence),
        fix=fixes[0] if fixes else None,
        symptom=symptoms[0] if symptoms else None,
        stage=rule.stage,
        inferred={c: v for c, v in inferred.items() if c in scope and c not in case.given.masks},
    )


def _shown(case: Case, scope: Mapping[str, None], inferred: Mapping[str, str]) -> dict[str, str]:
    text = case.given.text
    shown = {c: text[c] for c in scope if c in text}
    if (
        "torch" in text
        and "torch" not in shown
        and any(c in CARRIED and c not in text and c not in inferred for c in scope)
    ):
        shown = {"torch": text["torch"], **shown}  # of which every build is concerned
    return shown | {c: inferred[c] for c in scope if c in inferred and c not in shown}


def message_of(rule: Rule, rows: Sequence[Row], affected: Mapping[str, Sequence[str]]) -> str:
    """What the rule says, and what is there instead."""
    sentence = rule_sentence(rule, rows, affected, cause=False)
    needed = [c for row in rows[:1] for c in row.needs if c in affected]
    there = [name_release(c, affected[c][0]) for c in needed]
    if there and rule.id != "torch-runs-on-gpu":
        sentence += f"; {join_words(there)} is there"
    cause = rows[0].cause
    if cause and rows[0].needs and "-declares-" not in rule.id and not rule.id.startswith("torch-"):
        sentence += f". {cause.rstrip('.')}"
    return sentence


def notes(case: Case, versions: Mapping[str, str], platform: Platform) -> list[Finding]:
    """Rows that are told only."""
    found = []
    for rule in case.rules.values():
        row = next((r for r in rule.rows if _is_told(case, rule, r, versions, platform)), None)
        if row is None:
            continue
        shown = {c: versions[c] for c in row.scope}
        message = message_of(rule, [row], {c: [v] for c, v in shown.items()})
        inferred = {c: v for c, v in shown.items() if c not in case.given.text}
        found.append(finding_of_row(rule, row, Severity.NOTE, shown, message, inferred=inferred))
    return found


def finding_of_row(
    rule: Rule,
    row: Row,
    severity: Severity,
    shown: Mapping[str, str],
    message: str,
    *,
    inferred: Mapping[str, str] | None = None,
) -> Finding:
    """The finding of one row of a rule; ``shown`` maps its components to releases."""
    return Finding(
        rule=rule.id,
        severity=severity,
        components=shown,
        message=message,
        evidence=row.evidence,
        fix=row.fix,
        symptom=row.symptom,
        stage=rule.stage,
        inferred=inferred or {},
    )


def _is_told(case: Case, rule: Rule, row: Row, versions: Mapping[str, str], platform: Platform) -> bool:
    """Whether a row is a note that these versions meet."""
    if row.severity is not Severity.NOTE or (row.platforms and platform not in row.platforms):
        return False
    # A note on what torch carries anyway, and on nothing that was given, would be true for nearly every set.
    told = sum(c in case.given.plain for c in row.scope)
    if any(c not in versions for c in row.scope) or not told or (told == 1 and rule.signature):
        return False  # what has a signature, a log will tell
    holds = all(s.contains(versions[c]) for c, s in row.when.items())
    return holds and not (row.needs and all(s.contains(versions[c]) for c, s in row.needs.items()))
