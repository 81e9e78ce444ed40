"""The agent under torchrun, and the whole smoke test on a real interpreter."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envsmith.smoke import run
from envsmith.smoke.bundle import bundle
from envsmith.smoke.cases import Case, quick_cases
from envsmith.smoke.plan import Plan
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.run import LocalTarget, torchrun_argv
from envsmith.smoke.verdict import judge

PYTHON = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON")
pytestmark = [pytest.mark.torch, pytest.mark.integration]
CASE = "all_reduce[int64,sum,1027]"


def _target() -> LocalTarget:
    return LocalTarget(python=Path(PYTHON or ""))


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_quick_tier_verifies_at_least_85_cases_with_what_two_cores_do_in_ten_seconds() -> None:
    """Processor time: wall time on a busy machine says nothing."""
    plan = Plan.build(run.probe(_target()), backend="gloo", steps=False)
    before = _processor_seconds()
    result = run.run(plan, _target())
    assert result.passed, result.blame
    assert result.counts()["pass"] >= 85
    assert _processor_seconds() - before < 20
    assert result.loaded["torch"]
    assert result.host["cpus"]
    assert result.placement == "4 ranks on the CPU (gloo over the loopback interface)"


def test_full_tier_verifies_1200_cases_and_finds_the_corruption_of_strided_tensors() -> None:
    versions = run.probe(_target())
    result = run.run(Plan.build(versions, tier="full", backend="gloo", steps=False), _target())
    assert result.passed, result.blame
    assert result.counts()["pass"] >= 1200
    assert result.collectives_good
    wrong = {case.case.split("[")[0] for case in result.cases if case.verdict.value == "wrong"}
    if versions["torch"].startswith("2.13"):
        assert {"strided_all_reduce", "strided_broadcast", "strided_reduce", "strided_scatter"} <= wrong
    assert not {case.case for case in result.cases if case.verdict.value == "wrong"} - set(result.known_defects)


def test_control_step_trains_like_the_reference() -> None:
    plan = Plan.build({"torch": run.probe(_target())["torch"]}, tier="framework", backend="gloo").with_(cases=())
    result = run.run(plan, _target())
    assert result.passed, result.blame
    assert {step.name: step.verdict.value for step in result.steps} == dict.fromkeys(
        (s.name for s in plan.steps), "pass"
    )
    (sharded,) = (step.facts["collectives"] for step in result.steps if step.name == "torch fsdp2 fp32")
    assert isinstance(sharded, dict)
    assert {"all_gather_single", "reduce_scatter_single"} <= set(sharded)


def test_step_that_issues_other_collectives_than_its_name_says_is_wrong() -> None:
    sharded = Plan.build({}, tier="framework", backend="gloo").steps[1]
    plan = Plan.build({}, tier="framework", backend="gloo", steps=False).with_(
        cases=(), steps=(replace(sharded, issues=("all_to_all_single",)),)
    )
    result = run.run(plan, _target())
    assert not result.passed
    assert "never issued all_to_all_single" in result.steps[0].detail


@pytest.mark.parametrize(
    ("kind", "verdict", "code", "words"),
    [
        ("hang", "hang", 5, ["still in 'train step 2'", "rank 1 in inject_before"]),
        ("segv", "crash", 6, ["rank 1", "SIGSEGV", "train step 2"]),
        ("raise", "error", 1, ["rank 1 in train step 2", "injected"]),
    ],
)
def test_fault_in_a_framework_step_names_rank_and_stage_and_the_next_step_still_runs(
    kind, verdict, code, words
) -> None:
    control = Plan.build({}, tier="framework", backend="gloo").steps[0]
    broken = replace(control, name="broken", deadline=30.0)
    fault = {"kind": kind, "rank": 1, "step": "broken", "at": "train step 2"}
    result = run.run(
        Plan.build({}, tier="framework", backend="gloo").with_(cases=(), steps=(broken, control), fault=fault),
        _target(),
    )
    assert [step.verdict.value for step in result.steps] == [verdict, "pass"]
    assert result.exit_code == code
    for word in words:
        assert word in result.summary


def test_three_ranks_pass_too() -> None:
    result = run.run(Plan.build({}, ranks=3, backend="gloo", steps=False), _target())
    assert result.passed, result.blame


def _agent(folder: Path) -> str:
    (folder / "agent.py").write_bytes(bundle())
    return str(folder / "agent.py")


def _torchrun(tmp_path: Path, plan: Plan) -> tuple[int, SmokeResult, list[dict[str, Any]]]:
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    command = torchrun_argv(
        python=PYTHON or "",
        agent=_agent(tmp_path),
        plan=str(tmp_path / "plan.json"),
        events=str(tmp_path / "events.%r"),
        ranks=2,
    )
    done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    events = [json.loads(line) for path in sorted(tmp_path.glob("events.*")) for line in path.read_text().splitlines()]
    return done.returncode, judge(plan, events, agent_exit=done.returncode), events


def _plan(**fault: Any) -> Plan:
    return Plan.build({}, ranks=2, backend="gloo", steps=False).with_(
        fault={"rank": 1, "case": CASE, **fault} if fault else None
    )


def test_torchrun_starts_the_agent_and_every_case_is_verified(tmp_path) -> None:
    code, result, _ = _torchrun(tmp_path, _plan())
    assert code == 0
    assert result.passed
    # Of two ranks every other one is not a group.
    skipped = {case.case for case in result.cases if case.verdict.value == "skipped"}
    assert len(skipped) == 2
    assert all(name.endswith("@stride") for name in skipped)
    assert result.counts() == {"pass": len(quick_cases(2)) - 2, "skipped": 2}
    assert "torchrun" in result.placement


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ({"kind": "hang"}, 5, ["rank 1 (pid", "never entered", CASE]),
        ({"kind": "stop"}, 5, ["rank 1 (pid", "is stopped", CASE]),
        ({"kind": "stop", "rank": 0}, 5, ["rank 0 does not answer", CASE, "rank 0 (pid", "is stopped"]),
        ({"kind": "segv"}, 6, ["rank 1 ended without a word", CASE]),
        ({"kind": "raise"}, 1, ["rank 1 raised", CASE]),
        ({"kind": "version"}, 3, ["rank 1 of the group does not match"]),
        ({"kind": "redop", "value": "max"}, 4, ["rank 1 called all_reduce[int64,max"]),
    ],
)
def test_fault_under_torchrun_names_the_rank(tmp_path, fault, code, words) -> None:
    status, result, events = _torchrun(tmp_path, _plan(**fault))
    assert result.exit_code == code, result.blame
    assert (status == 0) == (code == 4), "torchrun tells that a rank failed; a wrong value is the verdict's to tell"
    for word in words:
        assert word in result.summary
    for halt in (event for event in events if event["event"] == "halt"):
        deadline = _plan().timeouts.case + (2 if halt["reason"] == "store" else 0)
        late = [row["age"] for row in halt["where"] if row["rank"] in halt.get("laggards", ())]
        assert min(late, default=halt.get("silent", 0)) >= deadline, "ended before its time"
    pids = {row["pid"] for event in events for row in (*event.get("where", ()), event.get("owner") or {"pid": 0})}
    assert not [pid for pid in pids - {0} if Path(f"/proc/{pid}").exists()]


def test_agent_runs_alone_from_a_plan_file(tmp_path) -> None:
    plan = Plan.build({}, ranks=2, backend="gloo", steps=False).with_(
        cases=(Case(op="barrier"), Case(op="all_reduce", redop="sum", n=3))
    )
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    done = subprocess.run(
        [PYTHON or "", "-I", _agent(tmp_path), "--plan", str(tmp_path / "plan.json")],
        capture_output=True,
        timeout=60,
        check=False,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert judge(plan, events, agent_exit=done.returncode).passed


def _slurm() -> dict[str, str] | None:
    """A Slurm with two nodes that answers, named by SLURM_CONF."""
    if "SLURM_CONF" not in os.environ or not shutil.which("srun"):
        return None
    done = subprocess.run(["sinfo", "-h", "-N"], capture_output=True, timeout=10, check=False, text=True)
    return {"MASTER_ADDR": "127.0.0.1"} if len(done.stdout.splitlines()) >= 2 else None


@pytest.mark.skipif(not _slurm(), reason="SLURM_CONF names no Slurm with two nodes")
@pytest.mark.parametrize(("fault", "code"), [({}, 0), ({"kind": "hang"}, 5)])
def test_srun_starts_the_agent_on_two_nodes(tmp_path, fault, code) -> None:
    plan = _plan(**fault)
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    launcher = ["srun", "--kill-on-bad-exit=1", "--nodes", "2", "--ntasks-per-node", "1", PYTHON or ""]
    files = ["--plan", str(tmp_path / "plan.json"), "--events", str(tmp_path / "events.%r")]
    command = [*launcher, _agent(tmp_path), *files]
    subprocess.run(command, capture_output=True, timeout=120, check=False, env={**os.environ, **(_slurm() or {})})
    events = [json.loads(line) for path in sorted(tmp_path.glob("events.*")) for line in path.read_text().splitlines()]
    result = judge(plan, events, agent_exit=0)
    assert result.exit_code == code, result.blame
    assert result.placement == "2 ranks started by slurm"
    if fault:
        assert result.summary.startswith("rank 1 (pid")
        assert "never entered" in result.summary
