"""Dotted paths: of an expression, without writing out the whole of it, and of an import."""

from __future__ import annotations

import ast
from collections.abc import Iterable


def dotted(node: ast.AST | None) -> str:
    """Return ``a.b.c`` for a chain of names, with ``()`` after a call without arguments, and ``""`` for the rest."""
    steps: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            steps.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Call) and not node.args and not node.keywords and isinstance(node.func, ast.Name):
            steps.append(f"{node.func.id}()")
            break
        elif isinstance(node, ast.Name):
            steps.append(node.id)
            break
        else:
            return ""
    return ".".join(reversed(steps))


def is_below(module: str, roots: Iterable[str]) -> bool:
    """Return whether a dotted path is one of some roots, or below one."""
    return any(f"{module}.".startswith(f"{root}.") for root in roots)


def constant(node: ast.AST | None) -> str:
    """Return the text of a string constant, ``""`` for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def absolute(node: ast.ImportFrom, package: str) -> str:
    """Return the module that a ``from`` names, with relative ones made absolute."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])
