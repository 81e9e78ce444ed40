"""A source parsed in blocks, so that what a later release did not change is not parsed again.

A block is a definition, a method, or the statements between two of them. A cut inside a text that spans lines leaves a
block that cannot be parsed, and then the source is parsed in one piece.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

_CUT = re.compile(rb"^(?=(?:@|class |def |async def |if |try:|for |with ))", re.MULTILINE)
_METHOD = re.compile(rb"^(?=    (?:@|def |async def ))", re.MULTILINE)
_SHORT = 2000
_Value = TypeVar("_Value")


class Blocks:
    """The blocks of a module in several releases. The same text gives the same nodes."""

    def __init__(self) -> None:
        self._nodes: dict[bytes, list[ast.stmt]] = {}

    def parse(self, source: bytes) -> ast.Module:
        """Parse a source. ``SyntaxError`` and ``ValueError`` as ``ast.parse`` raises them."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                body = [node for text in _cut(source.replace(b"\r\n", b"\n"), _CUT) for node in self._statements(text)]
            except SyntaxError:
                return ast.parse(source)
        return ast.Module(body=body, type_ignores=[])

    def _statements(self, text: bytes) -> list[ast.stmt]:
        if text not in self._nodes:
            methods = list(_cut(text, _METHOD)) if len(text) > _SHORT and text.startswith((b"class ", b"@")) else []
            if len(methods) > 1:
                return self._class(methods)
            self._nodes[text] = ast.parse(text).body
        return self._nodes[text]

    def _class(self, texts: list[bytes]) -> list[ast.stmt]:
        """Return a class whose first text is its head, and what follows it at the left edge."""
        head = texts[0] + b"\n    pass\n"
        if head not in self._nodes:
            self._nodes[head] = ast.parse(head).body
        bound = self._nodes[head]
        if len(bound) != 1 or not isinstance(bound[0], ast.ClassDef):
            return ast.parse(b"".join(texts)).body
        body = list(bound[0].body[:-1])
        later: list[ast.stmt] = []
        for text in texts[1:]:
            if text not in self._nodes:
                self._nodes[text] = ast.parse(b"class _:\n" + text).body
            body += self._nodes[text][0].body  # type: ignore[attr-defined]
            later += self._nodes[text][1:]
        fields = {name: getattr(bound[0], name) for name in bound[0]._fields}
        return [ast.ClassDef(**{**fields, "body": body}), *later]


def remember(node: ast.AST, key: str, make: Callable[[], _Value]) -> _Value:
    """Return what was made of a node before: the same text in a later release is the same node."""
    values = node.__dict__
    if key not in values:
        values[key] = make()
    value: _Value = values[key]
    return value


def _cut(source: bytes, at: re.Pattern[bytes]) -> Iterator[bytes]:
    decorators = b""
    for text in at.split(source):
        if text.lstrip(b" ").startswith(b"@"):
            decorators += text
        elif text:
            yield decorators + text
            decorators = b""
    if decorators:
        yield decorators
