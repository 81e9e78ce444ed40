"""What rules over versions find, weighed by what the log shows of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from envsmith.doctor.case import DiagnosisInput
from envsmith.doctor.diagnosis import Diagnosed, Weight
from envsmith.doctor.judge_messages import class_with_facts, is_mere_warning, twin_of
from envsmith.doctor.needed_releases import releases_for_finding
from envsmith.doctor.report import better_fix
from envsmith.doctor.signatures import Hit, taxonomy_of
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity

_LAST = 1 << 40


def of_finding(finding: Finding, case: DiagnosisInput) -> Diagnosed:
    """Return what a rule over versions finds, with the message of the log that shows it."""
    hit = case.of_rules.get(finding.rule)
    twin = twin_of(hit, case.own) if hit else _same_class(finding, case.own)
    place = hit or twin
    stated = [case.facts.components.get(name) for name in finding.components]
    exact = all(s is None or (s.exact and s.strength >= 2) for s in stated)
    taxonomy = class_with_facts(twin, case.facts) if twin else taxonomy_of(finding)
    severity = twin.signature.severity if twin else Severity.ERROR if hit else finding.severity
    if not place and severity is Severity.ERROR and any(".dev" in version for version in finding.components.values()):
        severity = Severity.WARNING  # no release declares anything of a build that was made between releases
    score = Weight.PROVED + bool(hit) if place else _weight_alone(finding, case) - (0 if exact else 3)
    needs = finding.needs or releases_for_finding(finding, case.facts, case.platform)
    fix = better_fix(finding, taxonomy, case.facts, twin)
    return Diagnosed(
        finding=dataclasses.replace(finding, severity=severity, needs=needs, fix=fix),
        confidence="high" if place and exact else "medium" if exact else "low",
        score=score,
        taxonomy=taxonomy,
        confirmed=place is not None,
        where=f"{place.source}:{place.line}" if place else None,
        quote=place.text if place else None,
        position=place.position if place else _LAST,
        lines=twin.signature.lines if twin else (),
    )


def _weight_alone(finding: Finding, case: DiagnosisInput) -> Weight:
    """Return how much a finding weighs that no line of the log shows."""
    if finding.severity is Severity.NOTE:
        return Weight.NOTED
    if finding.severity is Severity.WARNING:
        stages = {hit.signature.stage for hit in case.symptoms}
        if "install" in stages:  # an installation from source is a build
            stages.add("build")
        return Weight.OF_STAGE if finding.stage in stages else Weight.WARNED
    causes = [hit for hit in case.own if hit.signature.kind == "cause" and hit.signature.severity is Severity.ERROR]
    # The log says which package lacks something: versions of others that merely could fail come after that.
    owners = {name for _, explanation, _ in case.explained for name in explanation.components}
    if case.of_rules or causes or (owners and not owners & set(finding.components)):
        return Weight.BESIDE_CAUSE
    return Weight.BESIDE_SYMPTOM if case.symptoms else Weight.ALONE


def _same_class(finding: Finding, own: Sequence[Hit]) -> Hit | None:
    """Return a message of the failure class that the taxonomy gives the rule, on the same components."""
    cause = taxonomy_of(finding).cause
    for hit in own:
        signature = hit.signature
        if signature.cause != cause or not cause or signature.kind not in {"cause", "symptom"}:
            continue
        if set(finding.components) & set(signature.components) and not is_mere_warning(hit):
            return hit
    return None
