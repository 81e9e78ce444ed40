"""What differs between ranks."""

from __future__ import annotations

from envsmith.ranks.differences import different_environments
from envsmith.ranks.evidence import RankEvidence


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
