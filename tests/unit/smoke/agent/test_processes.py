"""Kills and exit codes."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from envsmith.smoke.agent.processes import describe_exit, kill_group, process_state


def test_kill_reaches_the_helpers_of_a_rank_and_nobody_else() -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    rank = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True)
    assert rank.stdout is not None
    helper = int(rank.stdout.readline())
    kill_group(rank.pid, signal.SIGKILL)
    rank.wait(5)
    rank.stdout.close()
    until = time.monotonic() + 5
    while process_state(helper)[0] not in ("", "Z") and time.monotonic() < until:
        time.sleep(0.02)
    assert process_state(helper)[0] in ("", "Z")
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (-11, "killed by SIGSEGV"),
        (-9, "killed by SIGKILL"),
        (4, "exit code 4"),
        (None, "still running"),
        (-200, "killed by signal 200"),
    ],
)
def test_exit_is_described_in_words(code, text) -> None:
    assert describe_exit(code) == text
