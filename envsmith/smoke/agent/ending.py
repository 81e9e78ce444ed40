"""Ending: what ranks leave as evidence, and the exact end of every process that we started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

from envsmith.smoke.agent.board import Phase
from envsmith.smoke.agent.nursery import Nursery
from envsmith.smoke.agent.processes import kill_group, process_state, read_text, tail_text
from envsmith.smoke.agent.watching import Positions


def places(nursery: Nursery, positions: Positions) -> list[dict[str, Any]]:
    """Return who is where, as the halt event says it."""
    rows = []
    for rank in nursery.ranks:
        case, step, age, signature = positions[rank.rank]
        place = {
            "rank": rank.rank,
            "case": case,
            "step": Phase(step).word,
            "age": round(age, 3),
            "signature": signature,
        }
        state = process_state(rank.pid)[0] if rank.alive and rank.pid else ""
        rows.append({**place, "state": state, "pid": rank.pid})
    return rows


def end_ranks(nursery: Nursery) -> list[int]:
    """Take stacks, wait a moment, send SIGTERM, then SIGKILL to the pids that we started. Return the survivors."""
    nursery.board.dump = True
    for rank in nursery.ranks:
        if rank.alive and rank.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGUSR1)
    _wait(nursery, 0.25, lambda: False)
    for number, patience in ((signal.SIGTERM, 0.3), (signal.SIGKILL, 2.0)):
        for rank in nursery.ranks:
            if rank.alive and rank.pid:
                kill_group(rank.pid, number)
        _wait(nursery, patience, lambda: not any(rank.alive and rank.pid for rank in nursery.ranks))
    for rank in nursery.ranks:
        if rank.pid and not rank.alive:
            kill_group(rank.pid, signal.SIGKILL)  # helpers that outlived their rank
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
        block = text.rpartition("Current thread")[2] or text.rpartition("Thread 0x")[2]
        frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', block)[:8]
        if frames:
            rows[str(rank.rank)] = [f"{function} ({os.path.basename(file)}:{line})" for file, line, function in frames]
    return rows


def outputs(nursery: Nursery) -> dict[str, str]:
    """Return what each rank and its NCCL wrote last."""
    rows = {}
    for rank in nursery.ranks:
        text = tail_text(nursery.path(f"{rank.rank}.out"))
        text += tail_text(os.path.join(nursery.directory, f"nccl.{rank.rank}.log"))
        if text.strip():
            rows[str(rank.rank)] = text
    return rows


def transports(nursery: Nursery) -> dict[str, str]:
    """Return what NCCL wrote of its transports, and its warnings: evidence, one line for each pair of ranks and way."""
    rows = {}
    for rank in nursery.ranks[:8]:
        text = read_text(os.path.join(nursery.directory, f"nccl.{rank.rank}.log"), 1 << 20)
        lines = [
            re.sub(r"Channel \d+(?:/\d+)? : ", "Channel : ", line)
            for line in text.splitlines()
            if re.search(r"WARN|via |Using network|NET/|NVLS|Init COMPLETE", line)
        ]
        if lines:
            rows[str(rank.rank)] = "\n".join(dict.fromkeys(lines))[:4000]
    return rows


def end_orphans() -> list[int]:
    """End the orphans of our ranks, which became our children because we are their subreaper. Return their pids."""
    pids = set()
    for _ in range(20):
        try:
            children = read_text(f"/proc/self/task/{os.getpid()}/children").split()
            for child in map(int, children):
                pids.add(child)
                os.kill(child, signal.SIGKILL)
            if not os.waitpid(-1, 0 if children else os.WNOHANG)[0]:
                break
        except (ChildProcessError, ProcessLookupError):
            break
    return sorted(pids)
