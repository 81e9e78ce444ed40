"""What a call gives: arguments by position, constants. And what is done with its result."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from envsmith.knowledge.names.dotted import constant
from envsmith.knowledge.names.scopes import FUNCTIONS

# What is taken of something that is called, and what says that the first argument is a text.
CALLED, TEXT_FIRST = "()", "#1=str"
# Methods that return an item, or what they are called on in another form.
_PASSING = frozenset({"bfloat16", "copy", "cpu", "cuda", "double", "float", "get", "half", "pop", "to", "type"})
_ASKING = frozenset({"callable", "hasattr", "isinstance", "type"})


def positions_of(call: ast.Call, *, object_first: bool) -> tuple[str, ...]:
    """Return ``#2`` for a call that surely gives two arguments by position, without one that may be the object of a method."""
    starred = (at for at, argument in enumerate(call.args) if isinstance(argument, ast.Starred))
    count = next(starred, len(call.args)) - object_first
    return (f"#{count}",) if count > 0 else ()


def values_of(call: ast.Call) -> tuple[str, ...]:
    """Return ``name=False`` and the like for constants that are given by name, and :data:`TEXT_FIRST`."""
    named = (f"{k.arg}={k.value.value!r}" for k in call.keywords if k.arg and isinstance(k.value, ast.Constant))
    return (*([TEXT_FIRST] if call.args and constant(call.args[0]) else []), *named)


def attributes_of(call: ast.Call, body: Sequence[ast.stmt]) -> frozenset[str]:
    """Return the attributes that statements take of what a call among them returns. :data:`CALLED` where they call it.

    What stands under a condition that asks what it is, and in functions among the statements, is left out.
    """
    reader = _Reader(call)
    for node in body:
        reader.visit(node)
    return frozenset(reader.attributes)


class _Reader(ast.NodeVisitor):
    def __init__(self, call: ast.Call) -> None:
        self._call = call
        self._names: set[str] = set()
        self.attributes: set[str] = set()

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            return
        if isinstance(node, (ast.If, ast.IfExp)) and self._asks(node.test):
            return
        if isinstance(node, ast.Assign):
            self._assign(node)
            return
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self._names.discard(node.id)
        elif isinstance(node, ast.Attribute) and self._is_result(node.value):
            self.attributes.add(node.attr)
        elif isinstance(node, ast.Call) and self._is_result(node.func):
            self.attributes.add(CALLED)
        self.generic_visit(node)

    def _assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        is_result = self._is_result(node.value)
        for target in node.targets:
            self.visit(target)
            if isinstance(target, ast.Name) and is_result:
                self._names.add(target.id)

    def _is_result(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._names
        if isinstance(node, ast.BoolOp):
            return all(map(self._is_result, node.values))
        if isinstance(node, ast.Call) and node is not self._call:
            passing = isinstance(node.func, ast.Attribute) and node.func.attr in _PASSING
            return passing and self._is_result(node.func.value)  # type: ignore[attr-defined]
        return node is self._call or (isinstance(node, ast.Subscript) and self._is_result(node.value))

    def _asks(self, test: ast.expr) -> bool:
        """Return whether a condition asks what the result is."""
        calls = [n for n in ast.walk(test) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        return any(n.func.id in _ASKING and n.args and self._is_result(n.args[0]) for n in calls)  # type: ignore[attr-defined]
