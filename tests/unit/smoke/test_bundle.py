"""The agent as one text: what it may import, what a traceback shows, how a framework's step comes along from outside."""

from __future__ import annotations

import base64
import bz2
import subprocess
import sys
from pathlib import Path

import pytest

from envsmith.smoke.bundle import bundle


def _run(tmp_path: Path, source: str) -> subprocess.CompletedProcess[str]:
    """The agent without a plan, with one more module."""
    path = tmp_path / "agent.py"
    path.write_bytes(bundle(extra={"dummy": source}))
    return subprocess.run([sys.executable, "-I", str(path)], capture_output=True, timeout=60, check=False, text=True)


def test_step_of_a_framework_from_outside_registers_itself() -> None:
    source = "from envsmith.agent.steps import STEPS\nSTEPS['dummy'] = lambda stage: {}\nprint(*STEPS)"
    code = bundle(extra={"dummy": source}).decode().replace("sys.exit(main(sys.argv[1:]))", "")
    done = subprocess.run([sys.executable, "-I", "-"], input=code, capture_output=True, timeout=60, check=True, text=True)  # fmt: skip
    kinds = done.stdout.split()
    assert {"ddp", "fsdp2", "deepspeed-zero", "megatron-gpt", "colossalai"} < set(kinds)
    assert kinds[-1] == "dummy"


def test_traceback_in_a_cell_shows_file_line_and_text_of_the_module(tmp_path) -> None:
    source = "import traceback\ndef step():\n    raise RuntimeError('here')\ntry:\n    step()\nexcept RuntimeError:\n    traceback.print_exc()\n"
    done = _run(tmp_path, source)
    assert 'File "envsmith/agent/steps/dummy.py", line 3, in step' in done.stderr
    assert "    raise RuntimeError('here')" in done.stderr


@pytest.mark.parametrize("name", ["envsmith.errors", "envsmith.smoke"])
def test_agent_cannot_import_what_was_not_sent_with_it(tmp_path, name) -> None:
    done = _run(tmp_path, f"import {name}")
    assert f"No module named '{name}'" in done.stderr


def test_agent_leaves_room_in_a_variable_of_kubernetes() -> None:
    assert len(base64.b64encode(bz2.compress(bundle()))) < 110_000
