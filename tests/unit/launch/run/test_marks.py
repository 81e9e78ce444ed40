"""Marks of a rank are read as values, whatever a broken rank wrote."""

from __future__ import annotations

import json

from envsmith.launch.ranks.evidence import RaisedBy, RankError
from envsmith.launch.run.marks import ExitMark, Marks, StartMark, read_marks


def _text(*rows: dict[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_each_mark_is_a_value() -> None:
    start = {"mark": "start", "rank": 3, "pid": 7, "host": "a", "variables": {"NCCL_DEBUG": "INFO"}, "at": 1.0}
    error = {
        "mark": "error",
        "error": "ValueError: 3",
        "stack": [["f", "/home/u/train.py", 9]],
        "thread": "T",
        "at": 2.0,
    }
    marks = read_marks(_text(start, error, {"mark": "exit", "status": "1", "stack": [], "at": 3.0}))
    assert marks.start == StartMark(rank=3, pid=7, host="a", variables={"NCCL_DEBUG": "INFO"})
    assert marks.errors == (
        RankError(error="ValueError: 3", place="train.py:9 (f)", at=2.0, thread="T", raised_by=RaisedBy.PROGRAM),
    )
    assert marks.way_out == ExitMark(status="1", at=3.0)
    assert marks.end is None


def test_a_mark_of_another_form_is_no_traceback() -> None:
    rows = ({"mark": "start", "rank": "x", "pid": None, "variables": [1]}, {"mark": "error", "error": 3, "at": "now"})
    marks = read_marks(_text(*rows, {"mark": "groups", "groups": 4}) + '{"mark": "end", "a')
    assert marks == Marks(errors=(RankError(error="an error without a text"),))
