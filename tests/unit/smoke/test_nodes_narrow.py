"""Two passes find the bad node: every layout of faults is simulated, no node is started."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsmith.smoke.nodes import Narrowed, NodesOutcome, first_pass, narrow, second_pass

NODES = tuple("abcdefgh")


def _run(nodes: tuple[str, ...], bad: set[str], links: set[frozenset[str]] = frozenset()) -> tuple[Narrowed, int]:  # type: ignore[assignment]
    asked = []

    def run(group: tuple[str, ...]) -> NodesOutcome:
        asked.append(group)
        broken = set(group) & bad or any(link <= set(group) for link in links)
        return NodesOutcome(group=group, passed=not broken, summary="rank 1 hangs" if broken else "")

    return narrow(nodes, run), len(asked)


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 8])
def test_one_bad_node_is_named_in_two_passes(count: int) -> None:
    for bad in NODES[:count]:
        found, runs = _run(NODES[:count], {bad})
        if count > 3:
            assert found.bad == (bad,)
            assert f"node {bad} is bad" in found.sentence
            assert set(found.good) == set(NODES[:count]) - {bad}
        else:
            assert bad in found.bad
            assert len(found.good) == 2
        assert runs <= count + (count == 3)


def test_every_two_bad_nodes_of_eight_are_named() -> None:
    for bad in itertools.combinations(NODES, 2):
        found, _ = _run(NODES, set(bad))
        assert set(found.bad) == set(bad), found


def test_a_link_between_two_good_nodes_is_told_from_a_bad_node() -> None:
    found, _ = _run(NODES[:4], set(), {frozenset("ab")})
    assert found.bad == ()
    assert found.links == (("a", "b"),)
    assert "look at the path between them" in found.sentence


def test_all_bad_is_no_single_node() -> None:
    found, _ = _run(NODES[:6], set(NODES))
    assert found.bad == ()
    assert "the cause is not a single node" in found.sentence
    assert found.good == ()


def test_no_pair_fails() -> None:
    found, _ = _run(NODES[:4], set())
    assert "needs more than two nodes" in found.sentence


@given(st.integers(2, 40))
def test_first_pass_has_every_node_once(count: int) -> None:
    nodes = tuple(f"n{i}" for i in range(count))
    groups = first_pass(nodes)
    assert sorted(itertools.chain.from_iterable(groups)) == sorted(nodes)
    assert all(2 <= len(group) <= 3 for group in groups)


@given(st.lists(st.booleans(), min_size=2, max_size=20))
def test_second_pass_asks_every_suspect_beside_a_good_node_and_waves_are_disjoint(passed: list[bool]) -> None:
    first = [NodesOutcome(group=(f"a{i}", f"b{i}"), passed=ok) for i, ok in enumerate(passed)]
    good = {n for o in first if o.passed for n in o.group}
    suspects = {n for o in first if not o.passed for n in o.group}
    waves = second_pass(first)
    for wave in waves:
        nodes = list(itertools.chain.from_iterable(wave))
        assert len(nodes) == len(set(nodes))
    if good:
        assert {group[0] for wave in waves for group in wave} == suspects
        assert all(group[1] in good for wave in waves for group in wave)


@given(st.sets(st.integers(0, 11), max_size=12), st.integers(4, 12))
def test_a_good_node_is_never_called_bad_and_a_bad_one_never_good(numbers: set[int], count: int) -> None:
    nodes = tuple(f"n{i:02}" for i in range(count))
    bad = {f"n{i:02}" for i in numbers}
    found, _ = _run(nodes, bad)
    assert not set(found.good) & bad
    assert set(found.bad) <= bad
