"""What ran here must not be called bad: every passing record against all rules, with everything that was installed in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsmith.doctor.read.lines import component_of
from envsmith.knowledge.graph.tables import one_state
from envsmith.model.cell import Platform
from envsmith.model.rule import Severity
from envsmith.solver import default_solver
from envsmith.solver.judge import judge

ROOT = Path(__file__).resolve().parents[3]
RECORDS = sorted((ROOT / "matrix" / "records").glob("*.json"))


def given(record: dict) -> dict[str, str]:
    """The cell and every installed distribution that is a component."""
    sets, roles = dict(record["components"]), default_solver().compiled.roles
    for name, version in record["loaded"].get("installed", {}).items():
        component = component_of(name)
        if component in roles:
            sets.setdefault(component, version)
    return sets


def errors_of(releases: dict[str, str]) -> list[str]:
    findings = judge(default_solver(), releases, Platform.LINUX_64, mend=False).findings
    return [finding.rule for finding in findings if finding.severity is Severity.ERROR]


@pytest.mark.slow  # every record, and each set again under all rules
@one_state()
def test_no_rule_calls_a_set_bad_that_passed():
    passed = [record for path in RECORDS if (record := json.loads(path.read_text()))["passed"]]
    if not passed:
        pytest.skip("no records in this copy")
    # Each set once, those of the same components one after the other: they share what the rules are laid over.
    sets = {tuple(sorted(given(record).items())): record["cell"] for record in passed}
    in_turn = sorted(sets, key=lambda pairs: ([name for name, _ in pairs], pairs))
    errors = {sets[pairs]: errors_of(dict(pairs)) for pairs in in_turn}
    contradicted = {name: rules for name, rules in errors.items() if rules}
    assert contradicted == {}
