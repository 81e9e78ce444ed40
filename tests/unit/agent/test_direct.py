"""The watch of ranks that a launcher started: how long a case may take, and what NCCL said when a rank is ended."""

from __future__ import annotations

import json
import os
import time

import pytest

from envsmith.agent.direct import _Conversation, _judge_places, _leave_evidence
from envsmith.agent.nccl_log import log_in_memory
from envsmith.agent.protocol import KeepingLog, Phase

CASES = [
    {"op": "all_reduce", "dtype": "float32"},
    {"op": "all_reduce", "dtype": "float32"},
    {"op": "all_reduce", "dtype": "float32", "group": "pairs"},
    {"op": "large_broadcast", "dtype": "uint8", "deadline": 240},
]
TIMEOUTS = {"init": 30.0, "first": 60.0, "case": 3.0}


class Store:
    def __init__(self, rows: dict[str, str]) -> None:
        self.rows = rows

    def check(self, keys: list[str]) -> bool:
        return all(key in self.rows for key in keys)

    def get(self, key: str) -> bytes:
        return self.rows[key].encode()


def _halts(case: int, age: float, backend: str = "nccl") -> bool:
    """Whether two ranks that have both been in a case for so long are ended."""
    job = {"world": 2, "cases": CASES, "timeouts": TIMEOUTS, "backend": backend}
    text = json.dumps([case, Phase.ENTERED, "", 0.0, False])
    talk = _Conversation()
    talk.places = {rank: (text, time.monotonic() - age) for rank in range(2)}
    return bool(_judge_places(Store({f"at/{rank}": text for rank in range(2)}), job, talk))


@pytest.mark.parametrize(
    ("case", "age", "halts"),
    [(0, 50, False), (1, 2, False), (1, 13, True), (2, 50, False), (2, 241, True), (3, 200, False), (-3, 80, False)],
)
def test_every_new_communicator_gets_the_time_of_a_first_call_as_under_the_supervisor(case, age, halts) -> None:
    assert _halts(case, age) == halts
    if case >= 0 and case != 3:
        assert _halts(case, age, backend="gloo") == (age > 3)


def test_rank_that_is_ended_leaves_what_nccl_said(capfd) -> None:
    path = log_in_memory()
    if not path:
        pytest.skip("this kernel has no memfd_create")
    with os.fdopen(int(path.rpartition("/")[2]), "w") as file:
        file.write("h:1:2 [0] NCCL INFO Using network Socket\n")
        file.flush()
        out = KeepingLog(1)
        _leave_evidence({"rank": 3, "run": "collectives", "env": {"NCCL_DEBUG_FILE": path}}, out)
    assert out.events == [
        {"event": "end", "run": "collectives", "exits": [], "output": {"3": "[0] NCCL INFO Using network Socket"}}
    ]
    _leave_evidence({"rank": 3, "run": "collectives", "env": {}}, out)
    assert len(out.events) == 1, "gloo has no such log"
    capfd.readouterr()
