"""Whatever stands in a lock: it is refused, or the Dockerfile has the instructions that a plain lock gives and nothing active of the input."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from envsmith.builder.image.dockerfile import ImageOptions, render
from envsmith.errors import UsageError
from envsmith.model.cell import Cell
from envsmith.model.lock import BaseImage, Lock, OsPackage, Pin

NASTY = st.text(
    alphabet=st.sampled_from("ab1.-+:/@_ \n\r\t\"'`$\\;|&<>(){}[]#=,~*?!\x00\u2028é"), min_size=0, max_size=24
)
PLAIN = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
ANY = st.one_of(NASTY, PLAIN, st.text(max_size=12))


def lock(name, version, component, image, interpreter, distribution):
    cell = Cell(components={"six": component, "python": "3.11"}, chosen=("six", "python"))
    base = BaseImage(
        name=image, digest="sha256:" + "a" * 64, origin="registry", python=interpreter, distribution=distribution
    )
    return Lock(
        cell=cell, request="", exclude_newer="2026-11-20", python_version="3.11.2", base=base,
        pins=(Pin(name="six", version=component, layer="framework", artifacts=()),), os_packages=(OsPackage(name=name, version=version),),
    )  # fmt: skip


def shape(text):
    return [
        line.split(" ", 1)[0] for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")
    ]


PLAIN_TEXT = render(
    lock("g++", "1", "1.0", "python:3", "/usr/bin/python3", "bookworm"), ImageOptions(extra_labels=(("a.b", "x"),))
)


PLAIN_VALUES = ("g++", "1", "1.0", "python:3", "/usr/bin/python3", "bookworm", "x")


@given(which=st.integers(0, 6), value=ANY)
@example(which=6, value=";|&{}")
def test_input_is_refused_or_inert(which, value):
    values = [*PLAIN_VALUES[:which], value, *PLAIN_VALUES[which + 1 :]]
    try:
        text = render(lock(*values[:6]), ImageOptions(extra_labels=(("a.b", values[6]),)))
    except (UsageError, ValueError):
        return
    assert shape(text) == shape(PLAIN_TEXT)
    assert text.count("\n") == PLAIN_TEXT.count("\n")
    for active in "$`'\\;&|<>(){}":
        if which != 6 or active not in ";|&<>(){}":  # inside a label's double quotes these mean nothing
            assert text.count(active) == PLAIN_TEXT.count(active)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\uffff]", text)
