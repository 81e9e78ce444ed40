"""The bandwidth tier on gloo, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON")
pytestmark = [pytest.mark.torch, pytest.mark.integration]


def test_two_ranks_measure_every_operation(tmp_path: Path) -> None:
    plot = tmp_path / "busbw.svg"
    command = [
        sys.executable,
        "-m",
        "envsmith",
        "smoke",
        "--python",
        PYTHON or "",
        "--tier",
        "bandwidth",
        "--ranks",
        "2",
    ]
    done = subprocess.run(
        [*command, "--backend", "gloo", "--plot", str(plot), "--json"], capture_output=True, timeout=2400, check=False
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["bandwidth"]) == 35
    assert all(m["busbw"] > 0 and m["median_us"] <= m["p99_us"] for m in answer["bandwidth"])
    sizes = {m["bytes"] for m in answer["bandwidth"]}
    assert max(sizes) / min(sizes) == 4096
    assert plot.read_text().startswith("<svg")
