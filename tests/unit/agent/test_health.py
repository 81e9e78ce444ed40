"""What the agent reads of GPUs, their links and InfiniBand cards, from a stand-in for NVML and a folder as sysfs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsmith.agent.health import infiniband, used_gpus

REPORT = "import json; from envsmith.agent.health import report_apart; print(json.dumps(report_apart(30)))"
PAIR = "gpus 2\nlinks 0 18\nlinks 1 18\nswitch 1\n"


def test_without_a_driver_there_is_nothing_to_report(on_gpus) -> None:
    assert json.loads(on_gpus("", REPORT)) == {}


def test_a_healthy_gpu_is_reported_with_the_fields_that_its_driver_has(on_gpus) -> None:
    report = json.loads(on_gpus(PAIR + "field 0 4 0\nfield 0 230 0\n", REPORT))
    assert report["driver"] == "570.86.15"
    assert report["gpus"][0]["arch"] == "sm_90"
    assert report["gpus"][0]["health"] == {
        "uncorrectable_ecc": 0,
        "recovery_action": 0,
        "nvlinks": 18,
        "nvswitch": 1,
    }


@pytest.mark.parametrize(
    ("field", "name"),
    [(4, "uncorrectable_ecc"), (144, "remap_pending"), (145, "remap_failure"), (230, "recovery_action")],
)
def test_each_sign_of_a_sick_gpu_is_read(on_gpus, field, name) -> None:
    report = json.loads(on_gpus(f"{PAIR}field 1 {field} 1\n", REPORT))
    assert name not in report["gpus"][0]["health"]
    assert report["gpus"][1]["health"][name] == 1


def test_errors_of_nvlinks_are_summed_over_the_links(on_gpus) -> None:
    report = json.loads(on_gpus("gpus 1\nlinks 0 4\nfield 0 161 3\n", REPORT))
    assert report["gpus"][0]["health"]["nvlink_replay"] == 12


def test_a_pair_is_reached_over_nvlink_over_pci_or_not_at_all(on_gpus) -> None:
    state = "gpus 3\nlinks 0 4\nlinks 1 4\nlinks 2 4\np2p 0 2 2 5\np2p 1 2 2 5\np2p 1 2 0 3\n"
    report = json.loads(on_gpus(state, REPORT))
    assert report["pairs"] == {"nvlink": [[0, 1]], "pci": [[0, 2]], "none (topology)": [[1, 2]]}


@pytest.mark.parametrize("sign", ["lost", "fallen"])
def test_a_gpu_that_the_driver_has_lost_is_listed_as_lost(on_gpus, sign) -> None:
    report = json.loads(on_gpus(f"{PAIR}{sign} 1 1\n", REPORT))
    assert [gpu.get("lost", False) for gpu in report["gpus"]] == [False, True]


def test_a_gpu_of_another_job_is_none_of_ours(on_gpus) -> None:
    report = json.loads(on_gpus(PAIR + "denied 1 1\n", REPORT))
    assert [gpu["index"] for gpu in report["gpus"]] == [0]


@pytest.mark.parametrize(
    ("visible", "devices", "used"),
    [
        (None, None, [0, 1, 2, 3]),
        (None, [0, 1], [0, 1]),
        ("2,3", [0, 1], [2, 3]),
        ("3,1", [1], [1]),
        ("GPU-c,GPU-a", [0, 1], [2, 0]),
        ("", None, []),
        ("MIG-1234", [0], [0, 1, 2, 3]),
        ("7", [0], []),
    ],
)
def test_the_gpus_of_a_run_are_known_by_what_cuda_was_shown(visible, devices, used) -> None:
    report = {"gpus": [{"index": i, "name": "H100", "uuid": f"GPU-{letter}"} for i, letter in enumerate("abcd")]}
    assert used_gpus(report, visible, devices) == used


WATCH = """
import json, os, sys
from envsmith.agent.health import HealthWatch
watch = HealthWatch()
pid = watch._pid
watch.begin()
open(sys.argv[1], "a").write("xid 1 79\\nfield 0 4 2\\n")
print(json.dumps([watch.finish(), os.path.exists(f"/proc/{pid}")]))
"""


def test_what_happens_between_the_reports_is_seen_and_no_process_is_left(on_gpus) -> None:
    facts, alive = json.loads(on_gpus(PAIR, WATCH))
    assert "xids" not in facts["before"]
    assert facts["after"]["xids"] == [[1, 79]]
    assert facts["after"]["gpus"][0]["health"]["uncorrectable_ecc"] == 2
    assert not alive


def test_a_machine_without_a_driver_has_no_health_to_tell_of(on_gpus) -> None:
    assert json.loads(on_gpus("", WATCH)) == [{}, False]


def test_a_driver_that_hangs_is_silent_and_holds_nobody_up(on_gpus) -> None:
    program = "from envsmith.agent.health import report_apart; print(report_apart(0.2))"
    assert on_gpus("gpus 1\nsleep 600\n", program) == "{'silent': 0.2}\n"


KILLED = """
import os, signal, sys, time
from envsmith.agent.health import HealthWatch
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, str(HealthWatch()._pid).encode())
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
pid, until = int(os.read(reader, 20)), time.monotonic() + 20
while time.monotonic() < until and os.path.exists(f"/proc/{pid}") and "Z" not in open(f"/proc/{pid}/stat").read().split()[2]:
    time.sleep(0.02)
print(time.monotonic() < until)
"""


def test_the_process_ends_with_the_one_that_was_killed_also_where_the_driver_hangs(on_gpus) -> None:
    assert on_gpus("gpus 1\nsleep 600\n", KILLED) == "True\n"


def _port(sys: Path, card: str, state: str, layer: str) -> None:
    port = sys / "class" / "infiniband" / card / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text(state + "\n")
    (port / "link_layer").write_text(layer + "\n")


def test_active_ports_are_listed_by_link_layer(tmp_path) -> None:
    _port(tmp_path, "mlx5_0", "4: ACTIVE", "InfiniBand")
    _port(tmp_path, "mlx5_1", "1: DOWN", "InfiniBand")
    _port(tmp_path, "mlx5_2", "4: ACTIVE", "Ethernet")
    assert infiniband(str(tmp_path))["active"] == {"InfiniBand": ["mlx5_0:1"], "RoCE": ["mlx5_2:1"]}


@pytest.mark.parametrize("module", ["module/nvidia_peermem", "kernel/mm/memory_peers/nv_mem"])
def test_a_module_for_gpudirect_is_seen_where_nccl_looks(tmp_path, module) -> None:
    assert not infiniband(str(tmp_path))["peer_memory"]
    (tmp_path / module).mkdir(parents=True)
    (tmp_path / module / "version").touch()
    assert infiniband(str(tmp_path))["peer_memory"]
