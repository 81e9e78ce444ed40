"""The words of a verdict."""

from __future__ import annotations

import pytest

from envsmith.launch.ranks.causes import ranks_text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([2], "Rank 2"),
        ([3, 0, 1], "Ranks 0, 1, 3"),
        (range(9), "Ranks 0 to 8"),
        ([*range(9), 15], "Ranks 0 to 15 (10 of them)"),
    ],
)
def test_many_ranks_are_a_span_which_says_where_some_are_missing(ranks, text):
    assert ranks_text(ranks) == text
