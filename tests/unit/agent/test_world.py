"""The groups that cases may name, and the manifests of the ranks."""

from __future__ import annotations

import pytest

from envsmith.agent.world import compare_manifests, group_layouts


@pytest.mark.parametrize("world", range(1, 10))
def test_groups_of_a_layout_never_overlap_and_never_name_a_rank_that_is_not_there(world) -> None:
    for ranks in group_layouts(world).values():
        flat = [rank for group in ranks for rank in group]
        assert len(set(flat)) == len(flat)
        assert all(0 <= rank < world for rank in flat)


def _manifest(**must: object) -> dict[str, dict[str, object]]:
    return {"must": {"torch": "2.13.0", "cases": "x", **must}, "should": {}, "own": {}}


def test_manifests_blame_the_minority_and_rank_0s_side_wins_a_tie() -> None:
    three = [_manifest(), _manifest(), _manifest(torch="2.12.1")]
    assert compare_manifests(three, "must") == {"torch": [2]}
    assert compare_manifests([_manifest(torch="1"), *[_manifest()] * 2], "must") == {"torch": [0]}
    assert compare_manifests(three[1:], "must") == {"torch": [1]}
    assert compare_manifests(three[:2], "must") == {}
