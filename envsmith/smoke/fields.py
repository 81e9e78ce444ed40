"""The types of fields of what an agent says. A broken cell may write anything."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated

from envsmith.base.schema import Parsed, whole_number


def _number(value: object, _context: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        raise ValueError("a number belongs here")
    return float(value)


def _loss(value: object, context: object) -> float:
    """Read a loss. NaN and infinity are legitimate: they are judged, not dropped."""
    return value if isinstance(value, float) else _number(value, context)


def _rank_of(key: object, _context: object) -> int:
    if not str(key).isdecimal():
        raise ValueError("the number of a rank belongs here")
    return int(str(key))


_MAX_RANKS = 4096
Rank = Annotated[int, whole_number(0, _MAX_RANKS - 1)]
Whole = Annotated[int, whole_number(-(1 << 62), 1 << 62)]
Code = Annotated[int, whole_number(-(1 << 40), 1 << 40)]
Number = Annotated[float, Parsed(_number)]
Fraction = Annotated[int, Parsed(lambda value, context: int(_number(value, context)))]  # the number without it
# Of what is written in milliseconds.
Seconds = Annotated[float, Parsed(lambda value, context: _number(value, context) / 1000)]
Loss = Annotated[float, Parsed(_loss)]
CaseIndex = Annotated[int, whole_number(-10, 1 << 40)]
# Words for people: a text, or whatever stands there as a text.
Words = Annotated[str, Parsed(lambda value, _: "" if value is None else str(value))]
IsSet = Annotated[bool, Parsed(lambda value, _: value is True)]
RankKey = Annotated[int, Parsed(_rank_of)]
ByRank = Mapping[RankKey, str]
