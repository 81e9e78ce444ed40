"""Judging a set of releases that somebody has, without changing it.

A set may be partial. It is judged on what is given; what a torch wheel carries is inferred and shown as inferred. ``torch==2.9.1`` stands for
all builds of that release that can be meant. It is bad when every one of them is, and when the default build is, for that is what an index gives;
where the set hints at another build (a toolkit of another CUDA major) what the default build alone would break is a warning, and the judgement is
then ``unknown``. A component of version ``*`` is there in some release: it is bad only when every release is. One of version ``none`` is known to be
absent.

A torch without a build tag beside a CUDA that no published build of it has cannot exist as it was said, but says nothing wrong either: people mean the
CUDA of nvcc or of nvidia-smi, or compiled it. That is a warning and ``unknown``; with a build tag the two contradict each other, and it is bad.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from envsmith.model.cell import Platform, Request
from envsmith.model.component import Role
from envsmith.model.finding import Change, Finding, Judgement, Repair
from envsmith.model.rule import Knowledge, Row, Rule, RuleKind, Severity
from envsmith.model.version import Spec, version_key
from envsmith.solve.case import CARRIED, Case, Given, bits_of, carrying, infer, plausible, read_given
from envsmith.solve.explain import conflict_members
from envsmith.solve.kernel import Domains, Net, bits
from envsmith.solve.prefer import Nearest, Support
from envsmith.solve.problem import Group, Problem, Wish, pose
from envsmith.solve.request import CORE, Posed
from envsmith.solve.solver import Solver
from envsmith.solve.words import finding_of_row, join_words, message_of, name_release, strongest


def judge(
    solver: Solver, given: Mapping[str, str], platform: Platform, *, keep: Collection[str] = frozenset()
) -> Judgement:
    """``ok``, ``bad`` or ``unknown`` with findings, what was inferred, what is not known, and a solved repair when it is bad.

    The repair leaves the components of ``keep`` as they are, as long as there is one that does.
    :class:`envsmith.errors.UsageError` when a version is none.
    """
    read = plausible(solver, read_given(solver, given), platform)
    whole = any(n == "torch" or solver.compiled.roles[n] is Role.FRAMEWORK for n in read.components.values())
    core = [n for n in CORE if n not in read.components and solver.compiled.versions.get(n)]
    names = dict(read.components) | ({n: n for n in core} if whole else {})
    problem = pose(solver.compiled, platform, names, read.extras, gaps=False)
    case = Case(solver, read, problem, {r.id: r for r in solver.knowledge().rules}, frozenset(keep))
    builds, inferred, assumed = infer(case)
    findings = violated(case, case.masks(), {})
    seen = {f.rule for f in findings}
    follows = {n: v for n, v in inferred.items() if n not in assumed}
    findings += [f for f in violated(case, builds, follows) if f.rule not in seen]
    findings, other_build = _own_build(case, findings)
    if other_build:
        inferred, assumed = {}, frozenset()
    unknown = [*read.unknown, *other_build]
    doubt = False
    if assumed:
        seen = {f.rule for f in findings}
        more = [f for f in violated(case, [*builds, *bits_of(problem, inferred)], inferred) if f.rule not in seen]
        hinted = _hints_at_another(case, inferred)
        findings += [
            _of_default(f, inferred["torch"], hinted=hinted) for f in more if f.severity is Severity.ERROR or not hinted
        ]
        doubt = hinted and any(f.severity is Severity.ERROR for f in more)
    if not other_build and not any(f.severity is Severity.ERROR for f in findings):
        findings += _derived(case)
    findings += _of_nightly(solver, case, given, platform, findings)
    findings += notes(case, {**read.plain, **inferred}, platform)
    bad = any(f.severity is Severity.ERROR for f in findings)
    if doubt and not bad:
        unknown.append(f"which build of torch it is: {inferred['torch']} would be bad, another one is not")
    unknown += [] if bad else _unknown_pairs(case, inferred)
    return Judgement(
        status="bad" if bad else "unknown" if unknown else "ok",
        findings=tuple(findings),
        inferred=inferred,
        unknown=tuple(unknown),
        repair=repair_of(case, names, platform, _warned(findings) if bad else frozenset()) if bad or doubt else None,
    )


def _warned(findings: Sequence[Finding]) -> frozenset[str]:
    return frozenset(f.rule for f in findings if f.severity is Severity.WARNING)


def _of_default(finding: Finding, build: str, *, hinted: bool) -> Finding:
    """A finding that holds for the default build only: what it says where nobody named a build, a doubt where the set hints at another one."""
    mild = hinted and finding.severity is Severity.ERROR
    return replace(
        finding,
        severity=Severity.WARNING if mild else finding.severity,
        message=f"{'if' if mild else 'as'} torch is the default build {build}: {finding.message}",
    )


def _hints_at_another(case: Case, inferred: Mapping[str, str]) -> bool:
    """Whether the toolkit is of another CUDA major than the default build, and some build of this torch is of the toolkit's."""
    toolkit, cuda = case.given.plain.get("toolkit"), inferred.get("cuda")
    if toolkit is None or cuda is None or toolkit.split(".")[0] == cuda.split(".")[0]:
        return False
    tag = "+cu" + toolkit.split(".")[0]
    versions = case.solver.compiled.versions["torch"]
    return any(tag in versions[i] for i in bits(case.given.masks["torch"] & ((1 << len(versions)) - 1)))


def _own_build(case: Case, findings: Sequence[Finding]) -> tuple[list[Finding], list[str]]:
    """A torch without a build tag beside a CUDA that no published build of it has: the toolkit is meant, or torch was compiled from source."""
    if "+" in case.given.text.get("torch", "+") or "cuda" not in case.given.text:
        return list(findings), []
    torch, cuda = case.given.text["torch"], case.given.text["cuda"]
    kept, reasons = [], []
    for finding in findings:
        if finding.rule != "torch-bundles-cuda":
            kept.append(finding)
            continue
        fix = f"If CUDA {cuda} is that of nvcc, say toolkit=={cuda}."
        kept.append(
            replace(finding, severity=Severity.WARNING, message=f"{finding.message} (no published build)", fix=fix)
        )
        reasons.append(
            f"a build of torch {torch} with CUDA {cuda}: none was published, one compiled from source can be anything"
        )
    return kept, reasons


def _of_nightly(
    solver: Solver, case: Case, given: Mapping[str, str], platform: Platform, findings: Sequence[Finding]
) -> list[Finding]:
    """What a nightly or vendor build of torch (``2.1.0.dev20230519``, ``2.4.0a0``) breaks if it has what the release after it has."""
    text = case.given.text.get("torch", "")
    key = version_key(text) if text else None
    if key is None or not key.is_prerelease or text in solver.compiled.versions.get("torch", ()):
        return []
    base = {n: v for n, v in given.items() if case.given.text.get(n) != text} | {"torch": key.base_version}
    seen = {f.rule for f in findings}
    later = [f for f in judge(solver, base, platform).findings if "torch" in f.components and f.rule not in seen]
    return [
        replace(
            f,
            severity=Severity.WARNING,
            components={**f.components, "torch": text},
            message=f"if torch {text} already has what {key.base_version} has: {f.message}",
        )
        for f in later
        if f.severity is not Severity.NOTE and not f.rule.startswith("torch-")
    ]


def _derived(case: Case) -> list[Finding]:
    """What only all rules together rule out: no cell contains what is given."""
    problem = case.problem
    wishes = wishes_of(case, problem)
    posed = problem.with_wishes(wishes)
    net = problem.rules_net(Severity.ERROR)
    if net.solvable(net.begin([m for w in wishes for m in w.masks])) is not None:
        return []
    stuck = case.solver.stuck_of(posed)
    if stuck is None:
        return []
    members = conflict_members(case.solver, posed, stuck)
    told = [m for m in members if not m.rule.startswith("request:")]
    asked = [m for m in members if m.rule.startswith("request:")]
    shown = {c: v for m in asked for c, v in m.components.items()}
    what = join_words([name_release(c, v) for c, v in shown.items()]) or "this set"
    return [
        Finding(
            rule=told[0].rule if told else "release-unknown",
            severity=Severity.ERROR,
            components=shown,
            message=f"no cell has {what}: " + "; ".join(m.message for m in told),
            evidence=strongest(e for m in told for e in m.evidence),
            stage=case.rules[told[0].rule].stage if told else None,
        )
    ]


def _unknown_pairs(case: Case, inferred: Mapping[str, str]) -> list[str]:
    """What the knowledge cannot say about the given set."""
    given, problem = case.given, case.problem
    reasons = [reason for name in given.plain if (reason := known_pair(case.solver, problem, given, name))]
    torch = problem.variable("torch")
    if torch is not None and "torch" in given.masks:
        listed = given.masks["torch"] & ((1 << len(case.solver.compiled.versions.get("torch", ()))) - 1)
        on_gpu = "gpu" in given.masks and not given.text["torch"].endswith("+cpu")
        if listed and on_gpu and "torch-runs-on-gpu" in _silent(case, listed, torch):
            reasons.append(f"for which GPUs torch {given.text['torch']} is compiled")
        if listed and "driver" in given.masks and "cuda" not in given.masks and "cuda" not in inferred:
            reasons.append(f"with which CUDA torch {given.text['torch']} is built, so nothing follows about the driver")
    if not any(n == "torch" or case.solver.compiled.roles[n] is Role.FRAMEWORK for n in given.components.values()):
        there = {*given.components.values()}
        if not any(set(r.components) <= there for r in case.rules.values()):
            reasons.append("no rule relates " + join_words(sorted(there)) if there else "nothing was given")
    return reasons


def _silent(case: Case, torches: int, torch: int) -> set[str]:
    """Rules that say nothing about one of these builds of torch."""
    silent = {"torch-runs-on-gpu"}
    for group in case.problem.groups:
        if group.rule in silent:
            covered = 0
            for _, nogood in group.nogoods:
                covered |= dict(nogood).get(torch, 0)
            if not torches & ~covered:
                silent.discard(group.rule)
    return silent


def known_pair(solver: Solver, problem: Problem, given: Given, framework: str) -> str | None:
    """Why the knowledge cannot vouch for a framework with the given torch; ``None`` when it can, or when there is nothing to vouch for.

    It can when somebody tested this framework release (its series, or an older release) with this torch or a newer one, or when
    the release itself declares a range that ends above this torch.
    """
    compiled = solver.compiled
    if compiled.roles[framework] is not Role.FRAMEWORK or "torch" not in given.masks:
        return None
    listed = (1 << len(compiled.versions.get(framework, ()))) - 1
    releases = given.masks[framework] & listed
    torches = given.masks["torch"] & ((1 << len(compiled.versions.get("torch", ()))) - 1)
    if not releases or not torches:
        return None
    release = releases.bit_length() - 1
    support = Support.of(problem, framework)
    older = support.torch(release)
    for frameworks, tested in support.lines:
        if frameworks & ((1 << (release + 1)) - 1):
            older |= tested
    if older and torches & -torches <= older:
        return None
    if _declared_bound(solver, framework, release, torches):
        return None
    version = given.text[framework]
    newest = (
        str(problem.values[problem.names.index("torch")][older.bit_length() - 1]).split("+", maxsplit=1)[0]
        if older
        else ""
    )
    tail = f": the newest torch it was tested with is {newest}" if newest else ""
    return f"whether {framework} {version} works with torch {given.text['torch']}{tail}"


def _declared_bound(solver: Solver, framework: str, release: int, torches: int) -> bool:
    """Whether the release declares a range for torch that has an upper end and contains the given torch."""
    version = solver.compiled.versions[framework][release]
    for rule in solver.knowledge().rules:
        if rule.id != f"{framework}-declares-torch":
            continue
        for row in rule.rows:
            spec: Spec = row.needs["torch"]
            if row.when[framework].contains(version) and re.search(r"<|==|~=", spec.text):
                return any(spec.contains(solver.compiled.versions["torch"][i]) for i in bits(torches))
    return False


# Rules that a set breaks, as findings: one a rule, and notes.


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


# Known-bad cells: what every rule forbids, with releases in the place of specs and the text that a user would see.
#
# A rule says ``deepspeed <0.8.2 with torch >=2.0``; a known-bad cell is one pair of releases that it forbids. For each row the releases next to the
# bounds are taken, for these are what people have: the newest that a ``when`` admits and, for a need, the newest that does not meet it.


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownBad:
    """Releases that do not work together, the rule that says so, at which stage it shows and how."""

    components: Mapping[str, str]
    rule: str
    stage: str | None
    symptom: str


def stated_by_metadata(rule: Rule) -> bool:
    """Whether package metadata or the tags of files say it: declared requirements, and what torch wheels carry and exist for."""
    return "-declares-" in rule.id or rule.kind is RuleKind.BUNDLES or rule.id.startswith("torch-wheels-")


def known_bad(knowledge: Knowledge, *, worst: bool = False) -> Iterator[KnownBad]:
    """Known-bad cells of all rules that metadata does not state and that say what a user sees, each set once; ``worst`` leaves warnings out."""
    seen: set[tuple[tuple[str, str], ...]] = set()
    for rule in knowledge.rules:
        if stated_by_metadata(rule):
            continue
        for row in rule.rows:
            symptom = row.symptom or rule.symptom
            if symptom is None or row.severity is Severity.NOTE or (worst and row.severity is not Severity.ERROR):
                continue
            for components in _sets(knowledge, row):
                key = tuple(sorted(components.items()))
                if key not in seen:
                    seen.add(key)
                    yield KnownBad(components=components, rule=rule.id, stage=rule.stage, symptom=symptom)


def _sets(knowledge: Knowledge, row: Row) -> Iterator[dict[str, str]]:
    """One set per need that is not met, or the set of ``when`` itself; none where no listed release fits."""
    chosen = {name: _newest_known(knowledge, name, row.when[name], row.needs.get(name)) for name in row.when}
    if any(version is None for version in chosen.values()):
        return
    given = {name: version for name, version in chosen.items() if version is not None}
    if not row.needs:
        yield given
    for name, spec in row.needs.items():
        if name in given:
            yield given
        elif (version := _newest_known(knowledge, name, None, spec)) is not None:
            yield {**given, name: version}


def _newest_known(knowledge: Knowledge, name: str, wanted: Spec | None, unmet: Spec | None) -> str | None:
    """The newest stable release that ``wanted`` admits and ``unmet`` does not."""
    for release in reversed(knowledge.releases.get(name, ())):
        version = release.version
        key = version_key(version)
        if key is None or key.is_prerelease or release.yanked:
            continue
        public = version.split("+", maxsplit=1)[0]
        if (wanted is None or wanted.contains(version)) and (unmet is None or not unmet.contains(version)):
            return public if name == "torch" else version
    return None


# The nearest valid cell to a given set that is bad.


def wishes_of(case: Case, problem: Problem) -> list[Wish]:
    """A wish for each component that is given; those to be kept are wished hardest."""
    wishes = []
    for name, mask in case.given.masks.items():
        component = case.given.components[name]
        host = case.solver.compiled.roles[component] is Role.HOST
        kept = "it is to stay" if component in case.keep else ""
        masks = ((problem.names.index(name), mask),)
        wishes.append(Wish(component, case.given.text[name], masks, host=host, reason=kept))
    return wishes


def repair_of(
    case: Case, names: Mapping[str, str], platform: Platform, known: frozenset[str] = frozenset()
) -> Repair | None:
    """The nearest cell; what a wheel carries follows it and does not count as a change.

    ``known`` are the rules that warn of the given set: an error is mended with the fewest changes whether or not those are mended with it.
    """
    problem = pose(case.solver.compiled, platform, names, case.given.extras)
    carried = {n for n in CARRIED if n in case.given.masks and "torch" in case.given.masks and _agrees(case, n)}
    wishes = [w for w in wishes_of(case, problem) if w.component not in carried] + _stay_with_cuda(case, problem)
    roles = case.solver.compiled.roles
    frameworks = tuple(n for n in case.given.plain if roles[n] is Role.FRAMEWORK)
    companions = tuple(n for n in case.given.plain if roles[n] is Role.COMPANION)
    chosen = tuple(n for n in (*frameworks, "torch", "cuda", "python", *companions) if n in names)
    posed = Posed(
        Request(platform=platform),
        problem.with_wishes(wishes),
        _nearest_first(case, problem, frameworks, companions),
        chosen,
        _without(problem, case.solver.compiled.pre),
        _without(problem, case.solver.compiled.yanked),
    )
    repairs = case.solver.repairs(posed, known=known)
    if not repairs:
        return None
    repair = min(repairs, key=lambda r: _dearness(roles, r))
    if not repair.changes and "torch" in case.given.text:
        build = repair.cell.components["torch"]
        change = Change(component="torch", old=case.given.text["torch"], new=build)
        return Repair(changes=(change,), cell=repair.cell, message=f"torch {build}, named as that build")
    return repair


def _nearest_first(case: Case, problem: Problem, frameworks: tuple[str, ...], companions: tuple[str, ...]) -> Nearest:
    """The order of answers around what is given; only what is one release (of torch: one version) has a place to be near to."""
    start = {
        n: (m & -m).bit_length() - 1
        for n, m in case.given.masks.items()
        if n in problem.names and n in case.given.plain
    }
    return Nearest(problem, frameworks, companions, start=start, given=case.given.masks.get("torch", 0))


def _dearness(roles: Mapping[str, Role], repair: Repair) -> tuple[int, int, int]:
    """Of repairs with equally few changes: companions and tools move first, then a framework upwards, then torch upwards, then anything downwards."""

    def dear(change: Change) -> int:
        role = roles.get(change.component)
        if role in (Role.COMPANION, Role.HOST):
            return 0
        return 3 if _is_older(change.new, change.old) else 1 if role is Role.FRAMEWORK else 2

    each = [dear(change) for change in repair.changes]
    return len(each), max(each, default=0), sum(each)


def _is_older(new: str | None, old: str | None) -> bool:
    try:
        after, before = version_key((new or "none").split("+")[0]), version_key((old or "none").split("+")[0])
    except ValueError:
        return False
    return after is not None and before is not None and after < before


def _stay_with_cuda(case: Case, problem: Problem) -> list[Wish]:
    """Giving up CUDA is no repair for somebody who has it."""
    cuda = problem.variable("cuda")
    if cuda is None or "cpu" not in problem.values[cuda]:
        return []
    if case.given.text.get("cuda") == "cpu" or case.given.text.get("torch", "").endswith("+cpu"):
        return []
    mask = problem.full[cuda] & ~problem.bit(cuda, "cpu")
    return [Wish("cuda", "with CUDA", ((cuda, mask),), reason="a build without CUDA is no repair", host=True)]


def _without(problem: Problem, marked: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """Changed components get no pre-release or yanked release; the given ones may stay (the passes without this mask allow them)."""
    return tuple((v, problem.full[v] & ~marked[c]) for v, c in enumerate(problem.components) if marked.get(c))


def _agrees(case: Case, name: str) -> bool:
    """Whether the given release of a carried component is what (some of) the given torch carries."""
    problem = case.problem
    torch, variable = problem.names.index("torch"), problem.names.index(name)
    masks = [(torch, case.given.masks["torch"]), (variable, case.given.masks[name])]
    return carrying(case).begin(masks) is not None
