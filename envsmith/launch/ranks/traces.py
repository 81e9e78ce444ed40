"""Stacks as texts show them: what faulthandler writes into a file, and what py-spy prints of a process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from envsmith.launch.ranks.evidence import Frame, ThreadStack

_THREAD = re.compile(
    r"(?:Current thread|Thread) (0x[0-9a-fA-F]+)(?: \[([^\]\n]{1,64})\])?(?: \(most recent call first\))?:"
)
_FRAME = re.compile(r'  File "([^"\n]{1,400})", line (\d{1,7}) in (\S{1,200})')
_SPY_THREAD = re.compile(r'Thread (\d{1,10}|0x[0-9A-Fa-f]+) \(([^)]{1,60})\)(?:: "([^"]{0,100})")?')
_SPY_FRAME = re.compile(r"    (.{1,200}?) \(([^()]{1,400}?)(?::(\d{1,7}))?\)$")
_MOST_FRAMES = 100


def faulthandler_dumps(text: str) -> list[tuple[str, tuple[ThreadStack, ...]]]:
    """Return what faulthandler wrote, one pair for each dump: its headline (``Fatal Python error: …``) and its stacks."""
    dumps: list[tuple[str, tuple[ThreadStack, ...]]] = []
    headline, lines = "", list[str]()
    for line in text.splitlines():
        if line.startswith(("Fatal Python error", "Timeout (")):
            if lines:
                dumps.append((headline, tuple(_faulthandler_stacks(lines))))
            headline, lines = line.rstrip("!"), []
        else:
            lines.append(line)
    if lines or headline:
        dumps.append((headline, tuple(_faulthandler_stacks(lines))))
    return dumps


def _faulthandler_stacks(lines: list[str]) -> Iterator[ThreadStack]:
    """Yield the stacks of one dump. The main thread began first: faulthandler writes it last."""
    stacks: list[tuple[str, bool, list[Frame]]] = []
    for line in lines:
        if match := _THREAD.match(line):
            stacks.append((match[2] or match[1], line.startswith("Current"), []))
        elif stacks and (match := _FRAME.match(line)) and len(stacks[-1][2]) < _MOST_FRAMES:
            stacks[-1][2].append(Frame(function=match[3], file=match[1], line=int(match[2])))
    for number, (thread, is_current, frames) in enumerate(stacks):
        yield ThreadStack(
            thread=thread,
            frames=tuple(frames),
            is_main=number == len(stacks) - 1,
            holds_gil=is_current or None,
        )


def py_spy_stacks(text: str) -> tuple[ThreadStack, ...]:
    """Return the stacks that ``py-spy dump`` prints."""
    stacks: list[ThreadStack] = []
    frames: list[Frame] = []
    for line in text.splitlines():
        if match := _SPY_THREAD.match(line):
            frames = []
            name = match[3] or match[1]
            is_main, holds_gil = name == "MainThread", "gil" in match[2]
            stacks.append(ThreadStack(thread=name, frames=(), is_main=is_main, holds_gil=holds_gil))
        elif stacks and (match := _SPY_FRAME.match(line)) and len(frames) < _MOST_FRAMES:
            frames.append(Frame(function=match[1], file=match[2], line=int(match[3] or 0)))
            stacks[-1] = replace(stacks[-1], frames=tuple(frames))
    return tuple(stacks)
