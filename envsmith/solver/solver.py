"""The solver: best cell, all cells, conflict and repairs of a posed request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from envsmith.knowledge.graph.compile import Compiled
from envsmith.knowledge.graph.load import VersionGraph, version_graph
from envsmith.model.cell import Cell, Request
from envsmith.model.component import Role
from envsmith.model.finding import Change, Repair
from envsmith.model.rule import Knowledge, Severity
from envsmith.solver.kernel import Domains, Effort, Net, nearest, smallest_conflict
from envsmith.solver.problem import KeptProblems, Problem, RuleNogoods, Wish
from envsmith.solver.request import Posed, pose_request

# Wishes are given up in this order where a choice is left: what a user minds least first.
_CHEAP_FIRST = ("exclude-newer", "triton", "cudnn", "nccl", "python", "cuda", "torch")
# What a torch wheel carries besides CUDA: in the cell, not in its name.
FOLLOWS = ("nccl", "cudnn", "triton")
MAX_REPAIRS = 3
# Of a repair that brings a warning which was not there before.
_TROUBLE = 2


class Answer(NamedTuple):
    """The best cell, as assignment and as value, and what could not be avoided in it."""

    cell: Cell
    domains: tuple[int, ...]
    avoided: frozenset[str]


class Stuck(NamedTuple):
    """A smallest set of wishes and rules that cannot hold together."""

    wishes: tuple[Wish, ...]
    groups: tuple[RuleNogoods, ...]


@dataclass(slots=True)
class Solver:
    """Solves requests over one version graph."""

    graph: VersionGraph
    problems: KeptProblems = field(default_factory=KeptProblems, repr=False)

    @property
    def compiled(self) -> Compiled:
        """Return the tables of the graph."""
        return self.graph.compiled

    def knowledge(self) -> Knowledge:
        """Return the texts of the graph."""
        return self.graph.knowledge()

    def pose(self, request: Request, *, gaps: bool = True) -> Posed:
        """Return the problem of a request. ``UsageError`` when it names what is not a component.

        Without ``gaps`` a missing fact counts against nothing, as in a judgement.
        """
        return pose_request(self.compiled, request, self.problems, gaps=gaps)

    def best(self, posed: Posed, *, wishes: Sequence[Wish] | None = None) -> Answer | None:
        """Return the first cell in the order of :mod:`envsmith.solver.prefer`, or ``None``."""
        for domains, avoided in self._assignments(posed, posed.problem.wishes if wishes is None else wishes):
            return Answer(cell_of(posed, domains), tuple(domains), avoided)
        return None

    def cells(self, posed: Posed) -> Iterator[Answer]:
        """Yield every cell once, best first: first those without warnings, pre-releases and yanked releases."""
        keys: set[tuple[int, ...]] = set()
        for domains, avoided in self._assignments(posed, posed.problem.wishes, every=True):
            key = tuple(domains)
            if key not in keys:
                keys.add(key)
                yield Answer(cell_of(posed, domains), key, avoided)

    def _assignments(
        self, posed: Posed, wishes: Sequence[Wish], *, every: bool = False
    ) -> Iterator[tuple[Domains, frozenset[str]]]:
        unary = [mask for wish in wishes for mask in wish.masks]
        hard = posed.problem.rules_net(Severity.ERROR)
        steps = posed.preference.decisions
        past: Sequence[tuple[int, int]] = ()
        for avoided, masks in (
            (frozenset({"pre", "yanked"}), [*unary, *posed.pre, *posed.yanked]),
            (frozenset({"yanked"}), [*unary, *posed.yanked]),
            (frozenset[str](), unary),
        ):
            domains = hard.begin(masks)
            newest = next(hard.search(domains, steps), None) if domains else None
            if newest is None:
                continue
            if not posed.problem.warnings(newest):
                yield newest, avoided | {"warning"}
                if not every:
                    return
            floor = posed.preference.floor(newest)
            for net, bounds, is_clean in posed.problem.passes(masks, floor, every=every):
                domains = net.begin([*masks, *bounds])
                for solution in net.search(domains, steps, past=past) if domains else ():
                    yield solution, avoided | {"warning"} if is_clean else avoided
                    if not every:
                        return
            past = masks  # its last pass kept to nothing else

    def stuck(
        self, problem: Problem, effort: Effort | None = None, *, avoided: Sequence[tuple[int, int]] = ()
    ) -> Stuck | None:
        """Return why no cell meets the wishes of a problem: fewest members. ``None`` when there is one.

        Releases that are ``avoided`` are not among the reasons, as they would not be an answer.
        """
        net = problem.rules_net(Severity.ERROR)
        full = list(problem.full)
        for variable, mask in avoided:
            full[variable] &= mask
        if net.solvable(net.begin(mask for wish in problem.wishes for mask in wish.masks)) is not None:
            return None
        # Of two reasons the one that a person understands: there is no such build.
        hard = [i for i, g in enumerate(problem.groups) if g.severity is Severity.ERROR]
        hard.sort(key=lambda i: problem.groups[i].rule != "torch-wheels-platform")
        parts = [Net.within(full, wish.masks) for wish in problem.wishes] + [problem.part(i) for i in hard]
        members = smallest_conflict(parts, full, effort)
        if not members:
            return None
        count = len(problem.wishes)
        return Stuck(
            tuple(problem.wishes[i] for i in members if i < count),
            tuple(problem.groups[i] for i in sorted(hard[i - count] for i in members if i >= count)),
        )

    def repairs(
        self,
        posed: Posed,
        effort: Effort | None = None,
        *,
        limit: int = MAX_REPAIRS,
        warned: frozenset[str] = frozenset(),
        here: Posed | None = None,
    ) -> tuple[Repair, ...]:
        """Return solved cells that give up the fewest wishes, best first.

        The host (driver, GPU) is kept whenever anything else can go.

        ``here`` is the request on the machine at hand: a repair names the cell that it gives there, where it gives one.

        ``warned`` are rules whose warning the set at hand has already: a repair that leaves those is as clean as one
        that mends them, and comes after it.
        """
        effort, roles = effort or Effort(), self.compiled.roles
        mild = posed._replace(problem=posed.problem.without_warnings(warned)) if warned else None
        wishes = sorted(posed.problem.wishes, key=lambda w: _price(w, roles.get(w.component)), reverse=True)
        soft = [w for w in wishes if not (w.host or w.reason)]
        for fixed, loose in (([w for w in wishes if w.host or w.reason], soft), ([], wishes)):
            net = posed.problem.rules_net(Severity.ERROR).joined(
                [Net.within(posed.problem.full, w.masks) for w in fixed]
            )
            candidates: list[tuple[Repair, int]] = []
            for given_up in nearest(net, [w.masks for w in loose], effort, limit=max(limit, MAX_REPAIRS)):
                if candidates and effort.is_spent():
                    break
                gone = [loose[i] for i in given_up]
                answer, trouble = self._cleanest(posed, _without(posed.problem, gone), mild)
                if answer:
                    repair = (here and self._repair_here(here, gone)) or _repair(posed, gone, answer)
                    candidates.append((repair, trouble))
            if candidates:
                # Another GPU is not a repair, nor is a cell with a known trouble, as long as there is another way.
                possible = [r for r in candidates if all(c.component != "gpu" for c in r[0].changes)] or candidates
                clean = sorted((pair for pair in possible if pair[1] < _TROUBLE), key=lambda pair: pair[1])
                return tuple(r for r, _ in clean or possible)[:limit]
        return ()

    def _repair_here(self, here: Posed, given_up: Sequence[Wish]) -> Repair | None:
        """Return the repair that gives up the same as another request's, ``None`` where the machine cannot run its cell."""
        names = {(wish.component, wish.text) for wish in given_up}
        gone = [wish for wish in here.problem.wishes if (wish.component, wish.text) in names]
        answer = self.best(here, wishes=_without(here.problem, gone))
        return _repair(here, gone, answer) if answer else None

    def _cleanest(self, posed: Posed, wishes: Sequence[Wish], mild: Posed | None) -> tuple[Answer | None, int]:
        """Return the best cell, with 0 when it has no warning, 1 when it has none in the ``mild`` problem, else 2."""
        answer = self.best(posed, wishes=wishes)
        if answer is None or "warning" in answer.avoided or mild is None:
            return answer, 0 if answer and "warning" in answer.avoided else _TROUBLE
        milder = self.best(mild, wishes=wishes)
        return (milder, 1) if milder and "warning" in milder.avoided else (answer, _TROUBLE)


def cell_of(posed: Posed, domains: Domains) -> Cell:
    """Return the cell of a full assignment, in the order that :class:`Cell` documents.

    Several GPUs become one text, joined by commas.
    """
    problem, compiled, platform = posed.problem, posed.problem.compiled, posed.problem.platform
    values = (values[domain.bit_length() - 1] for values, domain in zip(problem.values, domains, strict=True))
    releases = {name: value for name, value in zip(problem.names, values, strict=False) if value is not None}
    single = {n: v for n, v in releases.items() if not n.startswith("gpu#")}
    if "gpu" in single:
        single["gpu"] = ",".join(v for n, v in releases.items() if n.partition("#")[0] == "gpu")
    chosen = tuple(n for n in posed.chosen if n in single)
    following = sorted(
        dict.fromkeys([*(n for n in FOLLOWS if n in single), *single]), key=lambda n: compiled.roles.get(n) is Role.HOST
    )
    index = compiled.torch_index.get(platform.value, {}).get(single.get("torch", ""), "default")
    components = {n: single[n] for n in (*chosen, *following)}
    further = posed.request.packages
    return Cell(components=components, chosen=chosen, platform=platform, index=index, further=further)


_SOLVERS: dict[str, Solver] = {}


def solver_of(knowledge: Knowledge) -> Solver:
    """Return a solver over a knowledge."""
    return Solver(VersionGraph.of(knowledge))


def default_solver() -> Solver:
    """Return the solver over the installed knowledge, the same one as long as its files stay as they are."""
    graph = version_graph()
    return _SOLVERS.setdefault(graph.compiled.digest, Solver(graph))


def _price(wish: Wish, role: Role | None) -> tuple[int, int, str]:
    """Return what is dear to a user: the host above all, then frameworks, torch, CUDA, Python, what follows from them.

    Companions least.
    """
    if wish.host or wish.reason:
        return (4 if wish.component == "gpu" else 3, 0, wish.component)
    if wish.component in _CHEAP_FIRST:
        return (1, _CHEAP_FIRST.index(wish.component), wish.component)
    return (2 if role is Role.FRAMEWORK else 0, 0, wish.component)


def _repair(posed: Posed, gone: Sequence[Wish], answer: Answer) -> Repair:
    changes = []
    for wish in gone:
        variable = wish.masks[0][0] if wish.masks else None
        new = None
        if variable is not None and wish.component != "exclude-newer":
            new = posed.problem.values[variable][answer.domains[variable].bit_length() - 1]
        changes.append(Change(component=wish.component, old=wish.text, new=new))
    message = " and ".join(_told(change) for change in changes)
    return Repair(changes=tuple(changes), cell=answer.cell, message=message)


def _without(problem: Problem, gone: Sequence[Wish]) -> list[Wish]:
    """Return the wishes but those that are given up. Of a GPU the nearest one that the others admit stands for it."""
    net, wishes = problem.rules_net(Severity.ERROR), [wish for wish in problem.wishes if wish not in gone]
    for wish in (wish for wish in gone if wish.component == "gpu" and _architecture(wish.text)):
        variable, number = wish.masks[0][0], _architecture(wish.text)
        values = enumerate(problem.values[variable])
        for _, i in sorted((abs(_architecture(v) - number), i) for i, v in values if _architecture(v)):
            near = wish._replace(masks=((variable, 1 << i),))
            if net.solvable(net.begin(mask for each in (*wishes, near) for mask in each.masks)) is not None:
                wishes.append(near)
                break
    return wishes


def _architecture(value: str | None) -> int:
    """Return the number of a GPU's architecture, 0 where none is named."""
    number = (value or "").removeprefix("sm_")
    return int(number) if number.isdigit() else 0


def _told(change: Change) -> str:
    if change.component == "exclude-newer":
        return f"without --exclude-newer {change.old}"
    return f"{change.component} {change.new} instead of {change.old}"
