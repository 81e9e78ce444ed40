"""The ranks of one launch as the watcher holds them: a socket to the hook of each, and a descriptor of its process."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGTERM, pidfd_send_signal

from envsmith.agent.processes import process_state
from envsmith.base.json_types import JsonFields, number_in, numbers_in, objects_in
from envsmith.base.schema import parse_json
from envsmith.launch.ranks.evidence import ProcessState
from envsmith.launch.run.ends import OtherEnds
from envsmith.launch.run.host import (
    exit_code,
    family_of,
    look,
    open_process,
    parent_of,
    program_of,
    threads_of_process,
    wakings,
)

_MOST_BYTES = 64 << 20
SOCKET = "s"
_LONGEST_ADDRESS = 107
# Seconds between two ends that were seen in one go.
_TICK = 1e-6
# How many processes at the other end of a wait are looked at.
_MOST_HOLDERS = 16


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
    attempt: int = 0
    program: str = ""
    threads: dict[int, tuple[object, int]] = field(default_factory=dict)
    ticks_of_last_look: dict[str, tuple[float, int, int]] = field(default_factory=dict)
    ticks: dict[str, tuple[float, int, int]] = field(default_factory=dict)

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
        """Note what it, its threads and its children have used of a processor by now."""
        self.ticks = self.ticks_of_last_look
        self.ticks_of_last_look = {
            name: (time.monotonic(), process_state(name)[1], wakings(name)) for name in self._names()
        }

    def _names(self) -> list[str]:
        threads = [f"{self.pid}/task/{number}" for number in self.threads if number]
        return [str(self.pid), *threads, *(str(number) for number in family_of(self.pid))]

    def share(self, name: str) -> float | None:
        """Return the share of a processor that one of them used between the last two looks."""
        before, after = self.ticks.get(name), self.ticks_of_last_look.get(name)
        if before is None or after is None or after[0] <= before[0]:
            return None
        return (after[1] - before[1]) / os.sysconf("SC_CLK_TCK") / (after[0] - before[0])

    def seen(self, process: ProcessState, name: str) -> ProcessState:
        """Return a process or thread with what was measured of it. Who wakes again and again to ask has no limit."""
        before, after = self.ticks.get(name), self.ticks_of_last_look.get(name)
        is_measured = before is not None and after is not None
        slept = before is not None and after is not None and before[2] == after[2]
        wakes = is_measured and not slept
        return replace(process, cpu=self.share(name), has_limit=process.has_limit and slept, wakes=wakes)


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
        self._ends, self._last_end = select.epoll(), 0.0
        self.attempt, self.former = 0, list[WatchedRank]()
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
        talks = {rank.talk.fileno(): rank for rank in self.all if rank.talk}
        poll = select.poll()
        for number in [
            self.listener.fileno(),
            self._ends.fileno(),
            *(talk.fileno() for talk, _ in self._fresh),
            *talks,
        ]:
            poll.register(number, select.POLLIN)
        if launcher is not None:
            poll.register(launcher, select.POLLIN)
        ready = {number for number, _ in poll.poll(seconds * 1000)}
        news = self._note_ends()
        news = self._accept() or news
        for number in ready & talks.keys():
            news = self._take(talks[number]) or news
        return news

    def _note_ends(self) -> bool:
        """Note which processes have ended, in the order in which the kernel saw it: an epoll keeps them so."""
        ranks = [rank for rank in [*self.all, *self.former] if not rank.ended_at]
        by_number = {rank.process: rank for rank in ranks if rank.process is not None}
        gone = [by_number[number] for number, _ in self._ends.poll(0) if number in by_number]
        gone += [rank for rank in self.living if rank.process is None and process_state(rank.pid)[0] in {"", "Z"}]
        for rank in gone:
            self._last_end = rank.ended_at = max(time.time(), self._last_end + _TICK)
            if rank.process is not None:
                self._ends.unregister(rank.process)
        return bool(gone)

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
            rank, pid, attempt = int(hello["rank"]), int(hello["pid"]), int(hello.get("attempt", 0))
        except (ValueError, KeyError, TypeError):
            talk.close()
            return False
        # An agent that inherited RANK spoke first: its child is the rank. A rank that starts its program again is one.
        for each in [each for each in self.all if each.pid in {pid, parent_of(pid)} and not each.ended_at]:
            self._forget(each)
        stem = self.folder / f"{rank}-{pid}"
        # A launcher that starts its ranks again has one of the same number, which has ended.
        same = [each.attempt for each in self.all if each.rank == rank and each.ended_at]
        one = WatchedRank(rank=rank, pid=pid, stem=stem, talk=talk, process=open_process(pid))
        one.attempt, one.program = max([attempt, *(number + 1 for number in same)]), program_of(pid)
        if one.process is not None:
            self._ends.register(one.process, select.EPOLLIN)
        if one.attempt > self.attempt:
            self.settle()
            self.former = [each for each in self.all if each.attempt < one.attempt]
            self.all = [each for each in self.all if each.attempt >= one.attempt]
            self.attempt = one.attempt
        self.all.append(one)
        return True

    def _forget(self, rank: WatchedRank) -> None:
        self.all.remove(rank)
        rank.close()
        if rank.process is not None:
            self._ends.unregister(rank.process)
            os.close(rank.process)

    @staticmethod
    def _take(rank: WatchedRank) -> bool:
        news = False
        for answer in rank.hear():
            progress = numbers_in(answer, "progress")
            news = news or progress != rank.progress
            rank.progress = progress
            if "stacks" in answer:
                rank.answer = {**rank.answer, **answer}
                rows = objects_in(answer, "stacks")
                places = {number_in(row, "id"): row.get("frames") for row in rows}
                before = rank.threads
                rank.threads = {
                    number: (place, before[number][1] + 1 if number in before and before[number][0] == place else 1)
                    for number, place in places.items()
                }
                main = next((number_in(row, "id") for row in rows if row.get("is_main")), None)
                rank.still = rank.threads[main][1] if main is not None else 0
        return news

    def end(self) -> None:
        """Ask those to end that their launcher left behind: a script that ends by a signal leaves what it spawned."""
        for rank in self.living:
            if rank.process is not None:
                with suppress(ProcessLookupError):
                    pidfd_send_signal(rank.process, SIGTERM)

    def find_silent(self) -> None:
        """Take in ranks that left marks and have not come to the socket: they lived too shortly."""
        for path in self.folder.glob("*-*.marks"):
            rank, _, pid = path.stem.partition("-")
            numbers = {each.rank for each in self.all} | {each.rank for each in self.former}
            if rank.isdigit() and pid.isdigit() and int(rank) not in numbers:
                silent = WatchedRank(rank=int(rank), pid=int(pid), stem=path.with_suffix(""), talk=None, process=None)
                silent.ended_at = path.stat().st_mtime if process_state(silent.pid)[0] in {"", "Z"} else 0.0
                self.all.append(silent)

    def settle(self) -> None:
        """Read the exit codes that the kernel has by now."""
        for rank in [*self.all, *self.former]:
            if rank.ended_at and rank.code is None and rank.process is not None:
                rank.code = exit_code(rank.process)
                if rank.code is not None:
                    os.close(rank.process)
                    rank.process = None

    def look_at(self, rank: WatchedRank, now: float, silence: float, ends: OtherEnds) -> ProcessState:
        """Return the process of a rank as the kernel shows it, with what the watcher knows."""
        answers = None if rank.talk is None else rank.silent_for(now) < silence
        program = program_of(rank.pid)
        became = bool(rank.program and program and program != rank.program)
        process = self._measured(look(str(rank.pid)), rank, ends)
        return replace(process, answers=answers, became=became)

    def threads_of(self, rank: WatchedRank, ends: OtherEnds) -> dict[int, tuple[int, ProcessState]]:
        """Return each thread of a rank by its number: how long it stands still, and how the kernel shows it."""
        return {
            number: (still, self._with_holders(rank.seen(look(name, depth=0), name), name, ends))
            for number, (_, still) in rank.threads.items()
            if number and (name := f"{rank.pid}/task/{number}")
        }

    def _measured(self, process: ProcessState, rank: WatchedRank, ends: OtherEnds) -> ProcessState:
        """Return a process and its children with what was measured of them, and who is at the other end of their waits."""
        children = tuple(self._measured(child, rank, ends) for child in process.children)
        name = str(process.pid)
        return self._with_holders(replace(rank.seen(process, name), children=children), name, ends)

    def _with_holders(self, process: ProcessState, name: str, ends: OtherEnds) -> ProcessState:
        if process.state != "S":
            return process
        other_end, holders = ends.of(name)
        return replace(process, other_end=other_end, holders=tuple(map(self._holder, holders[:_MOST_HOLDERS])))

    def _holder(self, pid: int) -> ProcessState:
        """Return a process at the other end of a wait. Any thread of it may end the wait, but of a rank the one that trains."""
        process = look(str(pid), depth=1)
        if any(rank.pid == pid for rank in self.all):
            return replace(process, children=())
        threads = (look(f"{pid}/task/{number}", depth=0) for number in threads_of_process(pid) if number != pid)
        return replace(process, children=(*process.children, *threads))
