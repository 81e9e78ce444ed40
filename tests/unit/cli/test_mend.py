"""``envsmith check --from FILE --apply``: what is refused, what is left to other tools, what is asked."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from envsmith.cli.check import check
from envsmith.errors import UsageError

LOCK = """version = 1
requires-python = ">=3.10"

[[package]]
name = "deepspeed"
version = "0.14.2"

[[package]]
name = "torch"
version = "2.4.1"
"""


def _check(*arguments):
    return CliRunner().invoke(check, [str(a) for a in arguments], standalone_mode=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("torch==2.4.1", "--apply"),
        ("--from", "-", "--apply"),
        ("torch==2.4.1", "--yes"),
        ("torch==2.4.1", "--keep", "torch"),
        ("--from", "requirements.txt", "--apply", "--undo"),
        ("--from", "requirements.txt", "--undo", "--keep", "torch"),
        ("--from", "requirements.txt", "torch==2.4.1", "--undo", "--yes"),
    ],
)
def test_options_without_effect_are_refused(arguments):
    assert isinstance(_check(*arguments).exception, UsageError)


def test_the_lock_of_another_tool_is_changed_by_its_command(tmp_path):
    path = tmp_path / "uv.lock"
    path.write_text(LOCK)

    result = _check("--from", path, "--apply", "--yes")

    assert result.return_value == 1
    assert "uv lock --upgrade-package deepspeed==0.14.5" in result.stdout
    assert path.read_text() == LOCK


def test_a_lock_of_an_unknown_tool_is_refused(tmp_path):
    path = tmp_path / "freeze.log"
    path.write_text("deepspeed==0.14.2\ntorch==2.4.1\n")

    assert "another tool writes it" in str(_check("--from", path, "--apply").exception)


def test_a_file_that_is_not_bad_is_left_alone(tmp_path):
    path = tmp_path / "requirements.txt"
    path.write_text("deepspeed>=0.15\n")

    result = _check("--from", path, "--apply")

    assert result.return_value == 0
    assert "nothing to change" in result.stdout


def test_undo_without_an_earlier_text_is_refused(tmp_path):
    path = tmp_path / "requirements.txt"
    path.write_text("torch\n")

    assert "no earlier text" in str(_check("--from", path, "--undo", "--yes").exception)
    assert "no earlier text" in str(_check(path, "--undo").exception), "before anybody is asked"


def test_an_option_without_its_file_is_answered_with_the_same_option():
    assert _check("torch==2.4.1", "--undo").exception.hint.endswith("--undo.")
