"""Who is blamed where several ranks failed: the sentences of pure functions over made-up facts."""

from __future__ import annotations

import itertools
import signal
from typing import Any

import pytest

from envsmith.agent.protocol import Exit, Startup
from envsmith.agent.world import most_common
from envsmith.smoke.blame import blame_halt, blame_wrong
from envsmith.smoke.events import CaseRow, HaltEvent, Rows, RowStatus
from envsmith.smoke.parse_events import parse_events
from envsmith.smoke.places import odd_ones

NAMES = ("all_reduce", "broadcast")


def _halt(**fields: Any) -> HaltEvent:
    (halt,) = parse_events([{"event": "halt", "run": "collectives", **fields}]).halts
    return halt


def _died(codes: dict[int, int], **fields: Any) -> HaltEvent:
    where = [{"rank": rank, "case": 1, "step": "entered", "pid": 100 + rank} for rank in range(4)]
    return _halt(reason="exit", where=where, exits=[{"rank": r, "code": c} for r, c in codes.items()], **fields)


@pytest.mark.parametrize("first", [signal.SIGSEGV, signal.SIGKILL, signal.SIGBUS, signal.SIGILL])
@pytest.mark.parametrize(("culprit", "peer"), list(itertools.permutations(range(3), 2)))
def test_a_rank_that_aborted_is_not_blamed_beside_one_that_died_of_another_signal(
    first: signal.Signals, culprit: int, peer: int
) -> None:
    halt = _died({peer: -signal.SIGABRT, culprit: -first})

    blame = blame_halt(halt, Rows(), NAMES)

    assert blame.ranks == (culprit,)
    assert first.name in blame.sentence


def test_of_ranks_that_all_aborted_the_lowest_is_blamed() -> None:
    blame = blame_halt(_died({3: -signal.SIGABRT, 1: -signal.SIGABRT}), Rows(), NAMES)

    assert blame.ranks == (1,)


@pytest.mark.parametrize(("silent", "seconds"), [({"silent": 12.4}, "12"), ({}, "0")])
def test_a_store_that_is_silent_is_rank_0_s_and_says_for_how_long(silent: dict[str, Any], seconds: str) -> None:
    halt = _halt(reason="store", where=[{"rank": 2, "case": 1, "step": "entered"}], **silent)

    blame = blame_halt(halt, Rows(), NAMES)

    assert (blame.ranks, blame.case, blame.code) == ((0,), 1, Exit.HANG)
    assert f"rank 0 does not answer for {seconds} s: its store is silent while rank 2 waits" in blame.sentence


@pytest.mark.parametrize(("state", "is_stopped"), [("T", True), ("S", False), ("Z", False), ("", False)])
def test_rank_0_is_called_stopped_where_the_kernel_says_so(state: str, is_stopped: bool) -> None:
    owner = {"state": state, "pid": 77}
    halt = _halt(reason="store", where=[{"rank": 2, "case": 1, "step": "entered"}], owner=owner)

    sentence = blame_halt(halt, Rows(), NAMES).sentence

    assert ("; rank 0 (pid 77) is stopped" in sentence) is is_stopped


@pytest.mark.parametrize(
    ("case", "index", "place"),
    [
        (-9, None, "before the first case"),
        (-1, None, "agreeing on the memory budget"),
        (int(Startup.GROUP), None, "making the process group"),
        (0, 0, "case 0 all_reduce"),
        (1, 1, "case 1 broadcast"),
        (2, 2, "the end, after the last case"),
    ],
)
def test_a_place_is_a_case_or_a_stage_before_the_first(case: int, index: int | None, place: str) -> None:
    where = [{"rank": rank, "case": case, "step": "entered"} for rank in range(2)]

    blame = blame_halt(_halt(reason="deadline", where=where, limit=9), Rows(), NAMES)

    assert blame.case == index
    assert blame.sentence == f"all ranks are stuck in {place}, step entered, for 9.0 s"


def test_of_what_an_aborted_rank_wrote_the_beginning_of_the_last_line_is_told() -> None:
    halt = _died({1: -signal.SIGABRT}, output={"1": "first\n" + "x" * 300 + "\n"})

    assert blame_halt(halt, Rows(), NAMES).sentence.endswith(f": {'x' * 200}")


def test_the_shortest_wait_of_the_ranks_behind_which_one_stays_is_said() -> None:
    where = [{"rank": 0, "case": 1, "step": "prep"}]
    where += [{"rank": rank, "case": 1, "step": "entered", **age} for rank, age in enumerate(({"age": 5.0}, {}), 1)]

    blame = blame_halt(_halt(reason="deadline", where=where, limit=9), Rows(), NAMES)

    assert blame.sentence == "rank 0 never entered case 1 broadcast; ranks 1, 2 waited inside it for 0.0 s"


@pytest.mark.parametrize("odd", range(4))
def test_the_rank_that_is_unlike_the_others_is_the_odd_one(odd: int) -> None:
    values = {rank: "sum" if rank == odd else "max" for rank in range(4)}

    assert odd_ones(values) == ([odd], "sum", "max")


def test_in_a_tie_the_side_of_the_lowest_rank_is_common() -> None:
    assert odd_ones({1: "max", 0: "sum"}) == ([1], "max", "sum")
    assert most_common(["b", "a", "a", "b"]) == "b"


def test_ranks_that_agree_have_no_odd_one() -> None:
    assert odd_ones({0: "sum", 1: "sum"}) == ([], "", "")


@pytest.mark.parametrize("odd", range(4))
def test_a_rank_that_called_something_else_is_named_and_the_majority_is_not(odd: int) -> None:
    calls = [
        CaseRow(run="", rank=rank, case=0, status=RowStatus.WRONG, call="max" if rank == odd else "sum")
        for rank in range(4)
    ]

    charge = blame_wrong("all_reduce", 0, calls)

    assert charge.ranks == (odd,)
    assert charge.sentence.startswith(f"rank {odd} called max where the others called sum")
