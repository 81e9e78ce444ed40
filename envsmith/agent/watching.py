"""A job seen from outside: who is late, what ranks leave as evidence, and the exact end of all that we started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from envsmith.agent.nccl_log import evidence_of
from envsmith.agent.nursery import Nursery, Rank
from envsmith.agent.processes import (
    KILL_SECONDS,
    PATIENCE,
    Patience,
    describe_exit,
    kill_group,
    of_session,
    process_state,
    processors,
    read_text,
    tail_text,
)
from envsmith.agent.protocol import CaseJson, Exit, Facts, PlanJson, Position, Row, place_of
from envsmith.agent.rank import STACK_OF

Positions = dict[int, Position]


class Halt(NamedTuple):
    """Why a job must be ended: the reason, where each rank was, and what the event says besides."""

    reason: str
    positions: Positions
    details: Row


def case_deadline(plan: PlanJson, case: int, backend: str) -> float:
    """Return the seconds that a rank may take over a case, or over what comes before the first one."""
    limits, cases, nccl = plan["timeouts"], plan["cases"], backend == "nccl"
    if case < 0:
        # NCCL makes its communicator, and CUDA its context, when the group is made: `device_id` is always passed.
        return float(limits["init"] + (limits["first"] if nccl else 0.0))
    if case >= len(cases):
        return float(limits["case"])
    first = nccl and _call_of(cases[case]) not in map(_call_of, cases[:case])
    return float(cases[case].get("deadline") or limits["first" if first else "case"])


def _call_of(case: CaseJson) -> tuple[Any, ...]:
    """Identify the kind of call: the first one in a group makes NCCL's communicator, and loads kernels."""
    return case.get("group", "world"), case["op"], case.get("dtype")


class JobWatch:
    """One job under watch. `forward` passes rows on, `deadline_of` is the limit of a case, `total` of the job."""

    def __init__(
        self,
        nursery: Nursery,
        patience: Patience,
        *,
        forward: Callable[[], None],
        deadline_of: Callable[[int], float],
        total: float,
    ) -> None:
        self.nursery, self.ranks, self.patience = nursery, nursery.ranks, patience
        self.forward, self.deadline_of, self.total = forward, deadline_of, total
        self.rendezvous: float | None = None  # seconds until every rank was in a case
        # Ranks that share a processor are as many times slower. Only ranks that show that they work get this time.
        self.crowd = max(1.0, len(self.ranks) / processors())

    def run(self) -> Halt | None:
        """Watch until every rank has ended by itself, or return why they must be ended."""
        began = time.monotonic()
        while True:
            alive = self.nursery.listen(0.02)
            self.forward()
            positions = {rank.rank: self.nursery.board.row(rank.rank) for rank in self.ranks}
            waited = time.monotonic() - began
            if self.rendezvous is None and all(position[0] >= 0 for position in positions.values()):
                self.rendezvous = waited
            if any(rank.code not in (None, Exit.OK) for rank in self.ranks):
                self._linger()
                return Halt("exit", positions, {})
            launcher = self.nursery.launcher
            if launcher and launcher.code is not None and (launcher.code or any(rank.alive for rank in self.ranks)):
                self._linger()
                detail = f"the launcher ended ({describe_exit(launcher.code)})"
                return Halt("launcher", positions, {"detail": detail, "status": launcher.code})
            if not any(process.alive for process in self.nursery.processes):
                self.forward()
                return None
            if not alive:
                return Halt("nursery", positions, {})
            late = self._late(positions)
            if late:
                return Halt("deadline", positions, late)
            if waited > self.total and not self._waits_for_turn(self.ranks, waited, self.total):
                return Halt("total", positions, {"limit": self.total})

    def _linger(self) -> None:
        """Ranks fall within 0.3 s of each other: wait that long so that the cause is among the dead."""
        until = time.monotonic() + 0.35
        while time.monotonic() < until and any(rank.alive for rank in self.ranks):
            self.nursery.listen(0.02)

    def _late(self, positions: Positions) -> Row | None:
        """Return the ranks that are behind all others, when they have been so for longer than their deadline."""
        if not any(rank.alive for rank in self.ranks):
            return None  # only the launcher has not ended
        behind = min(positions[rank.rank][:2] for rank in self.ranks if rank.alive)
        laggards = [rank for rank in self.ranks if rank.alive and positions[rank.rank][:2] == behind]
        age = min(positions[rank.rank][2] for rank in laggards)
        limit = self.deadline_of(behind[0])
        if age <= limit:
            for rank in laggards:
                rank.ticks = -1
            return None
        most = limit * self.crowd
        if age <= PATIENCE * most and (self._works(laggards) or self._waits_for_turn(laggards, age, most)):
            return None
        return {"limit": limit, "laggards": [rank.rank for rank in laggards]}

    def _works(self, laggards: Sequence[Rank]) -> bool:
        """Return whether a laggard works: it is slow, not stuck, and gets four deadlines. A stuck gloo rank sleeps.

        gloo works in threads of its own while the rank sleeps: the time that all threads get counts too.
        """
        working, now = False, time.monotonic()
        for rank in laggards:
            state, ticks = process_state(rank.pid)
            if rank.ticks < 0:
                rank.ticks = ticks
            if ticks > rank.last_ticks:
                rank.last_ticks, rank.worked_at = ticks, now
            if ticks - rank.ticks <= 50 and (state == "R" or now - rank.worked_at < 0.05 * self.crowd):
                working = True
        return working and self.patience.allowed

    def _waits_for_turn(self, ranks: Sequence[Rank], waited: float, limit: float) -> bool:
        """Return whether one of the ranks, or what it started, is past the limit only because it waits for its turn."""
        processes = [*ranks, self.nursery.launcher] if self.nursery.launcher else ranks
        return self.patience.extends_now(
            lambda: [pid for one in processes if one.alive and one.pid for pid in of_session(one.pid)], waited, limit
        )


def places(nursery: Nursery, positions: Positions) -> list[Row]:
    """Return who is where, as the halt event says it."""
    rows = []
    for rank in nursery.ranks:
        state = process_state(rank.pid)[0] if rank.alive and rank.pid else ""
        rows.append({"rank": rank.rank, **place_of(positions[rank.rank]), "state": state, "pid": rank.pid})
    return rows


def end_ranks(nursery: Nursery) -> list[int]:
    """Take stacks, wait a moment, send SIGTERM, then SIGKILL to the pids that we started. Return the survivors."""
    nursery.board.dump = True
    for rank in nursery.ranks:
        if rank.alive and rank.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGUSR1)
    _wait(nursery, 0.25, lambda: False)
    processes = nursery.processes
    for number, patience in ((signal.SIGTERM, 0.3), (signal.SIGKILL, KILL_SECONDS)):
        for process in processes:
            if process.alive and process.pid:
                kill_group(process.pid, number)
        _wait(nursery, patience, lambda: not any(process.alive and process.pid for process in processes))
    for process in processes:
        if process.pid and not process.alive:
            kill_group(process.pid, signal.SIGKILL)  # helpers that outlived their rank
    return [r.rank for r in nursery.ranks if r.alive and r.pid and process_state(r.pid)[0] not in ("", "Z")]


def _wait(nursery: Nursery, limit: float, enough: Callable[[], bool]) -> None:
    until = time.monotonic() + limit
    while time.monotonic() < until and not enough():
        if not nursery.listen(0.02, interruptible=False):
            time.sleep(0.02)


def stacks(nursery: Nursery) -> dict[str, list[str]]:
    """Return the innermost frames of each rank's main thread, as faulthandler wrote them."""
    rows = {}
    for rank in nursery.ranks:
        text = read_text(nursery.path(f"{rank.rank}.stack"))
        thread = text.partition(STACK_OF)[2].partition("\n")[0]
        block = text.rpartition(f"hread 0x{thread}")[2] or text.rpartition("Thread 0x")[2]
        block = re.split(r"\n(?:Current t|T)hread 0x", block)[0]
        frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', block)[:8]
        if frames:
            rows[str(rank.rank)] = [f"{function} ({os.path.basename(file)}:{line})" for file, line, function in frames]
    return rows


def outputs(nursery: Nursery) -> dict[str, str]:
    """Return what each rank and its NCCL wrote last."""
    rows = {}
    for rank in nursery.ranks:
        log = os.path.join(nursery.directory, f"nccl.{rank.rank}.log")
        text = "".join((tail_text(nursery.path(f"{rank.rank}.out")), tail_text(log), "\n", evidence_of(log)))
        if text.strip():
            rows[str(rank.rank)] = text
    return rows


def words_of_launcher(nursery: Nursery) -> Facts:
    """Return how the job's launcher ended and what it wrote last, or nothing where the job had none."""
    launcher = nursery.launcher
    if not launcher:
        return {}
    return {"code": launcher.code, "words": tail_text(nursery.path(f"{launcher.rank}.out"))}


def transports(nursery: Nursery) -> dict[str, str]:
    """Return what NCCL wrote of its transports, and its warnings: evidence, one line for each pair of ranks and way."""
    logs = {str(r.rank): evidence_of(os.path.join(nursery.directory, f"nccl.{r.rank}.log")) for r in nursery.ranks}
    return {rank: text for rank, text in logs.items() if text}


def end_orphans(*, spare: int = 0) -> list[int]:
    """End the orphans of our ranks, which became our children because we are their subreaper. Return their pids.

    The child ``spare`` is no orphan.
    """
    pids: set[int] = set()
    until = time.monotonic() + KILL_SECONDS
    while time.monotonic() < until:
        children = set(map(int, read_text(f"/proc/self/task/{os.getpid()}/children").split())) - {spare}
        if not children:
            break
        for child in children - pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        pids |= children
        # It may be in state D, inside the GPU's driver: nothing ends it then, and nothing may wait for it.
        for child in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    return sorted(pids)
