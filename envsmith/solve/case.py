"""One judgement in the making: what is given, narrowed to what can be meant, and what a torch wheel carries beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from envsmith.model.cell import Platform
from envsmith.model.rule import Rule, Severity
from envsmith.solve.kernel import Domains, Net, bits
from envsmith.solve.problem import Problem
from envsmith.solve.request import FOLLOWS
from envsmith.solve.solver import Solver

# What a torch wheel carries.
CARRIED = ("cuda", *FOLLOWS)
# Who has one of these means to use it.
_MEANS_CUDA = ("driver", "gpu", "toolkit")


@dataclass(slots=True)
class Case:
    """One judgement in the making. ``keep`` are the components that no repair may change."""

    solver: Solver
    given: Given
    problem: Problem
    rules: Mapping[str, Rule]
    keep: frozenset[str] = frozenset()

    def masks(self) -> list[tuple[int, int]]:
        """What is given, as ``(variable, mask of releases)``."""
        return [(self.problem.names.index(name), mask) for name, mask in self.given.masks.items()]


def plausible(solver: Solver, given: Given, platform: Platform) -> Given:
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


def bits_of(problem: Problem, versions: Mapping[str, str]) -> list[tuple[int, int]]:
    """Releases as ``(variable, mask)``."""
    return [(problem.names.index(n), problem.bit(problem.names.index(n), v)) for n, v in versions.items()]


def carrying(case: Case) -> Net:
    """The rules about what torch wheels there are, and what they carry."""
    problem = case.problem
    bundles = {r.id for r in case.solver.compiled.rules if r.bundles} | {"torch-wheels-platform"}
    parts = [
        problem.part(i) for i, g in enumerate(problem.groups) if g.rule in bundles and g.severity is Severity.ERROR
    ]
    return Net(problem.full).joined(parts)


def infer(case: Case) -> tuple[list[tuple[int, int]], dict[str, str], frozenset[str]]:
    """The given masks narrowed to what goes together, what follows, and which of it holds for the default build only."""
    problem, given = case.problem, case.given
    torch = problem.variable("torch")
    if torch is None or "torch" not in given.masks:
        return case.masks(), {}, frozenset()
    net = carrying(case)
    domains = net.begin(case.masks()) or net.begin([(torch, given.masks["torch"])])
    if domains is None:
        return case.masks(), {}, frozenset()
    narrowed = [(v, m) for v, m in enumerate(domains) if problem.names[v] in given.masks or problem.names[v] in CARRIED]
    inferred = _single(problem, domains, given)
    if inferred.keys() >= set(CARRIED) - given.masks.keys() and not domains[torch] & (domains[torch] - 1):
        return narrowed, inferred, frozenset()
    default = _default_build(problem, torch, domains[torch])
    if default is None or not domains[torch] & (domains[torch] - 1):
        return narrowed, inferred, frozenset()
    closer = net.narrow(domains, torch, 1 << default)
    more = _single(problem, closer, given) if closer else {}
    more["torch"] = str(problem.values[torch][default])
    assumed = frozenset(n for n in more if n not in inferred)
    return narrowed, {**more, **inferred}, assumed


def _single(problem: Problem, domains: Domains, given: Given) -> dict[str, str]:
    """Carried components that are not given and have one release left."""
    found = {}
    for name in CARRIED:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """By variable: component, mask of releases it stands for, text; ``plain`` are single components with their text.

    ``extras`` are releases that the knowledge does not list; ``unknown`` says what follows from that.
    """

    components: Mapping[str, str]
    masks: Mapping[str, int]
    text: Mapping[str, str]
    plain: Mapping[str, str]
    extras: Mapping[str, tuple[str, ...]]
    unknown: tuple[str, ...]
