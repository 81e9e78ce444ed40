"""The preflight's judgement over facts, without torch."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envsmith.preflight import findings_of, first_failures
from envsmith.preflight.checks import known, name_of, runs_on, version_key

ROOT = Path(__file__).parents[3]


def _rank(rank: int, **changes: Any) -> dict[str, Any]:
    facts = {
        "rank": rank,
        "host": "a",
        "python": "3.12.1",
        "torch": "2.9.1+cu128",
        "torch_git": "abc",
        "cuda": "12.8",
        "nccl": "2.27.5",
        "nccl_runtime": "2.27.5",
        "nccl_path": "/env/libnccl.so.2",
        "installed": {"nvidia-nccl-cu12": "2.27.5", "deepspeed": "0.19.8"},
        "numpy": "2.2.0",
        "driver": "580.65.06",
        "arch_list": ["sm_80", "sm_90"],
        "gpus": 4,
        "gpu": {
            "index": rank,
            "uuid": f"GPU-{rank}",
            "arch": "sm_90",
            "free": 70 << 30,
            "total": 80 << 30,
            "error": None,
        },
        "memory_bytes": 1 << 40,
        "memory_free_bytes": 1 << 39,
        "shm_bytes": 1 << 36,
        "shm_free_bytes": 1 << 36,
        "memlock_bytes": "unlimited",
        "open_files": 65536,
        "container": False,
        "infiniband": True,
        "env": {"NCCL_DEBUG": "WARN"},
    }
    return {**copy.deepcopy(facts), **changes}


def _job(**of_rank_2: Any) -> list[dict[str, Any]]:
    return [_rank(0), _rank(1), _rank(2, **of_rank_2), _rank(3)]


def test_four_ranks_that_agree_have_no_finding() -> None:
    assert findings_of(_job()) == []


@pytest.mark.parametrize(
    ("changes", "check", "severity", "words"),
    [
        (
            {"torch": "2.8.0+cu128"},
            "versions",
            "error",
            ["rank 2 (GPU 2) has torch 2.8.0+cu128, the others 2.9.1+cu128"],
        ),
        ({"installed": {"nvidia-nccl-cu12": "2.27.5"}}, "versions", "error", ["deepspeed not at all", "others 0.19.8"]),
        ({"nccl_runtime": "2.27.3"}, "versions", "error", ["nccl_runtime 2.27.3"]),
        ({"driver": "520.10"}, "driver", "error", ["driver 520.10", "needs at least 525.60.13"]),
        ({"driver": "570.10"}, "driver", "warning", ["driver 570.10, the others 580.65.06"]),
        ({"shm_bytes": 64 << 20, "shm_free_bytes": 0}, "shm", "error", ["rank 2", "/dev/shm", "SIGBUS"]),
        ({"shm_bytes": 64 << 20, "shm_free_bytes": 64 << 20}, "shm", "warning", ["only 64 MiB"]),
        ({"memlock_bytes": 65536}, "limits", "warning", ["lock only"]),
        ({"open_files": 1024}, "limits", "warning", ["1024 files"]),
        (
            {"env": {"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring"}},
            "variables",
            "warning",
            ["NCCL_ALGO=Ring", "do not set it"],
        ),
        ({"env": {}}, "variables", "warning", ["no NCCL_DEBUG, the others WARN"]),
    ],
)
def test_a_difference_of_one_rank_names_it(
    changes: dict[str, Any], check: str, severity: str, words: list[str]
) -> None:
    found = [f for f in findings_of(_job(**changes)) if f.check == check and f.severity == severity]
    assert found, findings_of(_job(**changes))
    assert found[0].ranks == (2,)
    for word in words:
        assert word in found[0].message


def test_nccl_that_is_loaded_is_held_against_the_one_declared() -> None:
    job = [_rank(r, nccl_runtime="2.25.1", nccl_path="/usr/lib/libnccl.so.2") for r in range(2)]
    first = findings_of(job)[0]
    assert (first.check, first.severity) == ("nccl", "error")
    assert (
        "loaded NCCL 2.25.1 from /usr/lib/libnccl.so.2, but the environment declares nvidia-nccl-cu12 2.27.5"
        in first.message
    )
    assert "LD_LIBRARY_PATH" in first.fix


@pytest.mark.parametrize("declared", ["2.26.2", "2.26.2.post1", "2.26.2+cuda12.2"])
def test_a_post_release_of_nccl_is_the_release_that_nccl_reports(declared: str) -> None:
    row = _rank(0, nccl="2.26.2", nccl_runtime="2.26.2", installed={"nvidia-nccl-cu12": declared})

    assert findings_of([row], expect={"nccl": declared}) == []


def test_another_release_of_nccl_than_the_post_release_declared_is_an_error() -> None:
    row = _rank(0, nccl="2.26.2", nccl_runtime="2.26.3", installed={"nvidia-nccl-cu12": "2.26.2.post1"})

    checks = [finding.check for finding in findings_of([row], expect={"nccl": "2.26.2.post1"})]

    assert sorted(checks) == ["expected", "nccl"]


@pytest.mark.parametrize(
    ("loaded", "errors"),
    [
        ({"driver_cuda": "13.0"}, 0),
        ({"driver_cuda": "13.1"}, 0),
        ({"driver_cuda": "12.4", "cuda_usable": True}, 0),
        ({"driver_cuda": "12.4"}, 1),
        ({"driver_cuda": ""}, 1),
        ({}, 1),
    ],
)
def test_an_old_kernel_driver_is_enough_where_the_loaded_libcuda_is_newer_or_a_kernel_ran(
    loaded: dict[str, Any], errors: int
) -> None:
    row = _rank(0, cuda="13.0", driver="550.54.15", **loaded)

    findings = findings_of([row])

    assert [finding.check for finding in findings if finding.severity == "error"] == ["driver"] * errors


def test_gpu_that_cannot_run_a_kernel_is_told_with_the_architectures() -> None:
    gpu = {"index": 2, "arch": "sm_120", "error": "RuntimeError: no kernel image is available", "uuid": "GPU-2"}
    first = findings_of(_job(gpu=gpu))[0]
    assert (first.check, first.ranks) == ("arch", (2,))
    assert "built for sm_80 sm_90" in first.message


def test_gpu_memory_that_is_taken_names_the_rank() -> None:
    gpu = {**_rank(2)["gpu"], "free": 20 << 30}
    assert [f.ranks for f in findings_of(_job(gpu=gpu))] == [(2,)]
    asked = findings_of(_job(gpu=gpu), min_gpu_free=60 << 30)
    assert asked[0].severity == "error"
    assert "20.0 GiB" in asked[0].message


def test_two_ranks_on_one_gpu_unless_nccl_was_told_so() -> None:
    gpu = _rank(1)["gpu"]
    assert findings_of(_job(gpu=gpu))[0].message.startswith("ranks 1, 2 use the same GPU")
    env = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    job = [_rank(r, env=env, gpu=gpu) for r in range(2)]
    assert [f.severity for f in findings_of(job) if f.check == "gpu"] == ["note"]


def test_variable_that_is_no_longer_read_is_told_with_its_successor() -> None:
    env = {"NCCL_DEBUG": "WARN", "NCCL_TREE_THRESHOLD": "0", "TORCH_ENABLE_NCCL_HEALTH_CHECK": "1"}
    said = [f.message for f in findings_of([_rank(0, env=env), _rank(1, env=env)])]
    assert any("NCCL_TREE_THRESHOLD, which nccl no longer reads from 2.5.6 on" in s and "NCCL_ALGO" in s for s in said)
    assert any("torch no longer reads from 2.3.0 on" in s for s in said)


def test_variable_of_a_newer_nccl_and_a_misspelt_one() -> None:
    env = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_SOCKET_IFNAMES": "eth0"}
    said = [f.message for f in findings_of([_rank(0, env=env), _rank(1, env=env)])]
    assert any("reads only from 2.30 on (here is 2.27.5)" in s for s in said)
    assert any("NCCL_SOCKET_IFNAME was meant?" in s for s in said)


def test_expected_versions() -> None:
    assert findings_of(_job(), expect={"torch": "2.9.1", "nccl": "2.27.5", "deepspeed": "0.19.8"}) == []
    first = findings_of(_job(), expect={"torch": "2.10.0"})[0]
    assert first.ranks == (0, 1, 2, 3)
    assert "but 2.10.0 is expected" in first.message


def test_nodes_are_told_where_there_are_several() -> None:
    job = [_rank(r, host="ab"[r // 2]) for r in range(4)]
    assert name_of(job, [2, 3]) == "ranks 2, 3 (node b)"
    assert name_of(job, [0, 1, 2]) == "ranks 0-2 (node a, b)"


@pytest.mark.parametrize(
    ("arch", "built", "runs"),
    [
        ("sm_86", ["sm_80"], True),
        ("sm_80", ["sm_86"], False),
        ("sm_90", ["sm_80"], False),
        ("sm_90", ["sm_80", "compute_80"], True),
        ("sm_90", ["sm_90a"], True),
        ("sm_103", ["sm_100a"], False),
        ("sm_120", ["sm_100"], False),
    ],
)
def test_machine_code_runs_on_its_major_and_ptx_on_what_comes_after(arch: str, built: list[str], runs: bool) -> None:
    assert runs_on(arch, built) is runs


def test_version_keys_compare_like_releases() -> None:
    assert version_key("2.9.1+cu128") == (2, 9, 1)
    assert version_key("2.4.0") == version_key("2.4")
    assert version_key("580") < version_key("580.65.06")


def test_shipped_extract_is_that_of_the_matrix() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "preflight_known.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert known().variables["NCCL_DEBUG"][0] == "nccl"


def test_preflight_drags_in_neither_the_command_line_nor_yaml() -> None:
    code = (
        "import sys, envsmith.preflight, envsmith.preflight.watcher, envsmith.preflight.checks;"
        "bad = {'click', 'yaml', 'networkx', 'rich', 'packaging', 'torch', 'docker'} & set(sys.modules);"
        "bad |= {m for m in sys.modules if m.startswith(('envsmith.cli', 'envsmith.solver', 'envsmith.knowledge.graph.load', 'envsmith.model'))};"
        "sys.exit(f'{sorted(bad)}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_of_ranks_that_fail_together_the_one_that_neither_lost_nor_awaited_another_is_first():
    waited = {"ok": False, "detail": "no end after 8 s", "hang": True}
    lost = {"ok": False, "detail": "RuntimeError: Connection closed by peer [127.0.0.1]:4711"}
    own = {"ok": False, "detail": "RuntimeError: Unable to find address for: nosuch0"}

    assert first_failures({0: waited, 1: lost, 2: own}) == {2: own}
    assert first_failures({0: waited, 1: lost}) == {0: waited, 1: lost}
