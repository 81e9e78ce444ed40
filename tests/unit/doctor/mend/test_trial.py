"""Whether a change made an environment better."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.base.progress import Clock, silent
from envsmith.doctor.mend.trial import Ability, smoke_trial


def test_an_interpreter_that_does_not_start_can_do_nothing(tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'own code needs numpy 2' >&2\nexit 1\n")
    python.chmod(0o755)

    ability = smoke_trial(python, ["numpy"], Clock(silent), "smoke test after")

    assert (ability.passed, ability.rungs) == (False, 0)
    assert "own code needs numpy 2" in ability.summary


def able(rungs: int, *broken: str, passed: bool = False) -> Ability:
    return Ability(passed=passed, rungs=rungs, summary="", broken=broken)


@pytest.mark.parametrize(
    ("before", "after", "is_better"),
    [
        (able(3), able(5, passed=True), True),
        (able(5, passed=True), able(5, passed=True), True),
        (able(5, passed=True), able(4), False),
        (able(4), able(4), False),
        (able(3), able(4), True),
        (able(3), able(4, "scipy: ImportError"), False),
        (able(5, "peft: ImportError", passed=True), able(5, "peft: ImportError", passed=True), False),
        (able(5, "peft: ImportError", passed=True), able(5, passed=True), True),
        (able(5, "peft: A", "trl: B", passed=True), able(5, "trl: B", passed=True), True),
        (able(5, "peft: A", passed=True), able(4), False),
    ],
)
def test_a_change_stays_when_all_works_or_more_than_before(before: Ability, after: Ability, is_better: bool) -> None:
    assert after.is_better_than(before) is is_better
