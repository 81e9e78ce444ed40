"""What the flags of several verbs mean."""

from __future__ import annotations

import pytest

from envsmith.cli.flags import exit_code
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity


@pytest.mark.parametrize(("fail_on", "code"), [("note", 1), ("warning", 1), ("error", 0), ("never", 0)])
def test_a_finding_as_severe_as_fail_on_says_makes_the_exit_code_1(fail_on, code):
    finding = Finding(rule="r", severity=Severity.WARNING, components={}, message="m")
    assert exit_code([finding], fail_on) == code
