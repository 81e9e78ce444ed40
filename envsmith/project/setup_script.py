"""What a ``setup.py`` says that it requires, as far as that stands in it. It is a program and is not run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_NAME = re.compile(r"\s*([A-Za-z0-9][\w.-]*)")
_FILE = re.compile(r"[\w./-]{1,200}\.(?:txt|in)")
# Characters of the path of a file.
_LONGEST = 200
_FOLDER = re.compile(r"[A-Za-z][\w-]*(?:/[\w-]+)*")


@dataclass(slots=True)
class SetupScript:
    """``lines`` are ``(line, requirement, extra or None)``, ``files`` the requirement files that it reads.

    Each of these is a line, with the paths that may be meant. ``computed`` are the lines of requirements that only running it would tell.
    """

    name: str = ""
    lines: list[tuple[int, str, str | None]] = field(default_factory=list)
    files: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    python: tuple[int, str] | None = None


def read_setup(text: str) -> SetupScript:
    """Read ``install_requires``, ``extras_require`` and ``python_requires``. What does not parse says nothing."""
    script = SetupScript()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return script
    reader = _Reader(tree, script)
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "install_requires":
            reader.requirements(node.value, None)
        elif isinstance(node, ast.keyword) and node.arg == "extras_require":
            reader.extras(node.value)
        elif isinstance(node, ast.keyword) and node.arg in ("name", "python_requires"):
            value = reader.value(node.value)
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                if node.arg == "name":
                    script.name = value.value
                else:
                    script.python = (value.lineno, value.value)
    return script


class _Reader:
    def __init__(self, tree: ast.Module, script: SetupScript) -> None:
        self.script = script
        self.names: dict[str, ast.expr] = {}
        self.functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        # The requirement of each name that stands in some list: what a table made of that list holds.
        self.by_name: dict[str, ast.Constant] = {}
        # What is put under a key of a table, by the name of the table: extras["rich"] = [...].
        self.entries: dict[str, list[tuple[str, ast.expr]]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if (
                        isinstance(target, ast.Subscript)
                        and isinstance(target.value, ast.Name)
                        and isinstance(target.slice, ast.Constant)
                    ):
                        self.entries.setdefault(target.value.id, []).append((str(target.slice.value), node.value))
                self.names |= {t.id: node.value for t in node.targets if isinstance(t, ast.Name)}
            elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
                self.names[node.optional_vars.id] = node.context_expr
            elif isinstance(node, ast.List):
                for item in node.elts:
                    if (
                        isinstance(item, ast.Constant)
                        and isinstance(item.value, str)
                        and (m := _NAME.match(item.value))
                    ):
                        self.by_name.setdefault(m[1], item)

    def value(self, node: ast.expr) -> ast.expr:
        """Return what a name stands for, and anything else as it is."""
        return self.names.get(node.id, node) if isinstance(node, ast.Name) else node

    def requirements(self, node: ast.expr, extra: str | None) -> None:
        """Read an expression that is a list of requirements."""
        value = self.value(node)
        if isinstance(value, (ast.List, ast.Tuple)):
            for item in value.elts:
                self._requirement(item, extra)
        elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            self.requirements(value.left, extra)
            self.requirements(value.right, extra)
        elif extra is None and (files := list(self._files(value))):
            self.script.files += files
        elif not (isinstance(value, ast.Constant) and value.value is None):
            self._note_computed(value, extra)

    def _requirement(self, item: ast.expr, extra: str | None) -> None:
        if isinstance(item, ast.Constant) and isinstance(item.value, str):
            self.script.lines.append((item.lineno, item.value, extra))
        elif isinstance(item, ast.Starred):
            self.requirements(item.value, extra)
        elif isinstance(item, ast.Subscript) and isinstance(item.slice, ast.Constant):
            stated = self.by_name.get(str(item.slice.value))
            if stated is None:
                self._note_computed(item, extra)
            else:
                self.script.lines.append((stated.lineno, str(stated.value), extra))
        else:
            self._note_computed(item, extra)

    def extras(self, node: ast.expr) -> None:
        """Read a table from extras to lists of requirements."""
        value = self.value(node)
        if isinstance(value, ast.Dict):
            for key, listed in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant):
                    self.requirements(listed, str(key.value))
        for extra, listed in self.entries.get(node.id, ()) if isinstance(node, ast.Name) else ():
            self.requirements(listed, extra)

    def _note_computed(self, node: ast.expr, extra: str | None) -> None:
        if extra is None:
            self.script.computed.append(node.lineno)

    def _files(self, node: ast.expr) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield the requirement files that an expression names, itself or by what it calls: ``read("requirements.txt")``.

        A function may look for them in a folder of its own.
        """
        values = (part.value for part in self._parts(node, set()) if isinstance(part, ast.Constant))
        texts = [value for value in values if isinstance(value, str) and len(value) < _LONGEST]
        folders = [folder for text in texts if _FOLDER.fullmatch(folder := text.strip("/"))]
        for text in texts:
            if _FILE.fullmatch(text):
                yield node.lineno, (*(f"{folder}/{text}" for folder in folders), text)

    def _parts(self, node: ast.AST, seen: set[str]) -> Iterator[ast.AST]:
        """Yield the parts of an expression, and those of the names and functions that it uses."""
        for part in ast.walk(node):
            yield part
            if isinstance(part, ast.Name) and part.id not in seen:
                seen.add(part.id)
                for meant in (self.names.get(part.id), self.functions.get(part.id)):
                    if meant is not None:
                        yield from self._parts(meant, seen)
