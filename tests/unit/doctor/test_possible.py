"""Notes of known-bad combinations of which one release is not stated."""

from __future__ import annotations

from envsmith.doctor.facts import Facts, StatedVersion
from envsmith.doctor.possible import judge_possible
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity


def _possible(present: str, **stated: str) -> list[Finding]:
    components = {name: StatedVersion(version=v, source="given", strength=4) for name, v in stated.items()}
    return [each.finding for each in judge_possible(Facts(components=components, host={"present": present}))]


def test_a_package_in_use_of_an_unknown_release_is_named_with_the_releases_that_would_fail() -> None:
    note = next(f for f in _possible("transformers", torch="2.2.0") if f.rule == "torch-get-default-device")

    assert note.severity is Severity.NOTE
    assert note.message.startswith("If transformers is >=4.52.0,<4.52.4 (the report does not name its version)")


def test_a_package_that_the_report_does_not_use_is_not_spoken_of() -> None:
    assert not _possible("", torch="2.2.0")
    assert not any("transformers" in note.components for note in _possible("deepspeed", torch="2.2.0"))


def test_a_stated_release_outside_of_the_rule_gives_no_note() -> None:
    assert "torch-get-default-device" not in {note.rule for note in _possible("transformers", torch="2.8.0")}
