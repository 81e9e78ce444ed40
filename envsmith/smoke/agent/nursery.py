"""The nursery: a process that imports torch once and forks ranks, and how the supervisor starts it."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from envsmith.smoke.agent.counter import Counter
from envsmith.smoke.agent.machine import cuda_probe, loaded_facts
from envsmith.smoke.agent.processes import KILL_SECONDS, Patience, fork_bound, kill_group, reaped
from envsmith.smoke.agent.protocol import Board, Exit, Lines, Log, one_line
from envsmith.smoke.agent.rank import rank_main
from envsmith.smoke.agent.steps import PRELOAD


class Interrupted(Exception):
    """The outer parent went away, or a signal asks us to end."""


class Rank:
    """A rank as its supervisor sees it."""

    def __init__(self, rank: int, log: str) -> None:
        self.rank, self.log = rank, log
        self.pid = 0
        self.code: int | None = None
        self.ended_at = 0.0
        self.ticks = -1  # processor time when it was first late
        self.last_ticks, self.worked_at = -1, 0.0  # processor time at the last look, and when it last grew
        self._lines, self._offset = Lines(), 0

    @property
    def alive(self) -> bool:
        return self.code is None

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows that it wrote since the last call."""
        try:
            with open(self.log, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        self._offset += len(data)
        yield from self._lines.feed(data)


class Nursery:
    """The process that imports torch and forks ranks, and the ranks of the present job."""

    def __init__(self, board: Board, directory: str, *, watch_stdin: bool) -> None:
        self.board, self.directory, self.watch_stdin = board, directory, watch_stdin
        self.pid = 0
        self.answer: dict[str, Any] = {}  # what it wrote when its imports ended
        self.framework = ""  # the one that it has imported besides torch
        self.job = ""
        self.ranks: list[Rank] = []
        self.stop = ""  # why everything shall end
        self._sock: socket.socket | None = None
        self._lines = Lines()

    def start(self, framework: str = "") -> None:
        """Start it: it imports torch, and the framework where one is named."""
        ours, theirs = socket.socketpair()
        self.board.clear()
        self.answer, self.framework = {}, framework
        self.pid = fork_bound()
        if self.pid == 0:
            ours.close()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            nursery_main(theirs, self.board, framework)
        theirs.close()
        ours.setblocking(False)
        self._sock, self._lines = ours, Lines()

    def wait(self, limit: float, patience: Patience) -> float:
        """Wait for its answer. Return 0, or the seconds after which it was given up."""
        began = time.monotonic()
        while not self.answer and self.listen(0.05) and not self.answer:
            waited = time.monotonic() - began
            if waited > limit and not patience.extends([self.pid], waited, limit):
                return waited
        return 0.0

    def end(self, *, now: bool = False) -> int:
        """Close its input, which ends it, or kill it. Return its exit code, negative for a signal."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if not self.pid:
            return 0
        if now:
            kill_group(self.pid, signal.SIGKILL)
        status = reaped(self.pid, 2.0)
        if status is None:
            os.kill(self.pid, signal.SIGKILL)
            status = reaped(self.pid, KILL_SECONDS)
        self.pid = 0
        return -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)

    def listen(self, wait: float, *, interruptible: bool = True) -> bool:
        """Take what the nursery says. Return whether it is there, and raise `Interrupted` when everything shall end."""
        if interruptible and self.stop:
            raise Interrupted(self.stop)
        sources: list[Any] = [self._sock] if self._sock else []
        if interruptible and self.watch_stdin:
            sources.append(0)
        try:
            ready, _, _ = select.select(sources, [], [], wait)
        except InterruptedError:
            return True
        if 0 in ready and not os.read(0, 1 << 12):
            raise Interrupted("the outer parent closed our input")
        if self._sock is not None and self._sock in ready:
            try:
                data = self._sock.recv(1 << 16)
            except (BlockingIOError, ConnectionResetError):
                data = b""
            if not data:
                self._sock.close()
                self._sock = None
            for message in self._lines.feed(data):
                self._receive(message)
        return self._sock is not None

    def _receive(self, message: Mapping[str, Any]) -> None:
        if "ready" in message or "failed" in message:
            self.answer = dict(message)
        elif "pid" in message:
            self.ranks[message["rank"]].pid = message["pid"]
        for rank in self.ranks:
            if rank.pid and rank.pid == message.get("exit"):
                rank.code, rank.ended_at = message["status"], time.monotonic()

    def spawn(self, name: str, ranks: int, job: Mapping[str, Any], limit: float) -> None:
        """Start the ranks of a job and wait until all have a pid."""
        self.board.clear()
        self.job = name
        self.ranks = [Rank(rank, self.path(f"{rank}.jsonl")) for rank in range(ranks)]
        with open(self.path("json"), "w") as file:
            json.dump(job, file)
        assert self._sock is not None
        for rank in self.ranks:
            output = self.path(f"{rank.rank}.out")
            request = {"name": name, "rank": rank.rank, "job": self.path("json"), "log": rank.log, "output": output}
            self._sock.sendall(json.dumps(request).encode() + b"\n")
        until = time.monotonic() + limit
        while any(not rank.pid for rank in self.ranks) and self.listen(0.05) and time.monotonic() < until:
            pass

    def path(self, ending: str, job: str = "") -> str:
        """Return the path of a file of the present job, or of another one."""
        return os.path.join(self.directory, f"{re.sub(r'[^A-Za-z0-9.-]+', '_', job or self.job)}.{ending}")


# What runs in the nursery's own process.


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
                pid = fork_bound()
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
            yield pid, os.waitstatus_to_exitcode(status)


def child_main(request: Mapping[str, Any], board: Board) -> NoReturn:
    """Run a rank in a session of its own, so that its helpers can be ended with it."""
    os.setsid()
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
