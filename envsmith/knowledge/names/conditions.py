"""What a condition around a definition says on Linux, in an environment that has torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from enum import Enum

from envsmith.knowledge.names.dotted import dotted

# torch is what each of our environments has, and what the index is asked for; the others are required by their users.
_HOLDS = re.compile(r"(?:\w+\.)*_?is_?_?(?:torch|tokenizers|safetensors)_available|_?(?:HAS|HAVE)_TORCH")
_TYPES = {"TYPE_CHECKING", "typing.TYPE_CHECKING", "t.TYPE_CHECKING"}
_OTHER_SYSTEMS = {"win32", "darwin", "nt", "Windows", "Darwin", "cygwin"}
_OLDEST_PYTHON = (3, 8)


class Truth(Enum):
    """``BOTH``: both branches are bound in the end (the names of a lazy module stand under TYPE_CHECKING)."""

    YES = "yes"
    NO = "no"
    BOTH = "both"
    UNKNOWN = "unknown"


_OPPOSITE = {Truth.YES: Truth.NO, Truth.NO: Truth.YES}


def truth(test: ast.expr, *, lazy: bool = False) -> Truth:
    """Return which branch of a condition runs."""
    if isinstance(test, ast.Constant):
        return Truth.YES if test.value else Truth.NO
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = truth(test.operand, lazy=lazy)
        return _OPPOSITE.get(inner, inner)
    if isinstance(test, ast.BoolOp):
        return _joined(test, lazy=lazy)
    text = dotted(test.func if isinstance(test, ast.Call) else test)
    if text in _TYPES:
        return Truth.BOTH if lazy else Truth.NO
    if _HOLDS.fullmatch(text):
        return Truth.YES
    return _compared(test) if isinstance(test, ast.Compare) else Truth.UNKNOWN


def _joined(test: ast.BoolOp, *, lazy: bool) -> Truth:
    parts = [truth(value, lazy=lazy) for value in test.values]
    decisive, neutral = (Truth.NO, Truth.YES) if isinstance(test.op, ast.And) else (Truth.YES, Truth.NO)
    if decisive in parts:
        return decisive
    if Truth.BOTH in parts:
        return Truth.BOTH
    return neutral if all(p is neutral for p in parts) else Truth.UNKNOWN


def _compared(test: ast.Compare) -> Truth:
    subject = f"{dotted(test.left.func)}()" if isinstance(test.left, ast.Call) else dotted(test.left)
    operator, right = test.ops[0], test.comparators[0]
    if len(test.ops) > 1:
        return Truth.UNKNOWN
    if subject == "__name__" and isinstance(operator, ast.Eq):
        return Truth.NO if isinstance(right, ast.Constant) and right.value == "__main__" else Truth.UNKNOWN
    if subject in {"sys.platform", "os.name", "platform.system()"} and isinstance(right, ast.Constant):
        ours = right.value not in _OTHER_SYSTEMS
        if isinstance(operator, (ast.Eq, ast.NotEq)):
            return Truth.YES if ours is isinstance(operator, ast.Eq) else Truth.NO
    if subject == "sys.version_info" and isinstance(right, ast.Tuple) and isinstance(operator, (ast.GtE, ast.Lt)):
        bound = tuple(i.value for i in right.elts if isinstance(i, ast.Constant) and isinstance(i.value, int))
        if bound and bound[:2] <= _OLDEST_PYTHON:
            return Truth.YES if isinstance(operator, ast.GtE) else Truth.NO
    return Truth.UNKNOWN


def cannot_fail(body: Iterable[ast.stmt]) -> bool:
    """Return whether a ``try`` only raises where something is missing that is never missing."""
    return all(
        isinstance(node, ast.Pass) or (isinstance(node, ast.If) and truth(node.test) is Truth.NO and not node.orelse)
        for node in body
    )


def provides_dummies(handler: ast.ExceptHandler) -> bool:
    """Return whether stand-ins of the same names are bound where a dependency is missing (transformers, diffusers)."""
    return "dummy" in ast.unparse(handler)
