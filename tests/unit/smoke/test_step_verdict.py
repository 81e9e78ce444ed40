"""Framework steps judged from what ranks reported: losses, collectives, families."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from envsmith.frameworks.framework import Step
from envsmith.model.record import Rung, StepOutcome, Verdict
from envsmith.smoke.events import StepRow
from envsmith.smoke.failure import failure_of
from envsmith.smoke.plan import Plan
from envsmith.smoke.step_verdict import compare_families, judge_step, words_of_framework
from envsmith.smoke.verdict import judge

STEP = Step(name="zero", kind="deepspeed-zero", family="zero", issues=("all_reduce|reduce", "all_gather_single"))
CALLS = {"all_reduce": {"count": 5, "bytes": 80}, "all_gather_single": {"count": 1, "bytes": 8}}


def _rows(*, losses: tuple[float, ...] = (3.0, 2.0, 1.0), ranks: int = 2, **more: Any) -> list[StepRow]:
    row = {"losses": losses, "reference": losses, "facts": {}, "collectives": CALLS, **more}
    return [StepRow(run="zero", rank=rank, **row) for rank in range(ranks)]


def _judged(step: Step = STEP, **more: Any) -> StepOutcome:
    return judge_step(step, _rows(**more), 1.0)


def test_step_passes_and_says_which_collectives_it_issued() -> None:
    outcome = _judged()
    assert outcome.verdict is Verdict.PASS
    assert "5 all_reduce, 1 all_gather_single" in outcome.detail
    assert outcome.facts["collectives"] == CALLS


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"losses": (3.0, math.nan)}, "not finite"),
        ({"losses": (3.0, 3.5)}, "does not fall"),
        ({"reference": [3.0, 2.0, 1.01]}, "differ from the reference"),
        ({"reference": [3.0, 2.0]}, "differ from the reference"),
        ({"collectives": {"all_reduce": {"count": 1, "bytes": 1}}}, "never issued all_gather_single"),
        ({"collectives": {}}, "never issued all_reduce or reduce"),
    ],
)
def test_step_is_wrong_when_its_training_or_its_collectives_are(more, words) -> None:
    outcome = _judged(**more)
    assert outcome.verdict is Verdict.WRONG
    assert words in outcome.detail


def test_replicas_that_hold_different_parameters_are_wrong() -> None:
    rows = _rows()
    rows[1] = replace(rows[1], facts={"parameters": "other"})
    assert judge_step(STEP, rows, None).verdict is Verdict.WRONG


def test_collective_that_only_another_rank_issued_counts_as_issued() -> None:
    rows = _rows()
    rows[0] = replace(rows[0], collectives={"all_reduce": CALLS["all_reduce"]})
    assert judge_step(STEP, rows, None).verdict is Verdict.PASS


def test_native_step_is_told_by_the_flight_recorder_and_nothing_is_missed_without_one() -> None:
    step = Step(name="ddp", kind="ddp", issues=("all_reduce",), native=True)
    recorded = _judged(step, collectives={}, recorded={"all_reduce": 5})
    assert recorded.verdict is Verdict.PASS
    assert recorded.facts["collectives"] == {"all_reduce": {"count": 5}}
    assert _judged(step, collectives={}, recorded={"broadcast": 5}).verdict is Verdict.WRONG
    assert _judged(step, collectives={}).verdict is Verdict.PASS


def _family(second: tuple[float, ...], **more: Any) -> tuple[StepOutcome, ...]:
    steps = [STEP, Step(name="zero-3", kind="deepspeed-zero", family="zero", **more)]
    return compare_families(steps, [judge_step(STEP, _rows(), None), judge_step(steps[1], _rows(losses=second), None)])


def test_steps_of_a_family_must_give_the_same_losses() -> None:
    same = _family((3.0, 2.0, 1.00001))
    assert [o.verdict for o in same] == [Verdict.PASS, Verdict.PASS]
    assert "losses as in zero within" in same[1].detail
    other = _family((3.0, 2.1, 1.0))
    assert [o.verdict for o in other] == [Verdict.PASS, Verdict.WRONG]
    assert "differ from those of zero by 5.00e-02" in other[1].detail


def test_step_that_did_not_pass_is_no_base_of_its_family() -> None:
    steps = [STEP, STEP, STEP]
    outcomes = [
        StepOutcome(name="a", verdict=Verdict.SKIPPED),
        judge_step(STEP, _rows(losses=(2.0, 1.0, 0.5)), None),
        judge_step(STEP, _rows(losses=(2.0, 1.0, 0.5)), None),
    ]
    assert [o.verdict for o in compare_families(steps, outcomes)] == [Verdict.SKIPPED, Verdict.PASS, Verdict.PASS]


def test_deepspeed_that_looks_for_nvcc_at_import_is_said_in_words() -> None:
    plan = Plan.build({"torch": "2.5.1", "deepspeed": "0.15.0"}, tier="quick", ranks=2, backend="gloo")
    step = next(step for step in plan.steps if step.name.startswith("deepspeed"))
    error = "MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)"
    row = {"event": "row", "run": step.name, "row": "step", "status": "error", "stage": "import", "detail": error}
    result = judge(plan, [{"event": "hello", "pid": 1}, *({**row, "rank": rank} for rank in range(2))])
    outcome = next(outcome for outcome in result.steps if outcome.name == step.name)
    failure = failure_of(result, [Rung.IMPORTED])
    assert "look for nvcc when they are imported" in outcome.detail
    assert "take deepspeed 0.19.5 or later" in outcome.detail
    assert failure is not None


def test_another_error_of_a_framework_gets_no_words() -> None:
    assert words_of_framework("ImportError: no module named numpy") == ""


def test_program_that_is_missing_is_said_with_the_packages_that_bring_it() -> None:
    words = words_of_framework("RuntimeError: Error building extension 'ops': /bin/sh: 1: c++: not found")
    assert words == (
        " -- there is no C++ compiler (c++); next: install it (apt-get install g++ or dnf install gcc-c++)"
    )
