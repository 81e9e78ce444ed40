"""Which releases have a line of code at a number, and the first that no longer has it."""

from __future__ import annotations

import pytest
from release_index import Index

from envsmith.errors import NetworkError
from envsmith.lock.index.asked_lines import first_without, releases_with
from envsmith.lock.index.asked_names import AskedReleases
from envsmith.model.code_line import CodeLine

PATH = "pkg/train.py"


def source(version: int) -> str:
    """A file that grows by three lines a release, with a line of its own and one that stands in it twice."""
    old = "    fp16 = config['fp16']['enabled']\n" if version < 21 else ""
    return (
        "import os\n" * 3 * version
        + f"def train(config):\n{old}    return run(config)\n\n\nend = run(config)\nend = 1\nend = 1\n"
    )


@pytest.fixture
def index() -> Index:
    """Sixty releases of a package, whose file grows."""
    index = Index()
    for version in range(60):
        index.release(f"0.{version}", {PATH: source(version)})
    return index


def find(index: Index, *lines: CodeLine) -> tuple[str, ...]:
    with AskedReleases(index, "pkg") as releases:
        return releases_with(releases, lines)


def test_a_line_at_its_number_tells_the_release(index):
    line = CodeLine(PATH, 3 * 13 + 2, "fp16 = config['fp16']['enabled']")

    assert find(index, line) == ("0.13",)
    assert len({url for url, _ in index.fetcher.sent}) < 25


def test_releases_whose_file_is_the_same_there_are_told_together(index):
    for patch in (1, 2):
        index.release(f"0.13.{patch}", {PATH: source(13) + f"later = {patch}\n"})

    assert find(index, CodeLine(PATH, 3 * 13 + 1, "def train(config):")) == ("0.13", "0.13.1", "0.13.2")


def test_a_second_line_tells_releases_apart(index):
    index.release("0.13.1", {PATH: source(13) + "later = 1\n"})
    lines = (CodeLine(PATH, 3 * 13 + 1, "def train(config):"), CodeLine(PATH, 3 * 13 + 9, "later = 1"))

    assert find(index, *lines) == ("0.13.1",)


@pytest.mark.parametrize(
    "line",
    [
        CodeLine(PATH, 40, "import os"),
        CodeLine(PATH, 45, "end = 1"),
        CodeLine(PATH, 2, "def train(config):"),
        CodeLine("pkg/other.py", 3, "def train(config):"),
    ],
)
def test_what_stands_often_or_elsewhere_or_nowhere_tells_nothing(index, line):
    assert find(index, line) == ()


def test_a_release_that_cannot_be_read_is_passed_over(index):
    index.fetcher.broken["pkg-0.13-py3-none-any.whl"] = 100

    assert find(index, CodeLine(PATH, 3 * 13 + 1, "def train(config):")) == ()
    assert find(index, CodeLine(PATH, 3 * 20 + 1, "def train(config):")) == ("0.20",)


def test_the_first_release_without_a_line_is_found_wherever_the_line_stands(index):
    with AskedReleases(index, "pkg") as releases:
        since = first_without(releases, CodeLine(PATH, 41, "fp16 = config['fp16']['enabled']"), "0.13")

    assert since == "0.21"


@pytest.mark.parametrize(
    ("text", "release"),
    [("def train(config):", "0.13"), ("nowhere()", "0.13"), ("fp16 = config['fp16']['enabled']", "0.30")],
)
def test_a_line_that_stayed_or_never_was_has_no_such_release(index, text, release):
    with AskedReleases(index, "pkg") as releases:
        assert first_without(releases, CodeLine(PATH, 41, text), release) is None


def test_releases_that_take_too_long_are_refused(index):
    ticks = iter([0.0, 1.0, 99.0, 99.0])
    with AskedReleases(index, "pkg", longest=25, clock=lambda: next(ticks)) as releases, pytest.raises(NetworkError):
        releases_with(releases, [CodeLine(PATH, 40, "def train(config):")])
