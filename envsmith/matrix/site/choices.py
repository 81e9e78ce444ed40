"""What can be chosen together, as small tables that a page can hold: no rule is repeated in JavaScript, its outcomes are listed.

For each framework a table of releases by torch builds whose entries are sets of Pythons; for each torch build the GPUs that it runs on and the
driver that it needs; and for every pair that cannot be, the sentence that the solver gives for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from envsmith.errors import UnsatisfiableError
from envsmith.model.cell import Request
from envsmith.model.component import Component, Role
from envsmith.model.platform import Platform
from envsmith.model.rule import Severity
from envsmith.model.version import Spec, version_key
from envsmith.solve.kernel import Domains, Net
from envsmith.solve.solver import Solver

__all__ = ["Choices", "FrameworkTable", "make_choices"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameworkTable:
    """The outcomes for one framework.

    ``rows[release][build]`` is a bit mask over ``Choices.pythons``; ``why[(release, torch)]`` the number of a reason; ``tested`` the numbers of
    the torches that somebody's CI ran with a release.
    """

    name: str
    title: str
    releases: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    why: Mapping[tuple[int, int], int]
    tested: Mapping[int, tuple[int, ...]]


@dataclass(slots=True)
class Choices:
    """``torches`` are public versions, ``builds`` (torch number, CUDA, build tag or empty for the default index), all newest first."""

    pythons: tuple[str, ...]
    torches: tuple[str, ...]
    builds: tuple[tuple[int, str, str], ...]
    gpus: Mapping[str, str]
    runs_on: tuple[tuple[int, ...], ...]
    archs: tuple[str, ...]
    drivers: tuple[str, ...]
    frameworks: list[FrameworkTable] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        """Compact: lists and short keys, for the page only; ``matrix.json`` is the documented form."""
        return {
            "pythons": self.pythons,
            "torches": self.torches,
            "builds": self.builds,
            "gpus": dict(self.gpus),
            "archs": self.archs,
            "runs": [list(r) for r in self.runs_on],
            "drivers": self.drivers,
            "reasons": self.reasons,
            "frameworks": [
                {
                    "name": f.name,
                    "title": f.title,
                    "releases": f.releases,
                    "rows": [".".join(f"{mask:x}" if mask else "" for mask in row) for row in f.rows],
                    "why": {f"{a},{b}": n for (a, b), n in f.why.items()},
                    "tested": {str(a): list(b) for a, b in f.tested.items()},
                }
                for f in self.frameworks
            ],
        }


def make_choices(solver: Solver, *, keep: Mapping[str, Iterable[str]] | None = None) -> Choices:
    """The tables for linux-64. Shown is the newest release of each minor series, and what ``keep`` (component -> versions) names besides."""
    keep = {name: frozenset(versions) for name, versions in (keep or {}).items()}
    compiled = solver.compiled
    knowledge = solver.knowledge()
    index = compiled.torch_index[Platform.LINUX_64.value]
    torches = _shown(
        dict.fromkeys(v.split("+", maxsplit=1)[0] for v in compiled.versions["torch"] if v in index),
        keep.get("torch", ()),
    )
    tags = _builds(compiled.versions["torch"], index, torches)
    pythons = tuple(reversed([p for p in compiled.versions["python"] if p >= "3.8" or p.startswith("3.1")]))
    choices = Choices(
        pythons=tuple(sorted(pythons, key=lambda p: [int(n) for n in p.split(".")], reverse=True)),
        torches=torches,
        builds=tuple((t, c, "" if index[v] == "default" else v.partition("+")[2]) for t, c, v in tags),
        gpus=dict(knowledge.gpus),
        archs=tuple(compiled.versions["gpu"]),
        runs_on=tuple(_gpus(solver, v) for _, _, v in tags),
        drivers=tuple(_driver(solver, v) for _, _, v in tags),
    )
    for component in knowledge.components.with_role(Role.FRAMEWORK):
        releases = _shown(_stable(solver, component.name), keep.get(component.name, ()))
        choices.frameworks.append(_table(solver, choices, component, releases, [v for _, _, v in tags]))
    return choices


def _stable(solver: Solver, name: str) -> list[str]:
    versions = solver.compiled.versions[name]
    pre, yanked = solver.compiled.pre.get(name, 0), solver.compiled.yanked.get(name, 0)
    return [v for i, v in enumerate(versions) if not (pre | yanked) >> i & 1]


def _shown(versions: Iterable[str], keep: Iterable[str]) -> tuple[str, ...]:
    """The newest of each minor series and what is to be kept, newest first."""
    named = set(keep)
    series: dict[tuple[int, ...], str] = {}
    listed = sorted((v for v in versions if version_key(v)), key=lambda v: version_key(v) or v, reverse=True)
    for version in listed:
        key = version_key(version)
        if key is not None and not key.is_prerelease:
            series.setdefault(key.release[:2], version)
    return tuple(v for v in listed if v in series.values() or v in named)


def _builds(versions: Sequence[str], index: Mapping[str, str], torches: Sequence[str]) -> list[tuple[int, str, str]]:
    """``(torch number, CUDA, version)`` of every build of the shown releases: the default one first, then the newest CUDA."""
    found = []
    for version in versions:
        public, _, tag = version.partition("+")
        if version in index and public in torches:
            cuda = f"{tag[2:-1]}.{tag[-1]}" if tag.startswith("cu") else "cpu"
            found.append((torches.index(public), cuda, version))
    return sorted(
        found,
        key=lambda b: (
            b[0],
            index[b[2]] != "default",
            b[1] == "cpu",
            [-int(n) for n in b[1].split(".") if n.isdigit()],
        ),
    )


def _net_of(solver: Solver, *components: str) -> tuple[Net, list[str], list[tuple[str | None, ...]]]:
    request = Request(constraints={c: Spec.parse("*") for c in components})
    problem = solver.pose(request).problem
    return problem.rules_net(Severity.ERROR), list(problem.names), list(problem.values)


def _gpus(solver: Solver, build: str) -> tuple[int, ...]:
    """The numbers of the architectures on which a build runs; none for one without CUDA."""
    if build.endswith("+cpu"):
        return ()
    net, names, values = _net_of(solver, "gpu", "torch")
    torch, gpu = names.index("torch"), names.index("gpu")
    domains = net.begin([(torch, 1 << values[torch].index(build))])
    if domains is None:
        return ()
    archs = solver.compiled.versions["gpu"]
    return tuple(i for i, arch in enumerate(archs) if domains[gpu] >> values[gpu].index(arch) & 1)


def _driver(solver: Solver, build: str) -> str:
    """The oldest driver that the build runs with; empty when it needs none or nobody knows."""
    if build.endswith("+cpu"):
        return ""
    net, names, values = _net_of(solver, "driver", "torch")
    torch, driver = names.index("torch"), names.index("driver")
    domains = net.begin([(torch, 1 << values[torch].index(build))])
    if domains is None:
        return ""
    mask = domains[driver]
    full = (1 << len(values[driver])) - 1
    lowest = (mask & -mask).bit_length() - 1
    return str(values[driver][lowest]) if mask and mask != full else ""


def _table(
    solver: Solver, choices: Choices, framework: Component, releases: Sequence[str], builds: Sequence[str]
) -> FrameworkTable:
    name = framework.name
    posed = solver.pose(Request(frameworks={name: Spec.parse("*")}))
    problem, net = posed.problem, posed.problem.rules_net(Severity.ERROR)
    own, torch, python = (problem.names.index(n) for n in (name, "torch", "python"))

    def pythons_of(domains: Domains | None) -> int:
        """The Pythons for which there is a cell, as bits."""
        mask = 0
        for place, minor in enumerate(choices.pythons):
            narrowed = net.narrow(domains, python, problem.bit(python, minor)) if domains else None
            if narrowed is not None and net.solvable(narrowed) is not None:
                mask |= 1 << place
        return mask

    rows = []
    for release in releases:
        first = net.begin([(own, problem.bit(own, release))])
        rows.append(
            tuple(pythons_of(net.narrow(first, torch, problem.bit(torch, b)) if first else None) for b in builds)
        )
    why: dict[tuple[int, int], int] = {}
    for i, release in enumerate(releases):
        for t, public in enumerate(choices.torches):
            if not any(rows[i][b] for b, (of, _, _) in enumerate(choices.builds) if of == t):
                why[i, t] = _reason(solver, choices, name, release, public)
    return FrameworkTable(
        name=name,
        title=framework.title,
        releases=tuple(releases),
        rows=tuple(rows),
        why=why,
        tested=_tested(solver, choices, name, releases),
    )


def _reason(solver: Solver, choices: Choices, name: str, release: str, torch: str) -> int:
    """The number of the sentence for a pair that cannot be."""
    request = Request(frameworks={name: Spec.exactly(release)}, constraints={"torch": Spec.parse(f"=={torch}")})
    from envsmith.solve.explain import refuse

    error: UnsatisfiableError = refuse(solver, solver.pose(request))
    members = error.refusal.conflict if error.refusal else ()
    told = "; ".join(f"{m.message} [{m.rule}]" for m in members if not m.rule.startswith("request:")) or "not possible"
    if told not in choices.reasons:
        choices.reasons.append(told)
    return choices.reasons.index(told)


def _tested(solver: Solver, choices: Choices, name: str, releases: Sequence[str]) -> dict[int, tuple[int, ...]]:
    found: dict[int, set[int]] = {}
    for entry in solver.knowledge().tested:
        if entry.framework != name:
            continue
        torches = [t for t, version in enumerate(choices.torches) if entry.torch.contains(version)]
        for i, release in enumerate(releases):
            if torches and entry.version.contains(release):
                found.setdefault(i, set()).update(torches)
    return {i: tuple(sorted(t)) for i, t in found.items()}
