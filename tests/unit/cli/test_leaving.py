"""How the process ends: with its code, also where a native library's workers would crash an orderly exit."""

from __future__ import annotations

import os
import sys
import types

import pytest

from envsmith import __main__ as entry


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
    assert "did you mean 'solve'" in capsys.readouterr().err
