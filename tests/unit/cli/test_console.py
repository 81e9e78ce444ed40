"""What reaches a terminal or the log of a CI, whatever the text is that a build, a file or an index brought."""

from __future__ import annotations

import ast
import contextlib
import io
import time
from pathlib import Path

import envsmith.cli
from envsmith.cli.app import run
from envsmith.cli.console import Console
from envsmith.progress import Event, EventKind


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_of_a_build_that_looks_like_markup_neither_ends_the_display_nor_hides_the_error(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = _Terminal()
    with contextlib.redirect_stderr(terminal), Console() as console:
        console(Event(kind=EventKind.START, step="build [/bold]", text="[/]"))
        console(Event(kind=EventKind.LINE, step="build [/bold]", text="error: [/dim] in array[red] \x9b2J"))
        time.sleep(0.3)
        console(Event(kind=EventKind.FAILED, step="build [/bold]", text="no space in [/tmp]"))
    shown = terminal.getvalue()
    assert "array[red]" in shown
    assert "no space in [/tmp]" in shown
    assert "MarkupError" not in shown
    assert "\x9b" not in shown


def test_a_key_of_a_configuration_cannot_give_commands_to_the_runner_of_a_ci(tmp_path, capsys):
    (tmp_path / "envsmith.yaml").write_text('"tests\\n::error file=x::pwned\\n##[error]pwned": 3\n')
    assert run(["ci", "check", str(tmp_path)]) == 3
    shown = capsys.readouterr()
    assert "pwned" in shown.err
    assert "##[" not in shown.err
    assert not any(line.lstrip().startswith("::") for line in (shown.out + shown.err).splitlines())


def test_every_verb_prints_through_one_door():
    folder = Path(envsmith.cli.__file__).parent
    doors = {"console.py", "app.py"}
    printed = [
        f"{path.name}:{node.lineno}"
        for path in sorted(folder.glob("*.py"))
        if path.name not in doors
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"print", "click.echo", "click.secho", "sys.stdout.write"}
    ]
    assert not printed
