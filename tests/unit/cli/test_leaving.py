"""How the process ends: with its code, also where a native library's workers would crash an orderly exit."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from envsmith import __main__ as entry
from envsmith.errors import StorageError, UsageError


def test_exit_code_is_that_of_the_command_line(monkeypatch):
    monkeypatch.delitem(sys.modules, "rattler", raising=False)
    monkeypatch.setattr(sys, "argv", ["envsmith", "slove"])
    with pytest.raises(SystemExit) as caught:
        entry.main()
    assert caught.value.code == 2


def test_with_rattler_loaded_the_process_ends_at_once_and_what_was_said_is_written(monkeypatch, capsys):
    ended: list[int] = []
    monkeypatch.setitem(sys.modules, "rattler", types.ModuleType("rattler"))
    monkeypatch.setattr(sys, "argv", ["envsmith", "slove"])

    def end(code):
        ended.append(code)
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(SystemExit):
        entry.main()
    assert ended == [2]
    assert "Try envsmith solve." in capsys.readouterr().err


def _ended(words: str, redirection: str) -> int:
    # What is written at once leaves nothing for the end of the process.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = ["sh", "-c", f'exec "$0" -m envsmith {words} {redirection}', sys.executable]
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode


@pytest.mark.parametrize(
    ("words", "redirection"),
    [("check torch==2.6.0", ">&-"), ("check torch==2.6.0", ">&- 2>&- <&-"), ("doctor --from -", "<&-")],
)
def test_a_closed_stream_is_the_null_device(words, redirection):
    assert _ended(words, redirection) == 0


@pytest.mark.parametrize("words", ["--version", "solve deepspeed", "solve deepspeed --json"])
def test_an_answer_that_cannot_be_written_is_not_fine(words):
    assert _ended(words, ">/dev/full") == StorageError.exit_code


def test_an_error_that_cannot_be_written_keeps_its_code():
    assert _ended("solve -f no-such-thing", "2>/dev/full") == UsageError.exit_code


def test_what_the_system_refuses_is_said_in_words():
    command = [sys.executable, "-m", "envsmith", "solve", "-f", "deepspeed"]
    environment = {**os.environ, "ENVSMITH_MATRIX": "x" * 5000}

    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert ended.returncode == StorageError.exit_code
    assert "Cannot use xxx" in ended.stderr
    assert "File name too long" in ended.stderr
