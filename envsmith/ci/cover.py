"""Few rows that hold every pair of values that can occur together. Pure combinatorics: knows nothing of versions.

A *row* is one value per axis; only rows that can occur are offered. A pair of values of two axes is *covered* when a
chosen row holds both. The choice is greedy with several deterministic ways to break ties, and made smaller afterwards
by taking out what others cover already (mixed-strength covering arrays by one row at a time: Cohen, Dalal, Fredman and
Patton, "The AETG System", IEEE TSE 23(7), 1997).
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from operator import or_

Row = tuple[str, ...]
Pair = tuple[tuple[int, str], tuple[int, str]]
# Orders in which ties are broken; the smallest result is taken. More of them bring less than a row on the real axes in
# bench/cover.py.
_TRIES = 12
# How many of the rows that hold least alone are tried two by two for one that replaces both.
_LIGHT = 12


@dataclass(frozen=True, slots=True)
class Cover:
    """``rows`` in the order in which they were offered.

    ``uncovered`` are pairs that a limit left out, as ``((axis, value), (axis, value))``.
    """

    rows: tuple[Row, ...]
    bound: int
    uncovered: tuple[Pair, ...] = ()


def covering_subset(
    rows: Sequence[Row], *, keep: Collection[Row] = (), earlier: Collection[Row] = (), limit: int = 256
) -> Cover:
    """Choose from ``rows`` so that every pair that occurs in one of them occurs in a chosen one.

    The rows are of one length, the best first. ``keep`` are always chosen. Rows of an ``earlier`` choice win ties, so
    that a choice changes little when the rows do. With more than ``limit`` rows those that cover most are chosen, and
    the pairs that no row covers are listed.
    """
    if not rows:
        return Cover((), 0)
    masks, pairs = _masks(rows)
    index = {row: i for i, row in enumerate(rows)}
    first = [index[row] for row in dict.fromkeys(keep) if row in index]
    everything = (1 << len(pairs)) - 1
    bound = lower_bound(rows)
    floor = max(bound, len(first))
    before = {index[row] for row in earlier if row in index}
    best: list[int] = []
    for seed in range(_TRIES):
        chosen = _thin(masks, _greedy(masks, first, everything, _ranks(rows, seed, before)), set(first), floor)
        if seed == 0 or len(chosen) < len(best):
            best = chosen
        if len(best) <= floor:
            break
    best = best[:limit]
    covered = _held(masks, best)
    missing = tuple(pair for n, pair in enumerate(pairs) if not covered >> n & 1)
    return Cover(tuple(rows[i] for i in sorted(best)), bound, missing)


def lower_bound(rows: Iterable[Row]) -> int:
    """Return a floor for every covering choice.

    A row holds one pair of two axes, so the two axes with most pairs set it.
    """
    listed = list(rows)
    width = len(listed[0]) if listed else 0
    if width < 2:
        return len(set(listed))
    return max(len({(row[a], row[b]) for row in listed}) for a, b in combinations(range(width), 2))


def _masks(rows: Sequence[Row]) -> tuple[list[int], list[Pair]]:
    """Return each row as the set of its pairs.

    One axis alone is paired with itself, so that each of its values is covered.
    """
    numbers: dict[Pair, int] = {}
    masks = []
    axes = list(combinations(range(len(rows[0])), 2)) or [(0, 0)]
    for row in rows:
        mask = 0
        for a, b in axes:
            mask |= 1 << numbers.setdefault(((a, row[a]), (b, row[b])), len(numbers))
        masks.append(mask)
    return masks, list(numbers)


def _ranks(rows: Sequence[Row], seed: int, earlier: Collection[int]) -> list[tuple[bool, int]]:
    """Rank the rows for ties: the earlier choice, then (first try) the better row, else an order of the row's text."""
    return [(i not in earlier, _hash(seed, row) if seed else i) for i, row in enumerate(rows)]


def _hash(seed: int, row: Row) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}|{'|'.join(row)}".encode(), digest_size=8).digest(), "big")


def _greedy(
    masks: Sequence[int], first: Sequence[int], everything: int, ranks: Sequence[tuple[bool, int]]
) -> list[int]:
    chosen = list(first)
    uncovered = everything & ~_held(masks, first)
    # What a row can add only shrinks: yesterday's gain is an upper bound, so most rows need no new count.
    gains = sorted((-masks[i].bit_count(), ranks[i], i) for i in range(len(masks)))
    while uncovered and gains:
        stale, rank, i = heapq.heappop(gains)
        gain = (masks[i] & uncovered).bit_count()
        if not gain:
            continue
        if gain == -stale:
            chosen.append(i)
            uncovered &= ~masks[i]
        else:
            heapq.heappush(gains, (-gain, rank, i))
    return chosen


def _thin(masks: Sequence[int], chosen: list[int], fixed: Collection[int], floor: int) -> list[int]:
    """Drop the rows that the others make needless, then replace two rows by one where one will do."""
    rows = _needed(masks, chosen, fixed)
    while len(rows) > floor and (smaller := _merge(masks, rows, fixed)):
        rows = smaller
    return rows


def _needed(masks: Sequence[int], chosen: Sequence[int], fixed: Collection[int]) -> list[int]:
    """Drop rows, last chosen first, whose pairs are all covered by other rows."""
    rows = list(chosen)
    for i in reversed(chosen):
        once = _held_once(masks, rows)
        if i not in fixed and not masks[i] & once:
            rows.remove(i)
    return rows


def _held(masks: Sequence[int], rows: Iterable[int]) -> int:
    """Return the pairs that some of the rows hold."""
    return reduce(or_, (masks[i] for i in rows), 0)


def _held_once(masks: Sequence[int], rows: Iterable[int]) -> int:
    """Return the pairs that exactly one of the rows holds."""
    once = twice = 0
    for i in rows:
        twice |= once & masks[i]
        once |= masks[i]
    return once & ~twice


def _merge(masks: Sequence[int], rows: Sequence[int], fixed: Collection[int]) -> list[int] | None:
    """Replace two rows by one, looked for among the pairs of rows that hold least alone."""
    once = _held_once(masks, rows)
    light = sorted((i for i in rows if i not in fixed), key=lambda i: (masks[i] & once).bit_count())[:_LIGHT]
    for a, b in combinations(light, 2):
        remaining = [i for i in rows if i not in (a, b)]
        missing = (masks[a] | masks[b]) & ~_held(masks, remaining)
        replacement = next((i for i, mask in enumerate(masks) if not missing & ~mask), None)
        if replacement is not None:
            return [*remaining, replacement]
    return None
