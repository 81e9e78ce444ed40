"""Flags as values: a dataclass declares the options of a command."""

from __future__ import annotations

from dataclasses import dataclass, replace

import click
from click.testing import CliRunner

from envsmith.cli.declare import argument, choice, flag, group, option, takes, verb
from envsmith.cli.flags import RequestFlags


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    name: str = argument()
    request: RequestFlags = group(RequestFlags)  # noqa: RUF009
    jobs: int = option("--jobs", type=int, default=4, help="How many.")
    word: str = choice("--word", ["a", "b"], "Which.", default="b")
    as_json: bool = flag("--json", "As JSON.")


@click.command()
@takes(Flags)
def command(flags: Flags) -> Flags:
    return flags


def _flags(*words: str) -> Flags:
    return command.main(list(words), standalone_mode=False)


def test_a_command_line_becomes_one_value():
    flags = _flags("x", "--framework", "deepspeed", "--jobs", "2", "--json")
    assert (flags.name, flags.jobs, flags.as_json) == ("x", 2, True)
    assert flags.request == RequestFlags(framework=("deepspeed",))


def test_a_value_made_by_hand_is_what_an_empty_command_line_gives():
    assert _flags("x") == Flags(name="x", request=RequestFlags())
    assert replace(_flags("x"), jobs=1).jobs == 1


def test_help_lists_the_options_in_the_order_of_the_fields():
    text = CliRunner().invoke(command, ["--help"]).output
    places = [text.index(word) for word in ("--framework", "--exclude-newer", "--jobs", "--json")]
    assert places == sorted(places)


def test_help_shows_the_default_of_an_option_that_has_one():
    text = CliRunner().invoke(command, ["--help"]).output
    assert "How many.  [default: 4]" in text
    assert "Which.  [default: b]" in text


@dataclass(frozen=True, kw_only=True, slots=True)
class SectionedFlags:
    request: RequestFlags = group(RequestFlags, "Request")  # noqa: RUF009
    jobs: int = option("--jobs", type=int, help="How many.", section="Many cells")


@verb("tool --jobs 2")
@takes(SectionedFlags)
def sectioned(_flags: SectionedFlags) -> int:
    """Do it."""
    return 0


def test_help_shows_options_in_sections_and_ends_with_examples():
    text = CliRunner().invoke(sectioned, ["--help"]).output
    headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Request:", "Many cells:", "Output:", "Examples:"]
    assert text.index("--torch") < text.index("--jobs") < text.index("--help") < text.index("  tool --jobs 2")
    assert text.rstrip().endswith("tool --jobs 2")
