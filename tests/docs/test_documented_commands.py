"""Every command and every piece of Python of the README and of the docs is run, or its block says why not.

`tools/sessions.py` describes the marks of a block.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest

from envsmith.cli.app import run

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("sessions", ROOT / "tools" / "sessions.py")
sessions = importlib.util.module_from_spec(spec)
sys.modules["sessions"] = sessions
spec.loader.exec_module(sessions)

PAGES = sessions.pages()
BLOCKS = [block for page in PAGES for block in sessions.blocks(page)]
_PYTHON = re.compile(r"((?:^[ \t]*<!--.*?-->[ \t]*\n)*)^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_there_are_blocks_and_marks_that_are_known():
    assert len(BLOCKS) > 10
    for block in BLOCKS:
        assert block.commands, block
        if "not run" in block.marks:
            assert len(block.marks["not run"]) > 10, f"{block.page}: say why it is not run"


def _blocks_that_run():
    for block in BLOCKS:
        if "not run" not in block.marks:
            marks = [pytest.mark.slow] if "slow" in block.marks else []
            yield pytest.param(block, id=f"{block.page}-{block.number}", marks=marks)


@pytest.mark.parametrize("block", list(_blocks_that_run()))
def test_commands_run_and_print_what_the_page_shows(block, tmp_path, monkeypatch, capfd):
    sessions.prepare(block, tmp_path)
    monkeypatch.chdir(tmp_path)
    for command, code, output in zip(block.commands, block.codes, block.outputs, strict=True):
        words = shlex.split(command, comments=True)
        assert words[0] == "envsmith", (
            f"{block.page}: `{command}` is not a command of envsmith: mark the block `<!-- not run: reason -->`"
        )
        result = run(words[1:])
        printed = capfd.readouterr()
        assert result == code, f"{block.page}: {command}\n{printed.out[-1500:]}\n{printed.err[-1500:]}"
        if "output" in block.marks:
            assert output.rstrip() == printed.out.rstrip(), f"{block.page}: run tools/sessions.py"


def _python_blocks():
    for page in PAGES:
        for marks, code in _PYTHON.findall(page.read_text(encoding="utf-8")):
            if "not run" not in marks:
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
        own = words[1 : words.index("--")] if "--" in words else words[1:]  # what follows is another program's
        for word in own:
            if word.startswith("-") and word != "-":
                assert re.search(rf"(?<![\w-]){re.escape(word.split('=')[0])}(?![\w-])", listed), (
                    f"{block.page}: {word} in `{command}`"
                )


def test_relative_links_and_pictures_lead_somewhere():
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
        for target in targets:
            path, _, anchor = target.partition("#")
            if "://" in target:
                continue
            linked = page.parent / path if path else page
            assert linked.exists(), f"{page.relative_to(ROOT)}: {target}"
            assert not anchor or anchor in _anchors(linked), f"{page.relative_to(ROOT)}: {target}"


def _anchors(page):
    """Return the anchors of a page's headings, as both GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_no_command_stands_in_a_block_that_is_not_looked_at():
    for page in PAGES:
        assert not re.search(r"^    (envsmith|\$) ", page.read_text(encoding="utf-8"), flags=re.MULTILINE), page


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        assert f" {page.relative_to(ROOT / 'docs')}" in navigation, page
