"""Other programs: what envsmith starts ends with it, SIGKILL included, and no more of an answer is kept than fits."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

# Seconds between asking and insisting. An engine that writes an image's layers does not answer until it is done, and its
# client waits for it.
_PATIENCE = 5.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
# One watcher hears of each group from its begin to its end.
_NOTING = threading.Lock()
# Reads which groups run. Its input ends when envsmith ends, however that happens, and then it ends what still runs.
_WATCHER = """
trap '' INT TERM HUP QUIT
while read -r sign group; do
  case $sign in
    '') ;;
    +) groups="$groups $group " ;;
    *) groups="${groups%% $group *} ${groups#* $group }" ;;
  esac
done
for number in TERM KILL; do
  for group in $groups; do kill -s $number -- -$group && running=1; done
  [ -z "$running" ] || sleep 2
done
"""
# What is kept of each stream. The longest answer that is read (a lock that uv exports) has 2 MB.
_MOST = 16 << 20


class Kept:
    """The first and the last half of what fits into ``most`` bytes of a stream."""

    def __init__(self, most: int = _MOST) -> None:
        self._half = most // 2
        self._head, self._tail, self.count = bytearray(), bytearray(), 0

    def drain(self, stream: BinaryIO) -> None:
        """Read a pipe to its end."""
        with suppress(OSError, ValueError), stream:  # closed by another thread
            while piece := stream.read1(1 << 16):  # type: ignore[attr-defined] # pipes are buffered
                self.add(piece)

    def add(self, piece: bytes) -> None:
        """Take what was written next."""
        self.count += len(piece)
        space = self._half - len(self._head)
        self._head += piece[:space]
        self._tail += piece[space:]
        del self._tail[: -self._half]

    @property
    def text(self) -> str:
        """Return what was kept. A line says how much was left out."""
        gap = self.count - len(self._head) - len(self._tail)
        middle = b"\n[%d bytes left out]\n" % gap if gap else b""
        return (self._head + middle + self._tail).decode(errors="replace")


def execute(
    command: Sequence[str],
    *,
    seconds: float | None = None,
    feed: str = "",
    merged: bool = False,
    patience: float = 0.0,
    **settings: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a program and return its status and output. ``OSError``, and ``TimeoutExpired`` after ``seconds``.

    ``feed`` is its input. ``merged`` puts its errors among its output. Where it must be ended it has ``patience``
    seconds to do so by itself.
    """
    _note("")
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command,
        stdin=pipe if feed else subprocess.DEVNULL,
        stdout=pipe,
        stderr=subprocess.STDOUT if merged else pipe,
        start_new_session=True,
        **settings,
    )
    output = [(Kept(), stream) for stream in (process.stdout, process.stderr) if stream]
    readers = [threading.Thread(target=part.drain, args=(stream,), daemon=True) for part, stream in output]
    signals = (signal.SIGTERM, signal.SIGKILL) if patience else (signal.SIGKILL,)
    with _ending(process, signals, patience):
        for reader in readers:
            reader.start()
        if process.stdin:
            with suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(feed.encode())
        process.wait(seconds)
    for reader in readers:  # a daemon that the program has started may hold the pipe for longer
        reader.join(1.0)
    return subprocess.CompletedProcess(list(command), process.returncode, *(part.text for part, _ in output))


# Each process leads a group, and the group ends with whatever ends envsmith.


@contextmanager
def child(command: Sequence[str], *, patience: float | None = None, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process whose output is text, and end it and all that it has started when the block ends.

    ``patience`` are the seconds that it has after each signal but the last, as in :func:`end`.
    """
    _note("")
    process = subprocess.Popen(command, text=True, errors="replace", start_new_session=True, **options)
    try:
        with _ending(process, patience=patience):
            yield process
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                with suppress(OSError):
                    pipe.close()


@contextmanager
def _ending(
    process: subprocess.Popen[Any], signals: Sequence[signal.Signals] = _SIGNALS, patience: float | None = None
) -> Iterator[None]:
    _note(f"+ {process.pid}")
    try:
        yield
    finally:
        end(process, signals=signals, patience=patience)
        _note(f"- {process.pid}")


def end(
    *processes: subprocess.Popen[Any], signals: Sequence[signal.Signals] = _SIGNALS, patience: float | None = None
) -> None:
    """Stop groups of processes: interrupt, terminate, kill, until their leaders are gone. Then kill who stayed."""
    for number in signals:
        running = [process for process in processes if process.poll() is None]
        for process in running:
            _kill(process, number)
        seconds = _PATIENCE if patience is None or number is signal.SIGKILL else patience
        deadline = time.monotonic() + seconds
        while any(process.poll() is None for process in running) and time.monotonic() < deadline:
            time.sleep(0.02)
    for process in processes:
        _kill(process, signal.SIGKILL)


def _kill(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _note(line: str) -> None:
    # An empty one only starts the watcher: what is started next is noted without waiting for that.
    with suppress(OSError), _NOTING:
        os.write(_watcher(os.getpid()), f"{line}\n".encode())


@functools.cache
def _watcher(_of: int) -> int:
    """Start the watcher of this process and return the end of the pipe that only this process holds."""
    reading, writing = os.pipe()
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    actions = [(os.POSIX_SPAWN_DUP2, reading, 0), *quiet]
    os.posix_spawn("/bin/sh", ["sh", "-c", _WATCHER], {"PATH": os.defpath}, file_actions=actions, setsid=True)
    os.close(reading)
    return writing
