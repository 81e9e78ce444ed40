"""The launcher as a child that notices nothing: it inherits the terminal, gets every signal, and its end is ours."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

# What is passed on. The terminal's own (Ctrl-C) reach the launcher from the kernel, which sends them to the whole group.
_PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# What Python ignores, and a program expects to end it.
_RESET = (signal.SIGPIPE, signal.SIGXFSZ)
# How siginfo marks a signal that a process sent, and not the kernel.
_FROM_KERNEL = 0x80


class Launcher:
    """A started command. ``signals`` are those that were sent to it, from the terminal too.

    What it prints on stdout goes to stderr where it ``diverts`` it.

    ``OSError`` where it cannot be started, as the shell that would have started it finds.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], *, diverts: bool = False) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED)
        self.signals: list[int] = []
        self.status: int | None = None
        self.pid = _started(command, environment, before, diverts=diverts)
        try:
            threading.Thread(target=self._pass_on, name="signals", daemon=True).start()
        except RuntimeError:  # the system gives no thread
            self._pass_on_between(before)

    def _pass_on(self) -> None:
        while True:
            info = signal.sigwaitinfo(_PASSED)
            self.signals.append(info.si_signo)
            if info.si_code != _FROM_KERNEL and self.status is None:
                self.send(info.si_signo)

    def _pass_on_between(self, mask: Iterable[int]) -> None:
        """Pass on, between two steps of the watch, what no terminal sends to the whole group anyway."""
        for number in _PASSED:
            of_terminal = number in {signal.SIGINT, signal.SIGQUIT}
            signal.signal(number, signal.SIG_IGN if of_terminal else lambda each, _: self.send(each))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

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

    def wait(self) -> int:
        """Return how it ended, however long that takes."""
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status


def _started(command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int], *, diverts: bool) -> int:
    """Start a command as a shell would, with the signals that this process was started with. Return its process."""

    def spawn(program: str, arguments: Sequence[str]) -> int:
        if ignores_children:
            return _forked(program, arguments, environment, mask, diverts=diverts)
        actions = [(os.POSIX_SPAWN_DUP2, 2, 1)] if diverts else []
        return os.posix_spawn(
            program, list(arguments), dict(environment), file_actions=actions, setsigmask=mask, setsigdef=_RESET
        )

    # The end of a child is told only where its signal is not ignored, and the command is to find it ignored.
    ignores_children = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    if ignores_children:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    program = _program(command[0], environment.get("PATH", os.defpath))
    try:
        return spawn(program, command)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    return spawn("/bin/sh", ["sh", program, *command[1:]])


def _forked(
    program: str, arguments: Sequence[str], environment: Mapping[str, str], mask: Iterable[int], *, diverts: bool
) -> int:
    """Start a program that ignores the end of its children: what starts programs at once cannot do that."""
    failed, end = os.pipe()
    if not (child := os.fork()):
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            if diverts:
                os.dup2(2, 1)
            for each in _RESET:
                signal.signal(each, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execve(program, list(arguments), environment)  # noqa: S606 - this is what we are for
        except OSError as error:
            os.write(end, str(error.errno).encode())
        finally:
            os._exit(126)
    os.close(end)
    with open(failed, encoding="ascii") as file:  # noqa: PTH123 - no path
        number = int(file.read() or 0)
    if number:
        os.waitpid(child, 0)
        raise OSError(number, os.strerror(number))
    return child


def _program(name: str, path: str) -> str:
    """Return where a program stands. One that may not be started is found where there is no other."""
    return shutil.which(name, path=path) or shutil.which(name, mode=os.F_OK, path=path) or name


def code_of(error: OSError) -> int:
    """Return the exit code by which a shell says that it could not start a command."""
    return 127 if error.errno == errno.ENOENT else 126


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
