"""The literal that every match of a pattern holds, so that a text is searched for literals and only their lines meet the expression."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

__all__ = ["alternatives", "needle_of"]


# An escape, a class in brackets, or one character: a `|` that is a piece of its own, outside of groups, parts two branches.
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|.", re.DOTALL)


def alternatives(pattern: str) -> list[str]:
    """A pattern at its top-level ``|``, so that each part has a needle of its own; parts without one are left out."""
    parts, depth = [""], 0
    for piece in _PIECE.findall(pattern):
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if piece == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part for part in parts if _has_needle(part)]


def _has_needle(pattern: str) -> bool:
    try:
        needle_of(pattern)
    except ValueError:
        return False
    return True


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
