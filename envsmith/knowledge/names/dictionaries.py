"""Arguments that a function keeps in a dictionary before it gives them: ``args = {"even_batches": …}``, ``f(**args)``."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from envsmith.knowledge.names.scopes import within

_TAKES = frozenset({"pop"})
_READS = frozenset({"get", "items", "keys", "update", "values", "copy"})


def given_keys(body: list[ast.stmt], name: str, line: int) -> frozenset[str]:
    """Return the keys that a dictionary of a function surely has where a call gives it with ``**`` in a line.

    It is made once, of a literal or ``dict(…)``. Keys that come in under a further condition are left out, and those
    that are taken out anywhere. None is returned of a dictionary that others get hold of.
    """
    made = [(block, at) for block in _blocks(body) for at, node in enumerate(block) if _makes(node, name)]
    nodes = [*within(body)]
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
    if len(made) != 1 or sum(not isinstance(node.ctx, ast.Load) for node in uses) != 1:
        return frozenset()
    block, at = made[0]
    keys = Counter(_literal(block[at].value))  # type: ignore[attr-defined]
    below = [node for node in block[at + 1 :] if isinstance(node, ast.Assign) and node.lineno < line]
    keys.update(key for node in below for key in _stored(node, name))
    handled = 0
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg is None and _is(node.value, name):
            handled += 1
        elif isinstance(node, ast.Dict):
            handled += sum(key is None and _is(value, name) for key, value in zip(node.keys, node.values, strict=True))
        elif isinstance(node, ast.Subscript) and _is(node.value, name):
            handled += 1
            if isinstance(node.ctx, ast.Del):
                _take(keys, [node.slice])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is(node.func.value, name):
            handled += node.func.attr in _READS | _TAKES
            if node.func.attr in _TAKES:
                _take(keys, node.args)
    return frozenset(keys) if handled == len(uses) - 1 else frozenset()


def literal_keys(node: ast.expr) -> frozenset[str]:
    """Return the keys that a literal, or ``dict(…)``, surely has."""
    return frozenset(_literal(node))


def _blocks(body: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    yield body
    for node in within(body):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block:
                yield block


def _makes(node: ast.stmt, name: str) -> bool:
    if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and _is(node.targets[0], name)):
        return False
    value = node.value
    is_call = isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "dict"
    return isinstance(value, ast.Dict) or (is_call and not value.args)  # type: ignore[attr-defined]


def _literal(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Dict):
        return [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    return [keyword.arg for keyword in node.keywords if keyword.arg] if isinstance(node, ast.Call) else []


def _take(keys: Counter[str], arguments: list[ast.expr]) -> None:
    """Take out a key, or all of them where it is not written."""
    key = _text(arguments[0]) if arguments else ""
    if key:
        keys.pop(key, None)
    else:
        keys.clear()


def _stored(node: ast.Assign, name: str) -> Iterator[str]:
    for target in node.targets:
        if isinstance(target, ast.Subscript) and _is(target.value, name) and _text(target.slice):
            yield _text(target.slice)


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
