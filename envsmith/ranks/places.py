"""Places in a program, as people look for them: ``train.py:84 (fault)``, the last one outside of libraries."""

from __future__ import annotations

import re
from collections.abc import Iterable

from envsmith.ranks.evidence import Frame

LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3\.\d+/|<frozen |^<string>|<__array_function__")


def place_of(frame: Frame) -> str:
    """Return ``file:line (function)``; the body of a module has no function."""
    function = "" if frame.function in {"<module>", ""} else f" ({frame.function})"
    return f"{frame.file.rpartition('/')[2]}:{frame.line}{function}"


def user_place(frames: Iterable[Frame]) -> str:
    """Return the place of the innermost frame that is no library's, or nothing."""
    return next((place_of(frame) for frame in frames if not LIBRARY.search(frame.file)), "")
