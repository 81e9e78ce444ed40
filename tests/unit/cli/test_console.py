"""What reaches a terminal or the log of a CI, whatever the text is that a build, a file or an index brought."""

from __future__ import annotations

import ast
import contextlib
import io
import time
from pathlib import Path

import click

import envsmith.cli
from envsmith.base.progress import EventKind, ProgressEvent
from envsmith.base.text import printable
from envsmith.cli.app import run
from envsmith.cli.console import Console, Traffic, evidence_lines, received, wrapped


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_of_a_build_that_looks_like_markup_neither_ends_the_display_nor_hides_the_error(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = _Terminal()
    with contextlib.redirect_stderr(terminal), Console() as console:
        console(ProgressEvent(kind=EventKind.START, step="build [/bold]", text="[/]"))
        console(ProgressEvent(kind=EventKind.LINE, step="build [/bold]", text="error: [/dim] in array[red] \x9b2J"))
        time.sleep(0.3)
        console(ProgressEvent(kind=EventKind.FAILED, step="build [/bold]", text="no space in [/tmp]"))
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


def test_a_long_line_of_an_answer_is_wrapped_below_its_own_first_word():
    text = "error: " + "word " * 30 + "\n  fix: " + "advice " * 20 + "\nshort"
    lines = wrapped(text, 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[1].startswith("       word")
    assert next(line for line in lines if line.startswith("  fix: "))
    assert lines[-2].startswith("       advice")
    assert lines[-1] == "short"


def test_colours_of_a_wrapped_line_stay_and_no_word_is_lost():
    text = click.style("error", fg="red", bold=True) + ": " + " ".join(f"w{n}" for n in range(60))
    lines = printable(wrapped(text, 200))
    assert "\x1b[1;31merror\x1b[0m" in lines
    assert click.unstyle(lines).split() == click.unstyle(text).split()
    assert max(len(click.unstyle(line)) for line in lines.splitlines()) <= 110


def test_one_piece_of_evidence_is_shown_and_the_others_are_counted():
    assert [click.unstyle(line) for line in evidence_lines(["a", "b", "c"])] == [
        "  evidence: a (and 2 more: --verbose)"
    ]
    assert len(evidence_lines(["a", "b", "c"], everything=True)) == 3
    assert evidence_lines([]) == []


def test_traffic_is_what_came_since_the_step_began_and_how_fast():
    seconds, counts = iter([0.0, 0.5, 2.0, 3.0]), iter([100, 5_000_100, 60_000_100, 1_240_000_100])
    traffic = Traffic(lambda: next(counts), lambda: next(seconds))
    assert traffic.text() == ""
    assert traffic.text() == "0.06 GB, 30 MB/s"
    assert traffic.text() == "1.24 GB, 1180 MB/s"


def test_traffic_is_silent_while_nothing_comes():
    counts, seconds = iter([0, 50_000_000, 50_000_000]), iter([0.0, 1.0, 3.0])
    traffic = Traffic(lambda: next(counts), lambda: next(seconds))
    assert traffic.text() == "0.05 GB, 50 MB/s"
    assert traffic.text() == ""


def test_received_bytes_of_this_machine_are_a_number():
    assert received() >= 0
