"""Ask another program, and keep no more of its answer than fits: the beginning, the end, and how much there was."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO

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
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command,
        stdin=pipe if feed else subprocess.DEVNULL,
        stdout=pipe,
        stderr=subprocess.STDOUT if merged else pipe,
        **settings,
    )
    output = [(Kept(), stream) for stream in (process.stdout, process.stderr) if stream]
    readers = [threading.Thread(target=kept.drain, args=(stream,), daemon=True) for kept, stream in output]
    for reader in readers:
        reader.start()
    try:
        if process.stdin:
            with suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(feed.encode())
        process.wait(seconds)
    except BaseException:
        _end(process, patience)
        raise
    finally:
        for reader in readers:  # what the program has started may hold the pipe for longer
            reader.join(1.0)
    return subprocess.CompletedProcess(list(command), process.returncode, *(kept.text for kept, _ in output))


def _end(process: subprocess.Popen[bytes], patience: float) -> None:
    if patience:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    process.kill()
    process.wait()
