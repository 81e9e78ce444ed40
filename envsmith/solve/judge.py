"""Judging a set of releases that somebody has, without changing it.

A set may be partial. It is judged on what is given; what a torch wheel carries is inferred and shown as inferred. ``torch==2.9.1`` stands for
all builds of that release that can be meant. It is bad when every one of them is, and when the default build is, for that is what an index gives;
where the set hints at another build (a toolkit of another CUDA major) what the default build alone would break is a warning, and the judgement is
then ``unknown``. A component of version ``*`` is there in some release: it is bad only when every release is. One of version ``none`` is known to be
absent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from envsmith.model.cell import Request
from envsmith.model.component import Role
from envsmith.model.finding import Change, Finding, Judgement, Repair
from envsmith.model.platform import Platform
from envsmith.model.rule import Row, Rule, Severity
from envsmith.model.version import version_key
from envsmith.solve.explain import conflict_members
from envsmith.solve.given import Given, known_pair, read_given
from envsmith.solve.kernel import Domains, Net, bits
from envsmith.solve.prefer import Nearest
from envsmith.solve.problem import Group, Problem, Wish, pose
from envsmith.solve.request import CORE, FOLLOWS, Posed
from envsmith.solve.solver import Solver
from envsmith.solve.words import join_words, name_release, rule_sentence, strongest

__all__ = ["judge"]


@dataclass(slots=True)
class _Case:
    """One judgement in the making. ``keep`` are the components that no repair may change."""

    solver: Solver
    given: Given
    problem: Problem
    rules: Mapping[str, Rule]
    keep: frozenset[str] = frozenset()

    def masks(self) -> list[tuple[int, int]]:
        return [(self.problem.names.index(name), mask) for name, mask in self.given.masks.items()]


def judge(
    solver: Solver, given: Mapping[str, str], platform: Platform, *, keep: Collection[str] = frozenset()
) -> Judgement:
    """``ok``, ``bad`` or ``unknown`` with findings, what was inferred, what is not known, and a solved repair when it is bad.

    The repair leaves the components of ``keep`` as they are, as long as there is one that does.
    :class:`envsmith.errors.UsageError` when a version is none.
    """
    read = _plausible(solver, read_given(solver, given), platform)
    whole = any(n == "torch" or solver.compiled.roles[n] is Role.FRAMEWORK for n in read.components.values())
    core = [n for n in CORE if n not in read.components and solver.compiled.versions.get(n)]
    names = dict(read.components) | ({n: n for n in core} if whole else {})
    problem = pose(solver.compiled, platform, names, read.extras, gaps=False)
    case = _Case(solver, read, problem, {r.id: r for r in solver.knowledge().rules}, frozenset(keep))
    builds, inferred, assumed = _infer(case)
    findings = _violated(case, case.masks(), {})
    seen = {f.rule for f in findings}
    follows = {n: v for n, v in inferred.items() if n not in assumed}
    findings += [f for f in _violated(case, builds, follows) if f.rule not in seen]
    findings, other_build = _own_build(case, findings)
    if other_build:
        inferred, assumed = {}, frozenset()
    unknown = [*read.unknown, *other_build]
    doubt = False
    if assumed:
        seen = {f.rule for f in findings}
        more = [f for f in _violated(case, [*builds, *_bits(problem, inferred)], inferred) if f.rule not in seen]
        hinted = _hints_at_another(case, inferred)
        findings += [
            _of_default(f, inferred["torch"], hinted=hinted) for f in more if f.severity is Severity.ERROR or not hinted
        ]
        doubt = hinted and any(f.severity is Severity.ERROR for f in more)
    if not other_build and not any(f.severity is Severity.ERROR for f in findings):
        findings += _derived(case)
    findings += _of_nightly(solver, case, given, platform, findings)
    findings += _notes(case, {**read.plain, **inferred}, platform)
    bad = any(f.severity is Severity.ERROR for f in findings)
    if doubt and not bad:
        unknown.append(f"which build of torch it is: {inferred['torch']} would be bad, another one is not")
    unknown += [] if bad else _unknown_pairs(case, inferred)
    return Judgement(
        status="bad" if bad else "unknown" if unknown else "ok",
        findings=tuple(findings),
        inferred=inferred,
        unknown=tuple(unknown),
        repair=_repair(case, names, platform) if bad or doubt else None,
    )


def _plausible(solver: Solver, given: Given, platform: Platform) -> Given:
    """Without the builds that a torch without a build tag cannot mean: those of other platforms, and those without CUDA beside a driver."""
    listed = solver.compiled.versions.get("torch", ())
    mask = given.masks.get("torch", 0)
    if not mask & (mask - 1):
        return given
    here = solver.compiled.torch_index.get(platform.value, {})
    with_cuda = any(n in given.plain for n in _MEANS_CUDA)
    narrower = 0
    for index, version in enumerate(listed):
        if mask >> index & 1 and version in here and not (with_cuda and version.endswith("+cpu")):
            narrower |= 1 << index
    return replace(given, masks={**given.masks, "torch": narrower or mask})


def _bits(problem: Problem, versions: Mapping[str, str]) -> list[tuple[int, int]]:
    return [(problem.names.index(n), problem.bit(problem.names.index(n), v)) for n, v in versions.items()]


def _carrying(case: _Case) -> Net:
    """The rules about what torch wheels there are, and what they carry."""
    problem = case.problem
    bundles = {r.id for r in case.solver.compiled.rules if r.bundles} | {"torch-wheels-platform"}
    parts = [
        problem.part(i) for i, g in enumerate(problem.groups) if g.rule in bundles and g.severity is Severity.ERROR
    ]
    return Net(problem.full).joined(parts)


def _infer(case: _Case) -> tuple[list[tuple[int, int]], dict[str, str], frozenset[str]]:
    """The given masks narrowed to what goes together, what follows, and which of it holds for the default build only."""
    problem, given = case.problem, case.given
    torch = problem.variable("torch")
    if torch is None or "torch" not in given.masks:
        return case.masks(), {}, frozenset()
    net = _carrying(case)
    domains = net.begin(case.masks()) or net.begin([(torch, given.masks["torch"])])
    if domains is None:
        return case.masks(), {}, frozenset()
    narrowed = [
        (v, m) for v, m in enumerate(domains) if problem.names[v] in given.masks or problem.names[v] in _CARRIED
    ]
    inferred = _single(problem, domains, given)
    if inferred.keys() >= set(_CARRIED) - given.masks.keys() and not domains[torch] & (domains[torch] - 1):
        return narrowed, inferred, frozenset()
    default = _default_build(problem, torch, domains[torch])
    if default is None or not domains[torch] & (domains[torch] - 1):
        return narrowed, inferred, frozenset()
    closer = net.narrow(domains, torch, 1 << default)
    more = _single(problem, closer, given) if closer else {}
    more["torch"] = str(problem.values[torch][default])
    assumed = frozenset(n for n in more if n not in inferred)
    return narrowed, {**more, **inferred}, assumed


_CARRIED = ("cuda", *FOLLOWS)
# Who has one of these means to use it.
_MEANS_CUDA = ("driver", "gpu", "toolkit")


def _single(problem: Problem, domains: Domains, given: Given) -> dict[str, str]:
    """Carried components that are not given and have one release left."""
    found = {}
    for name in _CARRIED:
        variable = problem.variable(name)
        if variable is None or name in given.masks:
            continue
        domain = domains[variable]
        value = problem.values[variable][domain.bit_length() - 1]
        if not domain & (domain - 1) and value is not None:
            found[name] = value
    return found


def _default_build(problem: Problem, torch: int, domain: int) -> int | None:
    """The build that ``pip install torch`` gives, among those that are possible."""
    index = problem.compiled.torch_index.get(problem.platform.value, {})
    return next((i for i in bits(domain) if index.get(str(problem.values[torch][i])) == "default"), None)


def _violated(case: _Case, masks: Sequence[tuple[int, int]], inferred: Mapping[str, str]) -> list[Finding]:
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


def _finding(case: _Case, group: Group, masks: Mapping[int, int], inferred: Mapping[str, str]) -> Finding:
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
        message=_message(rule, rows, affected),
        evidence=strongest(e for row in rows for e in row.evidence),
        fix=fixes[0] if fixes else None,
        symptom=symptoms[0] if symptoms else None,
        stage=rule.stage,
        inferred={c: v for c, v in inferred.items() if c in scope and c not in case.given.masks},
    )


def _shown(case: _Case, scope: Mapping[str, None], inferred: Mapping[str, str]) -> dict[str, str]:
    text = case.given.text
    shown = {c: text[c] for c in scope if c in text}
    if (
        "torch" in text
        and "torch" not in shown
        and any(c in _CARRIED and c not in text and c not in inferred for c in scope)
    ):
        shown = {"torch": text["torch"], **shown}  # of which every build is concerned
    return shown | {c: inferred[c] for c in scope if c in inferred and c not in shown}


def _message(rule: Rule, rows: Sequence[Row], affected: Mapping[str, Sequence[str]]) -> str:
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


def _of_default(finding: Finding, build: str, *, hinted: bool) -> Finding:
    """A finding that holds for the default build only: what it says where nobody named a build, a doubt where the set hints at another one."""
    mild = hinted and finding.severity is Severity.ERROR
    return replace(
        finding,
        severity=Severity.WARNING if mild else finding.severity,
        message=f"{'if' if mild else 'as'} torch is the default build {build}: {finding.message}",
    )


def _hints_at_another(case: _Case, inferred: Mapping[str, str]) -> bool:
    """Whether the toolkit is of another CUDA major than the default build, and some build of this torch is of the toolkit's."""
    toolkit, cuda = case.given.plain.get("toolkit"), inferred.get("cuda")
    if toolkit is None or cuda is None or toolkit.split(".")[0] == cuda.split(".")[0]:
        return False
    tag = "+cu" + toolkit.split(".")[0]
    versions = case.solver.compiled.versions["torch"]
    return any(tag in versions[i] for i in bits(case.given.masks["torch"] & ((1 << len(versions)) - 1)))


def _own_build(case: _Case, findings: Sequence[Finding]) -> tuple[list[Finding], list[str]]:
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
    solver: Solver, case: _Case, given: Mapping[str, str], platform: Platform, findings: Sequence[Finding]
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


def _derived(case: _Case) -> list[Finding]:
    """What only all rules together rule out: no cell contains what is given."""
    problem = case.problem
    wishes = _wishes(case, problem)
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


def _wishes(case: _Case, problem: Problem) -> list[Wish]:
    wishes = []
    for name, mask in case.given.masks.items():
        component = case.given.components[name]
        host = case.solver.compiled.roles[component] is Role.HOST
        kept = "it is to stay" if component in case.keep else ""
        masks = ((problem.names.index(name), mask),)
        wishes.append(Wish(component, case.given.text[name], masks, host=host, reason=kept))
    return wishes


def _notes(case: _Case, versions: Mapping[str, str], platform: Platform) -> list[Finding]:
    """Rows that are told only."""
    found = []
    for rule in case.rules.values():
        for row in rule.rows:
            if row.severity is not Severity.NOTE or (row.platforms and platform not in row.platforms):
                continue
            # A note on what torch carries anyway, and on nothing that was given, would be true for nearly every set.
            told = sum(c in case.given.plain for c in row.scope)
            if any(c not in versions for c in row.scope) or not told or (told == 1 and rule.signature):
                continue  # what has a signature, a log will tell
            holds = all(s.contains(versions[c]) for c, s in row.when.items())
            if not holds or (row.needs and all(s.contains(versions[c]) for c, s in row.needs.items())):
                continue
            shown = {c: versions[c] for c in row.scope}
            found.append(
                Finding(
                    rule=rule.id,
                    severity=Severity.NOTE,
                    components=shown,
                    message=_message(rule, [row], {c: [v] for c, v in shown.items()}),
                    evidence=row.evidence,
                    fix=row.fix,
                    symptom=row.symptom,
                    stage=rule.stage,
                    inferred={c: v for c, v in shown.items() if c not in case.given.text},
                )
            )
            break
    return found


def _unknown_pairs(case: _Case, inferred: Mapping[str, str]) -> list[str]:
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


def _silent(case: _Case, torches: int, torch: int) -> set[str]:
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


def _repair(case: _Case, names: Mapping[str, str], platform: Platform) -> Repair | None:
    """The nearest cell; what a wheel carries follows it and does not count as a change."""
    problem = pose(case.solver.compiled, platform, names, case.given.extras)
    carried = {n for n in _CARRIED if n in case.given.masks and "torch" in case.given.masks and _agrees(case, n)}
    wishes = [w for w in _wishes(case, problem) if w.component not in carried] + _stay_with_cuda(case, problem)
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
    repairs = case.solver.repairs(posed)
    if not repairs:
        return None
    repair = min(repairs, key=lambda r: _dearness(roles, r))
    if not repair.changes and "torch" in case.given.text:
        build = repair.cell.components["torch"]
        change = Change(component="torch", old=case.given.text["torch"], new=build)
        return Repair(changes=(change,), cell=repair.cell, message=f"torch {build}, named as that build")
    return repair


def _nearest_first(case: _Case, problem: Problem, frameworks: tuple[str, ...], companions: tuple[str, ...]) -> Nearest:
    """The order of answers around what is given; only what is one release (of torch: one version) has a place to be near to."""
    start = {
        n: (m & -m).bit_length() - 1
        for n, m in case.given.masks.items()
        if n in problem.names and n in case.given.plain
    }
    return Nearest(problem, frameworks, companions, start=start, given=case.given.masks.get("torch", 0))


def _dearness(roles: Mapping[str, Role], repair: Repair) -> tuple[int, int]:
    """Of repairs with equally few changes: companions and tools move first, then a framework upwards, then torch upwards, then anything downwards."""

    def dear(change: Change) -> int:
        role = roles.get(change.component)
        if role in (Role.COMPANION, Role.HOST):
            return 0
        return 3 if _is_older(change.new, change.old) else 1 if role is Role.FRAMEWORK else 2

    return len(repair.changes), max(map(dear, repair.changes), default=0)


def _is_older(new: str | None, old: str | None) -> bool:
    try:
        after, before = version_key((new or "none").split("+")[0]), version_key((old or "none").split("+")[0])
    except ValueError:
        return False
    return after is not None and before is not None and after < before


def _stay_with_cuda(case: _Case, problem: Problem) -> list[Wish]:
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


def _agrees(case: _Case, name: str) -> bool:
    """Whether the given release of a carried component is what (some of) the given torch carries."""
    problem = case.problem
    torch, variable = problem.names.index("torch"), problem.names.index(name)
    masks = [(torch, case.given.masks["torch"]), (variable, case.given.masks[name])]
    return _carrying(case).begin(masks) is not None
