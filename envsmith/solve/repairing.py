"""The nearest valid cell to a given set that is bad."""

from __future__ import annotations

from collections.abc import Mapping

from envsmith.model.cell import Request
from envsmith.model.component import Role
from envsmith.model.finding import Change, Repair
from envsmith.model.platform import Platform
from envsmith.model.version import version_key
from envsmith.solve.case import CARRIED, Case, carrying
from envsmith.solve.prefer import Nearest
from envsmith.solve.problem import Problem, Wish, pose
from envsmith.solve.request import Posed

__all__ = ["repair_of", "wishes_of"]


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
