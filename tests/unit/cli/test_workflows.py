"""Every command of ours in `.github/workflows` is one that the command line knows, with options that it has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from envsmith.cli.app import cli

WORKFLOWS = Path(__file__).parents[3] / ".github" / "workflows"
# A command at the beginning of a line of a script, or behind `run:`.
COMMAND = re.compile(r"^\s*(?:- )?(?:run: )?(?:\S*/)?envsmith ([^|>\n]*)", re.MULTILINE)
COMMANDS = [(f.name, m[1]) for f in sorted(WORKFLOWS.glob("*.yml")) for m in COMMAND.finditer(f.read_text())]


def test_the_workflows_use_the_command_line():
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize(("name", "line"), COMMANDS)
def test_a_workflow_uses_options_that_exist(name, line):
    command, context, words = cli, click.Context(cli, info_name="envsmith"), shlex.split(line)
    while isinstance(command, click.Group):
        verb = words.pop(0)
        command = command.get_command(context, verb)
        assert command is not None, f"{name}: no verb {verb}"
        context = click.Context(command, info_name=verb, parent=context)
    known = {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known, name
