"""Evidence as a file."""

from __future__ import annotations

import json

import pytest
from launches import late, stalled, waiting

from envsmith.errors import DataError
from envsmith.launch.ranks.decide import decide
from envsmith.launch.ranks.stored import is_evidence, merged, read_evidence, write_evidence


def test_what_is_written_is_read_back():
    evidence = stalled(waiting(0, "all_reduce", "all_reduce"), late(1, "all_reduce", waits_in="pipe_read"))

    text = write_evidence(evidence, decide(evidence))

    assert is_evidence(text)
    assert read_evidence(text, "e.json") == evidence


def test_the_hosts_of_a_launch_are_judged_together():
    usual = ["all_reduce"] * 4
    parts = [stalled(waiting(0, *usual, "all_reduce")), stalled(late(1, *usual, waits_in="pipe_read"))]

    assert decide(merged(parts)).ranks == (1,)


@pytest.mark.parametrize(
    "text", ["{", '{"envsmith_evidence": 1, "evidence": {"ranks": [{"rank": "x"}]}}', json.dumps([])]
)
def test_a_broken_file_is_refused(text):
    with pytest.raises(DataError, match=r"Cannot read e\.json"):
        read_evidence(text, "e.json")
