"""Processes that are started: none outlives the block that started it, or envsmith."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envsmith.children import child

# A shell with a child of its own. Both would stay for minutes, and the inner one does not listen.
_STUBBORN = ["/bin/sh", "-c", "trap '' INT TERM; (trap '' INT TERM; sleep 300) & echo ready; sleep 300; wait"]


def _is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _gone(group: int) -> bool:
    deadline = time.monotonic() + 30
    while _is_running(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not _is_running(group)


def test_what_a_child_left_behind_ends_with_the_block() -> None:
    with child(["/bin/sh", "-c", "sleep 300 & echo begun"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.wait()

    assert _gone(process.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_child_outlives_envsmith(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import signal, subprocess, sys\n"
        "from envsmith.children import child\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        f"with child({_STUBBORN!r}, stdout=subprocess.PIPE) as process:\n"
        "    process.stdout.readline(); print(process.pid, flush=True); process.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        parent.send_signal(number)
        parent.wait(timeout=60)

    assert _gone(group)
