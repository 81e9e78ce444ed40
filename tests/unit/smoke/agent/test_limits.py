"""Limits of the machine, looked at before a rank is started."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from envsmith.smoke import run
from envsmith.smoke.agent.limits import limit_findings, open_files_needed
from envsmith.smoke.agent.protocol import Exit
from envsmith.smoke.plan import Plan
from envsmith.smoke.verdict import judge

GIB = 1 << 30
HOST = {
    "open_files": 65536, "shm_bytes": 16 * GIB, "shm_free_bytes": 16 * GIB, "memory_free_bytes": 64 * GIB, "memlock_bytes": "unlimited",
    "container": False,
}  # fmt: skip
QUICK = Plan.build({"torch": "2.13.0"}).to_json()
DEEPSPEED = Plan.build({"torch": "2.13.0", "deepspeed": "0.19.8"}).to_json()
GLOO = {"backend": "gloo", "ranks": 4, "devices": None, "env": {}}
NCCL = {"backend": "nccl", "ranks": 2, "devices": [0, 0], "env": {}}


def _found(plan: Any = QUICK, placement: Any = GLOO, cuda: Any = None, **host: object) -> list[tuple[str, str]]:
    findings = limit_findings({**HOST, **host}, plan, placement, cuda or {})
    assert all(finding["fix"] for finding in findings)
    return [(finding["limit"], finding["severity"]) for finding in findings]


@pytest.mark.parametrize("placement", [GLOO, NCCL])
def test_roomy_machine_has_no_findings(placement) -> None:
    assert _found(placement=placement, cuda={"free": [80 * GIB]}) == []


@pytest.mark.parametrize(
    ("host", "plan", "placement", "due"),
    [
        ({"open_files": 40}, QUICK, GLOO, ("open files", "error")),
        ({"open_files": 1024}, QUICK, NCCL, ("open files", "warning")),
        ({"shm_bytes": 64 << 20, "shm_free_bytes": 64 << 20}, DEEPSPEED, GLOO, ("/dev/shm", "error")),
        ({"shm_bytes": 64 << 20, "shm_free_bytes": 64 << 20, "container": True}, QUICK, GLOO, ("/dev/shm", "note")),
        ({"shm_bytes": 64 << 20, "shm_free_bytes": 64 << 20, "container": True}, QUICK, NCCL, ("/dev/shm", "warning")),
        ({"shm_bytes": GIB, "shm_free_bytes": 1 << 20}, QUICK, NCCL, ("/dev/shm", "error")),
        ({"shm_bytes": 0, "shm_free_bytes": 0}, QUICK, NCCL, ("/dev/shm", "warning")),
        ({"memlock_bytes": 8 << 20}, QUICK, NCCL, ("memlock", "note")),
        ({"memory_free_bytes": 256 << 20}, QUICK, GLOO, ("memory", "warning")),
    ],
)  # fmt: skip
def test_limit_is_found_with_its_severity(host, plan, placement, due) -> None:
    assert _found(plan, placement, **host) == [due]


def test_full_shared_memory_does_not_matter_where_nccl_does_not_use_it() -> None:
    by_sockets = {**NCCL, "env": {"NCCL_SHM_DISABLE": "1"}}
    assert _found(placement=by_sockets, shm_free_bytes=0) == []
    alone = {**NCCL, "ranks": 1, "devices": [0]}
    assert _found(placement=alone, shm_free_bytes=0) == []


@pytest.mark.parametrize(("free", "severity"), [(600 << 20, "error"), (3 * GIB, "warning")])
def test_memory_of_a_gpu_is_divided_by_the_ranks_on_it(free, severity) -> None:
    assert _found(placement=NCCL, cuda={"free": [free]}) == [("GPU memory", severity)]


def test_files_that_are_needed_grow_with_ranks_and_groups_and_stay_above_what_was_measured() -> None:
    assert 44 <= open_files_needed(4, 3) <= 64
    assert 56 <= open_files_needed(8, 3) <= 80
    assert open_files_needed(64, 3) > open_files_needed(8, 3)


def test_error_is_the_verdict_with_the_code_of_memory_and_what_to_do() -> None:
    events = [
        {"event": "hello"},
        {"event": "placement", "backend": "gloo", "ranks": 4, "sentence": "4 ranks on the CPU"},
        {"event": "limits", "findings": limit_findings({**HOST, "open_files": 40}, QUICK, GLOO, {})},
        {
            "event": "halt",
            "run": "placement",
            "reason": "limits",
            "detail": "40 open files are allowed (ulimit -n 65536)",
        },
        {"event": "bye", "seconds": {}, "leftover": [], "code": 8},
    ]
    result = judge(Plan.build({"torch": "2.13.0"}), events)
    assert (result.passed, result.exit_code) == (False, 8)
    assert result.summary == "this machine cannot run it: 40 open files are allowed (ulimit -n 65536)"
    assert [finding["limit"] for finding in result.limits] == ["open files"]
    assert {case.verdict.value for case in result.cases} == {"not-run"}


def test_warnings_are_notes_of_the_result_and_nonsense_is_left_out() -> None:
    findings = [*limit_findings({**HOST, "memory_free_bytes": 1}, QUICK, GLOO, {}), "nonsense", {"limit": 3}]
    result = judge(Plan.build({"torch": "2.13.0"}), [{"event": "limits", "findings": findings}])
    assert len(result.limits) == 1
    assert any(note.startswith("memory: 0 MiB of memory are available for 4 ranks") for note in result.notes)


def test_supervisor_refuses_before_a_rank_is_started() -> None:
    """Live, with a torch of a few lines: the limit is read from the process that runs it."""
    stand_in = (
        "import sys,types;t=types.ModuleType('torch');t.__version__='2.13.0';t.__path__=[];"
        "t.version=types.SimpleNamespace(cuda=None);t._C=types.SimpleNamespace();t.set_num_threads=lambda n:None;"
        "t.cuda=types.SimpleNamespace();t.backends=types.SimpleNamespace();d=types.ModuleType('torch.distributed');"
        "d.is_available=lambda:True;d.is_gloo_available=lambda:True;t.distributed=d;sys.modules.update({'torch':t,'torch.distributed':d});"
    )
    plan = json.dumps({**QUICK, "ranks": 16}).encode()
    limit = "import resource;resource.setrlimit(resource.RLIMIT_NOFILE,(64,64));"
    with subprocess.Popen(
        [sys.executable, "-c", limit + stand_in + run.BOOTSTRAP, "supervise"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as done:
        assert done.stdin
        assert done.stdout
        done.stdin.write(run.agent_input(plan))
        done.stdin.flush()
        events = [json.loads(line) for line in done.stdout.read().splitlines()]
    assert done.returncode == Exit.MEMORY
    assert [event["event"] for event in events][-3:] == ["limits", "halt", "bye"]
    assert "64 open files are allowed, a rank of 16 with 3 groups needs about 84" in events[-2]["detail"]
    assert not [event for event in events if event["event"] in {"row", "end"}]
