"""When the watch judges a stall, and when it looks on."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from launches import ended

from envsmith.launch.ranks.causes import Blame, Cause
from envsmith.launch.ranks.evidence import ExitStatus, LaunchEvidence
from envsmith.launch.run.watch import LaunchWatch, WatchSettings, comparable


class Ranks:
    """Ranks of which some do not answer. Nothing else of them is looked at."""

    def __init__(self, silent: list[bool]) -> None:
        self.living = [SimpleNamespace(talk=True, silent_for=lambda now, s=s: 60.0 if s else 0.0) for s in silent]

    def settle(self) -> None:
        """Nobody has ended since."""


@pytest.mark.parametrize(
    ("silent", "expected"),
    [([True, True], True), ([True, False], False), ([False, False], False), ([True], False)],
    ids=["all", "one of two", "none", "the only one"],
)
def test_only_the_silence_of_several_ranks_and_of_all_is_the_machine_s(silent, expected):
    watch = LaunchWatch(SimpleNamespace(pid=0), Ranks(silent), WatchSettings(), lambda blame, evidence: None)

    assert watch._all_are_silent() == expected


@pytest.mark.parametrize(
    ("seconds", "has_looked", "expected"),
    [(9, False, False), (11, False, True), (11, True, False), (51, True, True)],
    ids=["not yet", "for ranks that disagree", "only once", "for any cause"],
)
def test_after_a_long_pause_ranks_are_looked_at_early_once_and_then_late(seconds, has_looked, expected):
    watch = LaunchWatch(SimpleNamespace(pid=0), Ranks([False]), WatchSettings(stall=10), lambda blame, evidence: None)
    watch.has_begun, watch.longest_pause, watch.has_looked = True, 10.0, has_looked
    watch.moved_at = time.monotonic() - seconds

    assert watch._is_stalled(time.monotonic()) == expected


@pytest.mark.parametrize(("seconds", "is_stalled"), [(0.3, True), (40.0, False)])
def test_while_the_watch_itself_was_stopped_no_rank_stood_still(seconds, is_stalled):
    watch = LaunchWatch(SimpleNamespace(pid=0), Ranks([False]), WatchSettings(stall=10), lambda blame, evidence: None)
    watch.has_begun, watch.moved_at = True, time.monotonic() - 41

    watch._without_pause(time.monotonic() - seconds)

    assert watch._is_stalled(time.monotonic()) is is_stalled


class Ended(LaunchWatch):
    """A launch of two ranks that have ended well."""

    def evidence(self, stalled):
        return LaunchEvidence(ranks=(ended(0, 0), ended(1, 0)), launcher=ExitStatus(code=0), stalled=stalled)


@pytest.mark.parametrize("has_stopped", [False, True])
def test_of_a_launch_that_ends_well_a_stall_is_said_only_where_the_watch_has_ended_it(has_stopped):
    verdicts = []
    watch = Ended(
        SimpleNamespace(pid=0, status=0), Ranks([]), WatchSettings(), lambda *verdict: verdicts.append(verdict)
    )
    watch.ranks.end = lambda: None
    watch.stalled_at = Blame(cause=Cause.BLOCKED, ranks=(1,), message="Rank 1 sleeps.", fix="Look at it.")
    watch.has_stopped = has_stopped

    watch._finish(None)

    assert bool(verdicts) is has_stopped


@pytest.mark.parametrize(("moved", "is_kept"), [(1, True), (0, False)], ids=["the late one", "who waited"])
def test_what_was_said_of_a_stall_stands_where_only_the_late_rank_comes_after_all(moved, is_kept):
    ranks = Ranks([])
    ranks.all = [
        SimpleNamespace(rank=rank, pid=rank, progress={"0": 6 + (rank == moved)}, ended_at=0) for rank in (0, 1)
    ]
    watch = LaunchWatch(SimpleNamespace(pid=0), ranks, WatchSettings(), lambda blame, evidence: None)
    watch.stalled_at = Blame(cause=Cause.BLOCKED, ranks=(1,), message="Rank 1 sleeps.", fix="Look at it.")

    watch._went_on(set(), {0: {"0": 6}, 1: {"0": 6}}, beat=1.0)

    assert bool(watch.stalled_at) is is_kept


def test_variables_that_a_program_sets_are_compared_only_where_every_rank_has_named_them():
    asked, silent = {"variables": {"NCCL_P2P_DISABLE": "1"}, "gpu": 5}, {}

    assert comparable([asked, silent]) == [{"gpu": 5}, {}]
    assert comparable([asked, asked]) == [asked, asked]
