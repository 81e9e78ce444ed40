"""What `check` calls ok: the sets of the records, and no set that nobody ran."""

from __future__ import annotations

import random

import pytest

from envsmith.model.component import Role
from envsmith.model.rule import PassedRun, Severity
from envsmith.model.version import public
from envsmith.solver import check, default_solver

SOLVER = default_solver()
RUNS = SOLVER.graph.runs


@pytest.mark.parametrize("run", RUNS[::12], ids=lambda run: run.evidence.source.rpartition("/")[2])
def test_the_set_of_a_record_that_passed_is_ok(run: PassedRun) -> None:
    host = {name for name, role in SOLVER.compiled.roles.items() if role is Role.HOST}

    found = check({name: version for name, version in run.components.items() if name not in host})

    assert (found.status, found.proof is not None) == ("ok", True)


def drawn(number: int) -> dict[str, str]:
    """Draw a set of known releases: a framework or a companion or two, torch, perhaps a Python."""
    draw, compiled = random.Random(number), SOLVER.compiled
    of_role = {
        role: [n for n, r in compiled.roles.items() if r is role and compiled.versions.get(n)]
        for role in (Role.FRAMEWORK, Role.COMPANION)
    }
    names = [draw.choice(of_role[Role.FRAMEWORK])] if draw.random() < 0.7 else []
    names += draw.sample(of_role[Role.COMPANION], draw.randrange(0 if names else 1, 3))
    versions = {name: draw.choice(compiled.versions[name]) for name in names}
    versions["torch"] = public(draw.choice(compiled.versions["torch"]))
    return versions | ({"python": draw.choice(("3.10", "3.11", "3.12"))} if draw.random() < 0.3 else {})


def was_run(versions: dict[str, str]) -> bool:
    """Tell whether a record or a tested line has these releases, whatever the build: said without the judge."""
    names = [name for name in versions if name != "python"]
    records = (all(public(run.components.get(n, "")) == public(versions[n]) for n in names) for run in RUNS)
    lines = (
        len(names) == 2 and line.framework in versions and line.version.contains(versions[line.framework])
        for line in SOLVER.graph.tested
    )
    return any(records) or any(lines)


@pytest.mark.parametrize("sets", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_no_set_that_nobody_ran_is_ok_and_what_breaks_a_rule_is_bad(sets: int) -> None:
    statuses = {"ok": 0, "unknown": 0, "bad": 0}
    for number in range(sets):
        versions = drawn(number)
        if was_run(versions):
            continue
        found = check(versions)
        statuses[found.status] += 1
        assert (found.status == "bad") == any(f.severity is Severity.ERROR for f in found.findings)

    assert statuses["ok"] == 0
    assert min(statuses["unknown"], statuses["bad"]) > sets / 10, statuses
