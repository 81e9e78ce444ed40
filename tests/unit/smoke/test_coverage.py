"""A run that skipped what it should have asked has not passed."""

from __future__ import annotations

from typing import Any

import pytest

from envsmith.smoke.coverage import core
from envsmith.smoke.plan import Plan
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.verdict import judge

NO_ROOM = "memory: needs 0.0 GiB, smallest rank 0 has 0.0 GiB"


def _judged(plan: Plan, skipped: dict[str, str], ranks: int = 4, backend: str = "gloo") -> SmokeResult:
    """A clean run in which some cases were skipped."""
    events: list[dict[str, Any]] = [
        {"event": "hello", "pid": 1},
        {"event": "placement", "backend": backend, "ranks": ranks, "sentence": f"{ranks} ranks"},
    ]
    for index, case in enumerate(plan.cases):
        said = {"status": "ok"}
        if case.id in skipped:
            unmet = {"unmet": "memory"} if skipped[case.id] == NO_ROOM else {}
            said = {"status": "skipped", "detail": skipped[case.id], **unmet}
        if plan.expect(case.id, backend).expect == "refused":
            said = {"status": "refused", "detail": "not supported"}
        row = {"event": "row", "run": "collectives", "row": "case", "case": index, "ms": 1.0, **said}
        events += [{**row, "rank": rank} for rank in range(ranks)]
    exits = [{"rank": rank, "code": 0} for rank in range(ranks)]
    events += [{"event": "end", "run": "collectives", "exits": exits}, {"event": "bye", "seconds": {}, "code": 0}]
    return judge(plan, events)


def _plan(torch: str = "2.13.0", tier: str = "quick", ranks: int = 4, backend: str = "gloo") -> Plan:
    return Plan.build({"torch": torch}, tier=tier, ranks=ranks, backend=backend, steps=False)


def test_six_of_ninety_nine_verified_is_no_pass() -> None:
    plan = _plan()
    result = _judged(plan, {case.id: NO_ROOM for case in plan.cases if case.n})
    assert result.counts()["pass"] <= 8
    assert not result.passed
    assert result.exit_code == 8
    assert not result.enough
    assert not result.collectives_good
    assert result.summary.startswith("too little was verified: ")
    assert result.summary.endswith(f"most of them with: {NO_ROOM}")


def test_one_case_that_every_machine_can_run_and_that_was_skipped_is_too_little() -> None:
    result = _judged(_plan(), {"broadcast[float32,1025]": "the dog ate it"})
    assert result.exit_code == 1
    assert result.summary.startswith("too little was verified: 1 of the ")


def test_nothing_but_skips_is_no_pass_in_any_tier() -> None:
    plan = _plan(tier="bandwidth")
    assert not core(plan, "gloo", 4)
    result = _judged(plan, {case.id: NO_ROOM for case in plan.cases})
    assert result.exit_code == 8
    assert f"all {len(plan.cases)} cases were skipped" in result.summary


def test_what_needs_room_a_gpu_or_a_newer_torch_may_be_skipped() -> None:
    plan = _plan(tier="full")
    must = core(plan, "gloo", 4)
    result = _judged(plan, {case.id: NO_ROOM for case in plan.cases if case.id not in must})
    assert result.enough
    assert result.passed, result.blame
    assert not any("float8" in name or name.startswith(("large_", "cuda_graph", "functional_")) for name in must)


@pytest.mark.parametrize(("torch", "least"), [("2.5.1", 80), ("2.13.0", 90), ("2.15.0", 90)])
def test_core_is_nearly_all_of_the_quick_tier(torch: str, least: int) -> None:
    assert least <= len(core(_plan(torch), "gloo", 4)) <= 95


def test_roots_beyond_the_ranks_that_really_ran_are_not_asked_for() -> None:
    plan = _plan(backend="nccl")
    beyond = {case.id: f"root {case.root} is not in a group of 2" for case in plan.cases if case.root > 1}
    assert beyond
    assert _judged(plan, beyond, ranks=2, backend="nccl").passed


def test_a_case_that_is_expected_to_be_refused_is_not_in_the_core() -> None:
    plan = _plan("2.5.1")
    refused = [case.id for case in plan.cases if plan.expect(case.id, "gloo").expect == "refused"]
    assert refused
    assert not set(refused) & core(plan, "gloo", 4)


def test_run_in_which_a_rank_reported_nothing_has_not_passed() -> None:
    plan = Plan.build({"torch": "2.13.0"}, ranks=4, backend="gloo", steps=False)
    rows = [
        {"event": "row", "run": "collectives", "row": "case", "rank": rank, "case": index, "status": "ok"}
        for rank in range(4)
        for index in range(len(plan.cases))
    ]
    end = {"event": "end", "run": "collectives", "exits": [{"rank": rank, "code": 0} for rank in range(4)]}
    bye = {"event": "bye", "seconds": {}}

    whole = judge(plan, [{"event": "hello"}, *rows, end, bye])
    result = judge(plan, [{"event": "hello"}, *(row for row in rows if row["rank"] != 2), end, bye])

    assert whole.passed
    assert not result.passed
    total = len(plan.cases)
    assert result.summary == f"{total} of the {total} results of rank 2 are missing"
    assert result.counts() == {"error": total}


def test_row_of_one_rank_that_came_twice_does_not_stand_for_another_rank() -> None:
    plan = Plan.build({"torch": "2.13.0"}, ranks=2, backend="gloo")
    rows = [
        {"event": "row", "run": "collectives", "row": "case", "rank": 0, "case": index, "status": "ok"}
        for index in range(len(plan.cases))
    ]
    result = judge(plan, [{"event": "hello"}, *rows, *rows, {"event": "bye", "seconds": {}}])
    assert not result.passed
    assert "results of rank 1 are missing" in result.summary
