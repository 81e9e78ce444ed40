"""Over sets of pins drawn from the real knowledge: every question ends, with an answer or with a conflict and a repair."""

from __future__ import annotations

import os
import random
import time

import pytest

from envsmith.model.cell import Request
from envsmith.model.component import Role
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.rule import Severity
from envsmith.model.version import WORDS, Spec, public
from envsmith.solver import default_solver, solve
from envsmith.solver.kernel import Effort
from envsmith.solver.refusal import refuse

# `make fuzz` asks 200 sets.
_SEEDS = int(os.environ.get("ENVSMITH_FUZZ_EXAMPLES", "0")) // 5


def pins(seed: int) -> Request:
    """Return a request of up to 300 pins of any age: some components are named twice, by ranges that may not meet."""
    dice, compiled = random.Random(seed), default_solver().compiled
    names = [n for n, role in compiled.roles.items() if role is not Role.HOST and compiled.versions.get(n)]
    narrowed, constraints = {}, {}
    for name in (dice.choice(names) for _ in range(dice.randint(1, 300))):
        version = dice.choice(compiled.versions[name])
        operator = dice.choice(("==", "==", "==", ">=", "<="))
        is_exact = operator == "==" or version in WORDS
        spec = Spec.parse(f"=={version}" if is_exact else operator + public(version))
        (constraints if name not in constraints and dice.random() < 0.5 else narrowed)[name] = (spec, f"line {name}")
    return Request(constraints={n: spec for n, (spec, _) in constraints.items()}, narrowed=narrowed)


class Checks:
    """A limit that counts: what a clock would say depends on the machine."""

    def __init__(self, most: int) -> None:
        self.most, self.count = most, 0

    def __call__(self) -> bool:
        self.count += 1
        return self.count > self.most


@pytest.mark.parametrize("seed", range(3))
def test_pins_that_contradict_each_other_get_a_conflict_and_a_repair(seed: int) -> None:
    solver, checks = default_solver(), Checks(40)
    posed = solver.pose(pins(seed))
    if solver.best(posed) is None:
        refusal = refuse(solver, posed, Effort(is_over=checks)).refusal
        assert refusal is not None
        assert refusal.conflict
        rules = posed.problem.rules_net(Severity.ERROR)
        assert bool(refusal.repairs) is (rules.solvable(rules.begin()) is not None)
        assert checks.count <= checks.most + 1  # nothing asks again after it must end


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 100 + max(_SEEDS, 20)))
def test_any_set_of_pins_is_answered(seed: int) -> None:
    start, conflict = time.process_time(), ()
    try:
        answer = solve(pins(seed)).cell
    except UnsatisfiableError as error:
        answer, conflict = None, error.refusal.conflict if error.refusal else ()
    assert answer or conflict
    # The processor's time: two seconds of it are the search for reasons. Of 200 sets the longest took 2.3.
    assert time.process_time() - start < 15
