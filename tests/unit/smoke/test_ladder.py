"""Which rungs of the evidence ladder a run proved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envsmith.agent.protocol import TIME_IS_OVER
from envsmith.model.record import CaseOutcome, Rung, StepOutcome, Unmet, Verdict
from envsmith.smoke.ladder import proved_rungs
from envsmith.smoke.plan import IMPORTS
from envsmith.smoke.result import SmokeResult

GOOD = CaseOutcome(case="all_reduce", verdict=Verdict.PASS)
CONTROL = StepOutcome(name="torch ddp fp32", verdict=Verdict.PASS)
OWN = StepOutcome(name="deepspeed zero-2 fp32", verdict=Verdict.PASS)
RESULT = SmokeResult(
    passed=True,
    exit_code=0,
    summary="",
    backend="gloo",
    ranks=2,
    loaded={"torch": "2.9.1"},
    cases=(GOOD,),
    steps=(OWN,),
)
LADDER = (Rung.IMPORTED, Rung.COLLECTIVES_CPU, Rung.FRAMEWORK_CPU)


def test_a_run_that_passed_proves_every_rung_of_its_backend() -> None:
    on_gpu = replace(RESULT, backend="nccl 2.27.5")

    assert proved_rungs(RESULT, ["deepspeed"]) == LADDER
    assert proved_rungs(on_gpu, ["deepspeed"]) == (Rung.IMPORTED, Rung.COLLECTIVES_GPU, Rung.FRAMEWORK_GPU)


def test_nothing_that_was_loaded_proves_no_import() -> None:
    assert proved_rungs(replace(RESULT, loaded={}, cases=(), steps=())) == ()


@pytest.mark.parametrize("verdict", [Verdict.SKIPPED, Verdict.WRONG])
def test_a_step_that_was_left_out_or_failed_proves_no_framework(verdict: Verdict) -> None:
    assert proved_rungs(replace(RESULT, steps=(replace(OWN, verdict=verdict),)), ["deepspeed"]) == LADDER[:2]


def test_the_control_of_a_framework_proves_nothing_of_it() -> None:
    control = replace(RESULT, steps=(CONTROL, replace(OWN, verdict=Verdict.SKIPPED)))

    assert proved_rungs(control, ["deepspeed"]) == LADDER[:2]
    assert proved_rungs(control, ["torch"]) == LADDER


def test_a_control_that_failed_speaks_against_the_framework() -> None:
    failed = replace(RESULT, steps=(replace(CONTROL, verdict=Verdict.WRONG), OWN))

    assert proved_rungs(failed, ["deepspeed"]) == LADDER[:2]


def test_imports_are_no_step_of_a_framework() -> None:
    imports = StepOutcome(name=IMPORTS, verdict=Verdict.ERROR)

    assert proved_rungs(replace(RESULT, steps=(imports,)), ["torch"]) == LADDER[:2]
    assert proved_rungs(replace(RESULT, steps=(imports, OWN)), ["deepspeed"]) == LADDER


def test_cases_that_had_no_time_prove_no_collectives() -> None:
    late = CaseOutcome(case="all_gather", verdict=Verdict.SKIPPED, blame=TIME_IS_OVER, unmet=Unmet.TIME)

    assert proved_rungs(replace(RESULT, cases=(GOOD, late), steps=())) == LADDER[:1]


def test_parts_of_a_run_prove_what_each_of_them_shows() -> None:
    without = replace(RESULT, cases=(), steps=())

    assert proved_rungs(without, ["deepspeed"], cases=RESULT, steps=(OWN,)) == LADDER
    assert proved_rungs(RESULT, ["deepspeed"], cases=None, steps=(OWN,)) == (Rung.IMPORTED, Rung.FRAMEWORK_CPU)
