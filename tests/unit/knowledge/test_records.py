"""What ran here must not be called bad: every passing record against all rules, with everything that was installed in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsmith.doctor.read.lines import component_of
from envsmith.solver import check, default_solver

ROOT = Path(__file__).resolve().parents[3]
RECORDS = sorted((ROOT / "matrix" / "records").glob("*.json"))


def given(record: dict) -> dict[str, str]:
    """The cell and every installed distribution that is a component."""
    sets = dict(record["components"])
    for name, version in record["loaded"].get("installed", {}).items():
        component = component_of(name)
        if component in default_solver().compiled.roles:
            sets.setdefault(component, version)
    return sets


def test_no_rule_calls_a_set_bad_that_passed():
    passed = [record for path in RECORDS if (record := json.loads(path.read_text()))["passed"]]
    if not passed:
        pytest.skip("no records in this copy")
    contradicted = {
        record["cell"]: [f.rule for f in errors]
        for record in passed
        if (errors := [f for f in check(given(record)).findings if f.severity.value == "error"])
    }
    assert contradicted == {}
