"""A schema is a dataclass; every problem of a document is noted at once, each with its key path."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import pytest

from envsmith.base.schema import (
    Checked,
    Day,
    Flag,
    Parsed,
    Problems,
    Text,
    UnreadableError,
    WrongValueError,
    check,
    exactly,
    one_or_many,
    parse_document,
    parse_json,
    read_document,
    strict,
    text_of,
    whole_number,
)
from envsmith.errors import DataError


class Colour(str, Enum):
    RED = "red"
    BLUE = "blue"


def even(value: object, context: object) -> object:
    if not isinstance(value, int) or value % 2:
        raise WrongValueError("an even number belongs here", f"as {context}", path="[0]", part=value)
    return value


def sorted_only(value: tuple[str, ...], _context: object) -> tuple[str, ...]:
    if list(value) != sorted(value):
        raise ValueError("not in order")
    return value


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    name: Text
    colour: Colour = Colour.RED
    day: Day | None = None
    bold: Flag = False
    width: Annotated[int, whole_number(1, 9)] = 1
    pair: Annotated[int, Parsed(even)] = 0
    tags: Annotated[tuple[Text, ...], one_or_many(), Checked(sorted_only)] = ()


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    schema: Annotated[int, exactly(1, "this program reads schema 1")]
    lines: tuple[Line, ...] = ()
    named: Mapping[str, Line] | None = None


def problems_of(document: object) -> list[str]:
    problems = Problems()
    assert check(File, document, "f.yaml", problems, context="2") is None
    return problems.lines


def test_valid_document_becomes_a_value():
    problems = Problems()
    value = check(File, {"schema": 1, "lines": [{"name": " a ", "colour": "blue", "tags": "x"}]}, "f", problems)
    assert value == File(schema=1, lines=(Line(name="a", colour=Colour.BLUE, tags=("x",)),))
    assert not problems.lines


def test_every_problem_is_noted_with_its_key_path():
    assert problems_of(
        {"schema": 2, "lines": [{"name": 5, "colour": "green"}, {"nmae": "x"}, 7], "named": {"a": {"name": ""}}}
    ) == [
        "f.yaml: schema: `2`: this program reads schema 1",
        "f.yaml: lines[0].name: `5`: text belongs here — quote it",
        "f.yaml: lines[0].colour: `green`: unknown word — choose red, blue",
        "f.yaml: lines[1]: `name` is missing — add `name:`",
        "f.yaml: lines[1].nmae: `x`: unknown key — did you mean `name`?",
        "f.yaml: lines[2]: `7`: a mapping (key: value) belongs here",
        "f.yaml: named.a.name: ``: empty",
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"day": "2026-02-30"}, "day: `2026-02-30`: not a day — write it as 2026-11-20"),
        ({"day": "yesterday"}, "day: `yesterday`: not a day — write it as 2026-11-20"),
        ({"bold": 1}, "bold: `1`: true or false belongs here"),
        ({"width": True}, "width: `True`: a whole number from 1 to 9 belongs here"),
        ({"width": 10}, "width: `10`: a whole number from 1 to 9 belongs here"),
        ({"pair": 3}, "pair[0]: `3`: an even number belongs here — as 2"),
        ({"tags": ["b", "a"]}, "tags: not in order"),
        ({"tags": {"a": 1}}, "tags[0]: text belongs here"),
        ({"zzz": None}, "zzz: unknown key — remove it"),
    ],
)
def test_problem_of_a_field_says_what_belongs_there(line, problem):
    assert problems_of({"schema": 1, "lines": [{"name": "a"} | line]}) == [f"f.yaml: lines[0].{problem}"]


def test_key_that_is_not_text_is_a_problem_of_its_mapping():
    assert problems_of({"schema": 1, "named": {7: {"name": "a"}}}) == ["f.yaml: named: key `7`: not text — quote it"]


def test_key_path_begins_at_the_root_of_the_table():
    problems = Problems()
    check(File, {"schema": 3}, "pyproject.toml", problems, root="tool.envsmith")
    assert problems.lines == ["pyproject.toml: tool.envsmith.schema: `3`: this program reads schema 1"]
    with pytest.raises(DataError, match="no file") as caught:
        problems.refuse("no file")
    assert caught.value.details == tuple(problems.lines)


def test_text_has_the_form_of_its_pattern():
    import re

    with pytest.raises(WrongValueError):
        text_of(10, re.compile("[a-z]+")).function("A", None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.yaml", b"a: [", "not valid YAML"),
        ("a.yaml", b"a: 1\na: 2\n", "key `a` twice"),
        ("a.yaml", b"a: &a [*a]\n", "too many nodes"),
        ("a.yaml", b"[" * 5000, "not valid YAML"),
        ("a.yaml", b"\xff\xfe\x00", "not valid YAML"),
        ("a.json", b"{", "not valid JSON"),
        ("a.json", b"[" * 100_000, "not valid JSON"),
    ],
)
def test_what_is_no_document_is_refused(name, content, message):
    with pytest.raises(UnreadableError, match=message):
        parse_document(name, content)
    problems = Problems()
    assert read_document(File, name, content, problems) is None
    assert problems.lines[0].startswith(f"{name}: not valid")


def test_days_of_yaml_stay_text():
    assert parse_document("a.yaml", b"day: 2026-01-02") == {"day": "2026-01-02"}


def test_declaring_a_schema_imports_no_library():
    code = "import sys, envsmith.base.schema; print('pydantic' in sys.modules, 'yaml' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["False", "False"]


@pytest.mark.parametrize("text", [b"a: " + b"[" * 200_000, b"- " * 200_000, b"? " * 200_000, b"{a: " * 200_000])
def test_nesting_that_would_end_the_process_is_refused(text):
    with pytest.raises(UnreadableError, match=r"nested too deeply|not valid YAML"):
        parse_document("a.yaml", text)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"[" * 30_000, "nested too deeply"),
        ("a.json", b'{"a":' * 30_000, "nested too deeply"),
        ("a.json", b"[" * 101 + b"]" * 101, "nested too deeply"),
        ("a.yaml", b"[" * 101 + b"]" * 101, "too many nodes or levels"),
        ("a.json", b"9" * 5000, "too many digits"),
        ("a.yaml", b"9" * 5000, "too many digits"),
        ("a.yaml", b"0x" + b"f" * 299, "too many digits"),
        ("a.json", rb'"\ud800"', "not UTF-8"),
        ("a.json", b'"\xed\xa0\x80"', "not UTF-8"),
        ("a.yaml", b'!!int ""', "not valid YAML"),
        ("a.yaml", b"!!bool x", "not valid YAML"),
        ("a.yaml", b"!!timestamp 2026-01-01", "not valid YAML"),
        ("a.yaml", b"!!set {a}", "not valid YAML"),
    ],
)
def test_what_would_break_a_later_reader_is_refused(name, content, message):
    with pytest.raises(UnreadableError, match=message):
        parse_document(name, content)


def test_brackets_and_digits_of_a_text_are_not_nesting():
    content = json.dumps(["[" * 200, '\\"[', "1" * 5000, ["\U0001f600"] * 200]).encode()

    assert parse_json(content) == json.loads(content)
