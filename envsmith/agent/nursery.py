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
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from envsmith.agent.counter import Counter
from envsmith.agent.launched import LAUNCHER, run_launcher, signal_in
from envsmith.agent.machine import loaded_facts
from envsmith.agent.processes import KILL_SECONDS, Patience, fork_bound, kill_group, process_state, reaped
from envsmith.agent.protocol import Board, Exit, JobJson, JsonLines, Log, Row, one_line
from envsmith.agent.rank import rank_process
from envsmith.agent.steps import PRELOAD

# Seconds in which the parent of a launched rank that is gone writes down how it ended.
_PARENT_SECONDS = 0.2


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
        self._lines, self._offset = JsonLines(), 0

    @property
    def alive(self) -> bool:
        return self.code is None

    def rows(self) -> Iterator[Row]:
        """Yield the rows that it wrote since the last call."""
        try:
            with open(self.log, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return
        self._offset += len(data)
        yield from self._lines.feed(data)


class LaunchedRank(Rank):
    """A rank that a launcher started: what it says of itself on the board stands for what a parent knows."""

    _gone_at = 0.0

    def look(self, board: Board, stack: str) -> None:
        """Learn its pid and its end. Where it is gone, its parent may still write how."""
        self.pid, code = board.process(self.rank)
        now = time.monotonic()
        if self.code is None and code is None and self.pid and process_state(self.pid)[0] in ("", "Z"):
            self._gone_at = self._gone_at or now
            code = signal_in(stack) if now > self._gone_at + _PARENT_SECONDS else None
        if self.code is None and code is not None:
            self.code, self.ended_at = code, now


class Nursery:
    """The process that imports torch and forks ranks or their launcher, and the ranks of the present job."""

    def __init__(self, board: Board, directory: str, *, watch_stdin: bool) -> None:
        self.board, self.directory, self.watch_stdin = board, directory, watch_stdin
        self.pid = 0
        self.answer: Row = {}  # what it wrote when its imports ended
        self.framework = ""  # the one that it has imported besides torch
        self.job = ""
        self.ranks: list[Rank] = []
        self.launcher: Rank | None = None
        self.stop = ""  # why everything shall end
        self._sock: socket.socket | None = None
        self._lines = JsonLines()

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
        self._sock, self._lines = ours, JsonLines()

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
        for rank in self.ranks:
            if isinstance(rank, LaunchedRank):
                rank.look(self.board, self.path(f"{rank.rank}.stack"))
        return self._sock is not None

    def _receive(self, message: Row) -> None:
        if "ready" in message or "failed" in message:
            self.answer = dict(message)
        for child in self.children:
            if child.rank == message.get("rank"):
                child.pid = message["pid"]
            elif child.pid and child.pid == message.get("exit"):
                child.code, child.ended_at = message["status"], time.monotonic()

    @property
    def children(self) -> list[Rank]:
        """Return the processes that the nursery starts for the job: its launcher, or its ranks."""
        return [self.launcher] if self.launcher else self.ranks

    @property
    def processes(self) -> list[Rank]:
        """Return all processes of the job that are known by their pid."""
        return [*self.ranks, *([self.launcher] if self.launcher else [])]

    def spawn(self, name: str, ranks: int, job: JobJson, limit: float) -> None:
        """Start the ranks of a job, or what launches them, and wait until all that the nursery starts have a pid."""
        self.board.clear()
        self.job, self.launcher = name, None
        kind = LaunchedRank if job.get("launcher") else Rank
        self.ranks = [kind(rank, self.path(f"{rank}.jsonl")) for rank in range(ranks)]
        if job.get("launcher"):
            self.launcher = Rank(LAUNCHER, "")
        files = {"log": self.path("%d.jsonl"), "output": self.path("%d.out"), "stack": self.path("%d.stack")}
        with open(self.path("json"), "w") as file:
            json.dump({**job, **files, "board": self.board.path, "directory": self.directory}, file)
        assert self._sock is not None
        for child in self.children:
            request = {"name": name, "rank": child.rank, "job": self.path("json")}
            self._sock.sendall(json.dumps(request).encode() + b"\n")
        until = time.monotonic() + limit
        while any(not child.pid for child in self.children) and self.listen(0.05) and time.monotonic() < until:
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
    # Every optimizer imports dynamo when it is made: some seconds and 800 modules more in each rank.
    for name in ("torch._dynamo", *framework.later):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
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
    lines = JsonLines()
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


def child_main(request: Row, board: Board) -> NoReturn:
    """Run a rank, or a launcher of ranks, in a session of its own, so that its helpers can be ended with it."""
    code: int = Exit.ERROR
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        with open(request["job"]) as file:
            job = json.load(file)
        rank = request["rank"]
        code = run_launcher(job, request["job"]) if rank == LAUNCHER else rank_process(job, rank, board)
    finally:
        os._exit(code)
