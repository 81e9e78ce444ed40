"""The second round of public threads: labelled before the doctor saw them, a part of them sealed until its work was done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsmith.doctor.judge import diagnose
from envsmith.model.rule import Severity
from envsmith.sources.reports import clean, read_texts

FILE = Path(__file__).parents[2] / "cases" / "doctor" / "round2.jsonl"
CASES = [json.loads(line) for line in FILE.read_text().splitlines()]


def judged(case):
    text = clean("\n".join(case["error_lines"]))
    return diagnose(read_texts([("thread", text)]), [("thread", text)])


def named(case):
    return case["url"].removeprefix("https://github.com/")


@pytest.mark.parametrize("case", [c for c in CASES if not c["negative"]], ids=named)
def test_the_cause_of_a_thread_comes_first(case):
    diagnosis = judged(case)
    first = diagnosis.root or next(iter(diagnosis.found), None)
    found = first.taxonomy.cause if first else None
    assert (found in {case["cause_key"], *case["also"]}) is not case.get("known_miss", False), found


@pytest.mark.parametrize("case", [c for c in CASES if c["negative"]], ids=named)
def test_what_is_no_fault_of_the_environment_gives_no_error(case):
    assert judged(case).worst() is not Severity.ERROR


def test_the_published_figure_is_that_of_the_sealed_part_at_first_sight():
    sealed = [c for c in CASES if c["split"] == "sealed" and not c["negative"]]
    found = sum(c["first"] == "found" for c in sealed)
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    assert f"of {len(sealed)} excerpts" in readme
    assert f"{found} ({100 * found / len(sealed):.1f} %)" in readme
