"""Processes that envsmith starts: each leads a group, and the group ends with whatever ends envsmith, SIGKILL included."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

# Seconds between asking and insisting. An engine that writes an image's layers answers nobody until it is done, and its
# client waits for it.
_PATIENCE = 5.0
# Reads which groups run. Its input ends when envsmith ends, however that happens, and then it ends what still runs.
_WATCHER = """
trap '' INT TERM HUP QUIT
while read -r sign group; do
  case $sign in
    +) groups="$groups $group " ;;
    *) groups="${groups%% $group *} ${groups#* $group }" ;;
  esac
done
for number in TERM KILL; do
  for group in $groups; do kill -s $number -- -$group && running=1; done
  [ -z "$running" ] || sleep 2
done
"""


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process whose output is text, and end it and all that it has started when the block ends."""
    process = subprocess.Popen(command, text=True, errors="replace", start_new_session=True, **options)
    _note(f"+ {process.pid}")
    try:
        yield process
    finally:
        end(process)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                with suppress(OSError):
                    pipe.close()
        _note(f"- {process.pid}")


def end(*processes: subprocess.Popen[str]) -> None:
    """Stop groups of processes: interrupt, terminate, kill, until their leaders are gone. Then kill who stayed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        running = [process for process in processes if process.poll() is None]
        for process in running:
            _kill(process, number)
        deadline = time.monotonic() + _PATIENCE
        while any(process.poll() is None for process in running) and time.monotonic() < deadline:
            time.sleep(0.02)
    for process in processes:
        _kill(process, signal.SIGKILL)


def _kill(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _note(line: str) -> None:
    with suppress(OSError):
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
