"""The solver: kernel on bit masks, preferences, conflict and repair, judging and explaining.

The package is also the function of the Python interface, ``envsmith.solve(request)``: a package and a function of one name would take
each other's place as soon as either is imported.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from envsmith.errors import UsageError
from envsmith.graph.load import VersionGraph, version_graph
from envsmith.model.cell import Cell, CellId, Platform, Request
from envsmith.model.finding import Finding, Judgement, Solution
from envsmith.model.rule import Knowledge, Severity
from envsmith.model.version import Spec
from envsmith.solve.solver import Solver

if TYPE_CHECKING:
    from envsmith.solve.explain import Explanation


__all__ = [
    "cells",
    "check",
    "constraints_for",
    "default_solver",
    "explain_cell",
    "explain_rule",
    "explain_upgrade",
    "judge_cell",
    "solve",
    "solver_of",
]


class _Callable(types.ModuleType):
    """The package itself, callable."""

    def __call__(self, request: Request) -> Cell:
        """The best cell for ``request``; :class:`~envsmith.errors.UnsatisfiableError` carries the refusal.

        :func:`envsmith.solve.solve` gives the reasons and alternatives too.
        """
        return solve(request).cell


sys.modules[__name__].__class__ = _Callable


# What other parts and other programs call: solve, enumerate, judge, explain.


_SOLVERS: dict[str, Solver] = {}


def solver_of(knowledge: Knowledge) -> Solver:
    """Return a solver over a knowledge."""
    return Solver(VersionGraph.of(knowledge))


def default_solver() -> Solver:
    """Return the solver over the installed knowledge, the same one as long as its files stay as they are."""
    graph = version_graph()
    return _SOLVERS.setdefault(graph.compiled.digest, Solver(graph))


def solve(request: Request, *, solver: Solver | None = None) -> Solution:
    """The best cell for a request. :class:`UnsatisfiableError` carries a :class:`Refusal` in ``refusal``."""
    solver = solver or default_solver()
    posed = solver.pose(request)
    answer = solver.best(posed)
    if answer is None:
        from envsmith.solve.explain import refuse

        raise refuse(solver, posed)
    from envsmith.solve.explain import reasons

    return reasons(solver, posed, answer)


def cells(request: Request, *, solver: Solver | None = None) -> Iterator[Cell]:
    """Every valid cell, best first; none at all when the request cannot be satisfied."""
    solver = solver or default_solver()
    for answer in solver.cells(solver.pose(request)):
        yield answer.cell


def check(
    given: Mapping[str, str],
    platform: Platform | None = None,
    *,
    keep: Collection[str] = frozenset(),
    solver: Solver | None = None,
) -> Judgement:
    """Judge ``{component: version}`` (aliases welcome; ``platform`` defaults to linux-64) without changing it.

    The version ``*`` says that some release is there, ``none`` that it is absent. A repair leaves ``keep`` alone where it can.
    """
    from envsmith.solve.judge import judge

    return judge(solver or default_solver(), given, platform or Platform.LINUX_64, keep=keep)


def judge_cell(
    components: Mapping[str, str], platform: Platform = Platform.LINUX_64, *, solver: Solver | None = None
) -> tuple[Finding, ...]:
    """Errors and warnings of a resolved set, for a last check before a lock is written: ``check`` without notes and repair."""
    judgement = check(components, platform, solver=solver)
    return tuple(f for f in judgement.findings if f.severity is not Severity.NOTE)


def constraints_for(cell: Cell, *, solver: Solver | None = None) -> tuple[tuple[str, str], ...]:
    """``(requirement, rule id)`` for Python distributions that are not in the cell; see :func:`envsmith.solve.request.demands_of`."""
    from envsmith.solve.request import demands_of

    return demands_of((solver or default_solver()).knowledge(), cell.components, cell.platform)


def explain_cell(cell: CellId | str, *, solver: Solver | None = None) -> Explanation:
    """Why each release of a cell; see :mod:`envsmith.solve.explain`."""
    from envsmith.solve import explain

    return explain.explain_cell(solver or default_solver(), _cell_id(cell))


def explain_rule(rule: str, platform: Platform = Platform.LINUX_64, *, solver: Solver | None = None) -> Explanation:
    """What a rule says, rules out, looks like, and rests on."""
    from envsmith.solve import explain

    return explain.explain_rule(solver or default_solver(), rule, platform)


def explain_upgrade(cell: CellId | str, wanted: Mapping[str, Spec], *, solver: Solver | None = None) -> Explanation:
    """What must change for a cell to have ``wanted``, which component blocks it, since when."""
    from envsmith.solve import explain

    return explain.explain_upgrade(solver or default_solver(), _cell_id(cell), wanted)


def _cell_id(cell: CellId | str) -> CellId:
    if isinstance(cell, CellId):
        return cell
    try:
        return CellId.parse(cell)
    except ValueError as error:
        raise UsageError(str(error)) from error
