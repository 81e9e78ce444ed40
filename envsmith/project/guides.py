"""Texts in which a project says what to install: for people, for a shell, and for an engine."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from envsmith.base.files import read_bounded
from envsmith.errors import EnvsmithError
from envsmith.project.declared import MAX_BYTES, DeclaredLines, DeclaredRequirement, add_conda

# In the order in which they are asked: what a program runs, what people read, and what makes an image.
_GUIDES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?:[\w.-]{1,60}/)?[\w.-]{0,40}(?:install|setup|env|requirements|prepare)[\w.-]{0,40}\.(?:ba)?sh",
        r"(?:readme|install)[\w.-]{0,40}\.(?:md|rst|txt)",
        r"(?:[\w.-]{1,60}/)?(?:(?:docker|container)file[\w.-]{0,40}|[\w.-]{1,40}\.dockerfile)",
    )
)
_LONGEST, _MOST_FILES = 4000, 5000
_COMMAND = re.compile(
    r"\b(?P<tool>pip3?|uv|conda|mamba|micromamba)\s+(?P<verb>install|add|create|pip\s+install)\s+(?P<words>[^\n`;|&#)]{1,2000})"
)
# Options of pip, uv and conda whose value is the next word.
_WITH_VALUE = frozenset(
    {"-r", "-c", "-e", "-i", "-f", "-t", "-n", "-p", "--index-url", "--extra-index-url", "--find-links", "--editable"}
    | {"--name", "--prefix", "--channel", "--target", "--python", "--requirement", "--constraint", "--index"}
)


def guides_of(files: Iterable[str]) -> list[str]:
    """Return those of a project's files that say what to install, what a program runs first."""
    listed = sorted(files)
    return [name for pattern in _GUIDES for name in listed if pattern.fullmatch(name)]


def shallow_files(root: Path) -> Iterator[str]:
    """Yield the files of a folder and of those directly in it, without hidden ones."""
    for pattern in ("*", "*/*"):
        for path in itertools.islice(root.glob(pattern), _MOST_FILES):
            name = path.relative_to(root).as_posix()
            if path.is_file() and not name.startswith("."):
                yield name


def guide_lines(path: Path, name: str) -> DeclaredLines:
    """Return what the commands of a text install, without options, addresses and paths, and the Python of a Conda one.

    A text that cannot be read names nothing.
    """
    lines = DeclaredLines()
    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8", "replace")
    except EnvsmithError:
        return lines
    for number, line in _logical(text):
        for command in _COMMAND.finditer(line[:_LONGEST]):
            words = list(_named(command["words"]))
            if command["tool"].endswith(("conda", "mamba")):
                for word in words:
                    add_conda(word, name, number, lines)
            elif command["verb"] != "create":
                lines.entries += (DeclaredRequirement(word, name, number) for word in words)
    return lines


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers: those that a backslash joins are one. A comment of a shell is none."""
    start, parts = 0, list[str]()
    for number, raw in enumerate([*text.splitlines(), ""], 1):
        start = start or number
        parts.append(raw.removesuffix("\\"))
        if not raw.endswith("\\"):
            yield start, " ".join(parts)
            start, parts = 0, []


def _named(text: str) -> Iterator[str]:
    try:
        words = iter(shlex.split(text))
    except ValueError:
        words = iter(text.replace('"', " ").replace("'", " ").split())
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif re.match(r"[A-Za-z0-9]", word) and "/" not in word and not word.endswith((".whl", ".txt", "...")):
            yield word
