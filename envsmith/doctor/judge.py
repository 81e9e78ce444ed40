"""Facts and texts -> a diagnosis: rules over versions (``check``), rules over facts, signatures of logs, and the order of all.

The order is what matters: a message that names a cause comes before a set of versions that merely could fail, and what only follows from
something else comes after it. The numbers of ``score`` say exactly that and nothing more.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from envsmith import solve
from envsmith.doctor.diagnosis import Diagnosed, Diagnosis, Taxonomy
from envsmith.doctor.facts import Draft, Facts
from envsmith.doctor.parties import INTERFACES, OWNED, class_of, symbol_in, with_parties
from envsmith.doctor.read.lines import component_of, local_cuda, note_present, version_in
from envsmith.doctor.report import better_fix, commands_of, mended, told, typed
from envsmith.doctor.rules import judge_launches, judge_setup, judge_stated
from envsmith.doctor.signatures import Hit, Signature, catalogue, find_hits, rule_taxonomy
from envsmith.errors import EnvsmithError
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding, Judgement
from envsmith.model.rule import Row, Rule, RuleKind, Severity

# Scores, highest first: what the log proves, what it says, what it suggests, what the versions alone would give, what follows.
_PROVED, _SAID, _OF_RULE, _CONTRADICTED = 100, 90, 85, 58
_ALONE, _BESIDE_SYMPTOM, _BESIDE_CAUSE = 75, 73, 50
_SYMPTOM, _SUGGESTED, _FOLLOWS, _EXPLAINED, _OTHER = 70, 65, 60, 40, 35
_WARNED, _NOTED = 42, 10
_STAGES = (
    "install",
    "build",
    "import",
    "load",
    "launch",
    "setup",
    "init",
    "comm-setup",
    "communication",
    "train",
    "save",
    "checkpoint",
    "inference",
)
# Tools of the installation: their releases are not in the matrix, no rule speaks of them.
# Groups whose message may also be a mere warning about something optional.
_MAY_WARN = frozenset({"missing-optional-package", "python-version-pair", "cuda-torch-mismatch"})
_NO_RULES = frozenset({"pip", "wheel"})
_HAVE = ("toolkit", "cuda", "nccl", "gcc", "python")


def diagnose(
    facts: Facts, texts: Sequence[tuple[str, str]] = (), *, platform: Platform | None = None, live: bool = False
) -> Diagnosis:
    """Judge ``facts`` and the ``(source, text)`` they came from. ``live`` says that the facts are of this machine, collected, not told."""
    book = catalogue()
    hits = [hit for source, text in texts for hit in _hits(text, source, book.signatures)]
    facts = _with_groups(facts, hits)
    judgement = _check(facts, platform or _platform(facts))
    own = [hit for hit in hits if not hit.signature.rule]
    of_rules = {hit.signature.id: hit for hit in hits if hit.signature.rule and _speaks(hit)}
    versions = _versions(judgement, facts, own, of_rules)
    taken = {d.finding.rule for d in versions if d.confirmed}
    found = [*versions, *_signatures(own, facts), *_rule_hits(of_rules.values(), own, taken, judgement)]
    found += [*judge_setup(facts), *judge_launches(facts)]
    found += possible(facts)
    ranked = _rank(_merge(found))
    return _whole(ranked, facts, judgement, texts, live=live)


def _hits(text: str, source: str, signatures: Sequence[Signature]) -> list[Hit]:
    """What stands in the text, with the packages it is about; of an undefined symbol only what its owner's failure is."""
    found = []
    every = find_hits(text, source, signatures)
    told = {hit.line for hit in every if hit.signature.id not in INTERFACES and not hit.signature.rule}
    for hit in every:
        if hit.signature.id == "object-attribute" and hit.line in told:  # a signature that knows the message says more
            continue
        symbol = symbol_in(hit.text)
        if symbol and hit.signature.cause in OWNED and hit.signature.cause != symbol.cause:
            continue
        if named := with_parties(hit, text):
            found.append(named)
    return found


def _platform(facts: Facts) -> Platform:
    return Platform.LINUX_AARCH64 if "aarch64" in facts.host.get("machine", "") else Platform.LINUX_64


def _with_groups(facts: Facts, hits: Iterable[Hit]) -> Facts:
    """Versions that messages themselves name join the facts (``Installed CUDA version 12.2 …``)."""
    draft = Draft()
    draft.components = dict(facts.components)
    for hit in hits:
        for name, value in hit.groups.items():
            if name == "gpu":
                draft.component("gpu", f"sm_{value}", f"{hit.source}:{hit.line}", 1)
            elif name in _HAVE and (found := version_in(value)):
                draft.component(name, found[0], f"{hit.source}:{hit.line}", 3)
            elif name == "flash_attn" and (found := version_in(value)):
                draft.component("flash-attn", found[0], f"{hit.source}:{hit.line}", 3)
        for side in ("who", "have"):
            spelt, version = hit.groups.get(side), hit.groups.get(f"{side}_version")
            component = component_of(spelt) if spelt else None
            if component and version and (found := version_in(version)):
                draft.component(component, found[0], f"{hit.source}:{hit.line}", 3)
    return dataclasses.replace(facts, components=draft.components)


def _check(facts: Facts, platform: Platform) -> Judgement:

    given = _given(facts)
    if not given:
        return Judgement(status="unknown")
    try:
        return solve.check(given, platform)
    except EnvsmithError:
        pass
    kept = {name: version for name, version in given.items() if _judgeable(name, version, platform)}
    try:
        return solve.check(kept, platform) if kept else Judgement(status="unknown")
    except EnvsmithError as error:
        return Judgement(status="unknown", unknown=(error.message,))


def _judgeable(name: str, version: str, platform: Platform) -> bool:

    try:
        solve.check({name: version}, platform)
    except EnvsmithError:
        return False
    return True


def _given(facts: Facts) -> dict[str, str]:
    """What ``check`` is asked: components with a version, ``gpu`` for several architectures joined by commas."""
    given = {
        name: stated.version
        for name, stated in facts.components.items()
        if component_of(name) and name not in _NO_RULES
    }
    cuda = given.get("cuda")
    if cuda and cuda != "cpu" and cuda.count(".") > 1:
        given["cuda"] = ".".join(cuda.split(".")[:2])
    if "+" in given.get("torch", "") and cuda:
        given.pop("cuda", None) if _same_cuda(given["torch"], cuda) else None
    return given


def _same_cuda(torch: str, cuda: str) -> bool:

    return local_cuda(torch) == cuda


def _exact(facts: Facts, names: Iterable[str]) -> bool:
    stated = [facts.components.get(name) for name in names]
    return all(s is None or (s.exact and s.strength >= 2) for s in stated)


def _versions(judgement: Judgement, facts: Facts, own: Sequence[Hit], of_rules: Mapping[str, Hit]) -> list[Diagnosed]:
    symptoms = [h for h in own if h.signature.kind in {"symptom", "consequence"}]
    stages = {h.signature.stage for h in symptoms}
    owners = {h.groups["owner"] for h in own if "owner" in h.groups and h.signature.id in INTERFACES}
    if "install" in stages:  # an installation from source is a build
        stages.add("build")
    caused = bool(of_rules) or any(h.signature.kind == "cause" and h.signature.severity is Severity.ERROR for h in own)

    def unproved(finding: Finding) -> int:
        """The score of what no line of the log shows."""
        if finding.severity is Severity.NOTE:
            return _NOTED
        if finding.severity is not Severity.ERROR:
            return _WARNED if finding.stage not in stages else _FOLLOWS + 3
        # The log says which package lacks something: versions of others that merely could fail come after that.
        if caused or (owners and not owners & set(finding.components)):
            return _BESIDE_CAUSE
        return _BESIDE_SYMPTOM if symptoms else _ALONE

    found = []
    for finding in judgement.findings:
        hit = of_rules.get(finding.rule)
        twin = _twin(hit, own) if hit else _same_class(finding, own)
        score = _PROVED + bool(hit) if hit or twin else unproved(finding)
        severity = finding.severity
        if hit or twin:  # the log shows that it happened
            severity = twin.signature.severity if twin else Severity.ERROR
        taxonomy = _of_signature(twin.signature) if twin else taxonomy_of(finding)
        exact = _exact(facts, finding.components)
        place = hit or twin
        found.append(
            Diagnosed(
                finding=dataclasses.replace(finding, severity=severity, fix=better_fix(finding, taxonomy, facts, twin)),
                confidence="high" if place and exact else "medium" if exact else "low",
                score=score if exact or place else score - 3,
                taxonomy=taxonomy,
                confirmed=place is not None,
                where=f"{place.source}:{place.line}" if place else None,
                quote=place.text if place else None,
                position=place.position if place else 1 << 40,
                lines=twin.signature.lines if twin else (),
            )
        )
    return found


def _twin(hit: Hit, own: Sequence[Hit]) -> Hit | None:
    """The signature of ours that matched the same line as a rule's signature."""
    same = [h for h in own if h.source == hit.source and h.line == hit.line]
    return min(same, key=lambda h: ("cause", "symptom", "consequence", "other").index(h.signature.kind), default=None)


def _same_class(finding: Finding, own: Sequence[Hit]) -> Hit | None:
    """A hit of the failure class that the taxonomy gives the rule, on the same components."""
    cause = taxonomy_of(finding).cause
    if not cause:
        return None
    return next(
        (
            h
            for h in own
            if h.signature.cause == cause
            and h.signature.kind in {"cause", "symptom"}
            and not (h.signature.group in _MAY_WARN and _only_warns(h.text))
            and set(finding.components) & set(h.signature.components)
        ),
        None,
    )


def _of_signature(signature: Signature) -> Taxonomy:
    return Taxonomy(stage=signature.stage, group=signature.group, cause=signature.cause, pattern=signature.pattern)


def _signatures(own: Sequence[Hit], facts: Facts) -> list[Diagnosed]:
    ids = {hit.signature.id for hit in own}
    found = []
    for hit in own:
        signature = hit.signature
        score = {"cause": _SAID, "symptom": _SYMPTOM, "consequence": _FOLLOWS, "other": _OTHER}[signature.kind]
        if signature.severity is Severity.WARNING:
            score = min(score, _SUGGESTED)
        elif signature.severity is Severity.NOTE:
            score = _OTHER if signature.kind == "other" else _OTHER - 5
        severity = signature.severity
        if severity is Severity.ERROR and signature.group in _MAY_WARN and _only_warns(hit.text):
            severity, score = Severity.WARNING, min(score, _SUGGESTED)
        if set(signature.consequence_of) & ids:
            score = _EXPLAINED
        named = dict.fromkeys([*signature.components, *([owner] if (owner := hit.groups.get("owner")) else [])])
        versions = {name: facts.components[name].version for name in named if name in facts.components}
        finding = Finding(
            rule=signature.id,
            severity=severity,
            components=versions or dict.fromkeys(named, "*"),
            message=told(signature, hit),
            evidence=signature.evidence,
            fix=mended(signature, hit, facts),
            symptom=hit.text[:300],
            stage=signature.stage,
        )
        found.append(
            Diagnosed(
                finding=finding,
                confidence="high"
                if signature.kind == "cause"
                else "medium"
                if signature.kind in {"symptom", "other"} and not signature.last
                else "low",
                score=score,
                taxonomy=class_of(hit) or _class_with_facts(signature, facts),
                where=f"{hit.source}:{hit.line}",
                quote=hit.text,
                lines=typed(signature, hit),
                position=hit.position,
                confirmed=True,
            )
        )
    return found


def _class_with_facts(signature: Signature, facts: Facts) -> Taxonomy:
    """The signature's class; a consequence whose usual cause is a foreign toolkit is none where nvcc and torch have the same CUDA."""
    toolkit, cuda = facts.version("toolkit"), facts.version("cuda")
    same = toolkit and cuda and toolkit.split(".")[:2] == cuda.split(".")[:2]
    if not (same and signature.kind == "consequence" and signature.cause == "cuda-major-mismatch"):
        return _of_signature(signature)
    return Taxonomy(
        stage=signature.stage,
        group="toolchain-missing",
        cause="op-not-built",
        pattern="environment-or-toolchain-setup",
    )


def _only_warns(line: str) -> bool:
    """The program itself calls it a warning: an optional part is missing, and the run goes on."""
    lower = line.lower().replace("nccl warn", "")
    return "warn" in lower or "[nemo w " in lower or "falling back to" in lower


def _speaks(hit: Hit) -> bool:
    """A rule's message in a line that only warns shows nothing, but for the driver, whose failure torch tells as a warning."""
    return "driver" in hit.signature.components or not _only_warns(hit.text)


def _rule_hits(hits: Iterable[Hit], own: Sequence[Hit], taken: set[str], judgement: Judgement) -> list[Diagnosed]:
    """Signatures of rules where no version confirms them and no signature of ours matched the same line."""
    found = []
    judged = {f.rule for f in judgement.findings}
    for hit in hits:
        if hit.signature.id in taken or hit.signature.id in judged or _twin(hit, own):
            continue
        signature = hit.signature
        finding = Finding(
            rule=signature.id,
            severity=Severity.ERROR if signature.severity is not Severity.NOTE else Severity.WARNING,
            components=dict.fromkeys(signature.components, "*"),
            message=signature.message,
            evidence=signature.evidence,
            fix=signature.fix or None,
            symptom=hit.text[:300],
            stage=signature.stage or None,
        )
        found.append(
            Diagnosed(
                finding=finding,
                confidence="medium",
                score=_OF_RULE,
                taxonomy=taxonomy_of(finding),
                where=f"{hit.source}:{hit.line}",
                quote=hit.text,
                position=hit.position,
                confirmed=True,
            )
        )
    return found


def _merge(found: list[Diagnosed]) -> list[Diagnosed]:
    """A rule over versions that the log proves absorbs the signature of the same line or class; equal findings are kept once."""
    proved = [d for d in found if d.score >= _PROVED]
    kept: list[Diagnosed] = []
    seen: set[tuple[str, str]] = set()
    for d in found:
        absorbed = (
            d.score < _PROVED
            and d.where is not None
            and any(
                p.where == d.where or (p.taxonomy.cause == d.taxonomy.cause and d.score >= _SYMPTOM) for p in proved
            )
        )
        key = (d.finding.rule, d.finding.message)
        if absorbed or key in seen:
            continue
        seen.add(key)
        kept.append(d)
    return kept


def _rank(found: list[Diagnosed]) -> list[Diagnosed]:
    """Roles by score: the first that is more than a note is the root, consequences follow, notes come last."""
    ordered = sorted(found, key=lambda d: (-d.score, d.position, _grave(d.finding.severity), _early(d.finding.stage)))
    named = []
    root: Diagnosed | None = None
    for d in ordered:
        if d.finding.severity is Severity.NOTE:
            role = "note"
        elif root is None:
            role, root = "root", d
        elif (d.score <= _FOLLOWS and d.confirmed) or (d.taxonomy.cause == root.taxonomy.cause and d.confirmed):
            role = "consequence"
        else:
            role = "also"
        named.append(dataclasses.replace(d, role=role))
    return named


def _early(stage: str | None) -> int:
    """The earlier stage first: what fails at installation fails before what fails in training."""
    return _STAGES.index(stage) if stage in _STAGES else len(_STAGES)


def _grave(severity: Severity) -> int:
    return (Severity.ERROR, Severity.WARNING, Severity.NOTE).index(severity)


def _whole(
    found: list[Diagnosed], facts: Facts, judgement: Judgement, texts: Sequence[tuple[str, str]], *, live: bool
) -> Diagnosis:

    errors = any(d.finding.severity is Severity.ERROR for d in found)
    if errors:
        status = "bad"
    elif (not facts.count and not found) or (live and "torch" not in facts.components):
        status = "unknown"
    else:
        status = (
            "ok"
            if judgement.status == "ok" or (live and judgement.status == "bad")
            else judgement.status
            if judgement.status != "bad"
            else "ok"
        )
    checked, missing = _coverage(facts, texts)
    return Diagnosis(
        status=status,
        found=tuple(found),
        facts=facts,
        inferred=judgement.inferred,
        unknown=tuple(judgement.unknown),
        checked=checked,
        not_checked=missing,
        repair=judgement.repair,
        commands=commands_of(judgement.repair) if judgement.repair else {},
    )


def _coverage(facts: Facts, texts: Sequence[tuple[str, str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Sentences: what was judged, and what was not because nobody told it."""
    given = _given(facts)
    checked = []
    if given:
        checked.append(
            f"{len(given)} components against every rule of the matrix: "
            + ", ".join(f"{n} {v}" for n, v in list(given.items())[:24])
        )
    if texts:
        lines = sum(text.count("\n") + 1 for _, text in texts)
        checked.append(f"{lines} lines of text against {len(catalogue().signatures)} signatures")
    for name, what in (
        ("variables", "environment variables"),
        ("limits", "limits"),
        ("launches", "start commands and configurations"),
        ("libraries", "copies of CUDA libraries"),
    ):
        count = len(getattr(facts, name))
        if count:
            checked.append(f"{count} {what}")
    missing = []
    for name, what in (
        ("torch", "torch"),
        ("driver", "the driver"),
        ("gpu", "the GPU"),
        ("python", "Python"),
        ("toolkit", "the toolkit (nvcc)"),
        ("nccl", "NCCL"),
    ):
        if name not in facts.components:
            missing.append(what)
    told = [f"not told: {', '.join(missing)}"] if missing else []
    if not facts.limits:
        told.append("limits (/dev/shm, locked memory, open files) were not told")
    if not texts:
        told.append("no log was read: failures at run time were not looked for")
    return tuple(checked), tuple(told)


# ``check`` of a set with more than versions: the rules over versions and the rules over facts, one judgement.


_ANY, _NONE = "*", "none"
# A component that is known to be absent, as the fact that rules look for.
_TOOLS = {"toolkit": "nvcc", "gcc": "c++", "ninja": "ninja", "pybind11": "pybind11"}


def facts_of(given: Mapping[str, str], draft: Draft) -> Facts:
    """The facts of ``draft`` with the versions of a given set; ``*`` is in use, ``none`` is absent."""
    for name, version in given.items():
        if version == _NONE:
            draft.components.pop(name, None)
            if name in _TOOLS:
                draft.tools[_TOOLS[name]] = None
            else:
                draft.host[name] = _NONE
        elif version == _ANY:
            note_present(draft, name)
        else:
            first = version.split(",", maxsplit=1)[0]
            draft.component(name, first, "given", 4)
            if name == "torch" and (cuda := local_cuda(first)):
                draft.component("cuda", cuda, "given", 4)
    return draft.done()


def findings_of(facts: Facts) -> list[Diagnosed]:
    """What the rules over facts say, the gravest first; each finding once."""
    found = [*judge_setup(facts), *judge_launches(facts), *judge_stated(facts)]
    unique = {(d.finding.rule, d.finding.message): d for d in found}
    order = (Severity.ERROR, Severity.WARNING, Severity.NOTE)
    return sorted(unique.values(), key=lambda d: order.index(d.finding.severity))


def check_environment(given: Mapping[str, str], draft: Draft, platform: Platform | None = None) -> Judgement:
    """Judge a set of versions together with the facts that were stated beside it (see :mod:`envsmith.doctor.stated`).

    Findings of both kinds are in one list; the repair is that of the versions, for no release mends a limit or a variable.
    :class:`envsmith.errors.UsageError` when a version is none.
    """
    facts = facts_of(given, copy.deepcopy(draft))
    glibc = facts.components.get("glibc")
    if glibc is not None and "glibc" not in given:  # that of the distribution that was named
        given = {**given, "glibc": glibc.version}
    judgement = solve.check(given, platform) if given or not facts.count else Judgement(status="ok")
    more = [dataclasses.replace(d.finding, where=d.where) for d in findings_of(facts)]
    findings = (*judgement.findings, *(f for f in more if not _told(f, judgement)))
    bad = any(f.severity is Severity.ERROR for f in findings)
    return dataclasses.replace(judgement, status="bad" if bad else judgement.status, findings=findings)


def _told(finding: Finding, judgement: Judgement) -> bool:
    """Whether a rule over versions says the same already."""
    return any(f.rule == finding.rule and f.severity is finding.severity for f in judgement.findings)


# What rules over versions mean for the study's taxonomy, and rules that may apply to a framework whose version nobody told.


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

    try:
        rules = solve.default_solver().knowledge().rules
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
