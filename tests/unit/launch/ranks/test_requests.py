"""What ranks ask of torch.distributed, compared: whose root, peer, tag or group does not fit."""

from __future__ import annotations

from dataclasses import replace

from launches import calls, late, stack, stalled, waiting

from envsmith.launch.ranks.causes import Cause
from envsmith.launch.ranks.decide import decide
from envsmith.launch.ranks.evidence import CallArguments

USUAL = ["all_reduce"] * 5
ROUND = ["all_reduce/8", "all_reduce/3", "all_reduce/5"]


def _asking(rank: int, **call: object):
    one = waiting(rank, "all_reduce")
    return replace(one, calls=(), stacks=(replace(one.stacks[0], call=CallArguments(**call)),))


def test_the_one_that_names_another_root_is_blamed():
    ranks = [_asking(rank, operation="broadcast", root=int(rank == 2)) for rank in range(3)]

    answer = decide(stalled(*ranks))

    assert (answer.cause, answer.ranks) == (Cause.DIFFERENT_CALLS, (2,))
    assert "root 1" in answer.message


def test_where_two_wait_as_roots_of_one_collective_the_one_that_is_past_it_is_not_blamed():
    ranks = [_asking(rank, operation="gather", root=rank) for rank in range(2)]

    answer = decide(stalled(*ranks, _asking(2, operation="barrier")))

    assert answer.ranks == (0, 1)
    assert "do not agree on their gather" in answer.message


def test_ranks_that_wait_as_roots_have_not_left_out_what_the_one_that_is_past_them_calls_next():
    gathers = [
        replace(_asking(rank, operation="gather", group="0", root=rank), calls=calls(*USUAL, "gather", open_last=True))
        for rank in range(2)
    ]
    past = replace(_asking(2, operation="barrier", group="0"), calls=calls(*USUAL, "gather", "barrier", open_last=True))

    answer = decide(stalled(*gathers, past))

    assert (answer.cause, answer.ranks) == (Cause.DIFFERENT_CALLS, (0, 1))


def test_the_one_whose_new_group_holds_one_that_is_past_it_is_blamed():
    ranks = (
        _asking(0, operation="new_group", ranks=(0, 1), turn=1),
        _asking(1, operation="new_group", ranks=(1, 2), turn=1),
        _asking(2, operation="new_group", ranks=(1, 2), turn=2),
    )

    assert decide(stalled(*ranks)).ranks == (1,)


def test_the_one_that_waits_for_another_peer_than_the_one_that_waits_for_it_is_blamed():
    ranks = (
        _asking(0, operation="send", peer=1),
        _asking(1, operation="recv", peer=2),
        _asking(2, operation="recv", peer=1),
    )

    assert decide(stalled(*ranks)).ranks == (1,)


def test_the_one_that_makes_its_groups_in_another_order_is_blamed():
    ranks = [_asking(rank, operation="new_group", ranks=(0, 2) if rank == 1 else (0, 1)) for rank in range(3)]

    answer = decide(stalled(*ranks))

    assert (answer.cause, answer.ranks) == (Cause.DIFFERENT_GROUPS, (1,))


def test_a_send_and_a_recv_of_other_tags_do_not_meet():
    answer = decide(stalled(_asking(0, operation="send", peer=1, tag=7), _asking(1, operation="recv", peer=0, tag=3)))

    assert (answer.cause, answer.ranks) == (Cause.DIFFERENT_CALLS, (0, 1))
    assert "send to rank 1 with tag 7" in answer.message


def test_two_that_both_wait_to_receive_from_each_other_do_not_meet():
    answer = decide(stalled(_asking(0, operation="recv", peer=1), _asking(1, operation="recv", peer=0)))

    assert (answer.cause, answer.ranks, answer.is_hang) == (Cause.DIFFERENT_CALLS, (0, 1), True)


def test_of_ranks_that_wait_for_each_other_in_a_row_the_one_at_its_end_is_blamed():
    row = [_asking(rank, operation="recv", peer=rank - 1) for rank in (1, 2, 3)]

    answer = decide(stalled(_asking(0, operation="barrier"), *row))

    assert answer.ranks == (0,)
    assert answer.message.startswith("Rank 0 calls barrier, which the others do not")


def test_a_recv_from_a_rank_that_does_what_the_others_do_may_be_the_fault_of_either():
    others = [_asking(rank, operation="barrier") for rank in (0, 2, 3)]

    answer = decide(stalled(*others, _asking(1, operation="recv", peer=0)))

    assert answer.ranks == (0, 1)
    assert answer.message.startswith("A send or recv has no partner, in which rank 1 waits")


def test_ranks_that_all_send_to_the_next_one_wait_for_each_other():
    answer = decide(stalled(*(_asking(rank, operation="send", peer=(rank + 1) % 3) for rank in range(3))))

    assert (answer.ranks, answer.is_hang) == ((0, 1, 2), True)
    assert answer.message.startswith("Ranks 0, 1, 2 wait for each other")


def test_the_one_that_passed_its_group_is_blamed_and_not_the_one_that_waits_in_it():
    def history(*groups):
        rows = [calls("all_reduce", group=group)[0] for group in groups]
        rows = [replace(call, sequence=rows[: number + 1].count(call)) for number, call in enumerate(rows)]
        return (*rows[:-1], replace(rows[-1], ended=False))

    pair = ("1", "0") * 4
    ranks = (
        replace(_asking(0, operation="all_reduce", group="1"), calls=history(*pair, "1")),
        replace(_asking(1, operation="all_reduce", group="0"), calls=history(*pair, "0")),
        replace(_asking(2, operation="all_reduce", group="0"), calls=history(*"00000")),
    )

    answer = decide(stalled(*ranks))

    assert (answer.cause, answer.ranks) == (Cause.FEWER_CALLS, (1,))
    assert answer.message.startswith("Rank 1 left out all_reduce of [8] float32")


def test_a_rank_that_is_behind_in_the_group_of_the_others_has_left_their_collective_out():
    others = [
        replace(one, calls=(*calls(*USUAL, group="0"), *calls(*ROUND, group="7", open_last=True)))
        for one in (
            _asking(0, operation="all_reduce", group="7"),
            _asking(1, operation="all_reduce", group="7"),
        )
    ]
    behind = replace(
        _asking(2, operation="all_reduce", group="0"),
        calls=(*calls(*ROUND[:2], group="7"), *calls(*USUAL, "all_reduce", group="0", open_last=True)),
    )

    answer = decide(stalled(*others, behind))

    assert (answer.cause, answer.ranks) == (Cause.FEWER_CALLS, (2,))
    assert answer.message.startswith(
        "Rank 2 left out all_reduce of [5] float32, and waits at train.py:26 (step): rank 0"
    )


def test_the_one_that_is_past_the_group_that_others_make_with_it_is_in_other_groups():
    def makes(rank, *ranks):
        (main,) = stack(26, inside="new_group")
        return replace(late(rank), stacks=(replace(main, call=CallArguments("new_group", ranks=ranks)),))

    past = replace(_asking(1, operation="all_reduce"), stacks=stack(27, inside="all_reduce"))

    answer = decide(stalled(makes(0, 0, 1), past, makes(2, 1, 2)))

    assert (answer.cause, answer.ranks) == (Cause.DIFFERENT_GROUPS, (1,))
    assert "which make a process group with it" in answer.message
