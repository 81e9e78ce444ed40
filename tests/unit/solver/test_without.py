"""A graph without some rules answers like one that never knew them, and compiles nothing again."""

from __future__ import annotations

import dataclasses

from envsmith.model.cell import Request
from envsmith.model.version import Spec
from envsmith.solver import solver_of
from envsmith.solver.solver import Solver


def test_a_rule_that_is_left_out_forbids_nothing(solver: Solver, knowledge) -> None:
    request = Request(frameworks={"alpha": Spec.parse("==1.1.0")}, constraints={"numpy": Spec.parse("==2.0.0")})
    gone = frozenset({"alpha-numpy2"})
    never = solver_of(dataclasses.replace(knowledge, rules=tuple(r for r in knowledge.rules if r.id not in gone)))

    reduced = Solver(solver.graph.without(gone))

    assert solver.best(solver.pose(request)) is None
    answer, expected = reduced.best(reduced.pose(request)), never.best(never.pose(request))
    assert answer is not None
    assert expected is not None
    assert answer.cell == expected.cell
    assert reduced.compiled.specs is solver.compiled.specs


def test_every_cell_without_a_rule_is_one_of_the_solver_that_never_knew_it(solver: Solver, knowledge) -> None:
    request = Request(frameworks={"alpha": Spec.parse("*")})
    for rule in knowledge.rules:
        others = tuple(r for r in knowledge.rules if r is not rule)
        reduced, never = (
            Solver(solver.graph.without({rule.id})),
            solver_of(dataclasses.replace(knowledge, rules=others)),
        )
        if reduced.compiled.versions == never.compiled.versions:
            assert [a.cell for a in reduced.cells(reduced.pose(request))] == [
                a.cell for a in never.cells(never.pose(request))
            ]


def test_the_texts_lack_the_rule_too_and_those_of_the_first_graph_do_not(solver: Solver) -> None:
    reduced = solver.graph.without({"alpha-numpy2"})

    assert "alpha-numpy2" not in {rule.id for rule in reduced.knowledge().rules}
    assert "alpha-numpy2" in {rule.id for rule in solver.knowledge().rules}
