"""The agent's GPU paths against the names and signatures of a real torch, without a GPU. What a GPU would answer is not tested by this."""

from __future__ import annotations

import subprocess
from pathlib import Path

import faultlib
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.integration]


def test_every_gpu_path_calls_this_torch_as_it_wants_to_be_called() -> None:
    script = Path(__file__).with_name("cuda_stand_in.py")
    done = subprocess.run(
        [str(faultlib.torch_python()), "-B", str(script)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ok = {line[3:] for line in done.stdout.splitlines() if line.startswith("ok ")}
    assert {
        "forks",
        "cuda_graph",
        "symmetric_memory",
        "compute_overlap",
        "split_group",
        "init_group",
        "bind_device",
        "float8",
        "free_bytes",
        "old_torch",
        "slow",
        "all",
    } <= ok
