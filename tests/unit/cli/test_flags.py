"""What the flags of several verbs mean."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest

from envsmith.cli.app import VERBS
from envsmith.cli.flags import RequestFlags, exit_code
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity


@pytest.mark.parametrize(("fail_on", "code"), [("note", 1), ("warning", 1), ("error", 0), ("never", 0)])
def test_a_finding_as_severe_as_fail_on_says_makes_the_exit_code_1(fail_on, code):
    finding = Finding(rule="r", severity=Severity.WARNING, components={}, message="m")
    assert exit_code([finding], fail_on) == code


def test_a_stack_asks_for_its_members_and_a_further_flag_narrows_them():
    request = RequestFlags(stack=("hf",), with_=("transformers<5",), torch="2.13").request()
    assert list(request.frameworks) == ["accelerate"]
    assert {"peft", "trl", "datasets", "bitsandbytes", "safetensors"} <= request.constraints.keys()
    assert request.constraints["transformers"].contains("4.57.1")
    assert not request.constraints["transformers"].contains("5.0.0")


def test_what_a_lock_was_made_from_names_the_stack():
    assert "--stack hf" in RequestFlags(stack=("hf",)).text()
    assert RequestFlags(stack=("hf",)).names_something


def _hints(path: Path) -> Iterator[str]:
    """Yield what each hint of a module says, without what is put into it when it is given."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "hint":
            yield "".join(
                part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
            )


def _choices(command: click.Command) -> Mapping[str, set[str]]:
    """Return the words that each option of a command takes, of those that take only some."""
    return {
        name: {str(choice) for choice in option.type.choices}
        for option in command.params
        if isinstance(option.type, click.Choice)
        for name in option.opts
    }


@pytest.mark.parametrize("name", sorted(VERBS))
def test_a_hint_names_only_words_that_its_option_takes(name):
    module = importlib.import_module(f"envsmith.cli.{VERBS[name][0]}")
    choices = _choices(getattr(module, name))

    unknown = [
        f"{option} {word}"
        for hint in _hints(Path(str(module.__file__)))
        for option, word in re.findall(r"(--[a-z-]+) ([a-z0-9-]+)", hint)
        if word not in choices.get(option, {word})
    ]

    assert unknown == []
