"""What other parts and other programs call: solve, enumerate, judge, explain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from envsmith.graph.cache import read_cache, write_cache
from envsmith.graph.cached import knowledge_of
from envsmith.graph.data import DataFiles, find_matrix, list_files
from envsmith.model.cell import Cell, Request
from envsmith.model.finding import Judgement, Solution
from envsmith.model.platform import Platform
from envsmith.model.rule import Knowledge
from envsmith.solve.compile import Compiled, compile_knowledge
from envsmith.solve.solver import Solver

__all__ = ["cells", "check", "default_solver", "solve", "solver_of"]

_SOLVERS: dict[str, Solver] = {}


def solver_of(knowledge: Knowledge) -> Solver:
    """A solver over a knowledge at hand."""
    return Solver(compile_knowledge(knowledge), lambda: knowledge)


def default_solver() -> Solver:
    """The solver over the installed knowledge; compiled once per state of its files, and kept in the cache."""
    files = list_files(find_matrix())
    stamp = files.stamp()
    if stamp not in _SOLVERS:
        _SOLVERS[stamp] = _load(files, stamp)
    return _SOLVERS[stamp]


def _load(files: DataFiles, stamp: str) -> Solver:
    def knowledge() -> Knowledge:
        return knowledge_of(files)

    kept = read_cache("compiled", stamp)
    if kept is not None:
        try:
            return Solver(Compiled.from_json(kept), knowledge)
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
    compiled = compile_knowledge(knowledge())
    write_cache("compiled", stamp, compiled.to_json())
    return Solver(compiled, knowledge)


def solve(request: Request, *, solver: Solver | None = None) -> Solution:
    """The best cell for a request. :class:`UnsatisfiableError` carries a :class:`Refusal` in ``refusal``."""
    solver = solver or default_solver()
    posed = solver.pose(request)
    answer = solver.best(posed)
    if answer is None:
        from envsmith.solve.explain import refuse

        raise refuse(solver, posed)
    from envsmith.solve.why import reasons

    return reasons(solver, posed, answer)


def cells(request: Request, *, solver: Solver | None = None) -> Iterator[Cell]:
    """Every valid cell, best first; none at all when the request cannot be satisfied."""
    solver = solver or default_solver()
    for answer in solver.cells(solver.pose(request)):
        yield answer.cell


def check(
    given: Mapping[str, str], platform: Platform | None = None, *, solver: Solver | None = None
) -> Judgement:
    """Judge ``{component: version}`` (aliases welcome; ``platform`` defaults to linux-64) without changing it."""
    from envsmith.solve.judge import judge

    return judge(solver or default_solver(), given, platform or Platform.LINUX_64)
