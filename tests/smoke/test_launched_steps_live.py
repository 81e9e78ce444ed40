"""Steps whose ranks a framework's launcher starts, with torchrun as the launcher: each fault is named, and nothing stays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import faultlib
import pytest

from envsmith.frameworks.framework import Step
from envsmith.model.record import StepOutcome, Verdict
from envsmith.smoke import bundle
from envsmith.smoke.plan import Plan
from envsmith.smoke.run import LocalTarget, run

pytestmark = [pytest.mark.torch, pytest.mark.integration]
SOURCE = """
import sys
from envsmith.agent.steps import LAUNCHERS, STEPS
from envsmith.agent.steps.stage import Trained

def step(s):
    s.init_group()
    value = s.torch.ones(1)
    s.enter("all_reduce")
    s.torch.distributed.all_reduce(value)
    return Trained(losses=[2.0, float(value) / s.size], facts={"rank": s.rank})

def torchrun(launch):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    launch.execute([*command, "--nproc-per-node", str(launch.ranks), *launch.rank_command])

STEPS["dummy"] = step
LAUNCHERS["dummy"] = torchrun
LAUNCHERS["broken"] = lambda launch: launch.execute([sys.executable, "-c", "raise SystemExit('no ranks today')"])
"""


@pytest.fixture(autouse=True)
def _dummy() -> Iterator[None]:
    bundle.EXTRA["dummy"] = SOURCE
    yield
    del bundle.EXTRA["dummy"]


def _outcome(
    *, launcher: str = "dummy", fault: Mapping[str, object] | None = None, deadline: float = 60.0
) -> StepOutcome:
    step = Step(name="dummy", kind="dummy", launcher=launcher, issues=("all_reduce",), deadline=deadline)
    plan = Plan.build({}, ranks=2, backend="gloo", steps=False).with_(cases=(), steps=(step,), fault=fault)
    return run(plan, LocalTarget(python=Path(faultlib.torch_python() or ""))).steps[0]


def _fault(kind: str) -> dict[str, object]:
    return {"kind": kind, "rank": 1, "step": "dummy", "at": "all_reduce"}


def test_ranks_of_a_launcher_are_judged_by_what_they_report() -> None:
    outcome = _outcome()
    assert (outcome.verdict, outcome.detail) == (Verdict.PASS, "loss 2.0000 -> 1.0000 in 2 steps; 1 all_reduce")


@pytest.mark.parametrize(
    ("kind", "verdict", "words"),
    [
        ("raise", Verdict.ERROR, "rank 1 in all_reduce: RuntimeError: injected"),
        ("kill", Verdict.CRASH, r"rank 1 \(pid \d+\) was killed by SIGKILL in all_reduce"),
        ("segv", Verdict.CRASH, r"rank 1 \(pid \d+\) was killed by SIGSEGV in all_reduce"),
        ("hang", Verdict.HANG, r"rank (0, )?1 still in 'all_reduce' \(.*rank 1 in inject_before"),
    ],
)
def test_fault_in_a_rank_of_a_launcher_is_named(kind: str, verdict: Verdict, words: str) -> None:
    outcome = _outcome(fault=_fault(kind), deadline=40.0 if kind == "hang" else 60.0)
    assert outcome.verdict is verdict
    assert re.search(words, outcome.detail), outcome.detail


def test_launcher_that_starts_nothing_is_quoted() -> None:
    outcome = _outcome(launcher="broken")
    assert outcome.verdict is Verdict.ERROR
    assert outcome.detail == "the launcher ended (exit code 1); the launcher wrote: no ranks today"
