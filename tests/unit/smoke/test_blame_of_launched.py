"""Recorded events of ranks that torchrun started, where nobody sees an exit status: the rank that failed is named, not one that was ended with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envsmith.smoke.cases import Case
from envsmith.smoke.plan import Plan
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.verdict import judge

LAUNCHED = Path(__file__).parents[2] / "smoke" / "launched"
FILES = sorted(LAUNCHED.glob("*.json"))


def _load(name: str) -> dict[str, Any]:
    return json.loads((LAUNCHED / f"{name}.json").read_text())


def _judged(document: dict[str, Any], events: list[Any] | None = None) -> SmokeResult:
    cases = tuple(Case(**case) for case in document["cases"])
    plan = Plan.build({}, ranks=document["ranks"], backend="gloo", steps=False).with_(cases=cases, expected={})
    return judge(plan, document["events"] if events is None else events, agent_exit=document["agent_exit"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recorded_fault_names_rank_case_and_exit_code(path: Path) -> None:
    document = json.loads(path.read_text())
    expect, result = document["expect"], _judged(document)
    assert result.exit_code == expect["exit_code"], result.blame
    for word in expect["words"]:
        assert word in result.summary
    assert {case.case: case.verdict.value for case in result.cases}["all_reduce[int64,sum,1027]"] == expect["verdict"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_truncated_stream_never_passes(path: Path) -> None:
    document = json.loads(path.read_text())
    for length in range(len(document["events"])):
        result = _judged(document, document["events"][:length])
        assert not result.passed
        assert result.summary


def _told(rank: int, case: int, step: str) -> dict[str, Any]:
    where = {"case": case, "step": step, "age": 0.1, "signature": "all_reduce[int64,sum,1027,root=0,world]"}
    return {"event": "row", "run": "collectives", "row": "told", "rank": rank, "signal": "SIGTERM", **where}


def _without_last_words(events: list[Any], rank: int) -> list[Any]:
    """The launcher's SIGTERM came before the rank had noticed anything."""

    def last_word(event: dict[str, Any]) -> bool:
        ended = event.get("event") == "end" and event["exits"][0]["rank"] == rank
        return ended or (event.get("rank") == rank and (event.get("status") == "error" or event.get("row") == "told"))

    return [event for event in events if not last_word(event)]


@pytest.mark.parametrize("name", ["raises", "segmentation_fault"])
def test_a_rank_that_the_launcher_ended_is_no_cause(name: str) -> None:
    document = _load(name)
    events = [*_without_last_words(document["events"], 0), _told(0, 7, "entered")]
    result = _judged(document, events)
    assert result.exit_code == document["expect"]["exit_code"], result.blame
    for word in document["expect"]["words"]:
        assert word in result.summary


def test_a_rank_that_raised_comes_before_one_of_which_nothing_was_heard_in_the_same_case() -> None:
    document = _load("raises")
    result = _judged(document, _without_last_words(document["events"], 0))
    assert result.exit_code == 1
    assert result.summary.startswith("rank 1 raised in case 7")


def test_a_rank_that_was_lost_in_an_earlier_case_comes_before_one_that_raised() -> None:
    document = _load("raises")
    kept = _without_last_words(document["events"], 0)
    kept = [event for event in kept if not (event.get("rank") == 0 and event.get("case", 0) >= 5)]
    result = _judged(document, kept)
    assert result.exit_code == 6
    assert result.summary.startswith("rank 0 ended without a word in case 5")


def test_a_job_that_the_launcher_ended_without_a_failure_did_not_pass_and_blames_nobody() -> None:
    document = _load("raises")
    events = _without_last_words(_without_last_words(document["events"], 0), 1)
    result = _judged(document, [*events, _told(0, 7, "entered"), _told(1, 7, "prep")])
    assert result.exit_code == 1
    assert result.summary.startswith("the launcher ended ranks 0, 1 (SIGTERM) in case 7")
