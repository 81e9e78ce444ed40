"""Other programs: what envsmith starts ends with it, SIGKILL included, and no more of an answer is kept than fits."""

from __future__ import annotations

import codecs
import functools
import io
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

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
# Gets what a program writes, and nothing when it writes no more.
Ear = Callable[[bytes], object]


class Kept:
    """The first and the last half of what fits into ``most`` bytes of a stream."""

    def __init__(self, most: int = _MOST) -> None:
        self._half = most // 2
        self._head, self._tail, self.count = bytearray(), bytearray(), 0

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


class Lines:
    """Hands on each line of a stream as soon as it is whole, and what is longer than ``longest`` in pieces."""

    def __init__(self, on_line: Callable[[str], object], longest: int = 1 << 16) -> None:
        self._on_line, self._longest, self._rest = on_line, longest, ""
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)

    def add(self, piece: bytes) -> None:
        """Take what was written next. Nothing is the end of the stream."""
        *lines, self._rest = (self._rest + self._decoder.decode(piece, final=not piece)).split("\n")
        if self._rest and (not piece or len(self._rest) > self._longest):
            lines, self._rest = [*lines, self._rest], ""
        for line in lines:
            for begin in range(0, max(1, len(line)), self._longest):
                self._on_line(line[begin : begin + self._longest])


class Conversation:
    """A program that is told something while it is heard.

    ``out`` gets each piece of its output and ``err`` of its errors, which are among the output without it. ``feed`` is
    its input. With ``stays`` the input is open until :func:`close`, and its end says that envsmith is gone.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        out: Ear,
        err: Ear | None = None,
        feed: bytes = b"",
        stays: bool = False,
        **settings: Any,
    ) -> None:
        pipe, errors = subprocess.PIPE, subprocess.PIPE if err else subprocess.STDOUT
        stdin = pipe if feed else subprocess.DEVNULL
        self.process = start(command, stdin=stdin, stdout=pipe, stderr=errors, **settings)
        self._ears, self._unsent, self._stays = (out, err), memoryview(feed), stays

    def pipes(self) -> Iterator[tuple[IO[bytes], int, Callable[[int], bool]]]:
        """Return each pipe, what to wait for, and what to call then: it says whether to wait again."""
        for pipe, ear in zip((self.process.stdout, self.process.stderr), self._ears):
            if pipe and ear:
                yield pipe, selectors.EVENT_READ, partial(_hear, ear)
        if self.process.stdin:
            yield self.process.stdin, selectors.EVENT_WRITE, self._send

    def _send(self, pipe: int) -> bool:
        try:
            self._unsent = self._unsent[os.write(pipe, self._unsent[: 1 << 16]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        if not self._unsent and not self._stays and self.process.stdin:
            self.process.stdin.close()
        return bool(self._unsent)

    def finish(self, seconds: float | None = None, patience: float = 0.0) -> int:
        """Hear it to its end and return its status. ``TimeoutExpired`` after ``seconds``.

        Where it must be ended it has ``patience`` seconds to do so by itself.
        """
        process, begun, ended = self.process, time.monotonic(), 0.0

        def is_over() -> bool:
            nonlocal ended
            now = time.monotonic()
            if process.poll() is not None:
                ended = ended or now
                return now - ended > 1.0  # a daemon that the program has started may hold the pipe for longer
            if seconds is not None and now - begun > seconds:
                raise subprocess.TimeoutExpired(process.args, seconds)
            return False

        try:
            converse(self, is_over=is_over)
            return process.wait(None if seconds is None else max(0.0, begun + seconds - time.monotonic()))
        finally:
            end(process, signals=_SIGNALS if patience else (signal.SIGKILL,), patience=patience)


def _hear(ear: Ear, pipe: int) -> bool:
    piece = os.read(pipe, 1 << 18)
    ear(piece)
    return bool(piece)


def converse(*conversations: Conversation, is_over: Callable[[], bool]) -> None:
    """Serve each pipe when it is ready, until all outputs have ended or it ``is_over``, as is asked several times a second."""
    with selectors.DefaultSelector() as selector:
        for conversation in conversations:
            for pipe, event, serve in conversation.pipes():
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, event, serve)
        while any(key.events & selectors.EVENT_READ for key in selector.get_map().values()) and not is_over():
            for key, _ in selector.select(timeout=0.2):
                if not key.data(key.fd):
                    selector.unregister(key.fileobj)


def close(
    *conversations: Conversation,
    grace: float,
    patience: float,
    kill: Callable[[subprocess.Popen[bytes]], object] = lambda _: None,
) -> None:
    """Close the inputs, after which the programs end by themselves.

    Those that run after ``grace`` seconds are terminated, and killed ``patience`` later, by ``kill`` first.
    """
    processes = [conversation.process for conversation in conversations]
    try:
        for process in processes:
            if process.stdin:
                with suppress(OSError):
                    process.stdin.close()
        for process in still_running(processes, grace):
            process.terminate()
        for process in still_running(processes, patience):
            kill(process)
    finally:
        end(*processes, signals=(signal.SIGKILL,))


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
    output, errors = Kept(), Kept()
    err = None if merged else errors.add
    status = Conversation(command, out=output.add, err=err, feed=feed.encode(), **settings).finish(seconds, patience)
    return subprocess.CompletedProcess(list(command), status, output.text, errors.text)


# prctl(2): what programs leave behind becomes ours, and not that of init.
_SET_SUBREAPER = 36


@contextmanager
def ending_orphans() -> Iterator[None]:
    """End at the end what the programs that were started inside have left, whatever session it moved to.

    Where the kernel offers no such thing, only groups end, as everywhere.
    """
    _note("")  # the watcher is a child that stays
    before = _children()
    _set_subreaper(1)
    try:
        yield
    finally:
        for _ in range(_ROUNDS):
            orphans = _children() - before - {process.pid for process in _RUNNING}
            if not orphans:
                break
            for pid in orphans:  # what it started is ours in the next round
                with suppress(ProcessLookupError, PermissionError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        _set_subreaper(0)


# A process that starts others as fast as they are ended is not chased for ever.
_ROUNDS = 100


def _set_subreaper(number: int) -> None:
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_SUBREAPER, number, 0, 0, 0)


def _children() -> set[int]:
    children = set()
    with suppress(OSError):
        for entry in os.scandir("/proc"):
            with suppress(OSError, ValueError, IndexError):
                stat = Path("/proc", str(int(entry.name)), "stat").read_text(encoding="utf-8", errors="replace")
                if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                    children.add(int(entry.name))
    return children


# Each process leads a group, and the group ends with whatever ends envsmith.
_RUNNING: set[subprocess.Popen[bytes]] = set()


def start(command: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
    """Start a program that ends with envsmith, however that ends. The caller ends it by :func:`end`."""
    _note("")
    process = subprocess.Popen(command, start_new_session=True, **settings)
    _RUNNING.add(process)
    _note(f"+ {process.pid}")
    return process


def still_running(processes: Iterable[subprocess.Popen[bytes]], seconds: float = 0.0) -> list[subprocess.Popen[bytes]]:
    """Wait until all have ended, for ``seconds`` at most, and return those that have not."""
    deadline = time.monotonic() + seconds
    while running := [process for process in processes if process.poll() is None]:
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    return running


def end_all() -> None:
    """Ask all that runs to end, then insist. Whoever waits for one of them, in another thread, sees that it failed."""
    _stop(tuple(_RUNNING), _SIGNALS, _PATIENCE)


def end(
    *processes: subprocess.Popen[bytes], signals: Sequence[signal.Signals] = _SIGNALS, patience: float | None = None
) -> None:
    """Stop groups of processes: interrupt, terminate, kill, until their leaders are gone. Then kill who stayed."""
    _stop(processes, signals, _PATIENCE if patience is None else patience)
    for process in processes:
        _RUNNING.discard(process)
        _note(f"- {process.pid}")
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                with suppress(OSError):
                    pipe.close()


def _stop(processes: Sequence[subprocess.Popen[bytes]], signals: Sequence[signal.Signals], patience: float) -> None:
    for number in signals:
        for process in still_running(processes):
            _kill(process, number)
        still_running(processes, _PATIENCE if number is signal.SIGKILL else patience)
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
