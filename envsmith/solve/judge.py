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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from envsmith.model.component import Role
from envsmith.model.finding import Finding, Judgement
from envsmith.model.platform import Platform
from envsmith.model.rule import Severity
from envsmith.model.version import version_key
from envsmith.solve.case import Case, bits_of, infer, plausible
from envsmith.solve.explain import conflict_members
from envsmith.solve.findings import notes, violated
from envsmith.solve.given import known_pair, read_given
from envsmith.solve.kernel import bits
from envsmith.solve.problem import pose
from envsmith.solve.repairing import repair_of, wishes_of
from envsmith.solve.request import CORE
from envsmith.solve.solver import Solver
from envsmith.solve.words import join_words, name_release, strongest

__all__ = ["judge"]


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
