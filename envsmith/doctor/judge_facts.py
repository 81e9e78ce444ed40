"""Facts and texts -> findings: rules over versions, rules over facts, messages of logs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

from envsmith.doctor.case import DiagnosisInput, is_warning, read_case
from envsmith.doctor.diagnosis import Diagnosed, Diagnosis, Taxonomy, Weight
from envsmith.doctor.facts import Facts
from envsmith.doctor.loader_lacks import with_builds, with_systems
from envsmith.doctor.missing_names import diagnosed_of
from envsmith.doctor.needed_releases import releases_for_finding, releases_for_message, sentence_of
from envsmith.doctor.parties import class_of
from envsmith.doctor.possible import judge_possible
from envsmith.doctor.rank_failures import of_blame
from envsmith.doctor.ranking import diagnosis_of
from envsmith.doctor.report import better_fix, fix_of, lines_of, message_of, requirement_of
from envsmith.doctor.rules import judge_launches, judge_setup
from envsmith.doctor.signatures import Hit, Signature, taxonomy_of
from envsmith.knowledge.graph.tables import one_state
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.launch.ranks.stored import Occasion
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding
from envsmith.model.rule import PassedRun, Severity

# Groups whose message may also be a mere warning about something optional.
_MAY_WARN = frozenset({"missing-optional-package", "python-version-pair", "cuda-torch-mismatch"})
_LAST = 1 << 40


@one_state()
def diagnose(
    facts: Facts,
    texts: Sequence[tuple[str, str]] = (),
    *,
    platform: Platform | None = None,
    live: bool = False,
    names: NameIndex | None = None,
    keep: Collection[str] = (),
    runs: Sequence[PassedRun] = (),
    launches: Mapping[str, Sequence[Occasion]] | None = None,
) -> Diagnosis:
    """Judge ``facts`` and the ``(source, text)`` they came from. ``live`` says that the facts are of this machine.

    The repair leaves the components of ``keep`` alone where it can. ``runs`` passed in the environment at hand.
    ``launches`` is what `envsmith run` stored of one, by the names of its files.
    """
    case = read_case(facts, texts, platform=platform, names=names, keep=keep, runs=runs, launches=launches)
    diagnosed_all = [diagnosed for judge in JUDGES for diagnosed in judge(case)]
    diagnosis = diagnosis_of(diagnosed_all, case.facts, case.judgement, texts, live=live)
    shown = [f"what {run.evidence} has shown in this environment" for run in runs]
    return dataclasses.replace(diagnosis, checked=(*diagnosis.checked, *shown))


# The judges: each gives what it finds in a case.


def _of_finding(finding: Finding, case: DiagnosisInput) -> Diagnosed:
    """Return what a rule over versions finds, with the message of the log that shows it."""
    hit = case.of_rules.get(finding.rule)
    twin = _twin(hit, case.own) if hit else _same_class(finding, case.own)
    place = hit or twin
    stated = [case.facts.components.get(name) for name in finding.components]
    exact = all(s is None or (s.exact and s.strength >= 2) for s in stated)
    taxonomy = twin.signature.taxonomy if twin else taxonomy_of(finding)
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


def _twin(hit: Hit, own: Sequence[Hit]) -> Hit | None:
    """Return the message that stands on the same line as a rule's."""
    same = [h for h in own if h.source == hit.source and h.line == hit.line]
    return min(same, key=lambda h: ("cause", "symptom", "consequence", "other").index(h.signature.kind), default=None)


def _same_class(finding: Finding, own: Sequence[Hit]) -> Hit | None:
    """Return a message of the failure class that the taxonomy gives the rule, on the same components."""
    cause = taxonomy_of(finding).cause
    for hit in own:
        signature = hit.signature
        if signature.cause != cause or not cause or signature.kind not in {"cause", "symptom"}:
            continue
        if set(finding.components) & set(signature.components) and not _is_mere_warning(hit):
            return hit
    return None


_OF_KIND = {
    "cause": (Weight.SAID, "high"),
    "symptom": (Weight.SYMPTOM, "medium"),
    "consequence": (Weight.FOLLOWS, "low"),
    "other": (Weight.OTHER, "medium"),
}


def _of_message(hit: Hit, case: DiagnosisInput) -> Diagnosed:
    signature, facts = hit.signature, case.facts
    weight, confidence = _OF_KIND[signature.kind]
    severity = signature.severity
    if severity is Severity.ERROR and _is_mere_warning(hit):
        severity = Severity.WARNING
    if severity is Severity.WARNING:
        weight = min(weight, Weight.SUGGESTED)
    elif severity is Severity.NOTE:
        weight = Weight.OTHER if signature.kind == "other" else Weight.REMARK
    blamed = {case.blamed[1].kind} if case.blamed else set()
    if set(signature.consequence_of) & {*(h.signature.id for h in case.own), *blamed}:
        weight = Weight.EXPLAINED
        severity = Severity.WARNING if severity is Severity.ERROR and case.blamed else severity
    elif hit.standing == "follows":
        weight = min(weight, Weight.FOLLOWS)
    elif hit.standing == "cause":
        weight = {Weight.SAID: Weight.NAMED, Weight.SYMPTOM: Weight.NAMED_SYMPTOM}.get(weight, weight)
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
        fix=("" if requirement else sentence_of(needs, facts)) + fix_of(hit, facts),
        symptom=hit.text[:300],
        stage=signature.stage,
    )
    taxonomy = class_of(hit) or _class_with_facts(signature, facts)
    return _shown_at(hit, finding, "low" if signature.last and confidence == "medium" else confidence, weight, taxonomy)


def _shown_at(hit: Hit, finding: Finding, confidence: str, weight: Weight, taxonomy: Taxonomy) -> Diagnosed:
    return Diagnosed(
        finding=finding,
        confidence=confidence,
        score=weight,
        taxonomy=taxonomy,
        where=f"{hit.source}:{hit.line}",
        quote=hit.text,
        lines=lines_of(hit),
        position=hit.position,
        confirmed=True,
    )


def _class_with_facts(signature: Signature, facts: Facts) -> Taxonomy:
    """Return the signature's class, but not that of a foreign toolkit where nvcc and torch have the same CUDA."""
    toolkit, cuda = facts.version("toolkit"), facts.version("cuda")
    same = toolkit and cuda and toolkit.split(".")[:2] == cuda.split(".")[:2]
    if not (same and signature.kind == "consequence" and signature.cause == "cuda-major-mismatch"):
        return signature.taxonomy
    return Taxonomy(
        stage=signature.stage, group="toolchain-missing", cause="op-not-built", pattern="environment-or-toolchain-setup"
    )


def _is_mere_warning(hit: Hit) -> bool:
    return hit.signature.group in _MAY_WARN and is_warning(hit.text)


def _judge_messages_of_rules(case: DiagnosisInput) -> list[Diagnosed]:
    """Return the messages of rules that no version confirms and that no other signature knows."""
    judged = {finding.rule for finding in case.judgement.findings}
    diagnosed_all = []
    for hit in case.of_rules.values():
        signature = hit.signature
        if (
            signature.kind == "symptom"
            or signature.id in judged
            or _twin(hit, case.own)
            or (hit.source, hit.line) in case.measured_lines
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


def _of_loader(hit: Hit, case: DiagnosisInput) -> Diagnosed:
    """Judge a message, and where the loader lacks a symbol or a version say what has it."""
    diagnosed = with_builds(_of_message(hit, case), hit, case.facts, case.platform, case.symbols)
    return with_systems(diagnosed, hit, case.facts)


JUDGES: tuple[Callable[[DiagnosisInput], list[Diagnosed]], ...] = (
    lambda case: [_of_finding(finding, case) for finding in case.judgement.findings],
    lambda case: [_of_loader(hit, case) for hit in case.own],
    lambda case: [diagnosed_of(*each) for each in case.explained],
    lambda case: [of_blame(*case.blamed)] if case.blamed else [],
    _judge_messages_of_rules,
    lambda case: judge_setup(case.facts),
    lambda case: judge_launches(case.facts),
    lambda case: judge_possible(case.facts),
)
