"""From which version on a function like ``is_accelerate_available`` says that a package is there."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from packaging.version import InvalidVersion, Version

_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_COMPARING = ("compare_version", "is_torch_version", "_is_package_version")


def floor_of(node: _FUNCTION, texts: Mapping[str, str]) -> str | None:
    """Return the lowest version that the function takes, ``""`` for any, ``None`` where its answer depends on more.

    ``texts`` are the strings of its module by name. A condition that only warns decides nothing.
    """
    compared = list(_compared(node.body))
    if not compared:
        return ""
    ways = [part for n in ast.walk(node) if isinstance(n, ast.Return) and n.value for part in _ways(n.value)]
    if len(compared) > 1 or compared[0] not in ways:
        return None
    test = compared[0]
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.GtE) or len(test.ops) > 1:
        return None
    return _version(test.comparators[0], {**texts, **_defaults(node, texts)})


def _compared(body: list[ast.stmt]) -> Iterator[ast.expr]:
    """Yield what compares a version, but for conditions that only speak."""
    for statement in body:
        if isinstance(statement, ast.If):
            if not _speaks(statement):
                yield from _versions_in(statement.test)
                yield from _compared([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            handled = [s for handler in statement.handlers for s in handler.body]
            yield from _compared([*statement.body, *handled, *statement.orelse, *statement.finalbody])
        else:
            yield from _versions_in(statement)


def _versions_in(node: ast.AST) -> Iterator[ast.expr]:
    for part in ast.walk(node):
        text = ast.unparse(part).lower() if isinstance(part, (ast.Compare, ast.Call)) else ""
        if (isinstance(part, ast.Compare) and "version" in text) or (
            isinstance(part, ast.Call) and ast.unparse(part.func).rpartition(".")[2].startswith(_COMPARING)
        ):
            yield part


def _speaks(node: ast.If) -> bool:
    return all(isinstance(s, ast.Expr) or (isinstance(s, ast.If) and _speaks(s)) for s in (*node.body, *node.orelse))


def _ways(value: ast.expr) -> Iterator[ast.expr]:
    """Yield what must all hold for an expression to hold."""
    if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.And):
        for part in value.values:
            yield from _ways(part)
    else:
        yield value


def _defaults(node: _FUNCTION, texts: Mapping[str, str]) -> dict[str, str]:
    arguments = node.args.args[len(node.args.args) - len(node.args.defaults) :]
    pairs = ((a.arg, text_of(d, texts)) for a, d in zip(arguments, node.args.defaults, strict=True))
    return {name: text for name, text in pairs if text is not None}


def text_of(value: ast.expr | None, texts: Mapping[str, str]) -> str | None:
    """Return the string that an expression is, by itself or by name."""
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, str) else None
    return texts.get(value.id) if isinstance(value, ast.Name) else None


def _version(value: ast.expr, texts: Mapping[str, str]) -> str | None:
    if isinstance(value, ast.Call) and len(value.args) == 1 and not value.keywords:
        value = value.args[0]
    text = text_of(value, texts)
    try:
        return str(Version(text)) if text else None
    except InvalidVersion:
        return None
