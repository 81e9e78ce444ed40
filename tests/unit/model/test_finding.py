"""The shape of a finding and of a judgement, which other programs read."""

from __future__ import annotations

import pytest

from envsmith.model.finding import Conflict, Finding
from envsmith.model.rule import Severity

BARE = {"rule": "r", "severity": "error", "components": {"torch": "2.9.1"}, "message": "m", "evidence": [], "fix": None}


def test_a_finding_is_written_without_what_is_not_known_of_it():
    assert Finding(rule="r", severity=Severity.ERROR, components={"torch": "2.9.1"}, message="m").to_json() == BARE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("symptom", "s"),
        ("stage", "import"),
        ("inferred", {"cuda": "12.8"}),
        ("where", "a:1"),
        ("needs", {"torch": ">=2.10"}),
    ],
)
def test_what_is_known_of_a_finding_is_written(name, value):
    finding = Finding(rule="r", severity=Severity.ERROR, components={"torch": "2.9.1"}, message="m", **{name: value})

    assert finding.to_json() == {**BARE, name: value}


@pytest.mark.parametrize(("rule", "wish"), [("request:torch", True), ("torch-runs-on-gpu", False)])
def test_a_wish_of_the_request_is_no_rule(rule, wish):
    assert Conflict(rule=rule, components={}, message="m").is_wish is wish
