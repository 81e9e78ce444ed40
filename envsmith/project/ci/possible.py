"""Which combinations of axis values can occur within a library's ranges: the rows from which a matrix is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from operator import or_

from envsmith.errors import UsageError
from envsmith.model.cell import Cell, Request
from envsmith.model.component import Role
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.rule import Rule, Severity
from envsmith.model.version import Spec, public, version_key
from envsmith.project.ci.library import Library
from envsmith.solver import default_solver
from envsmith.solver.kernel import Domains, Net, bits
from envsmith.solver.known_bad import stated_by_metadata
from envsmith.solver.problem import Problem, RuleNogoods
from envsmith.solver.refusal import refuse
from envsmith.solver.request import Posed
from envsmith.solver.solver import Solver, cell_of
from envsmith.solver.words import rule_sentence

# A covering choice over this many rows takes seconds; more are a sign of an axis without a grain.
MAX_ROWS = 60_000


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that varies.

    ``masks`` holds for each value the releases of its variable that it stands for, newest value first.
    """

    name: str
    variable: int
    values: tuple[str, ...]
    masks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unfit:
    """A combination within the declared ranges that one rule forbids: a job that must fail."""

    row: tuple[str, ...]
    cell: Cell
    rule: str
    symptom: str


@dataclass(slots=True)
class Space:
    """All combinations of the axes of a library, over its solver."""

    solver: Solver
    posed: Posed
    axes: tuple[Axis, ...]
    base: tuple[tuple[int, int], ...]

    def rows(self) -> list[tuple[str, ...]]:
        """List every combination that can occur, the newest values of the first axis first.

        ``UsageError`` when there are too many.
        """
        net = self.posed.problem.rules_net(Severity.ERROR)
        domains = net.begin(self.base)
        if domains is None:
            return []
        rows = []
        for row in self._walk(net, domains, 0):
            rows.append(row)
            if len(rows) > MAX_ROWS:
                sizes = ", ".join(f"{a.name} {len(a.values)}" for a in self.axes)
                raise UsageError(
                    f"Cannot list the combinations: there are more than {MAX_ROWS} ({sizes}).",
                    hint="Name fewer axes, list the releases of one under `values:`, or use `grain: minor`.",
                )
        return rows

    def _walk(self, net: Net, domains: Domains, place: int) -> Iterator[tuple[str, ...]]:
        if place == len(self.axes):
            if net.solvable(domains) is not None:
                yield ()
            return
        axis = self.axes[place]
        for value, mask in zip(axis.values, axis.masks, strict=True):
            child = net.narrow(domains, axis.variable, mask)
            if child is not None:
                for further in self._walk(net, child, place + 1):
                    yield (value, *further)

    def cell(self, row: Sequence[str]) -> Cell:
        """Return the best cell with these values: without a warning where there is one.

        Raises :class:`UnsatisfiableError`.
        """
        unary = [*self.base, *self._masks(row)]
        steps = self.posed.preference.steps()
        for severities in ((Severity.ERROR, Severity.WARNING), (Severity.ERROR,)):
            net = self.posed.problem.rules_net(*severities)
            domains = net.begin(unary)
            if domains is not None:
                for answer in net.search(domains, steps):
                    return cell_of(self.posed, answer)
        raise UnsatisfiableError(f"Cannot fill the row {', '.join(map(str, row))}: there is no such cell.")

    def _masks(self, row: Sequence[str]) -> Iterator[tuple[int, int]]:
        for axis, value in zip(self.axes, row, strict=True):
            yield axis.variable, axis.masks[axis.values.index(value)]

    def unfit(self, limit: int) -> list[Unfit]:
        """Find combinations that exactly one rule forbids which metadata does not state.

        An installer gives them, and they fail then. One for each rule, of the newest values that it forbids. Rules over
        the host are left out, for a runner cannot be changed.
        """
        roles = self.solver.compiled.roles
        unfit = (
            self._breaking(net, group, rule)
            for net, group, rule in unstated_rules(self.posed, self.solver)
            if not any(roles[c] is Role.HOST for c in rule.components if c in roles)
        )
        return list(islice(filter(None, unfit), limit))

    def _breaking(self, net: Net, group: RuleNogoods, rule: Rule) -> Unfit | None:
        best: tuple[tuple[int, ...], Unfit] | None = None
        for number, nogood in group.nogoods:
            domains = net.begin([*self.base, *nogood])
            answer = next(net.search(domains, self.posed.preference.steps()), None) if domains is not None else None
            if answer is None or number < 0:
                continue
            rank = tuple(next(i for i, m in enumerate(axis.masks) if answer[axis.variable] & m) for axis in self.axes)
            if best is None or rank < best[0]:
                row = tuple(axis.values[i] for axis, i in zip(self.axes, rank, strict=True))
                line = rule.rows[number]
                symptom = line.symptom or rule_sentence(rule, [line], {})
                best = rank, Unfit(row, cell_of(self.posed, answer), rule.id, symptom)
        return best[1] if best else None


# The name of the column that says which extra is installed.
EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class Combinations:
    """All combinations of a library's axes, without an extra (``""``) and with each one that has some.

    ``empty`` are the extras with which there is no environment.
    """

    names: tuple[str, ...]
    spaces: Mapping[str, Space]
    empty: tuple[str, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """Return what varies: the axes, then the extra where the library has some."""
        return (*self.names, EXTRA) if len(self.spaces) > 1 else self.names

    def rows(self) -> list[tuple[str, ...]]:
        """List every combination that can occur, those without an extra first, the newest values of the first axis first."""
        listed = [(*row, extra) for extra, space in self.spaces.items() for row in space.rows()]
        return listed if len(self.spaces) > 1 else [row[:-1] for row in listed]

    def space(self, row: Sequence[str]) -> tuple[Space, tuple[str, ...]]:
        """Return the space that a row is of, and its values there."""
        if len(self.spaces) > 1:
            return self.spaces[row[-1]], tuple(row[:-1])
        return self.spaces[""], tuple(row)

    def cell(self, row: Sequence[str]) -> Cell:
        """Return the best cell with these values."""
        space, values = self.space(row)
        return space.cell(values)

    def unfit(self, limit: int) -> list[Unfit]:
        """Find combinations that exactly one rule forbids, one for each rule, the library without an extra first."""
        unfit: dict[str, Unfit] = {}
        for extra, space in self.spaces.items():
            if len(unfit) < limit:
                for one in space.unfit(limit):
                    row = (*one.row, extra) if len(self.spaces) > 1 else one.row
                    unfit.setdefault(one.rule, replace(one, row=row))
        return list(unfit.values())[:limit]


def combinations_of(library: Library) -> Combinations:
    """Return all combinations of a library. :class:`UnsatisfiableError` says why there is none without an extra."""
    with_extras = {extra: _space_with(library, extra) for extra in library.extras}
    spaces = {"": space_of(library)} | {extra: space for extra, space in with_extras.items() if space is not None}
    return Combinations(library.axes, spaces, tuple(extra for extra, space in with_extras.items() if space is None))


def _space_with(library: Library, extra: str) -> Space | None:
    try:
        return space_of(library.with_extra(extra))
    except UnsatisfiableError:
        return None


def unstated_rules(posed: Posed, solver: Solver) -> Iterator[tuple[Net, RuleNogoods, Rule]]:
    """Yield each rule of severity error that no metadata states, after the net of all others of that severity."""
    problem = posed.problem
    rules = {r.id: r for r in solver.knowledge().rules}
    hard = [i for i, g in enumerate(problem.groups) if g.severity is Severity.ERROR]
    for index in hard:
        group = problem.groups[index]
        rule = rules[group.rule]
        if not stated_by_metadata(rule):
            yield Net(problem.full).joined([problem.part(i) for i in hard if i != index]), group, rule


def unary_of(posed: Posed) -> list[tuple[int, int]]:
    """Return what each variable may be: what is wished, and neither a pre-release nor yanked."""
    return [*(mask for wish in posed.problem.wishes for mask in wish.masks), *posed.pre, *posed.yanked]


def unjudged(library: Library, solver: Solver) -> tuple[str, ...]:
    """Return the companions that the library requires and of which no release in its range is known here."""
    names = []
    for name, spec in library.ranges.items():
        versions = solver.compiled.versions.get(name, ())
        if solver.compiled.roles.get(name) is Role.COMPANION and not any(map(spec.contains, versions)):
            names.append(name)
    return tuple(names)


def judged_request(library: Library, solver: Solver, narrower: Mapping[str, Spec] | None = None) -> Request:
    """Return the library's ranges as a request, without what cannot be judged. ``narrower`` replaces ranges."""
    roles = solver.compiled.roles
    left_out = unjudged(library, solver)
    ranges = {n: s for n, s in library.ranges.items() if n not in left_out} | dict(narrower or {})
    return Request(
        frameworks={n: s for n, s in ranges.items() if roles.get(n) is Role.FRAMEWORK},
        constraints={n: s for n, s in ranges.items() if roles.get(n) not in (Role.FRAMEWORK, Role.HOST, None)},
        driver=library.settings.driver,
        gpus=library.settings.gpu,
        platform=library.settings.platform,
        lockable=False,
    )


def space_of(library: Library) -> Space:
    """Return the combinations of a library's axes.

    :class:`UnsatisfiableError` says why its ranges admit no cell, :class:`UsageError` which axis has no release.
    """
    solver = default_solver()
    missing = [n for n in library.axes if n in unjudged(library, solver) or not solver.compiled.versions.get(n)]
    if missing:
        raise UsageError(
            f"Cannot use axes: no release of {', '.join(missing)} is known.", hint="Leave it out of the axes."
        )
    request = judged_request(library, solver, {n: Spec.parse("*") for n in library.axes if n not in library.ranges})
    posed = solver.pose(request)
    if solver.best(posed) is None:
        raise refuse(solver, posed)
    base = unary_of(posed)
    if "cuda" not in library.axes:
        base += _default_builds(posed.problem)
    axes = tuple(_axis(posed.problem, name, library, base) for name in library.axes)
    return Space(solver, posed, axes, (*base, *((a.variable, reduce(or_, a.masks, 0)) for a in axes)))


def _default_builds(problem: Problem) -> list[tuple[int, int]]:
    """Restrict torch to what the index gives: a library that does not vary CUDA installs that."""
    torch = problem.variable("torch")
    if torch is None:
        return []
    index = problem.compiled.torch_index.get(problem.platform.value, {})
    mask = sum(1 << i for i, v in enumerate(problem.values[torch]) if v is not None and index.get(v) == "default")
    return [(torch, mask)]


def _axis(problem: Problem, name: str, library: Library, base: Sequence[tuple[int, int]]) -> Axis:
    variable = problem.names.index(name)
    admitted = problem.full[variable]
    for v, mask in base:
        if v == variable:
            admitted &= mask
    reachable = problem.rules_net(Severity.ERROR).begin(base)
    if reachable is not None:
        admitted &= reachable[variable]
    masks: dict[str, int] = {}
    for index in bits(admitted):
        value = problem.values[variable][index]
        if value is not None:
            text = public(value)
            masks[text] = masks.get(text, 0) | 1 << index
    chosen = _grained(masks, name, library)
    return Axis(name, variable, tuple(chosen), tuple(masks[value] for value in chosen))


def _grained(listed: Iterable[str], name: str, library: Library) -> list[str]:
    """Return the values of an axis, newest first: those that were named, or the newest of each minor series."""
    ordered = sorted(listed, key=_order, reverse=True)
    named = library.settings.values.get(name)
    if named:
        specs = [Spec.parse(v) for v in named]
        values = [next((v for v in ordered if spec.contains(v)), None) for spec in specs]
        missing = [text for text, value in zip(named, values, strict=True) if value is None]
        if missing:
            raise UsageError(
                f"Cannot use values: {name} {', '.join(missing)} cannot occur within the declared ranges.",
                hint=f"Use one of {', '.join(ordered[:12])}."
                if ordered
                else f"Change the ranges: they allow no release of {name}.",
            )
        return sorted({v for v in values if v}, key=_order, reverse=True)
    if library.settings.grain == "release":
        return ordered
    series: dict[object, str] = {}
    for value in ordered:
        key = version_key(value)
        series.setdefault(key.release[:2] if key else value, value)
    oldest = ordered[-1:]
    return [v for v in ordered if v in series.values() or v in oldest]


def _order(value: str) -> tuple[int, object]:
    key = version_key(value)
    return (0, value) if key is None else (1, key)
