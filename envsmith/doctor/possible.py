"""What rules over versions mean for the study's taxonomy, and rules that may apply to a framework whose version nobody told."""

from __future__ import annotations

from envsmith.doctor.diagnosis import Diagnosed, Taxonomy
from envsmith.doctor.signatures import rule_taxonomy
from envsmith.errors import EnvsmithError
from envsmith.model.finding import Finding
from envsmith.model.rule import Row, Rule, RuleKind, Severity
from envsmith.sources.reports.facts import Facts

__all__ = ["possible", "taxonomy_of"]

# Stages of rules in the words of the study.
_STAGE = {"communication": "comm-setup", "init": "setup", "checkpoint": "load", "inference": "train"}
# Above plain notes, below every warning: it is only possible.
_SCORE = 22
_MOST = 4


def taxonomy_of(finding: Finding) -> Taxonomy:
    """The study's taxonomy of a finding of a rule: as the table says, else by its components."""
    row = rule_taxonomy().get(finding.rule, {})
    names = set(finding.components)
    if "driver" in names:
        group = "driver"
    elif names & {"gcc", "clang", "glibc"}:
        group = "compiler"
    elif "gpu" in names:
        group = "gpu-arch"
    elif "toolkit" in names:
        group = "cuda-torch-mismatch"
    else:
        group = "python-version-pair"
    return Taxonomy(
        stage=_STAGE.get(finding.stage or "", finding.stage or ""),
        group=row.get("group", group),
        cause=row.get("cause", finding.rule),
        pattern=row.get("pattern", "version-and-dependency-management"),
    )


def possible(facts: Facts) -> list[Diagnosed]:
    """Known-bad combinations of which every part is told but the version of a framework that is in use: notes of low confidence."""
    present = {name for name in facts.host.get("present", "").split(",") if name and name not in facts.components}
    if not present or not facts.components:
        return []
    from envsmith.solve import api

    try:
        rules = api.default_solver().knowledge().rules
    except EnvsmithError:
        return []
    found = []
    for rule in rules:
        for row in rule.rows if rule.kind is RuleKind.CONFLICTS else ():
            name = _only_missing(row, facts, present)
            if name:
                found.append(_note(rule, row, name, facts))
                break
    return found[:_MOST]


def _only_missing(row: Row, facts: Facts, present: set[str]) -> str | None:
    """The framework whose version alone decides, when every other part of ``row`` matches what was told."""
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
    told = {n: (facts.version(n) or str(spec)) for n, spec in row.when.items()}
    others = ", ".join(f"{n} {facts.version(n)}" for n in row.when if n != name)
    finding = Finding(
        rule=rule.id,
        severity=Severity.NOTE,
        components=told,
        message=f"If {name} is {row.when[name]} (its version was not told), it does not go with {others}: {row.cause or rule.cause or rule.id}",
        evidence=row.evidence,
        fix=row.fix or rule.fix,
        symptom=row.symptom or rule.symptom,
        stage=rule.stage,
    )
    return Diagnosed(finding=finding, confidence="low", score=_SCORE, taxonomy=taxonomy_of(finding))
