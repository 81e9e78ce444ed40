"""What a ``setup.py`` says that it requires, as far as that stands in it. It is a program and is not run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

_NAME = re.compile(r"\s*([A-Za-z0-9][\w.-]*)")
_FILE = re.compile(r"[\w./-]{1,200}\.(?:txt|in)")
# Characters of the path of a file.
_LONGEST = 200
_FOLDER = re.compile(r"[A-Za-z][\w-]*(?:/[\w-]+)*")
_LISTS = (ast.List, ast.Tuple, ast.Set)
_BRANCHES = (ast.If, ast.For, ast.While, ast.Try)
_GROWING = frozenset({"append", "extend", "update"})
# Expressions that are read of one script.
_MOST_STEPS = 20_000


@dataclass(slots=True)
class SetupScript:
    """``lines`` are ``(line, requirement, extra or None)``, ``files`` the requirement files that it reads.

    Each file is a line, the paths that may be meant, and its extra. ``computed`` are the lines of requirements that
    only running it would tell, each with its extra. ``conditional`` are the lines of those that it adds in some cases.
    """

    name: str = ""
    lines: list[tuple[int, str, str | None]] = field(default_factory=list)
    files: list[tuple[int, tuple[str, ...], str | None]] = field(default_factory=list)
    computed: list[tuple[int, str | None]] = field(default_factory=list)
    conditional: list[int] = field(default_factory=list)
    python: tuple[int, str] | None = None


def read_setup(text: str) -> SetupScript:
    """Read ``install_requires``, ``extras_require`` and ``python_requires``. What does not parse says nothing."""
    script = SetupScript()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return script
    with suppress(RecursionError):
        _read(_Reader(tree, script), tree)
    return script


def _read(reader: _Reader, tree: ast.Module) -> None:
    script = reader.script
    for key, value in _arguments(tree):
        if key == "install_requires":
            reader.requirements(value, None)
        elif key == "extras_require":
            reader.extras(value)
        elif key == "name":
            script.name = reader.text(value) or script.name
        elif key == "python_requires" and (python := reader.text(value)):
            script.python = (reader.value(value).lineno, python)


def _arguments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield what calls and tables of the script give by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg is not None:
            yield node.arg, node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in ("install_requires", "extras_require"):
                    yield key.value, value


class _Reader:
    def __init__(self, tree: ast.Module, script: SetupScript) -> None:
        self.script = script
        # All that a name is given, in order.
        self.names: dict[str, list[ast.expr]] = {}
        # What is added to the list or table of a name, and the entries that a table gets one by one.
        self.added: dict[str, list[ast.expr]] = {}
        self.entries: dict[str, list[tuple[ast.expr, ast.expr]]] = {}
        self.conditional: dict[str, list[ast.expr]] = {}
        # The names that are being read: one that is made of itself is not read again.
        self.open: set[str] = set()
        self.steps = 0
        self.functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        # The requirement of each name that stands in some list: what a table made of that list holds.
        self.by_name: dict[str, ast.Constant] = {}
        self._statements(tree.body, is_branch=False)
        for node in ast.walk(tree):
            if isinstance(node, ast.List):
                for item in node.elts:
                    if (
                        isinstance(item, ast.Constant)
                        and isinstance(item.value, str)
                        and (m := _NAME.match(item.value))
                    ):
                        self.by_name.setdefault(m[1], item)

    def _statements(self, body: list[ast.stmt], *, is_branch: bool, is_function: bool = False) -> None:
        """Learn what names stand for, and what is added to them. A list that grows in a function is its own."""
        for node in body:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assigned(target, node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._assigned(node.target, node.value)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and not is_function:
                self._grow(node.target.id, node.value, is_branch=is_branch)
            elif isinstance(node, ast.Expr) and isinstance(call := node.value, ast.Call) and not is_function:
                self._called(call, is_branch=is_branch)
            elif isinstance(node, (ast.With, ast.AsyncWith)):
                for item in node.items:
                    if item.optional_vars is not None:
                        self._assigned(item.optional_vars, item.context_expr)
            elif isinstance(node, (ast.For, ast.AsyncFor)):
                self._assigned(node.target, node.iter)
            for part in ("body", "orelse", "finalbody"):
                nested = getattr(node, part, None)
                if isinstance(nested, list):
                    self._statements(
                        nested,
                        is_branch=is_branch or isinstance(node, _BRANCHES),
                        is_function=is_function or isinstance(node, ast.FunctionDef),
                    )

    def _assigned(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            match value:
                case ast.BinOp(left=ast.Name(id=name), op=ast.Add(), right=addition) if (
                    name == target.id
                ):  # names = names + [...]
                    self.added.setdefault(target.id, []).append(addition)
                case _:
                    self.names.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Tuple):
            for part in target.elts:
                self._assigned(part, value)
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            self.entries.setdefault(target.value.id, []).append((target.slice, value))

    def _called(self, call: ast.Call, *, is_branch: bool) -> None:
        """Learn of ``name.append(x)`` and the like."""
        function = call.func
        if (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.attr in _GROWING
            and len(call.args) == 1
        ):
            (argument,) = call.args
            one = (
                ast.copy_location(ast.List(elts=[argument], ctx=ast.Load()), call)
                if function.attr == "append"
                else argument
            )
            self._grow(function.value.id, one, is_branch=is_branch)

    def _grow(self, name: str, value: ast.expr, *, is_branch: bool) -> None:
        (self.conditional if is_branch else self.added).setdefault(name, []).append(value)

    def value(self, node: ast.expr) -> ast.expr:
        """Return what a name stands for, and anything else as it is."""
        return self.names.get(node.id, [node])[-1] if isinstance(node, ast.Name) else node

    @contextmanager
    def _reading(self, node: ast.expr) -> Iterator[bool]:
        """Yield whether an expression is to be read: not within itself, and not without an end."""
        name = node.id if isinstance(node, ast.Name) else ""
        self.steps += 1
        if name in self.open or self.steps > _MOST_STEPS:
            yield False
            return
        self.open |= {name} - {""}
        try:
            yield True
        finally:
            self.open.discard(name)

    def text(self, node: ast.expr) -> str | None:
        """Return the text that an expression is, put together of such as stand in the script."""
        with self._reading(node) as is_new:
            return self._text(node) if is_new else None

    def _text(self, node: ast.expr) -> str | None:
        value = self.value(node)
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return value.value
        if isinstance(value, ast.FormattedValue):
            return self.text(value.value) if value.format_spec is None else None
        if isinstance(value, ast.JoinedStr):
            parts = [self.text(part) for part in value.values]
        elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            parts = [self.text(value.left), self.text(value.right)]
        else:
            return None
        return None if None in parts else "".join(filter(None, parts))

    def requirements(self, node: ast.expr, extra: str | None) -> None:
        """Read an expression that is a list of requirements, with what is added to it by its name."""
        with self._reading(node) as is_new:
            if is_new:
                self._requirements(node, extra)

    def _requirements(self, node: ast.expr, extra: str | None) -> None:
        value = self.value(node)
        if isinstance(value, _LISTS):
            for item in value.elts:
                self._requirement(item, extra)
        elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            self.requirements(value.left, extra)
            self.requirements(value.right, extra)
        elif isinstance(value, ast.Subscript) and (entry := self._entry(value)) is not None:
            self.requirements(entry, extra)
        elif files := list(self._files(value)):
            self.script.files += ((line, paths, extra) for line, paths in files)
        elif text := self.text(value):
            self.script.lines += ((value.lineno, line, extra) for line in map(str.strip, text.splitlines()) if line)
        elif not (isinstance(value, ast.Constant) and value.value is None):
            self.script.computed.append((value.lineno, extra))
        if isinstance(node, ast.Name):
            for further in self.added.get(node.id, ()):
                self.requirements(further, extra)
            for further in self.conditional.get(node.id, ()):
                files = list(self._files(further))
                self.script.files += ((line, paths, extra) for line, paths in files)
                self.script.conditional += [] if files or extra else [further.lineno]

    def _entry(self, node: ast.Subscript) -> ast.expr | None:
        """Return what an entry of a table was given last."""
        name, key = node.value.id if isinstance(node.value, ast.Name) else "", self.text(node.slice)
        values = [value for slot, value in self.entries.get(name, ()) if key is not None and self.text(slot) == key]
        return values[-1] if values else None

    def _requirement(self, item: ast.expr, extra: str | None) -> None:
        if (text := self.text(item)) is not None:
            self.script.lines.append((item.lineno, text, extra))
        elif isinstance(item, ast.Starred):
            self.requirements(item.value, extra)
        elif isinstance(self.value(item), _LISTS):
            self.requirements(item, extra)
        elif isinstance(item, ast.Subscript) and isinstance(item.slice, ast.Constant):
            stated = self.by_name.get(str(item.slice.value))
            if stated is None:
                self.script.computed.append((item.lineno, extra))
            else:
                self.script.lines.append((stated.lineno, str(stated.value), extra))
        else:
            self.script.computed.append((item.lineno, extra))

    def extras(self, node: ast.expr) -> None:
        """Read a table from extras to lists of requirements, with the entries that it gets by its name."""
        with self._reading(node) as is_new:
            if is_new:
                self._extras(node)

    def _extras(self, node: ast.expr) -> None:
        value = self.value(node)
        entries: list[tuple[ast.expr | None, ast.expr]] = []
        if isinstance(value, ast.Dict):
            entries += zip(value.keys, value.values, strict=True)
        elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
            entries += ((None, value.left), (None, value.right))
        elif isinstance(value, ast.Call):
            entries += ((None, one) for one in value.args)
            entries += ((ast.Constant(k.arg) if k.arg else None, k.value) for k in value.keywords)
        if isinstance(node, ast.Name):
            entries += self.entries.get(node.id, ())
            entries += ((None, table) for table in self.added.get(node.id, ()))
        for key, listed in entries:
            if key is None:
                self.extras(listed)
            elif extra := self.text(key):
                self.requirements(listed, extra)

    def _files(self, node: ast.expr) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield the requirement files that an expression names, itself or by what it calls: ``read("requirements.txt")``.

        A function may look for them in a folder of its own. What it is given comes before its default.
        """
        own = self._texts(ast.walk(node))
        texts = self._texts(self._parts(node, set()))
        folders = [folder for text in texts if _FOLDER.fullmatch(folder := text.strip("/"))]
        for text in filter(_FILE.fullmatch, [*filter(_FILE.fullmatch, own)] or texts):
            yield node.lineno, (*(f"{folder}/{text}" for folder in folders), text)

    @staticmethod
    def _texts(nodes: Iterator[ast.AST]) -> list[str]:
        values = (node.value for node in nodes if isinstance(node, ast.Constant))
        return [value for value in values if isinstance(value, str) and len(value) < _LONGEST]

    def _parts(self, node: ast.AST, visited: set[str]) -> Iterator[ast.AST]:
        """Yield the parts of an expression, and those of the names and functions that it uses."""
        for part in ast.walk(node):
            yield part
            if isinstance(part, ast.Name) and part.id not in visited:
                visited.add(part.id)
                function = self.functions.get(part.id)
                for expression in (*self.names.get(part.id, ()), *([function] if function else [])):
                    yield from self._parts(expression, visited)
