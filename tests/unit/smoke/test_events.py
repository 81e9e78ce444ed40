"""Events of a broken cell."""

from __future__ import annotations

import pytest

from envsmith.smoke.events import Events

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
        {"event": "row", "row": "told", "run": "collectives", "rank": 4096, "case": 1, "step": "done"},
        {"event": "end", "exits": [{"rank": 0, "code": "x"}]},
    ],
)
def test_what_does_not_look_like_an_event_is_counted_and_left_out(event) -> None:
    parsed = Events.parse([event, {"event": "halt", "reason": "exit", "where": [_PLACE]}])
    assert (parsed.dropped, len(parsed.halts), parsed.rows, parsed.ends) == (1, 1, (), ())


def test_first_event_of_a_single_kind_counts_and_losses_may_be_no_numbers() -> None:
    row = {"event": "row", "row": "step", "run": "ddp", "rank": 0, "losses": [float("nan"), float("inf"), 1]}
    parsed = Events.parse([{"event": "hello", "pid": 1}, {"event": "hello", "pid": 2}, row])
    assert parsed.single["hello"]["pid"] == 1
    assert parsed.of_run("ddp") == [row]
    assert not parsed.dropped
