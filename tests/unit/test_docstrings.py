"""What the library says of itself: a public function names every error that its own body raises (the CLI's docstrings are its help)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "envsmith"
FILES = sorted(p for p in PACKAGE.rglob("*.py") if "cli" not in p.relative_to(PACKAGE).parts)


def public(tree):
    """Functions and methods that ``__all__`` offers."""
    names = {
        element.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
        for element in node.value.elts
    }
    for node in tree.body:
        if getattr(node, "name", "") not in names:
            continue
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        yield from (f for f in inner if isinstance(f, ast.FunctionDef) and not f.name.startswith("_"))


def untold(function):
    """Errors that it raises and does not mention; what a protocol says is said there."""
    told = ast.get_docstring(function) or ""
    thrown = (node.exc for node in ast.walk(function) if isinstance(node, ast.Raise) and node.exc is not None)
    names = {getattr(e.func if isinstance(e, ast.Call) else e, "id", "") for e in thrown}
    return [] if "See " in told else sorted(n for n in names if n.endswith("Error") and n not in told)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_public_functions_name_the_errors_they_raise(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert {f"{f.name}: {name}" for f in public(tree) for name in untold(f)} == set()


def test_an_error_that_is_not_told_is_found():
    tree = ast.parse('__all__ = ["f"]\ndef f():\n    """Does it."""\n    raise UsageError("x")\n')
    assert [untold(f) for f in public(tree)] == [["UsageError"]]
