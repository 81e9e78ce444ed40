"""The search over sets of bits, against a brute force over every assignment of three variables."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import combinations, product

import pytest

from envsmith.solver.kernel import Effort, Net, Nogood, excess, minimal_conflict, nearest, smallest_conflict

FULL = [0b111, 0b1111, 0b11]
SEEDS = range(50)


def nogoods(rand: random.Random, count: int) -> list[Nogood]:
    rows = []
    for _ in range(count):
        variables = sorted(rand.sample(range(len(FULL)), rand.choice((1, 2, 2, 3))))
        rows.append(tuple((v, rand.randint(1, FULL[v] - (len(variables) == 1))) for v in variables))
    return rows


def solutions(*parts: Iterable[Nogood]) -> set[tuple[int, ...]]:
    rows = [row for part in parts for row in part]
    return {
        values
        for values in product(*(range(mask.bit_length()) for mask in FULL))
        if not any(all(mask >> values[v] & 1 for v, mask in row) for row in rows)
    }


def split(rand: random.Random) -> list[list[Nogood]]:
    return [nogoods(rand, rand.randint(1, 3)) for _ in range(rand.randint(2, 6))]


def nets(parts: Sequence[Sequence[Nogood]]) -> list[Net]:
    return [Net(FULL, part) for part in parts]


def table(net: Net) -> tuple[list[list[list[int]]], list[list[Nogood]]]:
    return [[arc.classes for arc in arcs] for arcs in net.arcs], [list(rows) for rows in net.long]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_search_returns_every_assignment_once_in_the_order_of_its_steps(seed: int) -> None:
    rows = nogoods(random.Random(seed), seed % 9)
    net = Net(FULL, rows)
    steps = [(v, lambda domains, v=v: [1 << i for i in range(4) if domains[v] >> i & 1]) for v in range(3)]

    domains = net.begin()
    answers = [] if domains is None else [tuple(d.bit_length() - 1 for d in one) for one in net.search(domains, steps)]

    assert answers == sorted(solutions(rows))
    assert (net.solvable(domains) is not None) is bool(answers)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_search_leaves_out_what_an_earlier_one_returned(seed: int) -> None:
    rand = random.Random(seed)
    net = Net(FULL, nogoods(rand, seed % 5))
    steps = [(v, lambda domains, v=v: [1 << i for i in range(4) if domains[v] >> i & 1]) for v in range(3)]
    masks = [(v, rand.randint(1, FULL[v])) for v in (0, 1)]
    domains, within = net.begin(), net.begin(masks)

    everything = [] if domains is None else list(net.search(domains, steps))
    earlier = [] if within is None else list(net.search(within, steps))
    later = [] if domains is None else list(net.search(domains, steps, past=masks))

    assert later == [solution for solution in everything if solution not in earlier]


@pytest.mark.parametrize("seed", SEEDS)
def test_consistent_domains_lose_no_solution(seed: int) -> None:
    rand = random.Random(seed)
    rows = nogoods(rand, seed % 7)
    wishes = [(v, rand.randint(1, FULL[v])) for v in range(3)]

    domains = Net(FULL, rows).begin(wishes)

    fitting = {s for s in solutions(rows) if all(mask >> s[v] & 1 for v, mask in wishes)}
    assert all(domains is not None and all(domains[v] >> s[v] & 1 for v in range(3)) for s in fitting)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_added_to_a_net_can_be_taken_back(seed: int) -> None:
    first, *parts = nets(split(random.Random(seed)))
    net = Net(FULL).joined([first])
    before = table(net)

    for part in parts:
        net.take(part)
    for part in reversed(parts):
        net.drop(part)

    assert table(net) == before


@pytest.mark.parametrize("seed", SEEDS)
def test_a_conflict_cannot_hold_and_anything_less_can(seed: int) -> None:
    parts = split(random.Random(seed))
    failing = [
        chosen
        for size in range(len(parts) + 1)
        for chosen in combinations(range(len(parts)), size)
        if not solutions(*(parts[i] for i in chosen))
    ]

    minimal, smallest = minimal_conflict(nets(parts), FULL), smallest_conflict(nets(parts), FULL)

    assert bool(minimal) is bool(failing)
    if failing:
        assert tuple(minimal) in failing
        assert not any(set(other) < set(minimal) for other in failing)
        assert tuple(smallest) in failing
        assert len(smallest) == len(failing[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_that_do_not_fit_in_their_order_are_the_excess(seed: int) -> None:
    rand = random.Random(seed)
    base: list[Nogood] = [((0, rand.randint(1, 6)), (1, rand.randint(1, 14)))]
    parts = split(rand)
    order = rand.sample(range(len(parts)), len(parts))
    out, within = set(), [base]
    for index in order:
        if solutions(*within, parts[index]):
            within.append(parts[index])
        else:
            out.add(index)
    net = Net(FULL, base)
    before, domains = table(net), net.begin()

    assert domains is not None
    assert excess(net, domains, nets(parts), order) == out
    assert table(net) == before


def test_parts_that_are_consistent_by_twos_and_cannot_hold_together_do_not_all_fit() -> None:
    full = [0b11, 0b11, 0b11]
    unequal = [Net(full, [((a, 1), (b, 1)), ((a, 2), (b, 2))]) for a, b in ((0, 1), (1, 2), (0, 2))]

    assert excess(Net(full), full, unequal, range(3)) == {2}


def test_what_is_not_tried_when_the_effort_is_spent_does_not_fit() -> None:
    full = [0b11, 0b11, 0b11]
    unequal = [Net(full, [((a, 1), (b, 1)), ((a, 2), (b, 2))]) for a, b in ((0, 1), (1, 2), (0, 2))]

    assert excess(Net(full), full, unequal, range(3), lambda: True) == {0, 1, 2}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_fewest_wishes_are_given_up(seed: int) -> None:
    rand = random.Random(seed)
    rows = nogoods(rand, seed % 6)
    wishes = [((v, rand.randint(1, FULL[v])),) for v in (rand.randrange(3) for _ in range(4))]
    possible = solutions(rows)
    sets = [
        out
        for size in range(5)
        for out in combinations(range(4), size)
        if any(all(mask >> s[v] & 1 for i, ((v, mask),) in enumerate(wishes) if i not in out) for s in possible)
    ]

    fewest = nearest(Net(FULL, rows), wishes)

    assert sorted(fewest) == sorted(out for out in sets if len(out) == len(sets[0]))[: len(fewest)]
    assert len(fewest) == min(8, sum(len(out) == len(sets[0]) for out in sets) if sets else 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_search_without_effort_gives_up_what_can_be_given_up(seed: int) -> None:
    rand = random.Random(seed)
    rows = nogoods(rand, seed % 6)
    wishes = [((v, rand.randint(1, FULL[v])),) for v in (rand.randrange(3) for _ in range(4))]
    effort = Effort(is_over=lambda: True)

    first = nearest(Net(FULL, rows), wishes, effort)

    assert bool(first) is bool(solutions(rows))
    remaining = [w for i, (w,) in enumerate(wishes) if not first or i not in first[0]]
    assert not first or any(all(mask >> s[v] & 1 for v, mask in remaining) for s in solutions(rows))
