"""Facts and texts -> findings: rules over versions, rules over facts, messages of logs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from envsmith import solver
from envsmith.doctor.diagnosis import Diagnosed, Diagnosis, Taxonomy, Weight
from envsmith.doctor.facts import Draft, Facts
from envsmith.doctor.lacks import Lack, is_lack, lack_of, lack_signatures
from envsmith.doctor.loader_lacks import with_builds, with_systems
from envsmith.doctor.missing_names import MissingNameExplanation, diagnosed_of, explain
from envsmith.doctor.needed_releases import releases_for_finding, releases_for_message, sentence_of
from envsmith.doctor.parties import OWNED, class_of, symbol_in, with_parties
from envsmith.doctor.rank_failures import blame_texts, of_blame
from envsmith.doctor.ranking import diagnosis_of
from envsmith.doctor.read.lines import component_of, version_in
from envsmith.doctor.report import better_fix, fix_of, lines_of, message_of, requirement_of
from envsmith.doctor.rules import features_of, judge_launches, judge_setup
from envsmith.doctor.signatures import Hit, Signature, catalogue, find_hits
from envsmith.doctor.stated_environment import versions_of
from envsmith.errors import EnvsmithError
from envsmith.knowledge.graph.load import knowledge
from envsmith.knowledge.graph.location import find_matrix
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.symbols.table import SymbolTable
from envsmith.launch.ranks.causes import Blame
from envsmith.launch.ranks.stored import Occasion
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding, Judgement
from envsmith.model.rule import PassedRun, Row, Rule, RuleKind, Severity

# Groups whose message may also be a mere warning about something optional.
_MAY_WARN = frozenset({"missing-optional-package", "python-version-pair", "cuda-torch-mismatch"})
# Named groups of signatures that are the version of a component.
_VERSION_GROUPS = {n.replace("-", "_"): n for n in ("toolkit", "cuda", "nccl", "gcc", "python", "flash-attn")}
_LAST = 1 << 40


@dataclass(frozen=True, slots=True)
class DiagnosisInput:
    """What the judges look at: the hits of messages, and of rules over versions by rule id, and names that are missing.

    ``explained`` holds each with the messages of the same failure class on its line, a cause first.
    """

    facts: Facts
    own: Sequence[Hit]
    of_rules: Mapping[str, Hit]
    judgement: Judgement
    explained: Sequence[tuple[Lack, MissingNameExplanation, tuple[Hit, ...]]] = ()
    blamed: tuple[str, Blame] | None = None
    platform: Platform = Platform.LINUX_64
    symbols: SymbolTable | None = field(default_factory=lambda: SymbolTable.installed(find_matrix() / "symbols"))

    @property
    def measured_lines(self) -> set[tuple[str, int]]:
        """Return the lines of which the name index says which releases they concern."""
        return {(lack.hit.source, lack.hit.line) for lack, explanation, _ in self.explained if explanation.is_certain}

    def is_contradicted(self, signature: Signature) -> bool:
        """Return whether the release of every component of a rule is stated: the rule then spoke, or does not hold."""
        stated = [self.facts.components.get(name) for name in signature.components]
        return bool(stated) and all(s is not None and s.exact for s in stated)

    @property
    def symptoms(self) -> list[Hit]:
        """Return the messages that do not name their cause."""
        lacks = [lack.hit for lack, _, _ in self.explained]
        return [hit for hit in (*self.own, *lacks) if hit.signature.kind in {"symptom", "consequence"}]


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
    ``launches`` is what `envsmith run` kept of one, by the names of its files.
    """
    hits = [hit for source, text in texts for hit in _hits(text, source)]
    lacks = [lack_of(hit, text) for source, text in texts for hit in hits if is_lack(hit) and hit.source == source]
    facts = _with_groups(facts, hits)
    platform = platform or _platform(facts)
    judgement = _check(facts, platform, keep, runs)
    needs = [
        f.needs or releases_for_finding(f, facts, platform) for f in judgement.findings if f.severity is Severity.ERROR
    ]
    explained = _explained(lacks, hits, facts, names or NameIndex(find_matrix() / "names"), needs)
    superseded = {h.signature.id for _, explanation, twins in explained if explanation.is_certain for h in twins}
    messages = [hit for hit in hits if not is_lack(hit) and hit.signature.id not in superseded]
    case = DiagnosisInput(
        facts=facts,
        own=[hit for hit in messages if not hit.signature.rule],
        of_rules={hit.signature.id: hit for hit in messages if hit.signature.rule and _speaks(hit, messages)},
        judgement=judgement,
        explained=explained,
        blamed=blame_texts(texts, launches),
        platform=platform,
    )
    diagnosed_all = [diagnosed for judge in JUDGES for diagnosed in judge(case)]
    diagnosis = diagnosis_of(diagnosed_all, case.facts, case.judgement, texts, live=live)
    shown = [f"what {run.evidence} has shown in this environment" for run in runs]
    return dataclasses.replace(diagnosis, checked=(*diagnosis.checked, *shown))


def _hits(text: str, source: str) -> list[Hit]:
    """Return the messages of a text with the packages they are about.

    An undefined symbol is a message of its owner only.
    """
    messages = []
    for hit in find_hits(text, source, (*catalogue().signatures, *lack_signatures())):
        symbol = symbol_in(hit.text)
        if symbol and hit.signature.cause in OWNED and hit.signature.cause != symbol.cause:
            continue
        messages.append(with_parties(hit, text))
    return messages


def _explained(
    lacks: Iterable[Lack],
    hits: Sequence[Hit],
    facts: Facts,
    names: NameIndex,
    needs: Sequence[Mapping[str, str]],
) -> list[tuple[Lack, MissingNameExplanation, tuple[Hit, ...]]]:
    """Return what is said of missing names, but not of those whose message a signature knows better.

    A signature of a pair of versions says less than an index that names the releases, and gives the failure class. One
    of another group (a part that was not compiled) says more.
    """
    explained = []
    for lack in lacks:
        explanation = explain(lack, facts, names, needs)
        here = [h for h in hits if (h.source, h.line) == (lack.hit.source, lack.hit.line)]
        is_rule = any(h.signature.rule for h in here)
        same = [h for h in here if not is_lack(h) and not h.signature.rule and h.signature.kind != "other"]
        elsewhere = [h for h in same if h.signature.group != "python-version-pair"]
        if explanation and not elsewhere and (explanation.is_certain or not (same or is_rule)):
            explained.append((lack, explanation, tuple(sorted(same, key=lambda h: h.signature.kind != "cause"))))
    return explained


def _platform(facts: Facts) -> Platform:
    return Platform.LINUX_AARCH64 if "aarch64" in facts.host.get("machine", "") else Platform.LINUX_64


def _with_groups(facts: Facts, hits: Iterable[Hit]) -> Facts:
    """Return the facts with the versions that messages themselves name (``Installed CUDA version 12.2 …``)."""
    draft = Draft()
    draft.components = dict(facts.components)
    for hit in hits:
        place = f"{hit.source}:{hit.line}"
        if "gpu" in hit.groups:
            draft.component("gpu", f"sm_{hit.groups['gpu']}", place, 1)
        if "cuda_major" in hit.groups:
            draft.component("cuda", f"{hit.groups['cuda_major']}.{hit.groups['cuda_minor']}", place, 3)
        pairs = [(_VERSION_GROUPS.get(group), value) for group, value in hit.groups.items()]
        pairs += [
            (component_of(hit.groups[side]), hit.groups.get(f"{side}_version", ""))
            for side in ("who", "have")
            if side in hit.groups
        ]
        for component, value in pairs:
            if component and (version := version_in(value)):
                draft.component(component, version[0], place, 3)
    return dataclasses.replace(facts, components=draft.components)


def _check(facts: Facts, platform: Platform, keep: Collection[str], runs: Sequence[PassedRun]) -> Judgement:
    """Judge the versions without those that the solver cannot read."""

    def judged(versions: Mapping[str, str]) -> Judgement:
        if not versions:
            return Judgement(status="unknown")
        return solver.check(versions, platform, keep=keep, features=features_of(facts), runs=runs)

    versions = versions_of(facts)
    try:
        return judged(versions)
    except EnvsmithError:
        readable = {}
    for name, version in versions.items():
        with contextlib.suppress(EnvsmithError):
            solver.check({name: version}, platform)
            readable[name] = version
    try:
        return judged(readable)
    except EnvsmithError as error:
        return Judgement(status="unknown", unknown=(error.message,))


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


def _is_warning(line: str) -> bool:
    """Return whether the program itself calls it a warning: an optional part is missing, and the run goes on."""
    lower = line.lower().replace("nccl warn", "")
    return "warn" in lower or "[nemo w " in lower or "falling back to" in lower


def _is_mere_warning(hit: Hit) -> bool:
    return hit.signature.group in _MAY_WARN and _is_warning(hit.text)


def _speaks(hit: Hit, messages: Sequence[Hit]) -> bool:
    """Return whether a rule's message shows something: warnings do not, but torch warns of a driver that fails.

    A symptom that many causes have shows nothing where another message on its line names the cause.
    """
    if hit.signature.kind == "symptom":
        here = (m.signature for m in messages if (m.source, m.line) == (hit.source, hit.line))
        return not any(signature.kind == "cause" and not signature.rule for signature in here)
    return "driver" in hit.signature.components or not _is_warning(hit.text)


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


def _judge_possible(case: DiagnosisInput) -> list[Diagnosed]:
    """Return notes of known-bad combinations of which all is known but the version of one component that is in use."""
    facts = case.facts
    present = {name for name in facts.host.get("present", "").split(",") if name and name not in facts.components}
    if not present or not facts.components:
        return []
    diagnosed_all = []
    for rule in knowledge().rules:
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
    _judge_possible,
)


# Stages of rules in the words of the study.
_STAGE_OF_RULE = {"communication": "comm-setup", "init": "setup", "checkpoint": "load", "inference": "train"}
_GROUP_OF = (
    (frozenset({"driver"}), "driver"),
    (frozenset({"gcc", "clang", "glibc"}), "compiler"),
    (frozenset({"gpu"}), "gpu-arch"),
    (frozenset({"toolkit"}), "cuda-torch-mismatch"),
)


def taxonomy_of(finding: Finding) -> Taxonomy:
    """Return the study's taxonomy of a finding of a rule: as the table says, else by its components."""
    row = catalogue().taxonomy.get(finding.rule, {})
    names = set(finding.components)
    groups = (group for parts, group in _GROUP_OF if names & parts)
    return Taxonomy(
        stage=_STAGE_OF_RULE.get(finding.stage or "", finding.stage or ""),
        group=row.get("group") or next(groups, "python-version-pair"),
        cause=row.get("cause", finding.rule),
        pattern=row.get("pattern", "version-and-dependency-management"),
    )
