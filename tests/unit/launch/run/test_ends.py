"""Who is at the other end of what a process sleeps at, asked of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from envsmith.launch.ranks.evidence import OtherEnd
from envsmith.launch.run.ends import OtherEnds
from envsmith.launch.run.host import look

HEAD = """
import fcntl, multiprocessing, os, select, signal, socket, subprocess, sys, tempfile, threading, time
server = socket.create_server(("127.0.0.1", 0))
near, far = socket.socketpair()
r, w = os.pipe()
def child():
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
    print(pid, flush=True)
def only_child(*mine):
    child()
    for each in mine:
        os.close(each)
"""


def other_end(code: str) -> tuple[OtherEnd, bool]:
    """Return where the other end of a wait is, and whether only the child of the waiting process holds it."""
    with subprocess.Popen([sys.executable, "-c", HEAD + code], stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        while look(process.pid).state != "S" or not OtherEnds().of(process.pid)[0].value:
            assert process.poll() is None
            time.sleep(0.01)
            if look(process.pid).waits_in in {"__do_sys_pause", "hrtimer_nanosleep"}:
                break
        end, holders = OtherEnds().of(process.pid)
        process.kill()
        os.kill(child, 9)
    return end, child in holders


@pytest.mark.parametrize(
    "wait",
    [
        "only_child(w); os.read(r, 1)",
        "only_child(w); select.select([r], [], [])",
        "only_child(w); poll = select.poll(); poll.register(r); poll.poll()",
        "only_child(w); poll = select.epoll(); poll.register(r); poll.poll()",
        "only_child(far.detach()); near.recv(1)",
        "mine = socket.create_connection(server.getsockname()); only_child(server.accept()[0].detach()); mine.recv(1)",
        "semaphore = multiprocessing.Semaphore(0); child(); semaphore.acquire()",
        "child(); os.wait()",
        "child(); name = tempfile.mktemp(); os.mkfifo(name); open(name)",
    ],
    ids=["pipe", "select", "poll", "epoll", "local socket", "tcp", "semaphore", "child", "fifo"],
)
def test_a_child_at_the_other_end_is_named(wait):
    assert other_end(wait) == (OtherEnd.HERE, True)


@pytest.mark.parametrize(
    "wait",
    [
        "child(); lock = threading.Lock(); lock.acquire(); lock.acquire()",
        "child(); a, b = socket.socketpair(); loop = select.epoll(); loop.register(a, select.EPOLLIN); loop.poll()",
    ],
    ids=["lock of threads", "an event loop"],
)
def test_a_wait_within_a_process_has_nobody_at_its_other_end(wait):
    assert other_end(wait) == (OtherEnd.HERE, False)


@pytest.mark.parametrize(
    "wait", ["child(); server.accept()", "child(); socket.socket(socket.AF_INET, socket.SOCK_DGRAM).recv(1)"]
)
def test_whoever_may_connect_or_send_is_elsewhere(wait):
    assert other_end(wait) == (OtherEnd.ELSEWHERE, False)


def test_of_a_wait_for_a_signal_nothing_is_known():
    assert other_end("child(); signal.pause()") == (OtherEnd.UNKNOWN, False)


def test_who_holds_the_lock_of_a_file_is_named():
    code = """
name = tempfile.mktemp()
one = open(name, "w")
fcntl.lockf(one, fcntl.LOCK_EX)
pid = os.fork()
if pid == 0:
    print(os.getpid(), flush=True)
    fcntl.lockf(open(name, "w"), fcntl.LOCK_EX)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", HEAD + code], stdout=subprocess.PIPE, text=True) as process:
        waiting = int(process.stdout.readline())
        while OtherEnds().of(waiting)[0] is not OtherEnd.HERE:
            assert process.poll() is None
            time.sleep(0.01)
        holders = OtherEnds().of(waiting)[1]
        process.kill()
        os.kill(waiting, 9)

    assert holders == (process.pid,)
