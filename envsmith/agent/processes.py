"""Processes and files as the kernel shows them: states, sessions, kills, and the beginning or the end of a text."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable

from envsmith.agent.protocol import Exit

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def read_text(path: str, limit: int = 1 << 16) -> str:
    """Return the file's first characters, or nothing when it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read(limit)
    except OSError:
        return ""


def tail_text(path: str, limit: int = 3000) -> str:
    """Return the file's last characters: what a dead rank wrote last."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def prctl(option: int, value: int) -> None:
    """Set a process option, on Linux only. Elsewhere the supervisor alone prevents orphans."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def fork_bound() -> int:
    """Fork a process that the kernel ends with this one, also where this one ends before the child could ask for it."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
    return pid


def _stat(pid: int | str) -> list[str]:
    """Return what the kernel says of a process from its state on, or nothing when it is gone."""
    return read_text(f"/proc/{pid}/stat", 1024).rpartition(")")[2].split()


def process_state(pid: int | str) -> tuple[str, int]:
    """Return the kernel's letter (R, S, T stopped, D, Z) and the clock ticks used, or `("", 0)` when it is gone."""
    fields = _stat(pid)
    return (fields[0], int(fields[11]) + int(fields[12])) if fields else ("", 0)


def process_started(pid: int) -> int:
    """Return when the process began, in clock ticks since boot, or 0 when it is gone. With it a pid is exact."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


# How many times its limit something may take that only waits for a processor or the disk: a machine that others use as
# well is slow, not broken.
PATIENCE = 4.0


# How long a process may take to go after SIGKILL: a GPU's driver gives back what it mapped first, some GiB in seconds.
KILL_SECONDS = 10.0


def reaped(pid: int, limit: float) -> int | None:
    """Wait for the end of a child, for `limit` seconds at most. Return its exit status, or `None` when it runs on."""
    until = time.monotonic() + limit
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended or time.monotonic() >= until:
            return status if ended else None
        time.sleep(0.01)


def of_session(pid: int) -> list[int]:
    """List the processes whose session is `pid`: a rank and what it started (a compiler)."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [number for number in numbers if _stat(number)[3:4] == [str(pid)]]


def fell(code: int | None) -> bool:
    """Return whether a rank with this exit code was ended by a signal, or without a word."""
    return code is not None and (code < 0 or code == Exit.CRASH)


def starved(pids: Iterable[int], waited: float, samples: int = 10) -> bool:
    """Return whether a process wants to run, or waits for the disk, and has had less than half of the time gone by.

    What hangs sleeps or is stopped. What loops for ever on a machine that is free has had more than half.
    """
    watched = list(pids)
    for _ in range(samples):
        states = [process_state(pid) for pid in watched]
        if any(state in ("R", "D") and ticks < 0.5 * waited * os.sysconf("SC_CLK_TCK") for state, ticks in states):
            return True
        time.sleep(0.03)
    return False


class Patience:
    """Whether something that is late may go on: what only waits for a processor or the disk is slow, not stuck."""

    def __init__(self, *, allowed: bool = True, is_starved: Callable[[Iterable[int], float], bool] = starved) -> None:
        self.allowed, self.is_starved = allowed, is_starved
        self._looked_at, self._extended = 0.0, False

    def extends(self, pids: Iterable[int], waited: float, limit: float) -> bool:
        """Return whether the processes, past their limit, may go on. Nothing may after `PATIENCE` limits."""
        return self.allowed and waited < PATIENCE * limit and self.is_starved(pids, waited)

    def extends_now(self, pids: Callable[[], Iterable[int]], waited: float, limit: float) -> bool:
        """Return the same, but look once a second."""
        if time.monotonic() >= self._looked_at + 1.0:
            self._extended = self.extends(pids(), waited, limit)
            self._looked_at = time.monotonic()
        return self._extended


def loopback() -> str:
    """Return the address under which ranks of this machine meet: that of IPv6 where there is no other."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family) as probe:
                probe.bind((address, 0))
                return address
        except OSError:
            continue
    return "127.0.0.1"


def processors() -> int:
    """Return how many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def busy() -> str:
    """Say how busy the machine is, for the reader of a message that something took too long."""
    try:
        return f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} processors"
    except OSError:
        return "load not known"


def process_space() -> str:
    """Return the space of pids that we are in: two processes with the same one can see, and end, each other."""
    try:
        return f"{read_text('/proc/sys/kernel/random/boot_id').strip()}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def kill_group(pid: int, number: int) -> None:
    """Kill the rank and what it started: its process group carries its pid. Never anything else."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, number)


def describe_exit(code: int | None) -> str:
    """Say how a process ended: `killed by SIGSEGV`, `exit code 4`."""
    if code is None:
        return "still running"
    if code == Exit.CRASH:
        return "ended without a word, as after SIGKILL"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"
