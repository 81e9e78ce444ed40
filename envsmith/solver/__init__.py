"""The solver: kernel on bit masks, preferences, conflict and repair, judging and explaining."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from envsmith.model.cell import Cell, Platform, Request
from envsmith.model.finding import Judgement, Solution
from envsmith.model.version import Spec
from envsmith.solver.explain import explain_cell, explain_rule, explain_upgrade, reasons, refuse
from envsmith.solver.request import demands_of
from envsmith.solver.solver import Solver, default_solver, solver_of

__all__ = [
    "best_cell",
    "cells",
    "check",
    "constraints_for",
    "default_solver",
    "explain_cell",
    "explain_rule",
    "explain_upgrade",
    "solve",
    "solver_of",
]


def solve(request: Request, *, solver: Solver | None = None) -> Solution:
    """Return the best cell for a request. ``UnsatisfiableError`` carries a :class:`Refusal` in ``refusal``."""
    solver = solver or default_solver()
    posed = solver.pose(request)
    answer = solver.best(posed)
    if answer is None:
        raise refuse(solver, posed)
    return reasons(solver, posed, answer)


def best_cell(request: Request) -> Cell:
    """Return the best cell for a request: ``envsmith.solve`` of the Python interface.

    ``UnsatisfiableError`` carries a :class:`Refusal` in ``refusal``. :func:`solve` gives the reasons and alternatives
    too.
    """
    return solve(request).cell


def cells(request: Request, *, solver: Solver | None = None) -> Iterator[Cell]:
    """Return every valid cell, best first. There is none when the request cannot be satisfied."""
    solver = solver or default_solver()
    for answer in solver.cells(solver.pose(request)):
        yield answer.cell


def check(
    versions: Mapping[str, str],
    platform: Platform | None = None,
    *,
    keep: Collection[str] = frozenset(),
    features: Collection[str] = frozenset(),
    needed: Mapping[str, Spec] | None = None,
    solver: Solver | None = None,
) -> Judgement:
    """Judge ``{component: version}`` (aliases welcome, ``platform`` defaults to linux-64) without changing it.

    The version ``*`` says that some release is there, ``none`` that it is absent. A repair leaves ``keep`` alone where
    it can, and takes releases of the specs of ``needed``. ``features`` (of ``matrix/doctor/rules.yaml``) are in use.
    """
    from envsmith.solver.judge import judge  # a solve does without it

    return judge(
        solver or default_solver(), versions, platform or Platform.LINUX_64, keep=keep, features=features, needed=needed
    )


def constraints_for(cell: Cell, *, solver: Solver | None = None) -> tuple[tuple[str, str], ...]:
    """Return ``(requirement, rule id)`` for Python distributions that are not in the cell, see :func:`demands_of`."""
    return demands_of((solver or default_solver()).knowledge(), cell.components, cell.platform)
