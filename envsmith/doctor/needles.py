"""The literal that every match of a pattern holds, so that a text is searched for literals and only their lines meet the expression."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

__all__ = ["alternatives", "needle_of"]


def alternatives(pattern: str) -> list[str]:
    """A pattern at its top-level ``|``, so that each part has a needle of its own; parts without one are left out."""
    parts, depth, start, escaped, bracket = [], 0, 0, False, False
    for i, char in enumerate(pattern):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif bracket:
            bracket = char != "]"
        elif char == "[":
            bracket = True
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            parts.append(pattern[start:i])
            start = i + 1
    parts.append(pattern[start:])
    kept = []
    for part in parts:
        try:
            needle_of(part)
        except ValueError:
            continue
        kept.append(part)
    return kept


@lru_cache(maxsize=4096)
def needle_of(pattern: str) -> tuple[str, ...]:
    """Literals (lower case), one of which is in every match of ``pattern``. ``ValueError`` when there are none of four characters."""
    try:
        from re import _parser as parser  # type: ignore[attr-defined,unused-ignore]
    except ImportError:  # Python 3.10
        import sre_parse as parser  # type: ignore[no-redef,unused-ignore]
    found = _literals(parser.parse(pattern, re.IGNORECASE))
    if not found or min(map(len, found)) < 4:
        raise ValueError(f"{pattern!r} has no literal of four characters that every match holds")
    return tuple(found)


def _literals(parsed: Any) -> list[str]:
    """The best set of alternatives of a sequence: longest shortest member wins; an optional part gives nothing."""
    best: list[str] = []
    run = ""
    for op, argument in parsed:
        name = str(op)
        if name == "LITERAL":
            run += chr(argument)
            continue
        candidates = [[run]] if run else []
        run = ""
        if name == "SUBPATTERN":
            candidates.append(_literals(argument[-1]))
        elif name == "BRANCH":
            branches = [_literals(branch) for branch in argument[1]]
            if all(branches):
                candidates.append([needle for branch in branches for needle in branch])
        elif name == "MAX_REPEAT" and argument[0] >= 1:
            candidates.append(_literals(argument[2]))
        best = max([best, *(c for c in candidates if c)], key=_worth)
    if run:
        best = max([best, [run]], key=_worth)
    return [needle.lower() for needle in best]


def _worth(needles: list[str]) -> tuple[int, int]:
    return (min(map(len, needles)), -len(needles)) if needles else (0, 0)
