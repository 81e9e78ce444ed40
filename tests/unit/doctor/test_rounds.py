"""Rounds of public threads that were labelled before the doctor saw them.

The second has lines of logs, a part sealed until the work was done; the third, in the corpus's form, parts found after the catalogue was frozen.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.pasted import clean
from envsmith.model.rule import Severity

ROOT = Path(__file__).parents[3]


def threads(name):
    return [json.loads(line) for line in (ROOT / "tests" / "cases" / "doctor" / name).read_text().splitlines()]


ROUND2 = threads("round2.jsonl")
ROUND3 = threads("round3.jsonl")
CASES = ROUND2 + ROUND3
# The study's key of these records, and the name of the finding since names are measured.
SAME_CLASS = {"name-not-in-release": "package-version-pair"}


def text_of(case):
    """As bench/doctor.py reads a record: stated facts, then the lines of the log."""
    env = dict(case.get("env", {}))
    name, version = env.pop("framework", None), env.pop("framework_version", None)
    lines = [f"{key}: {value}" for key, value in env.items()]
    if name:
        lines.append(f"{name} version: {version}" if version else f"framework: {name}")
    return "\n".join([*lines, case.get("env_report", ""), *case["error_lines"]])


def judged(case):
    text = clean(text_of(case))
    return diagnose(read_texts([("report", text)]), [("report", text)])


def named(case):
    return case["url"].removeprefix("https://github.com/")


@pytest.mark.parametrize("case", [c for c in CASES if not c["negative"]], ids=named)
def test_the_cause_of_a_thread_comes_first(case):
    diagnosis = judged(case)
    first = diagnosis.root or next(iter(diagnosis.diagnosed), None)
    found = first.taxonomy.cause if first else None
    keys = {case["cause_key"], *case["also"]}
    assert (found in keys or SAME_CLASS.get(found) in keys) is not case.get("known_miss", False), found


@pytest.mark.parametrize("case", [c for c in CASES if c["negative"]], ids=named)
def test_what_is_no_fault_of_the_environment_gives_no_error(case):
    assert judged(case).worst() is not Severity.ERROR
