"""``envsmith bisect``: what it refuses before a trial."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from envsmith.cli.bisect import bisect
from envsmith.errors import UsageError


def _refusal(arguments: list[str]) -> str:
    with pytest.raises(UsageError) as refusal:
        CliRunner().invoke(bisect, arguments, catch_exceptions=False, standalone_mode=False)
    return refusal.value.message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--good", "a", "--bad", "b"], "no command is given"),
        (["--good", "a", "--bad", "b", "--", "/usr/bin/python3", "x.py"], "it is one interpreter"),
        (["--good", "a", "--", "python"], "two ends are needed"),
        (["--good", "no-such-file", "--bad", "b", "--", "python"], "neither an environment nor a file"),
        (["--tries", "0", "--good", "a", "--bad", "b", "--", "python"], "fewer than one time"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_a_trial(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)

    assert message in _refusal(arguments)


def test_a_day_that_is_not_a_day_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text("rich\n")

    assert "it is not written as" in _refusal(["-r", "requirements.txt", "--bad", "soon", "--", "python"])


def test_a_file_that_pins_nothing_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("nothing here\n")

    assert "it pins no package" in _refusal(["--good", "notes.txt", "--bad", "notes.txt", "--", "python"])


def test_two_ends_with_the_same_packages_are_refused_before_anything_is_installed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "freeze.txt").write_text("rich==14.0.0\n")

    assert "both ends have the same packages" in _refusal(
        ["--good", "freeze.txt", "--bad", "freeze.txt", "--", "python"]
    )
