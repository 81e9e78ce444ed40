"""Every reader on inputs that are nearly right: a value or one of our errors. ``make fuzz`` does the same for an hour, steered by atheris."""

from __future__ import annotations

import os

import pytest
from fuzz_readers import READERS, SHAPES, TEXTS, crashes, once, seeds, structured
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("ENVSMITH_FUZZ_EXAMPLES", "10"))
QUICK = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
BITS = (
    "\n",
    " ",
    ":",
    "=",
    "==",
    ",",
    "[",
    "]",
    "{",
    "}",
    '"',
    "'",
    "#",
    "\\",
    "-",
    "@",
    "\x00",
    "\ud800",
    "²",
    "1" * 4400,
    "&a",
    "*a",
    "!!x",
    "%",
)


@pytest.mark.parametrize("name", READERS)
def test_every_reader_has_something_to_start_from(name):
    assert TEXTS.get(name) or SHAPES.get(name)


@pytest.mark.parametrize(
    ("name", "path"), [(n, p) for n in READERS for p in crashes(n)], ids=lambda x: getattr(x, "name", x)
)
def test_what_once_broke_a_reader_is_answered(name, path):
    once(name, path.read_text(encoding="utf-8", errors="surrogateescape"))


@pytest.mark.parametrize("name", READERS)
@QUICK
@given(data=st.data())
def test_a_text_cut_and_joined_anywhere_is_answered(name, data):
    told = seeds(name)
    text, other = data.draw(st.sampled_from(told)), data.draw(st.sampled_from(told))
    start, end = (data.draw(st.integers(0, len(text))) for _ in range(2))
    bit = data.draw(st.sampled_from(BITS) | st.text(max_size=8))
    once(name, text[:start] + bit + (text[end:] or other[end:]))


@pytest.mark.parametrize("name", SHAPES)
@QUICK
@given(data=st.data())
def test_a_document_with_a_wrong_value_somewhere_is_answered(name, data):
    once(name, data.draw(structured(name)))
