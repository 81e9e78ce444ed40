"""The recorded events of every fault file, judged without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envsmith.smoke.cases import Case
from envsmith.smoke.plan import Plan
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.verdict import judge

FAULTS = sorted((Path(__file__).parents[2] / "smoke" / "faults").glob("*.json"))


def _judged(path: Path, **changes: Any) -> tuple[dict[str, Any], SmokeResult]:
    document = json.loads(path.read_text())
    cases = tuple(Case(**case) for case in document["cases"])
    plan = Plan.build({}, ranks=document["ranks"], backend="gloo", steps=False).with_(cases=cases, expected={})
    return document, judge(plan, changes.get("events", document["events"]), agent_exit=document["agent_exit"])


def test_there_is_a_file_for_every_fault_that_the_blame_promises() -> None:
    assert len(FAULTS) >= 18


@pytest.mark.parametrize("path", FAULTS, ids=lambda path: path.stem)
def test_recorded_fault_names_rank_case_and_exit_code(path: Path) -> None:
    document, result = _judged(path)
    expect = document["expect"]
    assert result.exit_code == expect["exit_code"], result.blame
    assert result.passed == (expect["exit_code"] == 0)
    for word in expect["words"]:
        assert word in result.summary
    verdicts = {case.case: case.verdict.value for case in result.cases}
    if expect["case"] and expect["verdict"]:
        assert verdicts[expect["case"]] == expect["verdict"]


@pytest.mark.parametrize("path", FAULTS, ids=lambda path: path.stem)
def test_what_came_after_the_fault_is_not_called_a_finding(path: Path) -> None:
    document, result = _judged(path)
    bad = [case for case in result.cases if not case.verdict.good and case.verdict.value != "not-run"]
    assert len(bad) == (1 if document["expect"]["verdict"] else 0)


@pytest.mark.parametrize("path", FAULTS, ids=lambda path: path.stem)
def test_a_truncated_stream_never_passes_and_never_raises(path: Path) -> None:
    document = json.loads(path.read_text())
    for length in range(len(document["events"])):
        _, result = _judged(path, events=document["events"][:length])
        assert not result.passed
        assert result.summary
