"""The generated reference covers the code: every verb, exit code, and environment variable."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from envsmith.cli.app import VERBS
from envsmith.cli.variables import VARIABLES
from envsmith.errors import EXIT_CODES

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)

# Read to judge a machine, to compose what a child process gets, or inside the cell or its image: not settings of the program.
_JUDGED = ("doctor", "smoke", "agent", "preflight", "launch/run/", "builder/image/steps/")
_HANDED_ON = re.compile(r"(UV|PIP|LD|CUDA|NCCL|TORCH|SLURM|MASTER|LOCAL|RANK|WORLD|GITHUB|TORCHELASTIC)_?\w*")


def test_every_verb_and_option_is_on_the_page():
    page = reference.cli()
    for verb in VERBS:
        assert f"## envsmith {verb}" in page
    assert "--exclude-newer" in page


def test_every_exit_code_is_on_the_page():
    page = reference.exit_codes()
    assert all(f"| {code} |" in page for code in EXIT_CODES)


def test_every_variable_that_the_code_reads_is_in_the_table():
    read = set()
    for path in (ROOT / "envsmith").rglob("*.py"):
        name = path.relative_to(ROOT / "envsmith").as_posix()
        if not name.startswith(_JUDGED) and name != "cli/variables.py":
            text = path.read_text(encoding="utf-8")
            read |= set(re.findall(r"""environ(?:ment)?(?:\.get\(|\[)\s*["']([A-Z][A-Z_]+)["']""", text))
            read |= set(re.findall(r"""["'](ENVSMITH_[A-Z_]+)["']""", text))
    missing = {n for n in read if n not in VARIABLES and not _HANDED_ON.fullmatch(n)}
    assert not missing, f"add to envsmith/cli/variables.py: {sorted(missing)}"


# `make docs` makes this page too.
@pytest.mark.slow
@pytest.mark.parametrize("name", reference.PAGES)
def test_the_pages_of_the_repository_are_those_of_the_code(name):
    assert (reference.FOLDER / name).read_text(encoding="utf-8") == reference.text_of(name), "run tools/reference.py"


def test_there_is_no_page_that_nothing_makes():
    assert {path.name for path in reference.FOLDER.iterdir()} == set(reference.PAGES)


def test_links_to_the_reference_lead_to_its_pages():
    for page in (ROOT / "docs").rglob("*.md"):
        for name in re.findall(r"\]\((?:\.\./)?reference/([^)#]+)", page.read_text(encoding="utf-8")):
            assert name in reference.PAGES, f"{page.relative_to(ROOT)}: {name}"
