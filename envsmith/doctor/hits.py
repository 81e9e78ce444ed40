"""Signatures and a text -> hits: which messages stand where, and the versions they name.

A pattern has a *needle*, a literal that every match holds: the text is searched for needles (fast, linear), and only the lines around
them meet the regular expression, cut to a bounded length. So a hostile text of any size costs at most a bounded time a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from envsmith.doctor.needles import needle_of
from envsmith.doctor.signatures import Signature
from envsmith.sources.reports.frames import completed
from envsmith.sources.reports.text import unprefixed, unwrapped

__all__ = ["Hit", "find_hits"]

_LINE = 1600
_MOST_HITS = 40
# Longer texts are files, not what somebody copied from a terminal.
_WRAPPED = 400_000
# A log says the same few things over and over with other numbers: from this length on, needles are first looked for in its distinct lines.
_LONG, _CHUNK, _MOST_SHAPES = 300_000, 1 << 20, 4_000_000
_DIGITS = str.maketrans("123456789", "0" * 9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """Where a signature was found: the line (from 1), its text, and the named groups of the pattern."""

    signature: Signature
    source: str
    line: int
    text: str
    position: int
    groups: Mapping[str, str]


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def find_hits(text: str, source: str, signatures: Iterable[Signature]) -> list[Hit]:
    """The first hit of each signature in ``text``, in the order of the text."""
    lower = text.lower()
    if len(lower) != len(text):
        text = lower
    every = tuple(signatures)
    shapes = _shapes(lower)
    likely = every if shapes is None else [s for s in every if _may_stand(s, shapes)]
    hits = [hit for signature in likely if (hit := _find(text, lower, source, signature))]
    hits += _find_unwrapped(text, source, every, {hit.signature.id for hit in hits})
    hits += _find_completed(text, source, every, {hit.signature.id for hit in hits})
    order = {
        signature.id: number for number, signature in enumerate(every)
    }  # of the same place the more special one first
    hits.sort(key=lambda hit: (hit.position, order[hit.signature.id]))
    return _count_lines(text, hits)


def _shapes(lower: str) -> str | None:
    """The distinct lines of a long text with every digit as 0; ``None`` for a short one, and for one that does not repeat itself."""
    if len(lower) < _LONG:
        return None
    found: set[str] = set()
    size = at = 0
    while at < len(lower):
        end = lower.find("\n", at + _CHUNK)
        end = len(lower) if end < 0 else end
        new = set(lower[at:end].translate(_DIGITS).split("\n")) - found
        found |= new
        size += sum(map(len, new))
        if size > min(_MOST_SHAPES, len(lower) // 4):
            return None
        at = end
    return "\n".join(found)


def _may_stand(signature: Signature, shapes: str) -> bool:
    return any(needle.translate(_DIGITS) in shapes for pattern in signature.match for needle in needle_of(pattern))


def _find_unwrapped(text: str, source: str, signatures: Iterable[Signature], found: set[str]) -> list[Hit]:
    """Hits of messages that a terminal or a writer broke into lines; their place is that of the first part."""
    import dataclasses
    from bisect import bisect_right

    hits: list[Hit] = []
    for whole, breaks in unwrapped(text) if len(text) <= _WRAPPED else ():
        lower = whole.lower()
        whole = whole if len(lower) == len(whole) else lower  # noqa: PLW2901 - the same text
        seen = found | {hit.signature.id for hit in hits}
        rest = (s for s in signatures if s.id not in seen and not s.last)
        more = [hit for signature in rest if (hit := _find(whole, lower, source, signature))]
        hits += [dataclasses.replace(h, position=h.position + bisect_right(breaks, h.position)) for h in more]
    return hits


def _find_completed(text: str, source: str, signatures: Iterable[Signature], found: set[str]) -> list[Hit]:
    """Hits of import errors that do not name the module: the line of code above them does. Their place is the line's beginning."""
    import dataclasses

    whole = completed(text) if len(text) <= _WRAPPED else None
    if whole is None:
        return []
    lower = whole.lower()
    rest = (s for s in signatures if s.id not in found and not s.last)
    more = (
        [hit for signature in rest if (hit := _find(whole, lower, source, signature))]
        if len(lower) == len(whole)
        else []
    )
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return [dataclasses.replace(h, position=starts[whole.count("\n", 0, h.position)]) for h in more]


def _count_lines(text: str, hits: list[Hit]) -> list[Hit]:
    import dataclasses

    numbered, line, at = [], 1, 0
    for hit in hits:
        line += text.count("\n", at, hit.position)
        at = hit.position
        numbered.append(dataclasses.replace(hit, line=line))
    return numbered


def _find(text: str, lower: str, source: str, signature: Signature) -> Hit | None:
    """The first hit of any pattern (the last for what must stand last), with the groups of all patterns that match near it."""
    import dataclasses

    hits = [hit for pattern in signature.match if (hit := _search(text, lower, source, signature, pattern))]
    if not hits:
        return None
    best = (max if signature.last else min)(hits, key=lambda hit: hit.position)
    if signature.last and not _is_last(text, best):
        return None
    if not all(_anywhere(text, lower, pattern) for pattern in signature.with_):
        return None
    if any(_compiled(pattern).search(_around(text, best.position)) for pattern in signature.without):
        return None
    near = (hit for hit in hits if abs(hit.position - best.position) < _LINE)
    groups: dict[str, str] = {}
    for hit in near:
        groups = {**hit.groups, **groups}
    return dataclasses.replace(best, groups={**groups, **best.groups})


def _search(text: str, lower: str, source: str, signature: Signature, pattern: str) -> Hit | None:
    compiled = _compiled(pattern)
    chosen: Hit | None = None
    for needle in needle_of(pattern):
        for start, end in _lines_with(needle, text, lower, last=signature.last):
            match = compiled.search(text[start:end]) or _over_lines(compiled, text, start, end)
            if match is None:
                continue
            if chosen is None or start + match.start() < chosen.position:
                chosen = Hit(
                    signature=signature,
                    source=source,
                    line=0,
                    text=text[start:end].strip()[:400],
                    position=start + match.start(),
                    groups={k: v for k, v in match.groupdict().items() if v},
                )
            break
    return chosen


def _lines_with(needle: str, text: str, lower: str, *, last: bool) -> Iterator[tuple[int, int]]:
    """Where the first lines begin and end that hold ``needle``, or the ``last`` one; long lines are cut around it."""
    position = lower.rfind(needle) if last else lower.find(needle)
    for _ in range(1 if last else _MOST_HITS):
        if position < 0:
            return
        end = text.find("\n", position)
        end = min(end if end >= 0 else len(text), position + _LINE)
        yield max(text.rfind("\n", 0, position) + 1, position - _LINE), end
        position = lower.find(needle, end)


def _over_lines(compiled: re.Pattern[str], text: str, start: int, end: int) -> re.Match[str] | None:
    """A match that begins on this line and ends on one of the next two: messages of several lines, and lines that a writer broke at a blank."""
    stop = end
    for _ in range(2):
        following = text.find("\n", stop + 1)
        stop = following if following >= 0 else len(text)
    if end - start > _LINE or stop - end > _LINE:
        return None
    first, *more = unprefixed(text[start:stop]).split("\n")
    joined = " ".join([first.rstrip(), *(part.strip() for part in more)])
    match = compiled.search(joined)
    return match if match and match.start() < len(first) else None


def _anywhere(text: str, lower: str, pattern: str) -> bool:
    try:
        needles = needle_of(pattern)
    except ValueError:
        return _compiled(pattern).search(text[:400_000]) is not None
    return any(needle in lower for needle in needles) and _compiled(pattern).search(text[:4_000_000]) is not None


def _is_last(text: str, hit: Hit) -> bool:
    """Nothing but empty lines and NCCL's own talk follows."""
    end = text.find("\n", hit.position)
    rest = "" if end < 0 else text[end : end + 4000]
    return len([line for line in rest.split("\n") if line.strip() and "NCCL INFO" not in line]) == 0


def _around(text: str, position: int) -> str:
    """Some lines before and after a hit, where its context stands."""
    return text[max(0, position - 700) : position + 700]
