"""Watching: the ranks of a job on the board, until all have ended or one is late."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from envsmith.smoke.agent.nursery import Nursery, Rank
from envsmith.smoke.agent.processes import PATIENCE, Patience, of_session, process_state
from envsmith.smoke.agent.protocol import Exit

Positions = dict[int, tuple[int, int, float, str]]


class Halt(NamedTuple):
    """Why a job must be ended: the reason, where each rank was, and what the event says besides."""

    reason: str
    positions: Positions
    details: dict[str, Any]


def case_deadline(plan: Mapping[str, Any], case: int, backend: str) -> float:
    """Return the seconds that a rank may take over a case, or over what comes before the first one."""
    limits, cases, nccl = plan["timeouts"], plan["cases"], backend == "nccl"
    if case < 0:
        # NCCL makes its communicator, and CUDA its context, when the group is made: `device_id` is always passed.
        return float(limits["init"] + (limits["first"] if nccl else 0.0))
    if case >= len(cases):
        return float(limits["case"])
    first = nccl and _call_of(cases[case]) not in map(_call_of, cases[:case])
    return float(cases[case].get("deadline") or limits["first" if first else "case"])


def _call_of(case: Mapping[str, Any]) -> tuple[Any, ...]:
    """Identify the kind of call: the first one in a group makes NCCL's communicator, and loads kernels."""
    return case.get("group", "world"), case["op"], case.get("dtype")


class Watch:
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
            if not any(rank.alive for rank in self.ranks):
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

    def _late(self, positions: Positions) -> dict[str, Any] | None:
        """Return the ranks that are behind all others, when they have been so for longer than their deadline."""
        behind = min(positions[rank.rank][:2] for rank in self.ranks if rank.alive)
        laggards = [rank for rank in self.ranks if rank.alive and positions[rank.rank][:2] == behind]
        age = min(positions[rank.rank][2] for rank in laggards)
        limit = self.deadline_of(behind[0])
        if age <= limit:
            for rank in laggards:
                rank.ticks = -1
            return None
        if age <= PATIENCE * limit and (self._works(laggards) or self._waits_for_turn(laggards, age, limit)):
            return None
        return {"limit": limit, "laggards": [rank.rank for rank in laggards]}

    def _works(self, laggards: Sequence[Rank]) -> bool:
        """Return whether a laggard works: it is slow, not stuck, and gets four deadlines. A stuck gloo rank sleeps."""
        working = False
        for rank in laggards:
            state, ticks = process_state(rank.pid)
            if state == "R" and (rank.ticks < 0 or ticks - rank.ticks <= 50):
                working = True
            if rank.ticks < 0:
                rank.ticks = ticks
        return working and self.patience.allowed

    def _waits_for_turn(self, ranks: Sequence[Rank], waited: float, limit: float) -> bool:
        """Return whether one of the ranks, or what it started, is past the limit only because it waits for its turn."""
        return self.patience.extends_now(
            lambda: [pid for rank in ranks if rank.alive and rank.pid for pid in of_session(rank.pid)], waited, limit
        )
