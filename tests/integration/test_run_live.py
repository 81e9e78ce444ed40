"""``envsmith run`` around real launches of torchrun: faults that end ranks, and faults after which they stand still."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PYTHON = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON")
ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.torch, pytest.mark.integration]
# The script of docs/how-to/failures.md, with a fault where step 5 of rank 1 begins.
SCRIPT = """
import ctypes, datetime, os, signal, sys, time
import torch
import torch.distributed as dist

def fault():
    {fault}

def train(step):
    if dist.get_rank() == 1 and step == 5:
        fault()
    dist.all_reduce(torch.ones(8))
    dist.all_reduce(torch.ones(3))

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=25))
for step in range(10):
    train(step)
    if dist.get_rank() == 0:
        print("step", step, flush=True)
dist.destroy_process_group()
"""
LOOP = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range({steps}):
    dist.all_reduce(torch.ones(8))
if rank == 0:
    {alone}
dist.barrier()
"""


def launch(tmp_path: Path, fault: str) -> list[str]:
    return launch_of(tmp_path, SCRIPT.format(fault=fault))


def launch_of(tmp_path: Path, text: str) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text(text)
    return [str(PYTHON), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]


def watched(
    tmp_path: Path, command: list[str], *options: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, object]]:
    prefix = [sys.executable, "-m", "envsmith", "run", "--evidence", str(tmp_path / "e"), *options, "--"]
    result = subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=180, cwd=ROOT, check=False)
    files = list((tmp_path / "e").glob("evidence-*.jsonl"))
    return result, json.loads(files[0].read_text().splitlines()[1])["verdict"] if files else {}


def test_a_launch_that_succeeds_is_the_same_with_and_without(tmp_path):
    command = launch(tmp_path, "pass")
    plain = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)

    result, verdict = watched(tmp_path, command)

    assert (result.returncode, result.stdout, verdict) == (plain.returncode, plain.stdout, {})
    assert "envsmith" not in result.stderr


@pytest.mark.parametrize(
    ("fault", "cause", "place"),
    [
        ("raise ValueError('label 1000 out of range')", "raised", "train.py:7 (fault)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed", ""),
        ("ctypes.string_at(0)", "crashed", "train.py:7 (fault)"),
        ("sys.exit(0)", "left", "train.py:7 (fault)"),
        ("sys.exit(3)", "exited", "train.py:7 (fault)"),
        ("dist.all_reduce(torch.ones(8, dtype=torch.float64))", "different-dtypes", ""),
    ],
)
def test_the_rank_that_ended_first_is_named(fault, cause, place, tmp_path):
    command = launch(tmp_path, fault)
    plain = subprocess.run(command, capture_output=True, timeout=180, check=False)

    result, verdict = watched(tmp_path, command)

    assert result.returncode == plain.returncode
    assert (verdict["cause"], verdict["ranks"], verdict["place"]) == (cause, [1], place)


@pytest.mark.parametrize(
    ("fault", "cause", "is_hang"),
    [
        ("os.mkfifo(sys.argv[0] + '.fifo'); open(sys.argv[0] + '.fifo').read()", "blocked", True),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "stopped", True),
        ("time.sleep(20)", "blocked", False),
        ("ctypes.PyDLL(None).sleep(20)", "gil-held", True),
        ("dist.barrier()", "different-calls", True),
    ],
)
def test_the_rank_that_is_waited_for_is_named(fault, cause, is_hang, tmp_path):
    result, verdict = watched(tmp_path, launch(tmp_path, fault), "--stall", "5")

    assert (verdict["cause"], verdict["ranks"], verdict["is_hang"]) == (cause, [1], is_hang)
    assert ("envsmith run: hang:" in result.stderr) == is_hang


@pytest.mark.parametrize(
    ("steps", "alone", "rank", "words"),
    [
        ("20", "dist.all_reduce(torch.ones(5))", 0, "Take the collective out of `if rank == 0` at train.py:10"),
        ("20 - rank", "pass", 1, "Give every rank the same number of batches"),
    ],
    ids=["a collective under a test of the rank", "fewer batches"],
)
def test_the_program_s_own_text_says_what_two_ranks_disagree_on(steps, alone, rank, words, tmp_path):
    text = LOOP.format(steps=steps, alone=alone)

    _, verdict = watched(tmp_path, launch_of(tmp_path, text), "--stall", "4", "--on-hang", "stop")

    assert (verdict["ranks"], verdict["is_hang"]) == ([rank], True)
    assert words in verdict["fix"]


def test_the_launcher_is_asked_to_end_where_the_user_wants_that(tmp_path):
    result, verdict = watched(tmp_path, launch(tmp_path, "dist.barrier()"), "--stall", "5", "--on-hang", "stop")

    assert verdict["ranks"] == [1]
    assert result.returncode != 0


def test_a_launch_that_is_ended_on_purpose_has_no_culprit(tmp_path):
    prefix = [sys.executable, "-m", "envsmith", "run", "--"]
    process = subprocess.Popen(
        [*prefix, *launch(tmp_path, "time.sleep(60)")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.stdout.readline() != "step 4\n":
        pass
    time.sleep(0.5)

    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)

    assert process.returncode != 0
    assert "after it was interrupted" in errors
    assert "Rank 1" not in errors
