"""The values of a case: sums that are exact whatever the order of the ranks, and what a case needs of the memory. No torch."""

from __future__ import annotations

import math
import random

import pytest

from envsmith.smoke.agent.cases.kit import EXACT, EXACT_FLOAT8, summand

WORLDS = [*range(2, 65), 128, 512]
ELEMENTS = 129  # of the cases with float8


def _rounded(value: int, mantissa: int) -> int:
    """An integer in a float of so many bits of mantissa, to the nearest, ties to even."""
    if value < 2 ** (mantissa + 1):
        return value
    step = 2 ** (math.floor(math.log2(value)) - mantissa)
    return round(value / step) * step


def _ring(values: list[int], start: int, mantissa: int) -> int:
    total = values[start]
    for hop in range(1, len(values)):
        total = _rounded(total + values[(start + hop) % len(values)], mantissa)
    return total


def _tree(values: list[int], mantissa: int) -> int:
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [_rounded(sum(pair), mantissa) for pair in pairs]
    return values[0]


@pytest.mark.parametrize(("exact", "mantissa"), [(EXACT_FLOAT8, 2), (EXACT_FLOAT8, 3), (EXACT, 7), (EXACT, 10)])
def test_sums_are_exact_although_every_hop_of_ring_and_tree_rounds(exact, mantissa) -> None:
    for size in WORLDS:
        for i in range(0, ELEMENTS, 4):
            values = [summand(i, rank, size, exact) for rank in range(size)]
            assert sum(values) <= exact
            mixed = random.Random(i).sample(values, size)
            sums = {_ring(values, i % size, mantissa), _tree(values, mantissa), _tree(mixed, mantissa)}
            assert sums == {sum(values)}, (size, i)


@pytest.mark.parametrize("exact", [EXACT_FLOAT8, EXACT])
def test_no_rank_can_be_left_out_unseen(exact) -> None:
    for size in WORLDS:
        assert all(any(summand(i, rank, size, exact) for i in range(ELEMENTS)) for rank in range(size)), size


def test_old_values_of_float8_were_rounded_on_the_way() -> None:
    values = [(3 * 0 + 5 * rank) % 11 + 1 for rank in range(8)]
    assert _ring(values, 0, 3) != sum(values), "the simulation must be able to fail"
