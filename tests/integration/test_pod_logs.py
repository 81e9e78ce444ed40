"""The command of a Kubernetes job, run by two processes in the place of two pods; the verdict comes from what they print."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from envsmith.smoke.kubernetes import KubernetesJob, manifest, result_of
from envsmith.smoke.nodes import plan_for_nodes
from envsmith.smoke.parse_events import events_of
from envsmith.smoke.plan import Plan

PYTHON = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.torch,
]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _pods(plan: Plan, folder: Path) -> list[Path]:
    """Both pods to their end; one log each."""
    job = KubernetesJob(image="registry.example/cell:1", nodes=2, ranks=1, python=str(PYTHON))
    document = yaml.safe_load(manifest("jobset", job, plan))
    pod = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    given = {row["name"]: row["value"] for row in pod["env"] if "value" in row}
    here = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(_free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    running, logs = [], []
    for number in range(2):
        logs.append(folder / f"pod-{number}.log")
        env = {**os.environ, **given, **here, "PET_NODE_RANK": str(number), "SLURMD_NODENAME": f"pod-{number}"}
        with logs[-1].open("wb") as log:
            running.append(subprocess.Popen(pod["command"], env=env, stdout=log, stderr=subprocess.STDOUT))
    for process in running:
        process.wait(timeout=900)
    return logs


@pytest.mark.parametrize("fault", [None, {"kind": "wrong", "rank": 1, "case": 5}], ids=["good", "a wrong value"])
def test_logs_of_either_pod_and_of_both_give_the_verdict_of_the_job(tmp_path, fault) -> None:
    plan = Plan.build({"torch": "2.13.0"}, ranks=2, backend="gloo", steps=False).with_(nodes=2)
    logs = _pods(plan_for_nodes(plan, nodes=2, ranks_per_node=1).with_(fault=fault), tmp_path)
    texts = [log.read_text(errors="replace") for log in logs]
    verdicts = [result_of(events_of(text.splitlines())) for text in (texts[0], "\n".join(reversed(texts)))]
    for result in verdicts:
        assert result.passed is (fault is None), texts
        assert set(result.nodes) == {"pod-0", "pod-1"}
        if fault:
            assert "on rank 1" in result.summary
            assert "pod-1" in result.summary
