"""Events of a broken cell."""

from __future__ import annotations

import pytest

from envsmith.smoke.events import Rows
from envsmith.smoke.parse_events import parse_events

_PLACE = {"rank": 0, "case": 1, "step": "entered"}


@pytest.mark.parametrize(
    "event",
    [
        7,
        {"event": ["row"]},
        {"event": "halt", "reason": "exit", "where": [{**_PLACE, "step": ["entered"]}]},
        {"event": "halt", "reason": "exit", "where": [{**_PLACE, "age": 10**400}]},
        {"event": "row", "row": "step", "run": "ddp", "rank": 0, "losses": [10**400]},
        {"event": "row", "row": "case", "run": "collectives", "rank": 0, "case": 1},
        {"event": "row", "row": "case", "run": "collectives", "rank": 0, "case": 1, "status": "good"},
        {"event": "row", "row": "flight", "run": "ddp", "rank": 0, "count": "x"},
        {"event": "end", "exits": [], "output": {"9" * 5000: "text"}},
        {"event": "health", "before": {"pairs": {"pci": [[0, 1, 2]]}}, "after": {}, "seconds": 1},
        {"event": "row", "row": "told", "run": "collectives", "rank": 4096, "case": 1, "step": "done"},
        {"event": "end", "exits": [{"rank": 0, "code": "x"}]},
    ],
)
def test_what_does_not_look_like_an_event_is_counted_and_left_out(event) -> None:
    parsed = parse_events([event, {"event": "halt", "reason": "exit", "where": [_PLACE]}])
    assert (parsed.dropped, len(parsed.halts), parsed.rows, parsed.ends) == (1, 1, Rows(), ())


def test_first_event_of_a_single_kind_counts_and_losses_may_be_no_numbers() -> None:
    row = {"event": "row", "row": "step", "run": "ddp", "rank": 0, "losses": [float("nan"), float("inf"), 1]}
    parsed = parse_events([{"event": "loaded", "torch": "1"}, {"event": "loaded", "torch": "2"}, row])
    (step,) = parsed.rows.of_run("ddp").steps
    assert parsed.loaded.torch == "1"
    assert str(step.losses) == "(nan, inf, 1.0)"
    assert not parsed.dropped
    assert parsed.rows.of_run("fsdp") == Rows()
