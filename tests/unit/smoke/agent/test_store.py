"""Manifests of the ranks."""

from __future__ import annotations

from envsmith.smoke.agent.store import compare_manifests


def _manifest(**must: object) -> dict[str, dict[str, object]]:
    return {"must": {"torch": "2.13.0", "cases": "x", **must}, "should": {}, "own": {}}


def test_manifests_blame_the_minority_and_rank_0s_side_wins_a_tie() -> None:
    three = [_manifest(), _manifest(), _manifest(torch="2.12.1")]
    assert compare_manifests(three[0], three, "must") == {"torch": [2]}
    assert compare_manifests(three[0], [_manifest(torch="1"), *[_manifest()] * 2], "must") == {"torch": [0]}
    assert compare_manifests(three[0], three[1:], "must") == {"torch": [1]}
    assert compare_manifests(three[0], three[:2], "must") == {}
