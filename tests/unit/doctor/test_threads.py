"""Texts of public threads: what the doctor finds in them, and what it is known not to find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.pasted import clean

CASES = json.loads((Path(__file__).parents[2] / "cases" / "doctor" / "threads.json").read_text())["cases"]


def cause_of(text: str) -> str | None:
    diagnosis = diagnose(read_texts([("thread", text)]), [("thread", clean(text))])
    first = diagnosis.root or next(iter(diagnosis.diagnosed), None)
    return first.taxonomy.cause if first else None


@pytest.mark.parametrize("case", CASES, ids=[c["url"].removeprefix("https://github.com/") for c in CASES])
def test_the_cause_of_a_thread_comes_first(case):
    found = cause_of("\n".join(case["text"]))
    assert (found in {case["cause"], *case.get("also", [])}) is not case.get("known_miss", False), found


def test_the_figure_in_the_head_of_the_cases_is_what_they_say():
    found = sum(1 for case in CASES if case["first"] == "found")
    assert (
        f"{found} of {len(CASES)}"
        in json.loads((Path(__file__).parents[2] / "cases" / "doctor" / "threads.json").read_text())["about"]
    )
