"""The search for culprits: on sets whose culprits are known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsmith.doctor.bisect.outcome import TrialOutcome
from envsmith.doctor.bisect.search import find_culprits, narrow, narrow_past

ERROR = "ImportError: cannot import name 'x' from 'y'"
OTHER = "AttributeError: module 'z' has no attribute 'w'"


class Stand:
    """A command whose failures are known: it fails where one of the sets of culprits is chosen."""

    def __init__(self, *culprits: tuple[frozenset[int], str], skips: frozenset[int] = frozenset()) -> None:
        self.culprits, self.skips, self.trials = culprits, skips, set()

    def __call__(self, chosen: frozenset[int]) -> TrialOutcome:
        self.trials.add(chosen)
        if len(chosen) in self.skips:
            return TrialOutcome(passed=None)
        for groups, error in self.culprits:
            if groups <= chosen:
                return TrialOutcome(passed=False, error=error)
        return TrialOutcome(passed=True)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_one_culprit_is_found_in_a_logarithm_of_trials(case):
    count, culprit = case
    stand = Stand((frozenset({culprit}), ERROR))

    answer = find_culprits([1.0] * count, stand, ERROR)

    assert [c.groups for c in answer.culprits] == [(culprit,)]
    assert answer.explains
    assert all(c.alone for c in answer.culprits)
    assert len(stand.trials) <= math.log2(count) + 3


@given(st.sets(st.integers(0, 59), min_size=2, max_size=3))
def test_culprits_that_each_break_it_are_all_found_whatever_their_errors(numbers):
    stand = Stand(*((frozenset({n}), f"{ERROR}{n % 2}") for n in sorted(numbers)))
    everything = stand(frozenset(range(60)))

    answer = find_culprits([1.0] * 60, stand, everything.error)

    assert {group for c in answer.culprits for group in c.groups} == numbers
    assert answer.explains


@given(st.sets(st.integers(0, 59), min_size=2, max_size=3))
def test_groups_that_break_it_only_together_are_one_culprit(numbers):
    stand = Stand((frozenset(numbers), ERROR))

    answer = find_culprits([1.0] * 60, stand, ERROR)

    assert [set(c.groups) for c in answer.culprits] == [numbers]
    assert answer.explains


def test_what_fails_only_when_a_culprit_is_put_back_is_said_to_be_in_the_way():
    stand = Stand((frozenset({7}), ERROR), (frozenset({3}), OTHER))

    def attempt(chosen: frozenset[int]) -> TrialOutcome:
        return TrialOutcome(passed=False, error=ERROR) if 7 in chosen else stand(chosen)

    answer = find_culprits([1.0] * 10, attempt, ERROR)

    assert {c.groups: c.is_in_the_way for c in answer.culprits} == {(7,): False, (3,): True}


def test_a_set_that_fails_with_another_error_is_passed_over():
    stand = Stand((frozenset({7}), ERROR), (frozenset({3}), OTHER))

    def attempt(chosen: frozenset[int]) -> TrialOutcome:
        return TrialOutcome(passed=False, error=ERROR) if 7 in chosen and 3 in chosen else stand(chosen)

    answer = find_culprits([1.0] * 10, attempt, ERROR)

    assert {group for c in answer.culprits for group in c.groups} == {3, 7}


def test_sets_that_cannot_be_judged_leave_a_range():
    stand = Stand((frozenset({5}), ERROR), skips=frozenset({4, 5, 6}))

    answer = find_culprits([1.0] * 10, stand, ERROR)

    assert not answer.culprits
    assert answer.within == (3, 4, 5, 6)


def test_a_likely_group_is_asked_about_first():
    weights = [1.0] * 100
    weights[42] = 1600.0
    stand = Stand((frozenset({42}), ERROR))

    find_culprits(weights, stand, ERROR)

    assert len(stand.trials) <= 4


@pytest.mark.parametrize("count", [1, 2, 9])
def test_no_position_between_two_neighbours_is_asked_about(count):
    asked = []

    good, bad = narrow([1.0] * count, lambda position: asked.append(position) or position >= 1)

    assert (good, bad) == (0, 1)
    assert all(0 < position < count for position in asked)


@pytest.mark.parametrize(("mended", "expected"), [(True, (5, 6)), (False, (1, 2))])
def test_a_release_that_fails_with_another_error_is_passed_over_where_the_next_one_works(mended, expected):
    def is_bad(position: int) -> bool:
        return position == 2 or position >= 6 or (position > 2 and not mended)

    assert narrow_past([1.0] * 7, is_bad, lambda position: position == 2) == expected
