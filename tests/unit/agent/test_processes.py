"""Kills and exit codes."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from envsmith.agent.processes import describe_exit, kill_group, loopback, process_state


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


def test_ranks_meet_at_an_address_of_this_machine_that_can_be_bound() -> None:
    address = loopback()
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
    assert address in {"127.0.0.1", "::1"}


@pytest.mark.skipif(not shutil.which("unshare"), reason="there is no unshare")
def test_host_that_has_only_ipv6_gives_the_address_of_ipv6() -> None:
    code = "from envsmith.agent.processes import loopback; print(loopback())"
    script = f"ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec {sys.executable} -c '{code}'"
    answer = subprocess.run(["unshare", "-rn", "sh", "-c", script], capture_output=True, text=True, check=False)
    if answer.returncode:
        pytest.skip(f"no network namespace here: {answer.stderr.strip()[-80:]}")
    assert answer.stdout.strip() == "::1"
