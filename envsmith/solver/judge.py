"""Judging a set of releases that somebody has, without changing it.

A set may be partial. It is judged on what is given. What a torch wheel carries is inferred and shown as inferred.
``torch==2.9.1`` stands for all builds of that release that can be meant. It is bad when every one of them is, and when
the default build is, for that is what an index gives. Where the set hints at another build (a toolkit of another CUDA
major) what the default build alone would break is a warning, and the judgement is then ``unknown``. A component of
version ``*`` is there in some release: it is bad only when every release is. One of version ``none`` is known to be
absent.

A torch without a build tag beside a CUDA that no published build of it has cannot exist as it was said, but says
nothing wrong either: people mean the CUDA of nvcc or of nvidia-smi, or compiled it. That is a warning and ``unknown``.
With a build tag the two contradict each other, and it is bad.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace

from envsmith.model.cell import Platform, Request
from envsmith.model.component import CARRIED, Role
from envsmith.model.finding import Change, Finding, Judgement, Repair
from envsmith.model.rule import PassedRun, Row, Rule, Severity
from envsmith.model.version import Spec, public, version_key
from envsmith.solver.case import (
    Given,
    JudgementDraft,
    bits_of,
    carrying,
    infer,
    read_given,
    states_cpu,
    subject_of,
)
from envsmith.solver.kernel import Domains, Net, Nogood, bits
from envsmith.solver.prefer import Nearest
from envsmith.solver.problem import Problem, RuleNogoods, Wish, carried_by, contradicted, pose
from envsmith.solver.proof import proof_of, ran_together, run_of_set, unproved
from envsmith.solver.refusal import conflict_members
from envsmith.solver.request import CORE, Posed, avoided
from envsmith.solver.solver import Solver
from envsmith.solver.words import finding_of_row, join_words, message_of, name_release, strongest

# In the id of each rule on what a later release bars (``knowledge.graph.later_bounds``).
_LATER = "-later-"


def judge(
    solver: Solver,
    versions: Mapping[str, str],
    platform: Platform,
    *,
    keep: Collection[str] = frozenset(),
    features: Collection[str] = frozenset(),
    needed: Mapping[str, Spec] | None = None,
    mend: bool = True,
    runs: Sequence[PassedRun] = (),
) -> Judgement:
    """Return ``ok``, ``bad`` or ``unknown`` with findings, what was inferred, what is not known, and a solved repair.

    ``mend`` says whether a repair is looked for. ``ok`` needs a proof: one of ``runs``, a record, or a tested line.
    ``runs`` are those of the environment at hand: a failure that a rule predicts of a stage that passed there is a note.

    The repair leaves the components of ``keep`` as they are, as long as there is one that does, and gives every
    component of ``needed`` a release of its spec. What is conditional on one of ``features`` is judged as what holds.
    :class:`envsmith.errors.UsageError` when a version is none.
    """
    read = subject_of(solver, versions, platform)
    is_cell = any(n == "torch" or solver.compiled.roles[n] is Role.FRAMEWORK for n in read.components.values())
    core = [n for n in CORE if n not in read.components and solver.compiled.versions.get(n)]
    names = dict(read.components) | ({n: n for n in core} if is_cell else {})
    absent = contradicted(solver.compiled, platform, _listed(solver, read))
    brought = [n for n in absent if n not in names and n not in CARRIED]
    names |= {n: n for n in brought}
    problem, key = _posed(solver, platform, names, read, features, gaps=False, before=brought)
    problem = _without_unlisted(solver, problem, key, read.masks)
    case = JudgementDraft(solver, read, problem, frozenset(keep), frozenset(features), needed or {})
    builds, inferred, assumed = infer(case)
    findings = _violated(case, case.masks(), {})
    rules = {f.rule for f in findings}
    follows = {n: v for n, v in inferred.items() if n not in assumed}
    findings += [f for f in _violated(case, builds, follows) if f.rule not in rules]
    findings, other_build = _own_build(case, findings)
    findings, newer_cudnn = _newer_cudnn(case, findings)
    if other_build:
        inferred, assumed = {}, frozenset()
    unknown = [*read.unknown, *other_build]
    doubt = False
    if assumed:
        rules = {f.rule for f in findings}
        of_default = [
            f for f in _violated(case, [*builds, *bits_of(problem, inferred)], inferred) if f.rule not in rules
        ]
        hinted = _hints_at_another(case, inferred)
        findings += [
            _of_default(f, inferred["torch"], hinted=hinted)
            for f in of_default
            if f.severity is Severity.ERROR or not hinted
        ]
        doubt = hinted and any(f.severity is Severity.ERROR for f in of_default)
    if not other_build and not newer_cudnn and not any(f.severity is Severity.ERROR for f in findings):
        findings += _derived(case)
    findings += _only_on_cpu(case, inferred)
    findings += _of_nightly(case, versions, platform, findings)
    findings += _notes(case, {**read.plain, **inferred}, platform)
    findings = _refuted(findings, run_of_set(case, inferred, runs))
    runs = (*runs, *(run for run in solver.graph.runs if run.platform is platform))
    proof = proof_of(case, inferred, runs)
    findings = [_foretold(case, f, runs) for f in findings] if proof is None else findings
    bad = any(f.severity is Severity.ERROR for f in findings)
    if doubt and not bad:
        unknown.append(f"which build of torch it is: {inferred['torch']} would be bad, another one is not")
    unknown += read.unlisted if proof is None or bad else ()
    unknown += [] if bad else _unknown_pairs(case, inferred)
    unknown += [] if bad or proof or unknown else unproved(case, inferred, runs)
    warned = frozenset(f.rule for f in findings if f.severity is Severity.WARNING)
    broken = frozenset(f.rule for f in findings if f.severity is Severity.ERROR)
    return Judgement(
        status="unknown" if unknown else "ok",
        findings=tuple(findings),
        inferred=inferred,
        unknown=tuple(unknown),
        proof=proof,
        repair=_repair(case, names, versions, broken, warned if bad else frozenset())
        if mend and (bad or doubt or _lacks(case))
        else None,
    ).settled()


def _foretold(case: JudgementDraft, finding: Finding, runs: Sequence[PassedRun]) -> Finding:
    """Return a warning of an installation that fails as an error, unless a run had just these releases.

    The import of a part that fails stays what its rule says: the package itself is imported all the same.
    """
    if finding.severity is not Severity.WARNING or not case.rule(finding.rule).foretells_installation:
        return finding
    is_refuted = ran_together(finding.components, finding.components, runs)
    return finding if is_refuted else replace(finding, severity=Severity.ERROR)


# The stages at which one run of an environment shows that what a rule predicts does not come about in it. What a rule
# warns of there concerns a part that may not have been used, but a compiler was, or no step would have passed.
_SHOWN_BY_A_RUN = {
    Severity.ERROR: frozenset({"lock", "install", "import", "build", "init"}),
    Severity.WARNING: frozenset({"install", "build"}),
}


def _refuted(findings: Sequence[Finding], own: PassedRun | None) -> list[Finding]:
    """Return findings, those as notes that predict a failure of what has passed in the environment at hand."""
    if own is None:
        return list(findings)
    return [
        replace(
            finding,
            severity=Severity.NOTE,
            message=f"{finding.message}. This environment passed that stage on this machine on {own.evidence.date}",
            evidence=(own.evidence, *finding.evidence),
        )
        if finding.stage in own.stages & _SHOWN_BY_A_RUN.get(finding.severity, frozenset())
        and own.unused.isdisjoint(finding.components)
        else finding
        for finding in findings
    ]


def _posed(
    solver: Solver,
    platform: Platform,
    names: Mapping[str, str],
    read: Given,
    features: Collection[str],
    *,
    gaps: bool,
    before: Collection[str] = (),
) -> tuple[Problem, Hashable]:
    """Return the rules over what is given, and the key by which what is made of this problem is kept.

    A component of ``before`` may also have a release before all that are listed.
    """
    extras = {**read.extras, **{n: (f"{public(solver.compiled.versions[n][0])}.dev0",) for n in before}}
    key = ("judged", platform, tuple(names.items()), tuple(extras.items()), frozenset(features), gaps)
    problem = solver.problems.get(
        key, lambda: pose(solver.compiled, platform, names, extras, gaps=gaps, features=features)
    )
    return problem, key


def _listed(solver: Solver, read: Given) -> dict[str, int]:
    """Return what is given by component, without releases that the knowledge does not list."""
    listed = {c: (1 << len(solver.compiled.versions.get(c, ()))) - 1 for c in read.components.values()}
    return {c: read.masks[n] & listed[c] for n, c in read.components.items() if n == c}


def _without_unlisted(solver: Solver, problem: Problem, key: Hashable, named: Mapping[str, int]) -> Problem:
    """Return the same without nogoods that every listed release of something unnamed meets.

    A release that is not listed may do, unless a wheel that is named carries the listed one.
    """
    compiled, full = problem.compiled, problem.full
    carried = carried_by(compiled, named.get("torch", 0), problem.platform)
    unnamed = frozenset(v for v, name in enumerate(problem.names) if name not in named and name not in carried)
    # A Python before all that are listed goes with a torch before all that are listed.
    unlisted = frozenset(
        v
        for v, (name, component) in enumerate(zip(problem.names, problem.components, strict=True))
        if compiled.roles[component] is Role.CORE and named.get(name, 0) >> len(compiled.versions[component])
    )

    def proves(literals: Nogood) -> bool:
        hollow = any(v in unnamed and m == full[v] for v, m in literals)
        return not hollow and {v for v, _ in literals}.isdisjoint(
            unlisted if any(v in unnamed for v, _ in literals) else ()
        )

    def make() -> Problem:
        groups = (g._replace(nogoods=tuple(n for n in g.nogoods if proves(n[1]))) for g in problem.groups)
        return replace(problem, groups=tuple(groups), _nets={})

    return solver.problems.get((key, unnamed, unlisted), make)


def _of_default(finding: Finding, build: str, *, hinted: bool) -> Finding:
    """Return a finding that holds for the default build only.

    What it says where no build was named, a doubt where the set hints at another one.
    """
    mild = hinted and finding.severity is Severity.ERROR
    return replace(
        finding,
        severity=Severity.WARNING if mild else finding.severity,
        message=f"{'if' if mild else 'as'} torch is the default build {build}: {finding.message}",
    )


def _hints_at_another(case: JudgementDraft, inferred: Mapping[str, str]) -> bool:
    """Tell whether the toolkit has the CUDA major of another build of this torch than the default one."""
    toolkit, cuda = case.subject.plain.get("toolkit"), inferred.get("cuda")
    if toolkit is None or cuda is None or toolkit.split(".")[0] == cuda.split(".")[0]:
        return False
    tag = "+cu" + toolkit.split(".")[0]
    return any(tag in case.solver.compiled.versions["torch"][i] for i in bits(case.listed("torch")))


def _own_build(case: JudgementDraft, findings: Sequence[Finding]) -> tuple[list[Finding], list[str]]:
    """Soften the finding on a torch without a build tag beside a CUDA that no published build of it has.

    The toolkit is meant, or torch was compiled from source.
    """
    if "+" in case.subject.text.get("torch", "+") or "cuda" not in case.subject.text:
        return list(findings), []
    torch, cuda = case.subject.text["torch"], case.subject.text["cuda"]
    remaining, reasons = [], []
    for finding in findings:
        if finding.rule != "torch-bundles-cuda":
            remaining.append(finding)
            continue
        fix = f"If CUDA {cuda} is that of nvcc, say toolkit=={cuda}."
        remaining.append(
            replace(finding, severity=Severity.WARNING, message=f"{finding.message} (no published build)", fix=fix)
        )
        reasons.append(
            f"a build of torch {torch} with CUDA {cuda}: none was published, one compiled from source can be anything"
        )
    return remaining, reasons


def _newer_cudnn(case: JudgementDraft, findings: Sequence[Finding]) -> tuple[list[Finding], bool]:
    """Soften the finding on a cuDNN of the carried major that is newer than torch carries, and tell whether it did.

    Torch takes it at run time. Only the pin in the metadata of its wheel does not.
    """
    cudnn = version_key(case.subject.plain.get("cudnn", "none"))
    rows = [] if cudnn is None else _rows_met(case, "torch-bundles-cudnn")
    carried = [key for row in rows if (key := version_key(row.needs["cudnn"].exact or "none"))]
    if cudnn is None or not carried or cudnn < max(carried) or cudnn.major != max(carried).major:
        return list(findings), False
    fix = "Install it after torch, and pass over pip's message on the pin of torch's metadata."
    softened = [
        replace(f, severity=Severity.WARNING, fix=fix) if f.rule == "torch-bundles-cudnn" else f for f in findings
    ]
    return softened, softened != list(findings)


def _rows_met(case: JudgementDraft, rule_id: str) -> list[Row]:
    """Return the rows of a rule on torch that the listed builds of the given torch meet."""
    listed = case.solver.compiled.versions.get("torch", ())
    builds = [listed[i] for i in bits(case.listed("torch"))] if "torch" in case.subject.masks else []
    rows = case.rule(rule_id).rows if builds else ()
    return [row for row in rows if any(map(row.when["torch"].contains, builds))]


def _only_on_cpu(case: JudgementDraft, inferred: Mapping[str, str]) -> list[Finding]:
    """Return the note that the platform has no build of this torch with CUDA, where the user did not say so."""
    if inferred.get("cuda") != "cpu" or "+" in case.subject.text["torch"] or states_cpu(case.solver, case.subject):
        return []
    rule = case.rule("torch-bundles-cuda")
    build = inferred.get("torch") or case.solver.compiled.versions["torch"][case.listed("torch").bit_length() - 1]
    row = next(r for r in rule.rows if r.when["torch"].contains(build))
    components = {"torch": case.subject.text["torch"], "cuda": "cpu"}
    message = f"torch {build} is built without CUDA, and {case.problem.platform.value} has no other build of it"
    return [finding_of_row(rule, row, Severity.NOTE, components, message, inferred={"cuda": "cpu"})]


def _of_nightly(
    case: JudgementDraft, versions: Mapping[str, str], platform: Platform, findings: Sequence[Finding]
) -> list[Finding]:
    """Return what a nightly or vendor build of torch (``2.4.0a0``) breaks if it has what the release after it has."""
    text = case.subject.text.get("torch", "")
    key = version_key(text) if text else None
    if key is None or not key.is_prerelease or text in case.solver.compiled.versions.get("torch", ()):
        return []
    base = {n: v for n, v in versions.items() if case.subject.text.get(n) != text} | {"torch": key.base_version}
    rules = {f.rule for f in findings}
    judged = judge(case.solver, base, platform, mend=False)
    later = [f for f in judged.findings if "torch" in f.components and f.rule not in rules]
    return [
        replace(
            f,
            severity=Severity.WARNING,
            components={**f.components, "torch": text},
            message=f"if torch {text} already has what {key.base_version} has: {f.message}",
        )
        for f in later
        if f.severity is not Severity.NOTE and not f.rule.startswith("torch-") and not case.carries(f.rule)
    ]


def _derived(case: JudgementDraft) -> list[Finding]:
    """Return what only all rules together rule out: no cell contains what is given."""
    problem = case.problem
    wishes = _wishes(case, problem)
    posed = problem.with_wishes(wishes)
    net = problem.rules_net(Severity.ERROR)
    if net.solvable(net.begin([m for w in wishes for m in w.masks])) is not None:
        return []
    members = conflict_members(case.solver, posed, case.solver.stuck(posed))
    rule_members = [m for m in members if not m.is_wish]
    wishes_met = [m for m in members if m.is_wish]
    versions = {c: v for m in wishes_met for c, v in m.components.items()}
    what = join_words([name_release(c, v) for c, v in versions.items()]) or "this set"
    return [
        Finding(
            rule=rule_members[0].rule if rule_members else "release-unknown",
            severity=Severity.ERROR,
            components=versions,
            message=f"no cell has {what}: " + "; ".join(m.message for m in rule_members),
            evidence=strongest(e for m in rule_members for e in m.evidence),
            stage=case.rule(rule_members[0].rule).stage if rule_members else None,
        )
    ]


def _unknown_pairs(case: JudgementDraft, inferred: Mapping[str, str]) -> list[str]:
    """Return what the knowledge cannot say about the given set."""
    subject, problem = case.subject, case.problem
    reasons = [f"{name}: no rule and no declaration speaks of it" for name in subject.plain if _unheard_of(case, name)]
    torch = problem.variable("torch")
    if torch is not None and "torch" in subject.masks:
        listed = case.listed("torch")
        on_gpu = subject.text.get("gpu", "none") != "none" and subject.text.get("cuda") != "cpu"
        on_gpu = on_gpu and not subject.text["torch"].endswith("+cpu")
        if listed and on_gpu and "torch-runs-on-gpu" in _silent(case, listed, torch):
            reasons.append(f"for which GPUs torch {subject.text['torch']} is compiled")
        if listed and "driver" in subject.masks and "cuda" not in subject.masks and "cuda" not in inferred:
            reasons.append(
                f"with which CUDA torch {subject.text['torch']} is built, so nothing follows about the driver"
            )
    if not any(n == "torch" or case.solver.compiled.roles[n] is Role.FRAMEWORK for n in subject.components.values()):
        components = {*subject.components.values()}
        related = (r for r in case.solver.compiled.rules_of(components) if not r.locking)
        if components and not any(set(r.components) <= components for r in related):
            named = join_words(sorted(components))
            several = f"no rule speaks of {named} together"
            alone = f"only {named} is known, and a rule speaks of two components or more"
            reasons.append(several if len(components) > 1 else alone)
        elif not components and not subject.unknown:
            reasons.append("nothing was given")
    return reasons


def _unheard_of(case: JudgementDraft, name: str) -> bool:
    """Tell whether the knowledge has no release of a component, and no rule over what somebody has."""
    compiled = case.solver.compiled
    rules = compiled.rules_of([name])
    return not compiled.versions.get(name) and all(rule.locking for rule in rules)


def _silent(case: JudgementDraft, torches: int, torch: int) -> set[str]:
    """Return the rules that say nothing about one of these builds of torch."""
    silent = {"torch-runs-on-gpu"}
    for group in case.problem.groups:
        if group.rule in silent:
            covered = 0
            for _, nogood in group.nogoods:
                covered |= dict(nogood).get(torch, 0)
            if not torches & ~covered:
                silent.discard(group.rule)
    return silent


# Rules that a set breaks, as findings: one a rule, and notes.


def _violated(case: JudgementDraft, masks: Sequence[tuple[int, int]], inferred: Mapping[str, str]) -> list[Finding]:
    """Return a finding per rule that the masks break by themselves.

    What a later release bars is left out where another rule says more of the same components.
    """
    problem = case.problem
    domains = problem.full
    for variable, mask in masks:
        domains[variable] &= mask
    changed = {v for v, _ in masks}
    findings = []
    for group in problem.groups:
        # Only what all of the given releases meet can be broken by them; that is next to nothing of most rules.
        met = [n for _, n in group.nogoods if all(domains[v] & m for v, m in n) and any(v in changed for v, _ in n)]
        if group.severity is Severity.WARNING:
            # That every listed release of something unnamed would be trouble is not trouble that the user has.
            met = [n for n in met if all(v in changed for v, _ in n)]
        if met and not _holds(Net(problem.full, met), domains, changed):
            findings.append(_finding(case, group, dict(masks), inferred))
    findings.sort(key=lambda f: f.severity is not Severity.ERROR)
    sets = [f.components.keys() for f in findings if _LATER not in f.rule and f.severity is not Severity.NOTE]
    return [f for f in findings if _LATER not in f.rule or f.components.keys() not in sets]


def _holds(net: Net, domains: Domains, changed: set[int]) -> bool:
    under = [a & b for a, b in zip(net.start, domains, strict=True)]
    return all(under) and net.propagate(under, set(changed)) and net.solvable(under) is not None


def _finding(
    case: JudgementDraft, group: RuleNogoods, masks: Mapping[int, int], inferred: Mapping[str, str]
) -> Finding:
    rule = case.rule(group.rule)
    numbers = [n for n, nogood in group.nogoods if n >= 0 and all(v in masks and masks[v] & m for v, m in nogood)]
    rows = [rule.rows[n] for n in dict.fromkeys(numbers)] or list(rule.rows[:1])
    scope = dict.fromkeys(c for row in rows for c in row.scope)
    versions = _shown(case, scope, inferred)
    affected = {c: [v] for c, v in versions.items()}
    fixes = [row.fix for row in rows if row.fix]
    symptoms = [row.symptom for row in rows if row.symptom]
    return Finding(
        rule=rule.id,
        severity=group.severity,
        components=versions,
        message=message_of(rule, rows, affected),
        evidence=strongest(e for row in rows for e in row.evidence),
        fix=fixes[0] if fixes else None,
        symptom=symptoms[0] if symptoms else None,
        stage=rule.stage,
        inferred={c: v for c, v in inferred.items() if c in scope and c not in case.subject.masks},
    )


def _shown(case: JudgementDraft, scope: Mapping[str, None], inferred: Mapping[str, str]) -> dict[str, str]:
    text = case.subject.text
    versions = {c: text[c] for c in scope if c in text}
    if (
        "torch" in text
        and "torch" not in versions
        and any(c in CARRIED and c not in text and c not in inferred for c in scope)
    ):
        versions = {"torch": text["torch"], **versions}  # of which every build is concerned
    return versions | {c: inferred[c] for c in scope if c in inferred and c not in versions}


def _notes(case: JudgementDraft, versions: Mapping[str, str], platform: Platform) -> list[Finding]:
    """Return the rows that are notes only."""
    findings = []
    for compiled in case.solver.compiled.rules_of(case.subject.plain):
        if compiled.locking or not any(versions.keys() >= set(scope) for scope in compiled.notes):
            continue
        rule = case.rule(compiled.id)
        row = next((r for r in rule.rows if _is_told(case, rule, r, versions, platform)), None)
        if row is None:
            continue
        shown_versions = {c: versions[c] for c in row.scope}
        message = message_of(rule, [row], {c: [v] for c, v in shown_versions.items()})
        inferred = {c: v for c, v in shown_versions.items() if c not in case.subject.text}
        findings.append(finding_of_row(rule, row, Severity.NOTE, shown_versions, message, inferred=inferred))
    return findings


def _is_told(case: JudgementDraft, rule: Rule, row: Row, versions: Mapping[str, str], platform: Platform) -> bool:
    """Tell whether a row is a note that these versions meet."""
    concerns = row.severity is Severity.NOTE and row.feature not in case.features
    if not concerns or (row.platforms and platform not in row.platforms):
        return False
    # A note on what torch carries anyway, and on nothing that was given, would be true for nearly every set.
    count = sum(c in case.subject.plain for c in row.scope)
    if any(c not in versions for c in row.scope) or not count or (count == 1 and rule.signature):
        return False  # what has a signature, a log will tell
    holds = all(s.contains(versions[c]) for c, s in row.when.items())
    return holds and not (row.needs and all(s.contains(versions[c]) for c, s in row.needs.items()))


# The nearest valid cell to a given set that is bad.


# What a host has in several releases side by side: where it has one, another is no dearer than that of a package.
_INSTALLED_BESIDE = frozenset({"gcc", "toolkit"})


def _wishes(case: JudgementDraft, problem: Problem) -> list[Wish]:
    """Return a wish for each component of the set. Those that are to stay are wished hardest."""
    wishes = []
    for name, mask in case.subject.masks.items():
        component = case.subject.components[name]
        is_replaced = component in _INSTALLED_BESIDE and case.subject.text[name] != "none"
        host = case.solver.compiled.roles[component] is Role.HOST and not is_replaced
        reason = "it is to stay" if component in case.keep else ""
        masks = ((problem.names.index(name), mask),)
        wishes.append(Wish(component, case.subject.text[name], masks, host=host, reason=reason))
    return wishes


def _repair(
    case: JudgementDraft,
    names: Mapping[str, str],
    versions: Mapping[str, str],
    broken: frozenset[str],
    warned: frozenset[str],
) -> Repair | None:
    """Return the nearest cell. What a wheel carries follows it and does not count as a change.

    ``warned`` are the rules that warn of the given set: an error is mended with the fewest changes whether or not those
    are mended with it. ``broken`` are those that the set breaks, a warning that was taken for an error among them.
    """
    platform = case.problem.platform
    problem, _ = _posed(case.solver, platform, names, case.subject, case.features, gaps=True)
    raised = [g for g in problem.groups if g.severity is Severity.WARNING and g.rule in broken]
    if raised:
        groups = (g._replace(severity=Severity.ERROR) if g in raised else g for g in problem.groups)
        problem = replace(problem, groups=tuple(groups), _nets={})
    carried = {n for n in CARRIED if n in case.subject.masks and "torch" in case.subject.masks and _agrees(case, n)}
    wishes = [w for w in _wishes(case, problem) if w.component not in carried]
    wishes += [*_stay_with_cuda(case, problem), *_have_what_is_needed(case, problem)]
    roles = case.solver.compiled.roles
    frameworks = tuple(n for n in case.subject.plain if roles[n] is Role.FRAMEWORK)
    companions = tuple(n for n in case.subject.plain if roles[n] is Role.COMPANION)
    chosen = tuple(n for n in (*frameworks, "torch", "cuda", "python", *companions) if n in names)
    masks, plain = case.subject.masks, case.subject.plain
    # Only what is one release (of torch: one version) has a place to be near to.
    start = {n: (m & -m).bit_length() - 1 for n, m in masks.items() if n in problem.names and n in plain}
    posed = Posed(
        Request(platform=platform),
        problem.with_wishes(wishes),
        Nearest(problem, frameworks, companions, start=start, torches=masks.get("torch", 0)),
        chosen,
        *avoided(problem, {}),  # of the set they may stay: the passes without these masks allow them
    )
    repairs = case.solver.repairs(posed, warned=warned)
    needed = {n for g in problem.groups if g.rule in broken for n in case.solver.graph.rule(g.rule).needed}
    for repair in sorted(repairs, key=lambda r: _dearness(roles, needed, r)):
        followers = _followers(case, repair, read_given(case.solver, versions))
        message = repair.message or " and ".join(f"{c.component} {c.new} instead of {c.old}" for c in followers)
        complete = replace(repair, changes=(*repair.changes, *followers), message=message)
        if _mends(case, complete, versions):
            return complete
    return None


def _mends(case: JudgementDraft, repair: Repair, versions: Mapping[str, str]) -> bool:
    """Tell whether the given set has no error any more after the changes of a repair."""
    find = case.solver.graph.components.find
    changes = {change.component: change.new for change in repair.changes}
    # In the order of the given set, so that both are judged over the same tables.
    named = {c.name if (c := find(n)) and c.name in changes else n: v for n, v in versions.items()}
    mended = {n: v for n, v in (named | changes).items() if v is not None}
    judged = judge(case.solver, mended, case.problem.platform, features=case.features, mend=False)
    return judged.status != "bad"


def _followers(case: JudgementDraft, repair: Repair, subject: Given) -> list[Change]:
    """Return what else of the given set the cell of a repair has otherwise: what torch carries, and its build by name."""
    problem, text, new = case.problem, subject.text, repair.cell.components
    changed = {change.component for change in repair.changes}
    present = [n for n in ("torch", *CARRIED) if n in subject.masks and n in problem.names and n not in changed]
    followers = [
        n for n in present if n not in new or not problem.bit(problem.names.index(n), new[n]) & subject.masks[n]
    ]
    index = problem.compiled.torch_index.get(problem.platform.value, {})
    if "torch" in present and "+" not in text["torch"] and index.get(new["torch"]) != "default" and "cuda" not in text:
        followers.insert(0, "torch")
    return [Change(component=n, old=text[n], new=new.get(n)) for n in followers]


def _dearness(roles: Mapping[str, Role], needed: Collection[str], repair: Repair) -> tuple[int, int, int]:
    """Return what sorts repairs: few changes, companions, a framework upwards, torch upwards, anything downwards.

    A framework that rules say is ``needed`` goes upwards before a companion that wants it goes downwards.
    """

    def dear(change: Change) -> int:
        role, is_older = roles.get(change.component), _is_older(change.new, change.old)
        if role in (Role.COMPANION, Role.HOST):
            return int(role is Role.COMPANION and is_older and change.component not in needed)
        if role is Role.FRAMEWORK and not is_older:
            return int(change.component not in needed)
        return 3 if is_older else 2

    each = [dear(change) for change in repair.changes]
    return len(each), max(each, default=0), sum(each)


def _is_older(new: str | None, old: str | None) -> bool:
    try:
        after, before = version_key(public(new or "none")), version_key(public(old or "none"))
    except ValueError:
        return False
    return after is not None and before is not None and after < before


def _stay_with_cuda(case: JudgementDraft, problem: Problem) -> list[Wish]:
    """Return the wish for CUDA: giving it up is not a repair for somebody who has it."""
    with_cuda, text = problem.with_cuda(), case.subject.text
    if with_cuda is None or text.get("torch", "").endswith("+cpu") or states_cpu(case.solver, case.subject):
        return []
    return [Wish("cuda", "with CUDA", (with_cuda,), reason="a build without CUDA is not a repair", host=True)]


def _have_what_is_needed(case: JudgementDraft, problem: Problem) -> list[Wish]:
    return [
        Wish(name, spec.text, ((variable, problem.mask(variable, spec)),), reason="it is needed", host=True)
        for name, spec in case.needed.items()
        if name in case.subject.masks
        for variable in [problem.names.index(name)]
    ]


def _lacks(case: JudgementDraft) -> bool:
    """Tell whether the given set has a component in no release that is needed."""
    masks = case.subject.masks
    return any(
        not mask & masks[wish.component] for wish in _have_what_is_needed(case, case.problem) for _, mask in wish.masks
    )


def _agrees(case: JudgementDraft, name: str) -> bool:
    """Tell whether the given release of a carried component is what (some of) the given torch carries."""
    problem = case.problem
    torch, variable = problem.names.index("torch"), problem.names.index(name)
    masks = [(torch, case.subject.masks["torch"]), (variable, case.subject.masks[name])]
    return carrying(case).begin(masks) is not None
