"""Starting: the nursery and the ranks that it forks, as the supervisor sees them."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from envsmith.smoke.agent.board import Board
from envsmith.smoke.agent.nursery import nursery_main
from envsmith.smoke.agent.processes import Patience, kill_group
from envsmith.smoke.agent.protocol import Lines


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
        self.pid = os.fork()
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
        until, pid, status = time.monotonic() + 2.0, 0, 0
        while not pid and time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid:
                time.sleep(0.01)
        if not pid:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

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
