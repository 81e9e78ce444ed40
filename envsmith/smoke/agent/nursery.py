"""The nursery: a process that imports torch once and forks ranks. It never touches CUDA."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from envsmith.smoke.agent.board import Board
from envsmith.smoke.agent.counter import Counter
from envsmith.smoke.agent.machine import cuda_probe, loaded_facts
from envsmith.smoke.agent.processes import PR_SET_PDEATHSIG, kill_group, prctl
from envsmith.smoke.agent.protocol import Exit, Lines, Log, one_line
from envsmith.smoke.agent.rank import rank_main
from envsmith.smoke.agent.steps import PRELOAD


def preload(kind: str) -> None:
    """Import a framework once for all steps of its kind, on the CPU only. Raise where each rank must import it."""
    framework = PRELOAD[kind]
    os.environ.update(framework.env, CUDA_VISIBLE_DEVICES="")
    import torch

    framework.prepare()
    Counter.of_process(torch)
    for name in framework.modules:
        importlib.import_module(name)
    with contextlib.suppress(Exception):
        # Every optimizer imports it when it is made: some seconds and 800 modules more in each rank.
        importlib.import_module("torch._dynamo")
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(f"{threads} threads after the import of {kind}: it cannot be forked")


def nursery_main(sock: socket.socket, board: Board, framework: str = "") -> NoReturn:
    """Serve until the supervisor's end of the socket closes. This never returns and never touches CUDA."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    out = Log(sock.fileno())
    try:
        started = time.monotonic()
        import torch
        import torch.distributed

        torch.set_num_threads(1)
        if framework:
            preload(framework)
        out.write({"ready": loaded_facts(), "seconds": time.monotonic() - started})
    except BaseException as error:
        out.write({"failed": one_line(error, 600), "trace": traceback.format_exc()[-3000:]})
        os._exit(Exit.CONFIGURATION)
    _serve(sock, out, board)
    os._exit(Exit.OK)


def _serve(sock: socket.socket, out: Log, board: Board) -> None:
    """Start a rank for each request, report its pid, later its exit status."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    lines = Lines()
    alive: set[int] = set()
    watched: list[Any] = [sock, wake_read]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
            for pid, status in list(_reap(alive)):
                alive.discard(pid)
                out.write({"exit": pid, "status": status})
        if sock in ready:
            data = sock.recv(1 << 16)
            if not data:
                break
            for request in lines.feed(data):
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for fd in (wake_read, wake_write, sock.fileno()):
                        os.close(fd)
                    child_main(request, board)
                alive.add(pid)
                out.write({"pid": pid, "name": request["name"], "rank": request["rank"]})
    for pid in alive:
        kill_group(pid, signal.SIGKILL)


def _reap(alive: Iterable[int]) -> Iterator[tuple[int, int]]:
    for pid in list(alive):
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue
        if ended:
            yield pid, (-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def child_main(request: Mapping[str, Any], board: Board) -> NoReturn:
    """Run a rank in a session of its own, so that its helpers can be ended with it."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(request["output"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    log = Log(os.open(request["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600))
    code: int = Exit.ERROR
    try:
        if request["name"] == "cuda-probe":
            log.write({"cuda": cuda_probe()})
            code = Exit.OK
        else:
            with open(request["job"]) as file:
                job = json.load(file)
            job["rank"] = request["rank"]
            code = rank_main(job, board, log)
    except BaseException as error:
        log.row("failed", rank=request["rank"], detail=one_line(error), trace=traceback.format_exc()[-3000:])
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
