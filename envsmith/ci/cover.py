"""Few rows that hold every pair of values that can occur together. Pure combinatorics: knows nothing of versions.

A *row* is one value per axis; only rows that can occur are offered. A pair of values of two axes is *covered* when a chosen row holds both.
The choice is greedy with several deterministic ways to break ties, and made smaller afterwards by taking out what others cover already
(mixed-strength covering arrays by one row at a time: Cohen, Dalal, Fredman and Patton, "The AETG System", IEEE TSE 23(7), 1997).
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

Row = tuple[str, ...]
# Orders in which ties are broken; the smallest result is taken. More of them bring less than a row on the real axes in bench/cover.py.
_TRIES = 12
# How many of the rows that hold least alone are tried two by two for one that replaces both.
_LIGHT = 12


@dataclass(frozen=True, slots=True)
class Cover:
    """``rows`` in the order in which they were offered; ``uncovered`` are pairs that a limit left out, as ``((axis, value), (axis, value))``."""

    rows: tuple[Row, ...]
    bound: int
    uncovered: tuple[tuple[tuple[int, str], tuple[int, str]], ...] = ()


def covering_subset(
    rows: Sequence[Row], *, keep: Collection[Row] = (), known: Collection[Row] = (), limit: int = 256
) -> Cover:
    """Choose from ``rows`` (best first, all of one length) so that every pair that occurs in one of them occurs in a chosen one.

    ``keep`` are always chosen; ``known`` (rows of an earlier choice) win ties, so that a choice changes little when the rows do. At most
    ``limit`` rows: then those are kept that cover most, and the pairs that nobody covers are told.
    """
    if not rows:
        return Cover((), 0)
    masks, pairs = _masks(rows)
    index = {row: i for i, row in enumerate(rows)}
    first = [index[row] for row in dict.fromkeys(keep) if row in index]
    everything = (1 << len(pairs)) - 1
    bound = lower_bound(rows)
    before = {index[row] for row in known if row in index}
    best: list[int] | None = None
    for seed in range(_TRIES):
        chosen = _greedy(masks, first, everything, _ranks(rows, seed, before))
        chosen = _thin(masks, chosen, set(first), max(bound, len(first)))
        if best is None or len(chosen) < len(best):
            best = chosen
        if len(best) <= max(bound, len(first)):
            break
    taken = (best or [])[:limit]
    covered = 0
    for i in taken:
        covered |= masks[i]
    missing = tuple(pair for n, pair in enumerate(pairs) if not covered >> n & 1)
    return Cover(tuple(rows[i] for i in sorted(taken)), bound, missing)


def lower_bound(rows: Iterable[Row]) -> int:
    """No covering choice is smaller: one row holds one pair of any two axes, so the two axes with most pairs set the floor."""
    listed = list(rows)
    width = len(listed[0]) if listed else 0
    if width < 2:
        return len(set(listed))
    return max(len({(row[a], row[b]) for row in listed}) for a, b in combinations(range(width), 2))


def _masks(rows: Sequence[Row]) -> tuple[list[int], list[tuple[tuple[int, str], tuple[int, str]]]]:
    """Each row as the set of its pairs. One axis alone is paired with itself, so that each of its values is covered."""
    numbers: dict[tuple[tuple[int, str], tuple[int, str]], int] = {}
    masks = []
    width = len(rows[0])
    axes = list(combinations(range(width), 2)) or [(0, 0)]
    for row in rows:
        mask = 0
        for a, b in axes:
            mask |= 1 << numbers.setdefault(((a, row[a]), (b, row[b])), len(numbers))
        masks.append(mask)
    return masks, list(numbers)


def _ranks(rows: Sequence[Row], seed: int, known: Collection[int]) -> list[tuple[bool, int]]:
    """Who wins a tie: a row of the earlier choice, then (first try) the better row, else an order that depends on the row's text alone."""
    if seed == 0:
        return [(i not in known, i) for i in range(len(rows))]
    return [(i not in known, _hash(seed, row)) for i, row in enumerate(rows)]


def _hash(seed: int, row: Row) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}|{'|'.join(row)}".encode(), digest_size=8).digest(), "big")


def _greedy(
    masks: Sequence[int], first: Sequence[int], everything: int, ranks: Sequence[tuple[bool, int]]
) -> list[int]:
    chosen = list(first)
    left = everything
    for i in first:
        left &= ~masks[i]
    # What a row can add only shrinks: yesterday's gain is an upper bound, so most rows need no new count.
    gains = sorted((-masks[i].bit_count(), ranks[i], i) for i in range(len(masks)))
    while left and gains:
        stale, rank, i = heapq.heappop(gains)
        gain = (masks[i] & left).bit_count()
        if not gain:
            continue
        if gain == -stale:
            chosen.append(i)
            left &= ~masks[i]
        else:
            heapq.heappush(gains, (-gain, rank, i))
    return chosen


def _thin(masks: Sequence[int], chosen: list[int], fixed: Collection[int], floor: int) -> list[int]:
    """Without the rows that the others make needless (last chosen first), then with two rows replaced by one where one will do."""
    kept = _needed(masks, chosen, fixed)
    while len(kept) > floor:
        smaller = _merge(masks, kept, fixed)
        if smaller is None:
            break
        kept = smaller
    return kept


def _needed(masks: Sequence[int], chosen: Sequence[int], fixed: Collection[int]) -> list[int]:
    """From the last chosen to the first: out with whatever holds no pair that nobody else holds."""
    kept = list(chosen)
    for i in reversed(chosen):
        once = _held_once(masks, kept)
        if i not in fixed and not masks[i] & once:
            kept.remove(i)
    return kept


def _held_once(masks: Sequence[int], kept: Iterable[int]) -> int:
    """The pairs that exactly one of the rows holds."""
    once = more = 0
    for i in kept:
        more |= once & masks[i]
        once |= masks[i]
    return once & ~more


def _merge(masks: Sequence[int], kept: Sequence[int], fixed: Collection[int]) -> list[int] | None:
    """One row in the place of two, looked for among the pairs of rows that hold least alone."""
    once = _held_once(masks, kept)
    light = sorted((i for i in kept if i not in fixed), key=lambda i: (masks[i] & once).bit_count())[:_LIGHT]
    for a, b in combinations(light, 2):
        rest = 0
        for i in kept:
            if i not in (a, b):
                rest |= masks[i]
        missing = (masks[a] | masks[b]) & ~rest
        other = next((i for i, mask in enumerate(masks) if not missing & ~mask), None)
        if other is not None:
            return [i for i in kept if i not in (a, b)] + [other]
    return None
