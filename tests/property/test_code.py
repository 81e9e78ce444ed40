"""Arbitrary files of a project never stop the readers of its code."""

from __future__ import annotations

import ast
import json
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from envsmith.base.schema import UnreadableError
from envsmith.errors import DataError
from envsmith.knowledge.names.uses import read_uses
from envsmith.project.code.python_files import ProjectSources, SourceText, notebook_code, read_project
from envsmith.project.code.reading import read_project_uses
from envsmith.project.stated import read_stated

WORDS = st.sampled_from(
    ["import ", "from ", "torch", ".", "x", " as ", "\n", "    ", "def f():", "class K(x):", "self.", "try:", "except:", "if ",
     "hasattr(x, 'y')", ":", "(", ")", "[", "]", "*", "**", "=", "getattr(", "'", '"', "\\", "\0", "lambda x:", " for x in ", "global x",
     "match x:", "case ", "print 'x'", "async ", "await ", "yield", "%magic", "!ls", "?", "é", "\ud800"]
)  # fmt: skip
SOURCES = st.one_of(
    st.lists(WORDS, max_size=60).map("".join).map(lambda s: s.encode("utf-8", "replace")), st.binary(max_size=300)
)


@given(SOURCES)
@settings(max_examples=300, deadline=None)
def test_any_text_is_read_or_is_not_python(source):
    with suppress(SyntaxError):
        for use in read_uses(source, "a.b", package=False, own={"a"}).uses:
            assert use.chain
            assert all(use.chain)


@given(st.dictionaries(st.sampled_from(["train.py", "a/b.py", "a/__init__.py", "x.ipynb"]), SOURCES, min_size=1))
@settings(max_examples=100, deadline=None)
def test_any_project_is_read_with_what_was_left_out(files):
    sources = tuple(SourceText(path=path, text=text) for path, text in files.items())
    uses = read_project_uses(ProjectSources(root=Path(), sources=sources, files=frozenset(files)))
    assert len(uses.unreadable) <= len(files)


@given(st.lists(st.text(max_size=60), max_size=5))
@example(["*0"])  # it is read, though no Python runs it
@settings(max_examples=100, deadline=None)
def test_any_notebook_becomes_python(cells):
    document = {"cells": [{"cell_type": "code", "source": text} for text in cells]}
    with suppress(UnreadableError):
        text, starts, _ = notebook_code(json.dumps(document).encode())
        ast.parse(text)
        assert len(starts) == len(cells)


@given(st.binary(max_size=200), st.binary(max_size=200))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_files_are_requirements_or_nothing(tmp_path, setup, readme):
    (tmp_path / "setup.py").write_bytes(b"setup(install_requires=[" + setup + b"])")
    (tmp_path / "README.md").write_bytes(b"pip install " + readme)
    (tmp_path / "x.ipynb").write_bytes(readme)
    with suppress(DataError):
        project = read_project(tmp_path)
        read_stated(project.root, project.files)
