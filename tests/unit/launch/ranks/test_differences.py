"""What differs between ranks: their environments, and their collectives compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from launches import calls, stalled, waiting

from envsmith.launch.ranks.causes import Cause
from envsmith.launch.ranks.decide import decide
from envsmith.launch.ranks.differences import (
    around_divergence,
    different_environments,
    first_difference,
    late_to_most,
)
from envsmith.launch.ranks.evidence import LaunchEvidence, RankEvidence


def _ranks(*environments):
    return [RankEvidence(rank=rank, environment=each) for rank, each in enumerate(environments)]


def test_the_odd_rank_stands_first():
    usual = {"version of torch": "2.13.0", "PYTHONPATH": ""}

    lines = different_environments(_ranks(usual, {**usual, "version of torch": "2.9.1"}, usual))

    assert lines == ("version of torch differs (rank 1: 2.9.1, ranks 0, 2: 2.13.0)",)


def test_a_package_that_is_not_imported_yet_does_not_differ():
    assert different_environments(_ranks({"version of torch": "2.13.0"}, {"PYTHONPATH": ""})) == ()


def test_equal_ranks_do_not_differ():
    assert different_environments(_ranks({"A": "1"}, {"A": "1"})) == ()


USUAL = ["all_reduce/8", "all_reduce/3"] * 3


@pytest.mark.parametrize(
    ("others", "odd", "cause"),
    [
        ([*USUAL, "all_reduce/8"], [*USUAL, "barrier"], Cause.DIFFERENT_CALLS),
        ([*USUAL, "all_reduce/8"], [*USUAL, "all_reduce/9"], Cause.DIFFERENT_SHAPES),
        ([*USUAL, "all_reduce/8"], [*USUAL, "all_reduce/8/float64"], Cause.DIFFERENT_DTYPES),
        ([*USUAL, "all_reduce/8"], [*USUAL, "all_reduce/3"], Cause.FEWER_CALLS),
        ([*USUAL, "broadcast", "barrier"], [*USUAL, "barrier", "broadcast"], Cause.DIFFERENT_CALLS),
    ],
    ids=["another", "shape", "dtype", "left-out", "order"],
)
def test_the_minority_is_odd_and_the_calls_around_it_say_how(others, odd, cause):
    answer = decide(stalled(waiting(0, *others), waiting(1, *odd), waiting(2, *others)))

    assert (answer.cause, answer.ranks, answer.is_hang) == (cause, (1,), True)


def test_of_a_collective_of_several_tensors_another_number_is_no_other_dtype():
    odd = waiting(1, *USUAL, "all_reduce/8")
    last = odd.calls[-1]
    odd = replace(odd, calls=(*odd.calls[:-1], replace(last, sizes=last.sizes * 2, dtypes=last.dtypes * 2)))

    answer = decide(stalled(waiting(0, *USUAL, "all_reduce/8"), odd, waiting(2, *USUAL, "all_reduce/8")))

    assert (answer.cause, answer.ranks) == (Cause.DIFFERENT_SHAPES, (1,))
    assert answer.message.startswith(
        "Rank 1 gives a collective another number of tensors: all_reduce of [8], [8] float32"
    )


def test_the_place_of_the_odd_call_is_that_of_the_recorder():
    odd = waiting(1, *USUAL, "barrier")
    odd = replace(odd, stacks=(), calls=(*odd.calls[:-1], replace(odd.calls[-1], place="train.py:9 (save)")))

    answer = decide(stalled(waiting(0, *USUAL, "all_reduce/8"), odd, waiting(2, *USUAL, "all_reduce/8")))

    assert answer.place == "train.py:9 (save)"


def test_of_two_ranks_the_one_whose_call_is_new_is_odd():
    answer = decide(stalled(waiting(0, *USUAL, "barrier"), waiting(1, *USUAL, "all_reduce/8")))

    assert answer.ranks == (0,)


def test_a_tie_names_nobody():
    answer = decide(stalled(waiting(0, "barrier"), waiting(1, "all_reduce/8")))

    assert answer.ranks == ()
    assert "cannot be told" in answer.message


def test_sizes_may_differ_where_they_may():
    ranks = [RankEvidence(rank=rank, calls=calls(f"all_to_all/{rank + 1}", f"gather/{rank + 1}")) for rank in range(2)]

    assert first_difference(ranks) is None


def test_a_rank_that_is_last_everywhere_by_much_is_slow():
    slow = calls(*["all_reduce"] * 40, late=0.06)
    ranks = (RankEvidence(rank=0, calls=calls(*["all_reduce"] * 40)), RankEvidence(rank=1, calls=slow))

    answer = late_to_most(LaunchEvidence(ranks=ranks))

    assert (answer.cause, answer.ranks) == (Cause.SLOW, (1,))


@pytest.mark.parametrize("late", [0.0, 0.004])
def test_punctual_ranks_are_not_slow(late):
    ranks = tuple(RankEvidence(rank=r, calls=calls(*["all_reduce"] * 40, late=late * r)) for r in range(2))

    assert late_to_most(LaunchEvidence(ranks=ranks)) is None


@pytest.mark.parametrize(
    ("conditions", "rank"), [(("rank == 0", ""), 0), (("", ""), None), (("rank == 0", "rank"), None)]
)
def test_of_two_ranks_the_one_under_a_test_of_the_rank_is_odd(conditions, rank):
    ranks = []
    for number, (last, condition) in enumerate(zip(("all_reduce/5", "barrier"), conditions, strict=True)):
        one = waiting(number, *USUAL, last)
        frames = tuple(replace(frame, condition=condition) for frame in one.main.frames)
        ranks.append(replace(one, stacks=(replace(one.main, frames=frames),)))

    answer = decide(stalled(*ranks))

    assert (answer.cause, answer.rank) == (Cause.DIFFERENT_CALLS, rank)
    assert ("Take the collective out of `if rank == 0` at train.py:26 (step)" in answer.fix) == (rank == 0)


def test_only_the_root_gives_tensors_to_a_scatter():
    root = calls("scatter/64", "all_reduce", open_last=True)
    peer = tuple(replace(call, sizes=(), dtypes=()) if call.operation == "scatter" else call for call in root)

    assert first_difference([RankEvidence(rank=0, calls=root), RankEvidence(rank=1, calls=peer)]) is None


def test_a_rank_whose_calls_come_from_two_threads_is_told_so():
    odd = waiting(1, *USUAL, "all_reduce/8/int32")
    threads = ["1"] * len(USUAL) + ["2"]
    odd = replace(odd, calls=tuple(replace(call, thread=name) for call, name in zip(odd.calls, threads, strict=True)))

    answer = decide(stalled(waiting(0, *USUAL, "all_reduce/8"), odd, waiting(2, *USUAL, "all_reduce/8")))

    assert (answer.cause, answer.rank) == (Cause.DIFFERENT_CALLS, 1)
    assert "from 2 threads" in answer.message


def test_of_long_recorders_the_calls_around_the_place_that_the_slowest_has_come_to_are_kept():
    long, short = calls(*["all_reduce"] * 2000), calls(*["all_reduce"] * 900)

    fast, slow = around_divergence([RankEvidence(rank=0, calls=long), RankEvidence(rank=1, calls=short)])

    assert {call.sequence for call in slow.calls} <= set(range(400, 901))
    assert {890, 900, 950} <= {call.sequence for call in fast.calls}
    assert fast.calls[-1] == long[-1]
    assert len(fast.calls) <= 401
