"""Flags as values: a dataclass declares the options of a command."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import click
import pytest
from click.testing import CliRunner

from envsmith.cli.console import print_out, say
from envsmith.cli.declare import ExistingFile, NoFlags, argument, choice, flag, group, option, several, takes, verb
from envsmith.cli.flags import RequestFlags


@dataclass(frozen=True, kw_only=True, slots=True)
class Flags:
    name: str = argument()
    request: RequestFlags = group(RequestFlags)  # noqa: RUF009
    jobs: int = option("How many.", default=4)
    word: str = choice(["a", "b"], "Which.", default="b")
    files_read: tuple[ExistingFile, ...] = several("FILE", "What is read.")
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


def test_an_option_has_the_name_and_the_type_of_its_field(tmp_path):
    file = tmp_path / "a.txt"
    file.touch()

    flags = _flags("x", "--files-read", str(file), "--files-read", str(file))

    assert flags.files_read == (file, file)
    with pytest.raises(click.BadParameter, match="does not exist"):
        _flags("x", "--files-read", str(tmp_path / "absent"))


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
    jobs: int = option("How many.", section="Many cells")


@verb(SectionedFlags, "tool --jobs 2")
def sectioned(_flags: SectionedFlags) -> int:
    """Do it."""
    return 0


def test_help_shows_options_in_sections_and_ends_with_examples():
    text = CliRunner().invoke(sectioned, ["--help"]).output
    headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Request:", "Many cells:", "Output:", "Examples:"]
    assert text.index("--torch") < text.index("--jobs") < text.index("--help") < text.index("  tool --jobs 2")
    assert text.rstrip().endswith("tool --jobs 2")


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedFlags:
    names: tuple[str, ...] = several("--with", "NAME", "Which.", positional="[NAME...]", old=("--package",))
    form: str = choice(["text", "json"], "--format", "How.", default="text")


@verb(NamedFlags)
def named(flags: NamedFlags) -> int:
    print_out(f"{flags.form}: {' '.join(flags.names)}")
    return 1


def test_plain_arguments_stand_for_an_option_and_an_old_name_works_unseen():
    runner = CliRunner()
    words = ["a", "--package", "b", "--with", "c"]
    assert runner.invoke(named, words, standalone_mode=False).output == "text: a b c\n"
    assert "--package" not in runner.invoke(named, ["--help"]).output


def test_json_chooses_the_format_of_a_command_that_has_it():
    assert CliRunner().invoke(named, ["a", "--json"], standalone_mode=False).output == "json: a\n"


@verb(NoFlags)
def plain(_flags: NoFlags) -> int:
    say("talk")
    print_out("one\ntwo")
    return 1


def test_json_makes_one_object_of_what_a_command_prints():
    output = CliRunner().invoke(plain, ["--json", "--quiet"], standalone_mode=False).output
    assert json.loads(output) == {"status": "failed", "exit_code": 1, "output": ["one", "two"]}


def test_quiet_leaves_out_the_talk():
    assert CliRunner().invoke(plain, ["-q"], standalone_mode=False).output == "one\ntwo\n"
