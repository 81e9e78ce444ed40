"""The ranks of one launch as the watcher holds them: a socket to the hook of each, and a descriptor of its process."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsmith.agent.processes import process_state
from envsmith.base.json_types import JsonFields, numbers_in, objects_in
from envsmith.base.schema import parse_json
from envsmith.launch.run.host import exit_code, look, open_process, parent_of

_MOST_BYTES = 64 << 20
SOCKET = "s"
_LONGEST_ADDRESS = 107


@dataclass
class WatchedRank:
    """One rank under watch. ``answer`` is its last full answer, ``open_questions`` what it has not answered yet, by id."""

    rank: int
    pid: int
    stem: Path
    talk: socket.socket | None
    process: int | None
    buffer: bytearray = field(default_factory=bytearray)
    open_questions: dict[int, float] = field(default_factory=dict)
    progress: Mapping[str, int] = field(default_factory=dict)
    answer: JsonFields = field(default_factory=dict)
    ended_at: float = 0.0
    code: int | None = None
    still: int = 0
    place: object = None
    ticks: tuple[float, int] = (0.0, 0)
    cpu: float | None = None

    def ask(self, what: str, number: int) -> None:
        """Put a question to the hook. A rank that does not read its questions is not waited for."""
        if self.talk is None or self.ended_at:
            return
        try:
            self.talk.send(
                json.dumps({"id": number, "what": what}).encode() + b"\n", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            )
            self.open_questions[number] = time.monotonic()
        except BlockingIOError:
            self.open_questions.setdefault(number, time.monotonic())
        except OSError:
            self.close()

    def hear(self) -> Iterator[JsonFields]:
        """Yield the answers that have arrived."""
        piece = b""
        try:
            piece = self.talk.recv(1 << 20, socket.MSG_DONTWAIT) if self.talk else b""
        except BlockingIOError:
            return
        except OSError:
            pass
        if not piece or len(self.buffer) > _MOST_BYTES:
            self.close()
        self.buffer += piece
        *lines, tail = self.buffer.split(b"\n")
        self.buffer = bytearray(tail)
        for line in lines:
            with suppress(ValueError):
                answer = parse_json(bytes(line))
                if isinstance(answer, dict):
                    self.open_questions.pop(answer.get("id", -1), None)
                    yield answer

    def close(self) -> None:
        """Close the connection. The process may go on."""
        if self.talk:
            self.talk.close()
        self.talk = None

    def silent_for(self, now: float) -> float:
        """Return for how long the oldest question has had no answer."""
        return now - min(self.open_questions.values(), default=now)

    def measure(self) -> None:
        """Note the share of a processor since the last look."""
        now, (before, ticks_before) = time.monotonic(), self.ticks
        ticks = process_state(self.pid)[1]
        if before and now > before:
            self.cpu = (ticks - ticks_before) / os.sysconf("SC_CLK_TCK") / (now - before)
        self.ticks = (now, ticks)


def address(folder: Path) -> str:
    """Return the name of the socket in a folder. The kernel takes none of more than 107 bytes: then it is a shorter one."""
    name = str(folder / SOCKET)
    if len(os.fsencode(name)) < _LONGEST_ADDRESS:
        return name
    return f"/proc/self/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY)}/{SOCKET}"


class Ranks:
    """All ranks of a launch on this machine. They come to the socket in the folder of the launch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(address(folder))
        self.listener.listen(256)
        self.listener.settimeout(0)
        self.all: list[WatchedRank] = []
        self._number = 0
        self._fresh: list[tuple[socket.socket, bytearray]] = []

    @property
    def living(self) -> list[WatchedRank]:
        """Return the ranks that have not ended."""
        return [rank for rank in self.all if not rank.ended_at]

    def ask(self, what: str) -> None:
        """Put one question to every living rank."""
        self._number += 1
        for rank in self.living:
            rank.ask(what, self._number)

    def step(self, seconds: float, launcher: int | None) -> bool:
        """Wait for news, for ``seconds`` at most, and take them in. Return whether a rank came or went, or any moved."""
        numbers = [self.listener.fileno(), *(talk.fileno() for talk, _ in self._fresh)]
        numbers += [rank.talk.fileno() for rank in self.all if rank.talk]
        numbers += [rank.process for rank in self.living if rank.process is not None]
        poll = select.poll()
        for number in [*numbers, *([launcher] if launcher is not None else [])]:
            poll.register(number, select.POLLIN)
        ready = {number for number, _ in poll.poll(seconds * 1000)}
        news = self._accept()
        for rank in self.all:
            if rank.talk and rank.talk.fileno() in ready:
                news = self._take(rank) or news
            if not rank.ended_at and self._has_ended(rank, ready):
                news = True
        return news

    def _accept(self) -> bool:
        with suppress(BlockingIOError):
            while True:
                talk, _ = self.listener.accept()
                self._fresh.append((talk, bytearray()))
        news = False
        for talk, buffer in list(self._fresh):
            piece = b""
            try:
                piece = talk.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                pass
            buffer.extend(piece)
            if not piece or b"\n" in buffer:
                self._fresh.remove((talk, buffer))
                news = self._greet(talk, bytes(buffer)) or news
        return news

    def _greet(self, talk: socket.socket, line: bytes) -> bool:
        try:
            hello = parse_json(bytes(line))
            rank, pid = int(hello["rank"]), int(hello["pid"])
        except (ValueError, KeyError, TypeError):
            talk.close()
            return False
        # An agent that inherited RANK spoke first: its child is the rank.
        self.all = [each for each in self.all if each.pid != parent_of(pid)]
        stem = self.folder / f"{rank}-{pid}"
        # A launcher that starts its ranks again has one of the same number, which has ended.
        self.all = [each for each in self.all if each.rank != rank or not each.ended_at]
        self.all.append(WatchedRank(rank=rank, pid=pid, stem=stem, talk=talk, process=open_process(pid)))
        return True

    @staticmethod
    def _take(rank: WatchedRank) -> bool:
        news = False
        for answer in rank.hear():
            progress = numbers_in(answer, "progress")
            news = news or progress != rank.progress
            rank.progress = progress
            if "stacks" in answer:
                rank.answer = {**rank.answer, **answer}
                place = [row.get("frames") for row in objects_in(answer, "stacks") if row.get("is_main")]
                rank.still = rank.still + 1 if place == rank.place else 1
                rank.place = place
        return news

    @staticmethod
    def _has_ended(rank: WatchedRank, ready: set[int]) -> bool:
        if rank.process is None:
            if process_state(rank.pid)[0] not in {"", "Z"}:
                return False
        elif rank.process not in ready:
            return False
        rank.ended_at = time.time()
        return True

    def find_silent(self) -> None:
        """Take in ranks that left marks and have not come to the socket: they lived too shortly."""
        for path in self.folder.glob("*-*.marks"):
            rank, _, pid = path.stem.partition("-")
            if rank.isdigit() and pid.isdigit() and int(rank) not in {each.rank for each in self.all}:
                silent = WatchedRank(rank=int(rank), pid=int(pid), stem=path.with_suffix(""), talk=None, process=None)
                silent.ended_at = path.stat().st_mtime if process_state(silent.pid)[0] in {"", "Z"} else 0.0
                self.all.append(silent)

    def settle(self) -> None:
        """Read the exit codes that the kernel has by now."""
        for rank in self.all:
            if rank.ended_at and rank.code is None and rank.process is not None:
                rank.code = exit_code(rank.process)
                if rank.code is not None:
                    os.close(rank.process)
                    rank.process = None

    def look_at(self, rank: WatchedRank, now: float, silence: float) -> Any:
        """Return the process of a rank as the kernel shows it, with what the watcher knows."""
        from dataclasses import replace

        answers = None if rank.talk is None else rank.silent_for(now) < silence
        return replace(look(rank.pid), cpu=rank.cpu, answers=answers)
