"""Which changes of a public function between two revisions break its callers, and that only modules that communicate are judged."""

from __future__ import annotations

import subprocess

import pytest

from envsmith.project.ci.library import read_library
from envsmith.project.ci.since import api_breaks, compare

HEAD = "import torch.distributed as dist\n"


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("def f(x): ...", "", "f is gone"),
        ("def f(x): ...", "def f(x, group): ...", "group is required"),
        ("def f(x, group=None): ...", "def f(x, group): ...", "group is required"),
        ("def f(x, y): ...", "def f(x): ...", "parameter y is gone"),
        ("def f(x, y): ...", "def f(y, x): ...", "order"),
        ("class A:\n    def go(self, x): ...", "class A:\n    pass", "A.go is gone"),
        ("class A:\n    def __init__(self): ...", "class A:\n    def __init__(self, size): ...", "size is required"),
        ("class A: ...", "def A(): ...", "a class and a function"),
        ("def f(x, y): ...", "def f(x, *, y): ...", "parameter y was positional or keyword and is keyword-only"),
        ("GROUP = 1", "", "GROUP is gone"),
    ],
)
def test_breaks(before, after, told):
    ((what, line),) = api_breaks(HEAD + before, HEAD + after)
    assert told in what
    assert line >= 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(x): ...", "def f(x, group=None): ..."),
        ("def f(x): ...", "def f(x, *, group=None): ..."),
        ("def _f(x): ...", ""),
        ("def f(x): ...", "def f(x): ...\ndef g(): ..."),
        ("def f(x=1) -> int: ...", "def f(x=2) -> str: ..."),
    ],
)
def test_no_breaks(before, after):
    assert api_breaks(HEAD + before, HEAD + after) == []


def test_modules_that_do_not_communicate_are_not_judged():
    assert api_breaks("import json\ndef f(): ...", "") == []


@pytest.mark.parametrize("text", ["def (", "\x00", "(" * 100_000])
def test_what_is_no_python_is_passed_over(text):
    assert api_breaks(text, HEAD) == []
    assert api_breaks(HEAD, text) == []


def _library(folder, torch):
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "mylib"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["torch{torch}"]\n'
    )


def test_a_release_that_could_occur_before_is_not_gained_by_a_higher_floor(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    _library(tmp_path, ">=2.8")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    _library(tmp_path, ">=2.9.0")

    comparison = compare(tmp_path, "HEAD", read_library(tmp_path))

    assert dict(comparison.lost) == {"torch": ("2.8.0",)}
    assert dict(comparison.gained) == {}
