"""What packages beside the graph declare, read from the index when the resolver cannot put them beside a cell.

A package becomes a component of the knowledge for the time of one request: its releases, and what each declares, with
the hash of the file that was read. So the solver chooses a cell in which it can be, or shows why there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from envsmith.base.files import now
from envsmith.errors import ContentError, ContradictionError, NetworkError
from envsmith.knowledge.graph.load import knowledge
from envsmith.knowledge.graph.releases import ReleaseLine, Where, declared_rules, in_order
from envsmith.lock.index.component_needs import ComponentNeeds
from envsmith.lock.index.distribution import best_file, read_release
from envsmith.lock.index.index import IndexFile, PackageIndex, find_index
from envsmith.model.cell import Platform, Request
from envsmith.model.component import Component, ComponentTable, Role
from envsmith.model.finding import Solution
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Evidence, EvidenceKind, Knowledge
from envsmith.model.version import Spec
from envsmith.net.http import HttpClient, NotFoundError
from envsmith.solver import solve
from envsmith.solver.solver import Solver, default_solver, solver_of

# Packages that are read at a time, releases of one that are read (the newest), and readers at work.
_MOST_PACKAGES, _MOST_RELEASES, _READERS = 12, 60, 8
_MOST_PARENTS = 4
# Words that uv's reason has where a package may stand.
_NOT_PACKAGES = frozenset({"python", "you", "your"})
_SOURCE = "package index: METADATA of one file of the release"


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The knowledge with some packages more. Empty, it is the installed knowledge.

    ``lines`` are the releases of each, oldest first. ``parents`` are distributions of the graph's components, with
    the extras that are asked for, and what their releases require of these packages.
    """

    lines: Mapping[str, tuple[ReleaseLine, ...]] = field(default_factory=dict)
    parents: Mapping[tuple[str, str], tuple[ReleaseLine, ...]] = field(default_factory=dict)
    table: ComponentTable | None = None

    @cached_property
    def solver(self) -> Solver:
        """Return the solver over it."""
        return solver_of(_extended(knowledge(), self)) if self.table else default_solver()

    def solve(self, request: Request) -> Solution:
        """Return the best cell for a request with its reasons, without the packages: the resolver chooses their releases.

        Raises ``UnsatisfiableError`` with the refusal.
        """
        solution = solve(self.request(request), solver=self.solver)
        components = {n: v for n, v in solution.cell.components.items() if n not in self.lines}
        return replace(solution, cell=replace(solution.cell, components=components))

    def request(self, request: Request) -> Request:
        """Return a request that asks for those of the packages that the person asks for."""
        narrowed = dict(request.narrowed)
        for requirement in _requirements(request):
            name = _name(requirement)
            if name in self.lines and requirement.marker is None:
                spec = Spec.parse(str(requirement.specifier) or "*")
                narrowed[name] = (spec, request.origins.get(name, "as asked"))
        return replace(request, narrowed=narrowed)


def learn_more(
    error: ContradictionError, request: Request, learned: Learned, index: Callable[[], PackageIndex] | None = None
) -> Learned | None:
    """Return what is known when the packages that a contradiction mentions were read too. Nothing new is ``None``."""
    components = learned.table or knowledge().components
    requirements = {_name(r): r for r in _requirements(request)}
    new = [name for name in error.names if components.find(name) is None and name not in _NOT_PACKAGES]
    new = sorted(new, key=lambda name: name not in requirements)[:_MOST_PACKAGES]
    parents = [name for name in error.names if _is_read(knowledge().components.find(name), name)][:_MOST_PARENTS]
    parents = list(dict.fromkeys([*(name for name, _ in learned.parents), *parents]))
    if not new and len(parents) == len(learned.parents):
        return None
    added = (Component(name=n, role=Role.COMPANION, short=n, title=n, distributions=(n,)) for n in new)
    table = ComponentTable.of([*components.by_name.values(), *added])
    reader = _Reader(index() if index else PackageIndex(HttpClient(), find_index()), table, request)
    # What was read before may require what is a component only now.
    names = [*learned.lines, *new]
    lines = {name: read for name in names if (read := reader.lines(name, requirements.get(name)))}
    further = {}
    for name in parents:
        requirement = requirements.get(name)
        extras = ",".join(sorted(requirement.extras)) if requirement else ""
        read = reader.lines(name, requirement)
        further[name, extras] = read if extras else tuple(_onto(read, lines))
    return Learned(lines=lines, parents=further, table=table)


def _requirements(request: Request) -> list[Requirement]:
    return [Requirement(line.partition(" --hash=")[0]) for line in request.packages]


def _is_read(component: Component | None, name: str) -> bool:
    """Return whether a name is of a component whose requirements of further packages the graph does not have."""
    return component is not None and component.name != "torch" and component.distributions[:1] == (name,)


def _onto(lines: Iterable[ReleaseLine], names: Collection[str]) -> Iterable[ReleaseLine]:
    """Yield each release with what it requires of some packages alone: of the others the graph has it."""
    for line in lines:
        specs = {name: spec for name, spec in line.requires.items() if name in names}
        yield replace(line, requires=specs, requires_where=(), python=None)


def _name(requirement: Requirement) -> str:
    return normal_name(requirement.name)


@dataclass(frozen=True, slots=True)
class _Reader:
    index: PackageIndex
    table: ComponentTable
    request: Request

    def lines(self, name: str, requirement: Requirement | None = None) -> tuple[ReleaseLine, ...]:
        """Return the newest releases of a package that may be installed, with what each declares."""
        try:
            releases = self.index.project(name).releases()
        except NotFoundError:
            return ()
        chosen = list(_admitted(releases, requirement, self.request.exclude_newer))[-_MOST_RELEASES:]
        extras = tuple(sorted(requirement.extras)) if requirement else ()
        with ThreadPoolExecutor(_READERS) as pool:
            lines = pool.map(lambda pair: self._line(name, pair[0], pair[1], extras), chosen)
        return tuple(in_order(line for line in lines if line is not None))

    def _line(
        self, name: str, version: str, files: Collection[IndexFile], extras: tuple[str, ...]
    ) -> ReleaseLine | None:
        file = best_file(files)
        if file is None:
            return None
        try:
            facts = read_release(self.index.fetcher, file)
        except (NetworkError, ContentError):
            return None
        needs = ComponentNeeds(
            requires=facts.requires,
            requires_python=facts.requires_python,
            components=self.table,
            own=name,
            extras=extras,
        )
        evidence = Evidence(kind=EvidenceKind.DECLARED, source=_SOURCE, date=now().date().isoformat())
        return ReleaseLine(
            version=version,
            evidence=(evidence,),
            date=min((f.day for f in files if f.day), default=None),
            requires={n: Spec.parse(s) for n, s in needs.everywhere().items()},
            requires_where=tuple(_where(entry) for entry in needs.somewhere()),
            sha256=facts.sha256,
        )


def _where(entry: Mapping[str, Any]) -> Where:
    return Where(
        requires={name: Spec.parse(spec) for name, spec in entry["requires"].items()},
        platform=Platform(entry["platform"]) if "platform" in entry else None,
        python=Spec.parse(entry["python"]) if "python" in entry else None,
    )


def _admitted(
    releases: Mapping[str, Collection[IndexFile]], requirement: Requirement | None, last: str | None
) -> Iterable[tuple[str, Collection[IndexFile]]]:
    """Yield the releases that a requirement admits, without what is withdrawn, newer than a day, or not final."""
    for version, files in releases.items():
        day = min((f.day for f in files if f.day), default=None)
        late = bool(last and day and day > last)
        if late or all(f.yanked is not None for f in files) or Version(version).is_prerelease:
            continue
        if requirement is None or requirement.specifier.contains(version, prereleases=True):
            yield version, files


def _extended(facts: Knowledge, learned: Learned) -> Knowledge:
    declared = [rule for name, lines in learned.lines.items() for rule in declared_rules(name, lines)]
    for (name, extras), lines in learned.parents.items():
        component = facts.components.by_spelling[name]
        # The graph has rules of the plain name, which know nothing of extras.
        subject = f"{component}[{extras}]" if extras else component
        rules_of = declared_rules(component, lines)
        declared += [replace(rule, id=subject + rule.id.removeprefix(component)) for rule in rules_of]
    # One file of a run of releases is enough to look at: no command explains a rule that lasts for one request.
    rules = (replace(r, rows=tuple(replace(row, evidence=row.evidence[:1]) for row in r.rows)) for r in declared)
    releases = {name: tuple(line.release(name) for line in lines) for name, lines in learned.lines.items()}
    return replace(
        facts,
        components=learned.table or facts.components,
        releases={**facts.releases, **releases},
        rules=(*facts.rules, *rules),
    )
