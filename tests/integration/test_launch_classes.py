"""``envsmith run`` around the launches of ``launch_classes.py``: the rank, the cause and the words of each."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from .launch_classes import CLASSES, LaunchClass

PYTHON = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON")
ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.torch, pytest.mark.integration]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _parameter(case: LaunchClass) -> ParameterSet:
    marks = [pytest.mark.xfail(strict=True, reason=case.unseen)] if case.unseen else []
    return pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("case", [_parameter(case) for case in CLASSES])
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
    files = sorted((tmp_path / "e").glob("evidence-*.json"), key=lambda path: path.stat().st_mtime)
    verdict = json.loads(files[-1].read_text())["verdict"]
    assert (verdict["cause"], verdict["ranks"]) == (case.cause, list(case.blamed))
    assert case.words in result.stderr
    assert f"({case.place})" in verdict["place"] or not case.place
