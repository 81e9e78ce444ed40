"""Horovod's steps under horovodrun: each fault of a rank is named, and every collective has its value.

``ENVSMITH_TEST_HOROVOD_PYTHON`` names an interpreter with torch and a Horovod that was compiled for it.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from envsmith.frameworks import FRAMEWORKS
from envsmith.model.record import StepOutcome, Verdict
from envsmith.smoke.plan import Plan
from envsmith.smoke.run import LocalTarget, run

_PYTHON = os.environ.get("ENVSMITH_TEST_HOROVOD_PYTHON", "")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not _PYTHON, reason="ENVSMITH_TEST_HOROVOD_PYTHON names no interpreter with horovod"),
]
_OPTIMIZER, _COLLECTIVES = FRAMEWORKS["horovod"].steps[:2]


def _outcome(
    *, fault: Mapping[str, object] | None = None, step: object = _OPTIMIZER, deadline: float = 300.0
) -> StepOutcome:
    steps = (dataclasses.replace(step, deadline=deadline),)  # type: ignore[type-var]
    plan = Plan.build({}, ranks=2, backend="gloo", steps=False).with_(cases=(), steps=steps, fault=fault)
    return run(plan, LocalTarget(python=Path(_PYTHON))).steps[0]


def test_every_collective_of_horovod_has_its_value_in_every_type() -> None:
    outcome = _outcome(step=_COLLECTIVES)
    assert outcome.verdict is Verdict.PASS, outcome.detail
    assert outcome.facts["gloo_enabled"] is True
    assert {name.split()[0] for name in outcome.facts["refused"]} <= {"adasum"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "verdict", "words"),
    [
        ("raise", Verdict.ERROR, "rank 1 in train step 2: RuntimeError: injected"),
        ("kill", Verdict.CRASH, r"rank 1 \(pid \d+\) was killed by SIGKILL in train step 2"),
        ("segv", Verdict.CRASH, r"rank 1 \(pid \d+\) was killed by SIGSEGV in train step 2"),
        ("hang", Verdict.HANG, r"still in 'train step 2' \(.*rank 1 in inject_before"),
        ("wrong", Verdict.WRONG, "rank 1: the losses differ from the reference by 1.0"),
    ],
)
def test_fault_in_a_rank_of_horovod_is_named(kind: str, verdict: Verdict, words: str) -> None:
    fault = {"kind": kind, "rank": 1, "step": _OPTIMIZER.name, "at": "train step 2"}
    outcome = _outcome(fault=fault, deadline=120.0 if kind == "hang" else 300.0)
    assert outcome.verdict is verdict, outcome.detail
    assert re.search(words, outcome.detail), outcome.detail
