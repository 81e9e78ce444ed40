"""The verdict from the logs of pods: whatever stands around the agent's lines, in whatever number of files."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from envsmith.cli.smoke import smoke
from envsmith.errors import DataError
from envsmith.smoke.kubernetes import plan_of, result_of
from envsmith.smoke.parse_events import events_of, parse_events
from envsmith.smoke.plan import Plan

PLAN = Plan.build({"torch": "2.13.0+cpu"}, ranks=2, backend="gloo", steps=False).with_(nodes=2)


def _events(bad: int | None = None) -> list[dict[str, Any]]:
    told = {"tier": "quick", "backend": "gloo", "engine": None, "digest": PLAN.digest, "ranks": 2, "nodes": 2}
    found: list[dict[str, Any]] = [
        {"event": "hello", "protocol": 1, "launcher": "torchrun", "plan": told},
        {"event": "loaded", "torch": "2.13.0+cpu"},
        {
            "event": "placement",
            "backend": "gloo",
            "ranks": 2,
            "sentence": "2 ranks on 2 nodes started by torchrun in a jobset",
        },
    ]
    row = {"event": "row", "run": "collectives"}
    found += [{**row, "row": "node", "rank": rank, "node": f"pod-{rank}"} for rank in range(2)]
    for case in range(len(PLAN.cases)):
        for rank in range(2):
            wrong = {"status": "wrong", "detail": "read 3 where 4 was due at element 0"} if (case, rank) == (bad, 1) else {"status": "ok"}  # fmt: skip
            found.append({**row, "row": "case", "rank": rank, "case": case, "ms": 1.0, **wrong})
    return [*found, *({"event": "end", "run": "collectives", "exits": [{"rank": r, "code": 0}]} for r in range(2))]


def _lines(events: list[dict[str, Any]], prefix: str = "") -> list[str]:
    return [prefix + json.dumps(event, separators=(",", ":")) for event in events]


def test_log_of_one_pod_that_has_all_events_is_enough() -> None:
    result = result_of(events_of(["NOTE: torchrun says hello", *_lines(_events()), "bye"]))
    assert result.passed
    assert result.nodes == {"pod-0": (0,), "pod-1": (1,)}


@pytest.mark.parametrize(
    "prefix", ["[pod/envsmith-smoke-node-0-0/node] ", "2026-11-21T12:00:00.123456789Z ", "[default0]:"]
)
def test_what_stands_before_a_line_is_passed_over(prefix: str) -> None:
    assert result_of(events_of(_lines(_events(), prefix))).passed


def test_logs_of_all_pods_are_one_run_whoever_has_which_event() -> None:
    events = _events(bad=3)
    odd = [e for e in events if e.get("rank") == 1]
    even = [e for e in events if e.get("rank") != 1]
    result = result_of(events_of([*_lines(odd, "a "), *_lines(even), *_lines(odd, "b ")]))
    assert not result.passed
    assert "read 3 where 4 was due" in result.summary
    assert "on node pod-1" in result.summary


def test_log_that_lacks_a_rank_has_not_passed() -> None:
    result = result_of(events_of(_lines([e for e in _events() if e.get("rank") != 1])))
    assert not result.passed
    assert "91 of the 91 results of rank 1 are missing" in result.summary


@pytest.mark.parametrize("text", ["", "Error from server (NotFound): pods not found", '{"event":', '{"event":"hello","plan":[]}', '{"event":"hello","plan":{"ranks":"x"}}'])  # fmt: skip
def test_log_of_something_else_is_refused_with_what_is_missing(text: str) -> None:
    with pytest.raises(DataError, match="which run") as caught:
        plan_of(parse_events(events_of([text])))
    assert "all pods" in (caught.value.hint or "")


@pytest.mark.parametrize(("change", "words"), [({"digest": "sha256:0"}, "are not those of"), ({"ranks": 99999}, "not possible"), ({"tier": "slow"}, "not possible"), ({"engine": 3}, "not possible")])  # fmt: skip
def test_run_that_this_envsmith_does_not_know_is_refused(change: dict[str, object], words: str) -> None:
    events = _events()
    events[0]["plan"] = {**events[0]["plan"], **change}
    with pytest.raises(DataError, match=words):
        result_of(events_of(_lines(events)))


def test_command_takes_files_and_standard_input(tmp_path) -> None:
    (tmp_path / "0.log").write_text("\n".join(_lines(_events()[:40])))
    done = CliRunner().invoke(smoke, ["--read-logs", str(tmp_path / "0.log"), "--read-logs", "-", "--json"], input="\n".join(_lines(_events())), standalone_mode=False)  # fmt: skip
    assert done.return_value == 0, done.output
    assert json.loads(done.stdout)["passed"] is True
