"""``envsmith run`` around the launches of ``launch_classes.py``: the rank, the cause and the words of each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from envsmith.launch.ranks.stored import judge_occasions, read_occasions

from .launch_classes import CLASSES, LaunchClass

PYTHON = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON")
ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.torch, pytest.mark.integration]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("case", CLASSES, ids=[case.name for case in CLASSES])
def test_each_class_of_launches_is_judged(tmp_path: Path, case: LaunchClass) -> None:
    script = tmp_path / "train.py"
    script.write_text(case.script)
    launcher = (
        [] if case.is_spawned else ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    )
    own = [sys.executable, "-m", "envsmith", "run", "--stall", str(case.stall), "--on-hang", "stop"]
    command = [*own, "--evidence", str(tmp_path / "e"), "--", str(PYTHON), *launcher, *case.launcher, str(script)]
    environment = {**os.environ, "SPAWN_PORT": str(free_port())}
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=240, cwd=ROOT, env=environment, check=False
    )

    if not case.cause:
        assert "envsmith run: hang" not in result.stderr
        return
    (file,) = (tmp_path / "e").glob("evidence-*.jsonl")
    verdict = judge_occasions([read_occasions(file.read_text().splitlines(), file.name)])
    assert verdict is not None
    assert (verdict.cause.value, verdict.ranks) == (case.cause, case.blamed)
    assert case.words in result.stderr
    assert f"({case.place})" in verdict.place or not case.place
