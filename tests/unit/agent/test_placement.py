"""Where the ranks go, and limits of the machine, looked at before a rank is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from envsmith.agent.launchers import LaunchPlace
from envsmith.agent.placement import (
    Placement,
    evidence_env,
    limit_findings,
    open_files_needed,
    place_direct,
    place_nccl,
    remedies,
)
from envsmith.agent.protocol import Exit
from envsmith.model.version import Spec
from envsmith.smoke import run
from envsmith.smoke.plan import Plan
from envsmith.smoke.verdict import judge

MATRIX = Path(run.__file__).parents[2] / "matrix"


@pytest.mark.parametrize(
    ("gpus", "plan", "ranks", "devices", "word"),
    [
        (4, {}, 4, [0, 1, 2, 3], "4 ranks on 4 GPUs"),
        (8, {}, 4, [0, 1, 2, 3], "4 ranks on 4 GPUs"),
        (1, {}, 4, [0, 0], "NCCL_HOSTID, sockets"),
        (1, {"sharing": "multi-rank"}, 4, [0, 0], "NCCL_MULTI_RANK_GPU_ENABLE"),
        (2, {}, 4, [0, 1, 0, 1], "NCCL_HOSTID, sockets"),
    ],
)
def test_ranks_share_a_gpu_in_the_way_that_is_asked_for_and_the_sentence_says_so(
    gpus, plan, ranks, devices, word
) -> None:
    placement = place_nccl(ranks, gpus, plan, "/run")
    assert placement.devices == devices
    assert word in placement.sentence
    assert placement.ranks == len(devices) == len(placement.rank_env)
    hosts = [env.get("NCCL_HOSTID") for env in placement.rank_env]
    if "HOSTID" in word:
        assert len(set(hosts)) == len(devices)
        assert placement.env["NCCL_SHM_DISABLE"] == "1"
    else:
        assert set(hosts) == {None}
    if "MULTI_RANK" in word:
        assert placement.env == {
            "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "1", "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "here", "share"), [(8, 8, 1), (4, 8, 2), (1, 2, 2), (3, 4, 2), (0, 8, 8)]
)  # fmt: skip
def test_memory_is_shared_by_the_ranks_of_a_node_and_gpu_and_not_by_those_of_other_nodes(gpus, here, share) -> None:
    placed = _direct(_place(3, world=16), {"LOCAL_WORLD_SIZE": str(here)}, gpus, {"nodes": 2})
    assert placed.share == share


def test_one_gpu_is_shared_by_all_its_ranks_under_the_supervisor_too() -> None:
    assert place_nccl(8, 8, {}, "/run").share == 1
    assert place_nccl(2, 1, {}, "/run").share == 2
    assert place_nccl(4, 2, {}, "/run").share == 2


@pytest.mark.parametrize(
    ("torch", "applied"),
    [("2.5.1", False), ("2.6.0+cu124", True), ("2.7.0+cu126", True), ("2.7.1+cu126", False), ("2.15.0", False)],
)
def test_remedy_of_the_matrix_against_the_hang_of_eager_communicators_is_applied(torch, applied) -> None:
    assert remedies(torch, {}) == ({"TORCH_NCCL_USE_COMM_NONBLOCKING": "0"} if applied else {})
    assert remedies(torch, {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"}) == {}, "the user has the last word"
    (rule,) = [
        rule
        for rule in yaml.safe_load((MATRIX / "rules" / "nccl.yaml").read_text())["rules"]
        if rule["id"] == "nccl-eager-init-hang"
    ]
    assert Spec.parse(rule["when"]["torch"]).contains(torch) == applied
    assert "TORCH_NCCL_USE_COMM_NONBLOCKING=0" in rule["fix"]


def test_torch_before_2_2_has_its_variables_without_the_prefix() -> None:
    assert evidence_env("", "nccl", "2.1.2")["NCCL_ASYNC_ERROR_HANDLING"] == "1"
    assert "NCCL_ASYNC_ERROR_HANDLING" not in evidence_env("", "nccl", "2.2.2")
    assert evidence_env("", "nccl", "2.6.0")["TORCH_NCCL_USE_COMM_NONBLOCKING"] == "0"


@pytest.mark.parametrize("wanted", ["hostid", "multi-rank"])
def test_plan_that_asks_for_it_puts_two_ranks_on_the_first_of_many_gpus(wanted) -> None:
    placement = place_nccl(4, 8, {"sharing": wanted}, "/run")
    assert (placement.devices, placement.sharing) == ([0, 0], wanted)
    assert ("NCCL_HOSTID" in placement.rank_env[1]) == (wanted == "hostid")
    assert "on 1 GPU (" in placement.sentence


def test_one_rank_has_a_gpu_of_its_own() -> None:
    placement = place_nccl(1, 1, {}, "/run")
    assert (placement.sentence, placement.env, placement.sharing) == ("1 rank on 1 GPU", {}, "")


def _place(rank: int, world: int = 4) -> LaunchPlace:
    return LaunchPlace("torchrun", rank, world, rank % 2)


def _direct(place: LaunchPlace, env: dict[str, str], gpus: int, plan: dict[str, object]) -> Placement:
    return place_direct(place, env, backend="nccl" if gpus else "gloo", gpus=gpus, plan=plan)


def test_ranks_of_a_launcher_that_share_a_gpu_are_hosts_of_their_own_on_every_node() -> None:
    env = {"LOCAL_WORLD_SIZE": "2"}
    placed = [_direct(_place(rank), env, 1, {}) for rank in range(4)]
    assert len({p.env["NCCL_HOSTID"] for p in placed}) == 4
    assert "NCCL_SOCKET_IFNAME" not in placed[0].env, "ranks of two nodes do not meet on the loopback interface"
    assert "NCCL_HOSTID, sockets" in placed[0].sentence
    assert "proves nothing about NVLink" in placed[0].sentence


def test_more_ranks_of_a_launcher_on_a_gpu_than_nccl_documents_are_said() -> None:
    placed = _direct(_place(3), {"LOCAL_WORLD_SIZE": "3"}, 1, {"engine": "legacy"})
    assert placed.env["TORCH_DIST_USE_NCCL2"] == "0"
    assert "two ranks on a GPU, not more" in placed.sentence


def test_ranks_of_a_launcher_with_enough_gpus_are_left_alone() -> None:
    placed = _direct(_place(3), {"LOCAL_WORLD_SIZE": "2"}, 2, {})
    assert (placed.devices, placed.env, placed.share) == ([1] * 4, {}, 1)
    assert placed.sentence == placed.place == "4 ranks started by torchrun"
    assert _direct(_place(3), {}, 0, {}).devices is None
    slurm = {"SLURM_NTASKS_PER_NODE": "2", "SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "3"}
    assert _direct(_place(1), slurm, 1, {}).env == {}


@pytest.mark.parametrize(("engine", "value"), [("legacy", "0"), ("2", "1")])
def test_engine_of_torch_2_15_is_chosen_by_the_plan(engine, value) -> None:
    assert place_nccl(2, 2, {"engine": engine}, "/run").env["TORCH_DIST_USE_NCCL2"] == value


GIB = 1 << 30
HOST = {
    "open_files": 65536, "shm_bytes": 16 * GIB, "shm_free_bytes": 16 * GIB, "memory_free_bytes": 64 * GIB, "memlock_bytes": "unlimited",
    "container": False,
}  # fmt: skip
QUICK = Plan.build({"torch": "2.13.0"}).to_json()
GLOO = Placement("gloo", 4, "", "", None, {}, [])
NCCL = Placement("nccl", 2, "", "", [0, 0], {}, [])


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
    by_sockets = NCCL._replace(env={"NCCL_SHM_DISABLE": "1"})
    assert _found(placement=by_sockets, shm_free_bytes=0) == []
    alone = NCCL._replace(ranks=1, devices=[0])
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
    result = judge(Plan.build({"torch": "2.13.0"}, steps=False), events)
    assert (result.passed, result.exit_code) == (False, 8)
    assert result.summary == "this machine cannot run it: 40 open files are allowed (ulimit -n 65536)"
    assert [finding.limit for finding in result.limits] == ["open files"]
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
        "t.cuda=types.SimpleNamespace(is_initialized=lambda:False);t.backends=types.SimpleNamespace();d=types.ModuleType('torch.distributed');"
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
