"""The groups that cases may name."""

from __future__ import annotations

import pytest

from envsmith.smoke.agent.world import group_layouts


@pytest.mark.parametrize("world", range(1, 10))
def test_groups_of_a_layout_never_overlap_and_never_name_a_rank_that_is_not_there(world) -> None:
    for ranks in group_layouts(world).values():
        flat = [rank for group in ranks for rank in group]
        assert len(set(flat)) == len(flat)
        assert all(0 <= rank < world for rank in flat)
