"""The solver: kernel on bit masks, preferences, conflict and repair, reasons and judgements."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from envsmith.knowledge.graph.tables import one_state
from envsmith.model.cell import Cell, Platform, Request
from envsmith.model.finding import Finding, Judgement, Solution
from envsmith.model.rule import PassedRun, Severity
from envsmith.model.version import Spec
from envsmith.solver.choices import reasons
from envsmith.solver.demands import demands_of
from envsmith.solver.refusal import conflict_members, refuse
from envsmith.solver.request import Posed, elsewhere, on_machine
from envsmith.solver.solver import Answer, Solver, default_solver, solver_of
from envsmith.solver.words import join_words, strongest

__all__ = [
    "best_cell",
    "cells",
    "check",
    "constraints_for",
    "default_solver",
    "solve",
    "solver_of",
]


@one_state()
def solve(request: Request, *, solver: Solver | None = None) -> Solution:
    """Return the best cell for a request: one that runs on its machine, or with a warning one that does not.

    ``UnsatisfiableError`` carries a :class:`Refusal` in ``refusal``.
    """
    solver = solver or default_solver()
    here = solver.pose(on_machine(request, solver.compiled))
    if answer := solver.best(here):
        return reasons(solver, here, answer)
    for posed in map(solver.pose, elsewhere(request, solver.compiled)):
        if answer := solver.best(posed):
            solution = reasons(solver, posed, answer)
            return replace(solution, warnings=(_not_here(solver, here, answer), *solution.warnings))
    raise refuse(solver, solver.pose(replace(request, machine=None)), here=here)


def _not_here(solver: Solver, posed: Posed, answer: Answer) -> Finding:
    """Return that the machine at hand cannot run what is asked for, with the rules that say so."""
    conflict = conflict_members(solver, posed.problem, solver.stuck(posed.problem))
    python = answer.cell.components["python"]
    missing = "python" in posed.request.narrowed and not posed.request.narrowed["python"][0].contains(python)
    remedy = f"Install Python {python}" if missing else "Leave the releases out that you named"
    return Finding(
        rule="machine",
        severity=Severity.WARNING,
        components={name: version for member in conflict for name, version in member.components.items()},
        message=f"This machine cannot run it: {join_words([member.message for member in conflict])}.",
        evidence=strongest((e for member in conflict for e in member.evidence), limit=3),
        fix=f"{remedy}, or say --machine none when it will run elsewhere.",
    )


def best_cell(request: Request) -> Cell:
    """Return the best cell for a request: ``envsmith.solve`` of the Python interface.

    ``UnsatisfiableError`` carries a :class:`Refusal` in ``refusal``. :func:`solve` gives the reasons and alternatives
    too.
    """
    return solve(request).cell


def cells(request: Request, *, solver: Solver | None = None) -> Iterator[Cell]:
    """Return every valid cell, best first: those that run on the machine of the request, else those that do not.

    There is none when the request cannot be satisfied.
    """
    solver = solver or default_solver()
    for each in (on_machine(request, solver.compiled), *elsewhere(request, solver.compiled)):
        answers = solver.cells(solver.pose(each))
        if first := next(answers, None):
            yield first.cell
            yield from (answer.cell for answer in answers)
            return


@one_state()
def check(
    versions: Mapping[str, str],
    platform: Platform | None = None,
    *,
    keep: Collection[str] = frozenset(),
    features: Collection[str] = frozenset(),
    needed: Mapping[str, Spec] | None = None,
    runs: Sequence[PassedRun] = (),
    solver: Solver | None = None,
) -> Judgement:
    """Judge ``{component: version}`` (aliases welcome, ``platform`` defaults to linux-64) without changing it.

    The version ``*`` says that some release is there, ``none`` that it is absent. A repair leaves ``keep`` alone where
    it can, and takes releases of the specs of ``needed``. ``features`` (of ``matrix/doctor/rules.yaml``) are in use.
    ``runs`` passed in the environment at hand.
    """
    from envsmith.solver.judge import judge  # a solve does without it

    return judge(
        solver or default_solver(),
        versions,
        platform or Platform.LINUX_64,
        keep=keep,
        features=features,
        needed=needed,
        runs=runs,
    )


def constraints_for(cell: Cell, *, solver: Solver | None = None) -> tuple[tuple[str, str], ...]:
    """Return ``(requirement, rule id)`` for Python distributions that are not in the cell, see :func:`demands_of`."""
    return demands_of((solver or default_solver()).graph, cell.components, cell.platform)
