"""The launcher as a child that notices nothing: it inherits the terminal, gets every signal, and its end is ours."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from envsmith.errors import UsageError

# What is passed on. The terminal's own (Ctrl-C) reach the launcher from the kernel, which sends them to the whole group.
_PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# What Python ignores, and a program expects to end it.
_RESET = (signal.SIGPIPE, signal.SIGXFSZ)
# How siginfo marks a signal that a process sent, and not the kernel.
_FROM_KERNEL = 0x80


class Launcher:
    """A started command. ``signals`` are those that were sent to it, from the terminal too."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        program = shutil.which(command[0], path=environment.get("PATH"))
        if program is None:
            raise UsageError(
                f"Cannot start {command[0]}: no such program is on PATH.",
                hint="Give the launcher after `--`, as in `envsmith run -- torchrun train.py`.",
            )
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED)
        self.signals: list[int] = []
        self.pid = os.posix_spawn(program, list(command), dict(environment), setsigmask=before, setsigdef=_RESET)
        self.status: int | None = None
        threading.Thread(target=self._pass_on, name="signals", daemon=True).start()

    def _pass_on(self) -> None:
        while True:
            info = signal.sigwaitinfo(_PASSED)
            self.signals.append(info.si_signo)
            if info.si_code != _FROM_KERNEL and self.status is None:
                self.send(info.si_signo)

    def send(self, number: int) -> None:
        """Send it a signal."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Return how it ended, negative for a signal, or ``None`` while it runs."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status


def end_as(status: int) -> int:
    """Return the exit code of a launcher, or end this process by the signal that ended it."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-status])
        os.kill(os.getpid(), -status)
        return 128 - status
    return status
