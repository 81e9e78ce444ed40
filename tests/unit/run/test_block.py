"""The block that is printed when a launch fails or stands still."""

from __future__ import annotations

from dataclasses import replace

import pytest
from launches import CLOSED, ended, failed, late, stalled, waiting

from envsmith.ranks.decide import decide
from envsmith.ranks.evidence import Evidence, Exit
from envsmith.run.block import block, ending


def lines(evidence):
    return block(decide(evidence), evidence, None).splitlines()


def test_a_death_has_rank_cause_evidence_and_next_step():
    assert lines(failed(ended(0, 1, 10.1, CLOSED), ended(1, 3))) == [
        "envsmith run: the launch of 2 ranks ended with exit code 1",
        "  Rank 1 ended with exit status 3, without an error of Python. What the other ranks print follows from it.",
        "  cause: exited",
        "  evidence: exitcode: 3",
        "  next: Look for a sys.exit or os._exit on that rank, or run it with python -X faulthandler.",
    ]


@pytest.mark.parametrize(("kernel", "word"), [("wait_for_partner", "hang"), ("hrtimer_nanosleep", "waiting")])
def test_hang_is_said_only_of_what_cannot_go_on(kernel, word):
    evidence = stalled(waiting(0, "all_reduce", "all_reduce"), late(1, "all_reduce", waits_in=kernel))

    assert lines(evidence)[0] == f"envsmith run: {word}: no rank of 2 has called a collective for 300 s"


def test_what_differs_between_ranks_and_what_was_not_read_is_said():
    ranks = [
        replace(ended(0, 1, 10.1, CLOSED), environment={"version of torch": "2.13.0"}),
        replace(ended(1, 3), environment={"version of torch": "2.9.1"}),
    ]

    text = lines(replace(failed(*ranks), unread=("py-spy is not installed",)))

    assert "  differs: version of torch differs (rank 0: 2.13.0, rank 1: 2.9.1)" in text
    assert text[-1] == "  not read: py-spy is not installed"


def test_a_launch_without_ranks_says_what_to_do():
    head, step = lines(Evidence(launcher=Exit(code=1)))

    assert head == "envsmith run: the launch of 0 ranks ended with exit code 1, and no rank loaded the hook"
    assert step.startswith("  next: Read what the launcher printed.")


def test_the_end_of_a_launch_that_stood_still_is_one_line():
    assert ending(failed(ended(0, -9))) == (
        "envsmith run: the launch of 1 rank ended with exit code 1, after it stood still: see above"
    )


def test_a_launch_that_was_interrupted_is_not_judged():
    evidence = failed(ended(0, -15), is_interrupted=True)

    assert lines(evidence) == ["envsmith run: the launch of 1 rank ended with exit code 1, after it was interrupted"]
