"""What the messages of a log say: each by its signature, those of rules that no version confirms, those of the loader."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from envsmith.doctor.case import DiagnosisInput, is_warning
from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, Weight
from envsmith.doctor.facts import Facts
from envsmith.doctor.loader_lacks import with_builds, with_systems
from envsmith.doctor.needed_releases import releases_for_message, sentence_of
from envsmith.doctor.parties import class_of
from envsmith.doctor.report import fix_of, lines_of, message_of, requirement_of, variant_of
from envsmith.doctor.signatures import Hit, taxonomy_of
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity

# Groups whose message may also be a mere warning about something optional.
_MAY_WARN = frozenset(
    {"missing-optional-package", "python-version-pair", "cuda-torch-mismatch", "stale-or-foreign-binary"}
)
_OF_KIND = {
    "cause": (Weight.SAID, "high"),
    "symptom": (Weight.SYMPTOM, "medium"),
    "consequence": (Weight.FOLLOWS, "low"),
    "other": (Weight.OTHER, "medium"),
}


def twin_of(hit: Hit, own: Sequence[Hit]) -> Hit | None:
    """Return the message that stands on the same line as a rule's."""
    same = [h for h in own if h.place == hit.place]
    return min(same, key=lambda h: ("cause", "symptom", "consequence", "other").index(h.signature.kind), default=None)


def _of_message(hit: Hit, case: DiagnosisInput) -> Diagnosed:
    signature, facts = hit.signature, case.facts
    weight, confidence = _OF_KIND[signature.kind]
    severity = signature.severity
    if severity is Severity.ERROR and is_mere_warning(hit):
        severity = Severity.WARNING
    if severity is Severity.WARNING:
        weight = min(weight, Weight.SUGGESTED)
    elif severity is Severity.NOTE:
        weight = Weight.OTHER if signature.kind == "other" else Weight.REMARK
    blamed = {case.blamed[1].kind} if case.blamed else set()
    if set(signature.consequence_of) & {*(h.signature.id for h in case.own), *blamed}:
        weight = Weight.EXPLAINED
        severity = Severity.WARNING if severity is Severity.ERROR and case.blamed else severity
    owner = hit.groups.get("owner")
    names = dict.fromkeys([*signature.components, *([owner] if owner else [])])
    versions = {name: facts.components[name].version for name in names if name in facts.components}
    requirement = requirement_of(hit)
    needs = releases_for_message(hit, requirement, facts, case.platform)
    finding = Finding(
        rule=signature.id,
        severity=severity,
        components=versions or dict.fromkeys(names, "*"),
        needs=needs,
        message=message_of(hit, facts),
        evidence=signature.evidence,
        fix=("" if requirement or "way" in hit.groups else sentence_of(needs, facts)) + fix_of(hit, facts),
        symptom=hit.text[:300],
        stage=signature.stage,
    )
    taxonomy = class_of(hit) or class_with_facts(hit, facts)
    confidence = "low" if signature.last and confidence == "medium" else confidence
    return _shown_at(hit, finding, confidence, hit.weighed(weight), taxonomy)


def _shown_at(hit: Hit, finding: Finding, confidence: str, weight: Weight, taxonomy: Taxonomy) -> Diagnosed:
    diagnosed = hit.shown_by(finding, confidence=confidence, weight=weight, taxonomy=taxonomy)
    return dataclasses.replace(diagnosed, lines=lines_of(hit, finding.fix or ""))


def class_with_facts(hit: Hit, facts: Facts) -> Taxonomy:
    """Return the class of a variant or the signature's, but not a foreign toolkit's where nvcc and torch have the same CUDA."""
    signature = hit.signature
    if cause := variant_of(hit, facts, "cause"):
        return dataclasses.replace(signature.taxonomy, cause=cause)
    toolkit, cuda = facts.version("toolkit"), facts.version("cuda")
    same = toolkit and cuda and toolkit.split(".")[:2] == cuda.split(".")[:2]
    if not (same and signature.kind == "consequence" and signature.cause == "cuda-major-mismatch"):
        return signature.taxonomy
    return Taxonomy(
        stage=signature.stage, group="toolchain-missing", cause="op-not-built", pattern="environment-or-toolchain-setup"
    )


def is_mere_warning(hit: Hit) -> bool:
    """Return whether a message warns of something optional."""
    return hit.signature.group in _MAY_WARN and is_warning(hit.text)


def judge_messages_of_rules(case: DiagnosisInput) -> list[Diagnosed]:
    """Return the messages of rules that no version confirms and of which no other signature names the cause."""
    judged = {finding.rule for finding in case.judgement.findings}
    # A rule says more of a release than the message that asks for it.
    own = [hit for hit in case.own if hit.signature.tells != "need" and not case.is_outdone(hit)]
    diagnosed_all = []
    for hit in case.of_rules.values():
        signature = hit.signature
        if (
            signature.kind == "symptom"
            or signature.id in judged
            or twin_of(hit, own)
            or hit.place in case.measured_lines
        ):
            continue
        spoken = Severity.WARNING if signature.severity is Severity.NOTE else Severity.ERROR
        contradicted = case.is_contradicted(signature)
        finding = Finding(
            rule=signature.id,
            severity=Severity.NOTE if contradicted else spoken,
            components=dict.fromkeys(signature.components, "*"),
            message=signature.message,
            evidence=signature.evidence,
            fix=signature.fix or None,
            symptom=hit.text[:300],
            stage=signature.stage or None,
        )
        confidence, weight = ("low", Weight.REMARK) if contradicted else ("medium", Weight.OF_RULE)
        diagnosed_all.append(_shown_at(hit, finding, confidence, weight, taxonomy_of(finding)))
    return diagnosed_all


def of_loader(hit: Hit, case: DiagnosisInput) -> Diagnosed:
    """Judge a message, and where the loader lacks a symbol or a version say what has it."""
    diagnosed = with_builds(_of_message(hit, case), hit, case.facts, case.platform, case.symbols)
    return with_systems(diagnosed, hit, case.facts)
