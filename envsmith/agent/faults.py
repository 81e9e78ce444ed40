"""Faults for the tests of the blame. They come with the plan: no environment variable can set one."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import threading
import time
from typing import Any

from envsmith.agent.machine import shm_bytes
from envsmith.agent.processes import read_text
from envsmith.agent.protocol import CaseJson, FaultJson
from envsmith.agent.world import World

ALTERING = ("op", "shape", "dtype", "redop", "root")


def fault_of_case(world: World, index: int, case: CaseJson) -> FaultJson | None:
    fault = world.job.get("fault")
    if fault and fault.get("rank") == world.rank and fault.get("case") in (index, case["id"]):
        return dict(fault)
    return None


def altered_case(case: CaseJson, fault: FaultJson | None) -> CaseJson:
    """Return the call as the faulty rank makes it."""
    if not fault or fault["kind"] not in ALTERING:
        return case
    key = str({"shape": "n"}.get(fault["kind"], fault["kind"]))
    return {**case, key: fault["value"]}


def inject_before(fault: FaultJson, world: Any) -> None:
    """Break this rank for real."""
    kind = fault["kind"]
    if kind == "hang":
        time.sleep(1e6)
    elif kind == "late":
        time.sleep(float(fault["value"]))
    elif kind == "raise":
        raise RuntimeError("injected: this rank raises")
    elif kind in ("segv", "kill", "stop", "abort"):
        # In this thread, as a real one: a launcher may run the rank in another than the main thread.
        number = {"segv": signal.SIGSEGV, "kill": signal.SIGKILL, "stop": signal.SIGSTOP, "abort": signal.SIGABRT}[kind]
        signal.pthread_kill(threading.get_ident(), number)
    elif kind == "oom":
        soft = int(read_text("/proc/self/statm").split()[0]) * mmap.PAGESIZE + (64 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (soft, resource.getrlimit(resource.RLIMIT_AS)[1]))
        world.torch.zeros(1 << 30)
    elif kind == "shm":
        _fill_shm()


def _fill_shm() -> None:
    """Map more of /dev/shm than it has, and write to all of it: the kernel answers with SIGBUS, as it does to NCCL."""
    path = f"/dev/shm/envsmith-{os.getpid()}"
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.unlink(path)
    size = shm_bytes()[1] + (1 << 20)
    if size > 1 << 28:
        raise RuntimeError("the fault 'shm' is for a small /dev/shm only")
    os.ftruncate(fd, size)
    memory = mmap.mmap(fd, size)
    for offset in range(0, size, mmap.PAGESIZE):
        memory[offset] = 1
