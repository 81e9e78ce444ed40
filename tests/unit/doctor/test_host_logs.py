"""What the kernel, Slurm and Kubernetes say. Lines are those of public logs, with other names of hosts and jobs."""

from __future__ import annotations

import json

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.rank_failures import blame_texts, read_evidence
from envsmith.doctor.read import read_texts

# Slurm: the forms of src/srun and slurmstepd; `Detected 1 oom-kill event(s)` as in public job logs of Compute Canada.
SLURM = """\
srun: error: gpu02: task 3: Segmentation fault
srun: Terminating StepId=4711.0
slurmstepd: error: *** STEP 4711.0 ON gpu01 CANCELLED AT 2026-11-23T02:17:00 ***
srun: error: gpu01: tasks 0-1: Terminated
srun: error: gpu02: task 2: Killed
"""
DMESG = """\
[81234.1] pt_main_thread invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0
[81234.2] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task_memcg=/job,task=pt_main_thread,pid=4242,uid=1000
[81234.3] Memory cgroup out of memory: Killed process 4242 (pt_main_thread) total-vm:41234567kB
"""


def pod(rank: int, code: int, reason: str, ended: str) -> dict:
    return {
        "kind": "Pod",
        "metadata": {"name": f"train-worker-{rank}"},
        "spec": {"containers": [{"name": "pytorch", "env": [{"name": "RANK", "value": str(rank)}]}]},
        "status": {
            "containerStatuses": [{"state": {"terminated": {"exitCode": code, "reason": reason, "finishedAt": ended}}}]
        },
    }


def test_the_first_task_that_slurm_reports_is_blamed_and_those_it_ended_are_not():
    _, answer = blame_texts([("slurm-4711.out", SLURM)])

    assert answer.ranks == (3,)
    assert "SIGSEGV" in answer.message


def test_tasks_that_are_launchers_are_no_ranks():
    text = SLURM + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"

    assert read_evidence("slurm-4711.out", text).ranks == ()


def test_the_kernels_log_says_why_a_rank_was_killed():
    table = "Root Cause (first observed failure):\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 4242)\n"
    table += "  rank      : 0 (local_rank: 0)\n  exitcode  : -15 (pid: 4241)\n"

    _, answer = blame_texts([("train.log", table), ("dmesg.txt", DMESG)])

    assert (answer.ranks, answer.cause.value) == ((1,), "out-of-memory")


def test_a_pod_that_was_ended_for_memory_comes_before_those_that_lost_it():
    pods = {
        "kind": "List",
        "items": [
            pod(0, 1, "Error", "2026-11-23T02:17:09Z"),
            pod(1, 137, "OOMKilled", "2026-11-23T02:17:01Z"),
            pod(2, 1, "Error", "2026-11-23T02:17:08Z"),
        ],
    }

    _, answer = blame_texts([("pods.json", json.dumps(pods, indent=2))])

    assert (answer.ranks, answer.cause.value) == ((1,), "out-of-memory")


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("scheduler-time-limit", "slurmstepd: error: *** JOB 1034 ON c4-n1 CANCELLED AT 2020-12-18T15:51:53 DUE TO TIME LIMIT ***"),
        ("scheduler-preempted", "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO PREEMPTION ***"),
        ("scheduler-node-failure", "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***"),
        ("pod-out-of-memory", "slurmstepd: error: Detected 1 oom-kill event(s) in step 1007.batch cgroup. Some of your processes may have been killed"),
        ("pod-out-of-memory", "      Reason:       OOMKilled"),
        ("pod-evicted", "Reason:           Evicted"),
        ("gpu-hardware-error", "[ 5213.1] NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus."),
        ("gpu-page-fault", "NVRM: Xid (PCI:0000:3b:00): 31, pid=1234, name=python, Ch 00000008, intr 10000000. MMU Fault"),
    ],
)  # fmt: skip
def test_a_line_of_a_scheduler_or_the_driver_is_the_first_finding(rule, line):
    text = f"step 100 loss 2.1\n{line}\n"

    diagnosis = diagnose(read_texts([("job.log", text)]), [("job.log", text)])

    assert diagnosis.root is not None
    assert diagnosis.root.finding.rule == rule


def test_a_remapped_row_of_a_gpu_is_no_failure():
    text = (
        "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.\n"
    )

    assert diagnose(read_texts([("dmesg", text)]), [("dmesg", text)]).root is None


SMI_Q = """==============NVSMI LOG==============

Timestamp                                 : Mon Nov 23 02:17:01 2026
Driver Version                            : 580.65.06
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 1
        Pending                           : {}
        Remapping Failure Occurred        : No
"""


@pytest.mark.parametrize(("pending", "rule"), [("Yes", "gpu-needs-reset"), ("No", None)])
def test_a_gpu_that_waits_for_a_reset_is_said(pending, rule):
    text = SMI_Q.format(pending)

    root = diagnose(read_texts([("smi", text)]), [("smi", text)]).root

    assert (root.finding.rule if root else None) == rule
