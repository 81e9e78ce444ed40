"""Every command and every piece of Python of the README and of the docs is run, or its block says why not.

A block of commands is fenced as ``console``; its commands begin with ``$``. The line before it, or before a block of ``python``, may say

    <!-- not run: reason -->     it is not run here, and why
    <!-- exit N ... -->          the commands end with these codes (one for all, or one each) instead of 0
    <!-- in: library -->         it is run in a small library under git instead of an empty folder
"""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from envsmith.cli.app import run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if "reference" not in p.parts)]
_BLOCK = re.compile(r"((?:^[ \t]*<!--.*?-->[ \t]*\n)*)^[ \t]*```console\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"((?:^[ \t]*<!--.*?-->[ \t]*\n)*)^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!--\s*(not run|exit|in)[: ]\s*(.*?)\s*-->")


@dataclass(frozen=True)
class Block:
    page: str
    number: int
    commands: tuple[str, ...]
    marks: dict[str, str]


def _blocks():
    for page in PAGES:
        for number, match in enumerate(_BLOCK.finditer(page.read_text(encoding="utf-8"))):
            lines = [line.strip()[2:].strip() for line in match[2].splitlines() if line.strip().startswith("$ ")]
            yield Block(str(page.relative_to(ROOT)), number, tuple(lines), dict(_MARK.findall(match[1])))


BLOCKS = list(_blocks())


def test_there_are_blocks_and_marks_that_are_known():
    assert len(BLOCKS) > 10
    for block in BLOCKS:
        assert block.commands, block
        if "not run" in block.marks:
            assert len(block.marks["not run"]) > 10, f"{block.page}: say why it is not run"


@pytest.mark.parametrize("block", [b for b in BLOCKS if "not run" not in b.marks], ids=lambda b: f"{b.page}-{b.number}")
def test_commands(block, tmp_path, monkeypatch, capfd):
    if block.marks.get("in") == "library":
        _library(tmp_path)
    monkeypatch.chdir(tmp_path)
    codes = [int(code) for code in block.marks.get("exit", "0").split()]
    codes = codes * len(block.commands) if len(codes) == 1 else codes
    for command, wanted in zip(block.commands, codes, strict=True):
        words = shlex.split(command, comments=True)
        assert words[0] == "envsmith", (
            f"{block.page}: `{command}` is not a command of ours: mark the block `<!-- not run: reason -->`"
        )
        code = run(words[1:])
        told = capfd.readouterr()
        assert code == wanted, f"{block.page}: {command}\n{told.out[-1500:]}\n{told.err[-1500:]}"


def _python_blocks():
    for page in PAGES:
        for marks, code in _PYTHON.findall(page.read_text(encoding="utf-8")):
            if "not run" not in dict(_MARK.findall(marks)):
                yield pytest.param(code, id=page.name)


@pytest.mark.parametrize("code", list(_python_blocks()))
def test_python_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(code, {})


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: f"{b.page}-{b.number}")
def test_options_of_commands_that_are_not_run_exist(block, capsys):
    """A block that cannot be run here must at least be spelt right: every verb and option in it exists."""
    for command in block.commands:
        words = shlex.split(command, comments=True)
        if words[0] != "envsmith":
            continue
        path = [w for w in words[1:3] if re.fullmatch(r"[a-z]+", w)]
        for depth in (path, path[:1]):
            if run([*depth, "--help"]) == 0:
                break
        else:
            pytest.fail(f"{block.page}: no verb {path}: {command}")
        listed = capsys.readouterr().out
        for word in words[1:]:
            if word.startswith("-") and word != "-":
                assert re.search(rf"(?<![\w-]){re.escape(word.split('=')[0])}(?![\w-])", listed), (
                    f"{block.page}: {word} in `{command}`"
                )


def _library(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "mylib"\nversion = "1.0.0"\nrequires-python = ">=3.10"\ndependencies = ["torch>=2.6", "deepspeed>=0.16"]\n',
        encoding="utf-8",
    )
    git = ["git", "-c", "user.email=a@example.invalid", "-c", "user.name=a"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], cwd=folder, check=True)


def test_relative_links_lead_somewhere():
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target and "reference/" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
