"""Laws of the covering subset: it covers all pairs that occur, with rows that occur, and no fewer than the bound."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.project.ci.jobs import covering_subset, lower_bound

AXES = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.tuples(*[st.sampled_from("abcde") for _ in range(width)]), min_size=1, max_size=60, unique=True
    )
)


def _pairs(rows):
    width = len(rows[0])
    axes = list(combinations(range(width), 2)) or [(0, 0)]
    return {((a, row[a]), (b, row[b])) for row in rows for a, b in axes}


@given(AXES)
def test_all_pairs_that_occur_are_covered(rows):
    cover = covering_subset(rows)
    assert set(cover.rows) <= set(rows)
    assert _pairs(cover.rows) == _pairs(rows)
    assert not cover.uncovered
    assert lower_bound(rows) <= len(cover.rows) <= len(rows)


@given(AXES, st.data())
def test_kept_rows_are_there(rows, data):
    keep = data.draw(st.lists(st.sampled_from(rows), max_size=3))
    assert set(keep) <= set(covering_subset(rows, keep=keep).rows)


@given(AXES, st.integers(1, 8))
def test_a_limit_tells_what_it_leaves_out(rows, limit):
    cover = covering_subset(rows, limit=limit)
    assert len(cover.rows) <= limit
    assert set(cover.uncovered) == _pairs(rows) - _pairs(cover.rows)


@given(AXES)
@settings(max_examples=30)
def test_the_same_rows_give_the_same_choice(rows):
    assert covering_subset(rows) == covering_subset(list(rows))


def test_no_row_is_needless():
    rows = [(a, b, c) for a in "abcd" for b in "xyz" for c in "12"]
    chosen = covering_subset(rows).rows
    for row in chosen:
        rest = [r for r in chosen if r != row]
        assert _pairs(rest) != _pairs(rows)
