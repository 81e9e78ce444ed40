"""Known-bad combinations of which all is known but the version of one component that is in use: notes."""

from __future__ import annotations

from envsmith.doctor.diagnosis import Diagnosed, Weight
from envsmith.doctor.facts import Facts
from envsmith.doctor.signatures import taxonomy_of
from envsmith.knowledge.graph.load import version_graph
from envsmith.model.finding import Finding
from envsmith.model.rule import Row, Rule, RuleKind, Severity


def judge_possible(facts: Facts) -> list[Diagnosed]:
    """Return notes of known-bad combinations of which all is known but the version of one component that is in use."""
    present = {name for name in facts.host.get("present", "").split(",") if name and name not in facts.components}
    if not present or not facts.components:
        return []
    diagnosed_all = []
    graph = version_graph()
    # Of the rules the few are read that join a stated component with one that is in use.
    joining = (each.id for each in graph.compiled.rules_of(present) if facts.components.keys() & each.components)
    # What cannot be installed is not in use.
    for rule in (each for each in map(graph.rule, joining) if each.stage != "install"):
        for row in rule.rows if rule.kind is RuleKind.CONFLICTS else ():
            if name := _only_missing(row, facts, present):
                diagnosed_all.append(_note(rule, row, name, facts))
                break
    return diagnosed_all[:4]


def _only_missing(row: Row, facts: Facts, present: set[str]) -> str | None:
    """Return the component whose version alone decides, when every other part of ``row`` matches the facts."""
    if row.severity is Severity.NOTE or len(row.when) < 2:
        return None
    missing = [name for name in row.when if name not in facts.components]
    if len(missing) != 1 or missing[0] not in present or row.when[missing[0]].is_any:
        return None
    for name, spec in row.when.items():
        stated = facts.components.get(name)
        if stated is None:
            continue
        try:
            if spec.is_any or not stated.exact or not spec.contains(stated.version):
                return None
        except ValueError:
            return None
    return missing[0]


def _note(rule: Rule, row: Row, name: str, facts: Facts) -> Diagnosed:
    companions = ", ".join(f"{n} {facts.version(n)}" for n in row.when if n != name)
    finding = Finding(
        rule=rule.id,
        severity=Severity.NOTE,
        components={n: (facts.version(n) or str(spec)) for n, spec in row.when.items()},
        message=(
            f"If {name} is {row.when[name]} (the report does not name its version), it does not go with {companions}:"
            f" {row.cause or rule.id}"
        ),
        evidence=row.evidence,
        fix=row.fix,
        symptom=row.symptom,
        stage=rule.stage,
    )
    return Diagnosed(finding=finding, confidence="low", score=Weight.POSSIBLE, taxonomy=taxonomy_of(finding))
