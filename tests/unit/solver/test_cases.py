"""Histories in tests/cases/solve: what was asked of the real knowledge, and what must come of it."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from envsmith.model.cell import Platform, Request
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.rule import Severity
from envsmith.model.version import Spec
from envsmith.solver import cells, check, default_solver, solve
from envsmith.solver.explain import explain_cell

FOLDER = Path(__file__).parents[2] / "cases" / "solve"
CASES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def named(kind):
    return [pytest.param(case, id=name) for name, case in CASES.items() if kind(case)]


def asked(case):
    request = case["request"]
    return Request(
        frameworks={n: Spec.parse(s) for n, s in request.get("frameworks", {}).items()},
        constraints={n: Spec.parse(s) for n, s in request.get("constraints", {}).items()},
        driver=request.get("driver"),
        gpus=tuple(request.get("gpus", ())),
        platform=Platform.parse(request.get("platform", "linux-64")),
        exclude_newer=request.get("exclude_newer"),
    )


@pytest.mark.parametrize("case", named(lambda c: "request" in c and not c.keys() & {"conflict", "conflict_any"}))
def test_request_is_solved_as_told(case):
    solution = solve(asked(case))
    for name, spec in case.get("solved", {}).items():
        assert Spec.parse(spec).contains(solution.cell.components[name]), solution.cell.id
    if case.get("supported"):
        assert any("is tested with" in s or "tested with" in s for s in solution.why), solution.why
    findings = check(solution.cell.components, solution.cell.platform).findings
    assert not [f for f in findings if f.severity is not Severity.NOTE]
    assert str(solution.cell.id).count("-") >= 2


@pytest.mark.parametrize("case", named(lambda c: "every" in c or "every_build_for" in c))
def test_no_cell_at_all_breaks_the_promise(case):
    gpu = case.get("every_build_for")
    builds = {r.version: r for r in default_solver().knowledge().releases["torch"] if Platform.LINUX_64 in r.platforms}
    count = 0
    for cell in islice(cells(asked(case)), 3000):
        count += 1
        for name, spec in case.get("every", {}).items():
            assert Spec.parse(spec).contains(cell.components[name])
        if gpu:
            assert gpu in builds[cell.components["torch"]].facts["gpu"], cell.id
    assert count


@pytest.mark.parametrize("case", named(lambda c: c.keys() & {"conflict", "conflict_any"}))
def test_request_is_refused_as_told(case):
    with pytest.raises(UnsatisfiableError) as caught:
        solve(asked(case))
    refusal = caught.value.refusal
    members = [c.rule for c in refusal.conflict]
    assert set(case.get("conflict", ())) <= set(members)
    assert not case.get("conflict_any") or set(members) & set(case["conflict_any"])
    for member in refusal.conflict:
        assert member.message
        assert member.rule.startswith("request:") or member.evidence
    assert case.get("says", "") in " ".join(c.message for c in refusal.conflict)
    changed = [[c.component for c in r.changes] for r in refusal.repairs]
    assert all(expected in changed for expected in case.get("repairs", ()))
    for repair in refusal.repairs:
        findings = check(repair.cell.components, repair.cell.platform).findings
        assert not [f for f in findings if f.severity is Severity.ERROR]


@pytest.mark.parametrize("case", named(lambda c: "check" in c))
def test_set_is_judged_as_told(case):
    found = check(case["check"])
    errors = [f.rule for f in found.findings if f.severity is Severity.ERROR]
    assert (found.status, set(case.get("findings", ())) <= set(errors)) == (case["status"], True)
    warnings = {f.rule for f in found.findings if f.severity is Severity.WARNING}
    assert set(case.get("warnings", ())) <= warnings
    assert found.status == "unknown" or not found.unknown
    if "repaired" in case:
        assert [c.component for c in found.repair.changes] == case["repaired"]
    else:
        assert found.repair is None


@pytest.mark.parametrize("framework", ["deepspeed", "megatron-core", "colossalai"])
def test_default_cell_can_be_explained(framework):
    cell = solve(Request(frameworks={framework: Spec.parse("*")})).cell
    told = explain_cell(cell.id)
    assert any(s.startswith(framework) for s in told.sentences)
    assert any(s.startswith("torch") for s in told.sentences)
