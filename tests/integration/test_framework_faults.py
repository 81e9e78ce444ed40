"""A rank that raises, dies, hangs or computes another value in a step of any framework is named, with what it was doing.

One table for all frameworks: each is asked where ENVSMITH_TEST_TORCH_PYTHON has it.
"""

from __future__ import annotations

import functools
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from envsmith.frameworks import FRAMEWORKS
from envsmith.frameworks.framework import Step
from envsmith.smoke import run
from envsmith.smoke.plan import Plan
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.run import LocalTarget

PYTHON = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON")
pytestmark = [pytest.mark.torch, pytest.mark.integration]
# What a fault is called, the verdict, the exit code, and what the summary says of it.
FAULTS = [
    ("raise", "error", 1, ["rank 1 in train step 2", "injected: this rank raises"]),
    ("kill", "crash", 6, ["rank 1", "SIGKILL", "train step 2"]),
    ("segv", "crash", 6, ["rank 1", "SIGSEGV", "train step 2"]),
    ("hang", "hang", 5, ["rank 1", "still in 'train step 2'"]),
    ("wrong", "wrong", 4, ["rank 1: the losses differ from the reference"]),
]


def _starts() -> list[tuple[str, Step]]:
    """Return of each framework the first step that a CPU can run, and the first that another launcher starts."""
    starts = {}
    for name, framework in FRAMEWORKS.items():
        for step in (*framework.quick_steps, *framework.steps):
            if step.needs != "gpu":
                starts.setdefault((name, step.launcher), step)
    quick = {name: framework.quick_steps for name, framework in FRAMEWORKS.items()}
    return [(name, step) for (name, launcher), step in starts.items() if launcher or step in quick[name]]


@functools.cache
def _has(module: str) -> bool:
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module.partition('.')[0]!r}) is None)"
    return subprocess.run([str(PYTHON), "-c", code], check=False).returncode == 0


def _broken(step: Step, kind: str) -> SmokeResult:
    """Return what comes of a step when rank 1 is broken in its third training step."""
    # A hang lasts until the deadline. What a launcher starts begins later, on a busy machine by a minute.
    patience = max(60.0, step.deadline) if kind != "hang" else step.deadline / 2 if step.launcher else 60.0
    broken: Step = replace(step, name="broken", deadline=patience)
    fault = {"kind": kind, "rank": 1, "step": "broken", "at": "train step 2"}
    plan = Plan.build({}, ranks=2, steps=False, backend="gloo").with_(cases=(), steps=(broken,), fault=fault)
    return run.run(plan, LocalTarget(python=Path(PYTHON or "")))


@pytest.mark.parametrize(("kind", "verdict", "code", "words"), FAULTS)
@pytest.mark.parametrize(("name", "step"), _starts(), ids=lambda value: getattr(value, "name", value))
def test_the_broken_rank_of_a_framework_is_named(name, step, kind, verdict, code, words) -> None:
    if not _has(FRAMEWORKS[name].module):
        pytest.skip(f"that interpreter has no {name}")
    result = _broken(step, kind)
    if [step.verdict.value for step in result.steps] == ["skipped"]:
        pytest.skip(result.steps[0].detail)
    assert [step.verdict.value for step in result.steps] == [verdict], result.summary
    assert result.exit_code == code
    for word in words:
        assert word in result.summary
