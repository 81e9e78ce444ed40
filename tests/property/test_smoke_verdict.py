"""The judge takes whatever a broken cell writes: it never raises, and it never passes a run that did not finish."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.smoke.cases import Case
from envsmith.smoke.plan import Plan
from envsmith.smoke.verdict import judge

FAULTS = sorted((Path(__file__).parents[1] / "smoke" / "faults").glob("*.json"))
RECORDED = [
    (document["cases"], event)
    for document in (json.loads(path.read_text()) for path in FAULTS)
    for event in document["events"]
]
EXAMPLES = int(os.environ.get("ENVSMITH_FUZZ_EXAMPLES", "100"))
PLAN = Plan.build({"deepspeed": "1"}, ranks=4, backend="gloo").with_(
    cases=tuple(Case(**case) for case in RECORDED[0][0]), expected={}
)
junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["case", "exit", "deadline", "collectives", "ok", "wrong", "prep"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["rank", "case", "code", "step", "where", "exits", "age", "pid", "x"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)
keys = sorted({key for _, event in RECORDED for key in event})


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    event = dict(draw(st.sampled_from(RECORDED))[1])
    for key in draw(st.lists(st.sampled_from(keys), max_size=3)):
        event[key] = draw(junk)
    return event


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(damaged() | junk, max_size=12), st.integers(-15, 20) | st.none(), st.text(max_size=50))
def test_no_stream_makes_the_judge_raise_and_none_without_an_end_passes(
    events: list[Any], status: int | None, words: str
) -> None:
    result = judge(PLAN, events, agent_exit=status, words=words)
    assert result.summary
    assert len(result.cases) == len(PLAN.cases)
    assert result.passed == (result.exit_code == 0)
    json.dumps(result.to_json())
    if not all(case.verdict.good for case in result.cases):
        assert not result.passed


@settings(max_examples=30, deadline=None)
@given(st.permutations(list(range(12))))
def test_order_in_which_ranks_lines_arrive_does_not_change_the_result(order: list[int]) -> None:
    document = json.loads(next(path for path in FAULTS if path.stem == "different_reduction").read_text())
    rows = [event for event in document["events"] if event["event"] == "row"]
    rest = [event for event in document["events"] if event["event"] != "row"]
    shuffled = [rows[i] for i in order if i < len(rows)] + [row for i, row in enumerate(rows) if i not in order]
    assert judge(PLAN, rest + shuffled).to_json() == judge(PLAN, rest + rows).to_json()
