"""Tracebacks in a text: who called what, also where the end is cut off."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envsmith.sources.reports.text import unprefixed
from envsmith.sources.reports.words import fold

__all__ = ["Frame", "completed", "frames_before", "package_of"]

_FRAME = re.compile(r'File "([^"\n]{1,300})", line \d{1,7}(?:, in ([^\n]{1,80}))?')
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([A-Za-z_][\w.-]{1,60})")
# A frame of a checkout that is run where it lies: its own folder says whose code it is.
_CHECKOUT = re.compile(r"[/\\](megatron|deepspeed|colossalai|transformers|accelerate|op_builder)[/\\]")
# How far back the frames of the exception at a place are looked for.
_REACH = 6000
# Up to Python 3.6, and where a writer cut the line, the message does not say which module lacks the name.
_CUT = re.compile(r"^(.{0,40}?ImportError: cannot import name '?(\w{1,80})'?)(?: from)?[ \t]*$")
_FROM = re.compile(r"\bfrom ([A-Za-z_][\w.]{0,120}) import\b")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: ``source`` is the line of code under it, empty where the text has none."""

    file: str
    function: str
    source: str

    @property
    def package(self) -> str | None:
        """The distribution the code is of, or ``None`` for a script of one's own."""
        return package_of(self.file)


def package_of(file: str) -> str | None:
    """The folder under ``site-packages`` (or a framework's own source tree) that ``file`` lies in, as a distribution's name."""
    match = _INSTALLED.search(file) or _CHECKOUT.search(file)
    if match is None:
        return None
    name = fold(match[1].removesuffix(".py"))
    return "deepspeed" if name == "op-builder" else name


def frames_before(text: str, position: int) -> list[Frame]:
    """The calls of the traceback that ends at ``position``, outermost first."""
    window = unprefixed(text[max(0, position - _REACH) : position])
    start = window.rfind("Traceback (most recent call last)")
    lines = window[max(start, 0) :].split("\n")
    found = []
    for number, line in enumerate(lines):
        if match := _FRAME.search(line):
            rest = line[match.end() :].strip()
            following = lines[number + 1].strip() if number + 1 < len(lines) else ""
            source = rest or ("" if _FRAME.search(following) else following)
            found.append(Frame(match[1], (match[2] or "").strip(), source[:300]))
    return found


def completed(text: str) -> str | None:
    """``text`` with the module written into import errors that do not name it, taken from the line of code above; lines stay lines."""
    if "cannot import name" not in text:
        return None
    lines = text.split("\n")
    changed = False
    for number, line in enumerate(lines):
        match = _CUT.match(line)
        if match is None:
            continue
        above = next((m for other in reversed(lines[max(0, number - 3) : number]) if (m := _FROM.search(other))), None)
        if above:
            lines[number] = (
                f"{match[1].replace(match[2], repr(match[2])) if repr(match[2]) not in match[1] else match[1]} from '{above[1]}'"
            )
            changed = True
    return "\n".join(lines) if changed else None
