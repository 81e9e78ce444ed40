"""The classes of a package, and the classes of other packages that each descends from."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from envsmith.knowledge.names.dotted import absolute, dotted
from envsmith.knowledge.names.scopes import Chain, own_members, unsure_names, within

# Bases that bring no member of their own.
_EMPTY = frozenset({"object", "ABC", "abc.ABC"})
_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Ancestors:
    """What a class descends from: ``chains`` name classes of other packages.

    ``hidden`` are names that the class and those between have of their own.
    """

    chains: tuple[Chain, ...]
    hidden: frozenset[str]


class ClassPlace(NamedTuple):
    """A class of some sources, and the module in which it stands."""

    module: str
    node: ast.ClassDef


class OwnClasses:
    """The classes at the left edge of the modules below some sources, which are read when they are asked for."""

    def __init__(self, texts: Mapping[str, bytes], parse: Callable[[str, bytes], ast.Module]) -> None:
        self._texts, self._parse = texts, parse
        self._paths = {module_of(path): path for path in texts if path.endswith(".py")}
        self._modules: dict[str, _Module] = {}

    def of_class(self, path: str, node: ast.ClassDef) -> Ancestors | None:
        """Return what a class of a source descends from, ``None`` where that cannot be read."""
        return self._ancestors(module_of(path), node, 0)

    def classes_of(self, path: str) -> list[ClassPlace]:
        """Return the classes at the left edge of a source, in their order."""
        module = module_of(path)
        return [ClassPlace(module, node) for node in self._module(module).classes.values()]

    def find(self, name: str, dotted_name: str, depth: int = 0) -> ClassPlace | Chain | None:
        """Return the class that a dotted name in the module ``name`` stands for, through imports.

        The chain of what another package has, ``None`` where that cannot be read.
        """
        first, _, member = dotted_name.partition(".")
        if not first or depth > _DEPTH:
            return None
        module = self._module(name)
        if not member and first in module.classes and first not in module.imports:
            return ClassPlace(name, module.classes[first])
        origin = module.imports.get(first)
        if origin is None:
            return None
        chain = (*origin, *(member.split(".") if member else ()))
        owner = ".".join(chain[:-1])
        if owner in self._paths:
            return self.find(owner, chain[-1], depth + 1)
        is_own = any(".".join(chain[:end]) in self._paths for end in range(1, len(chain)))
        return None if is_own else chain

    def _module(self, name: str) -> _Module:
        if name not in self._modules:
            path = self._paths[name]
            try:
                tree = self._parse(path, self._texts[path])
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                tree = ast.Module(body=[], type_ignores=[])
            package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
            unsure = unsure_names(tree.body)
            nodes = (node for node in tree.body if isinstance(node, ast.ClassDef))
            classes = {node.name: node for node in nodes if node.name not in unsure}
            self._modules[name] = _Module(classes, _imports(tree, package))
        return self._modules[name]

    def _ancestors(self, module: str, node: ast.ClassDef, depth: int) -> Ancestors | None:
        chains, hidden = dict[Chain, None](), own_members(node)
        for base in node.bases:
            if dotted(base) in _EMPTY:
                continue
            ancestors = self._of_base(module, dotted(base), depth)
            if ancestors is None:
                return None
            chains |= dict.fromkeys(ancestors.chains)
            hidden |= ancestors.hidden
        return Ancestors(tuple(chains), hidden)

    def _of_base(self, name: str, base: str, depth: int) -> Ancestors | None:
        origin = self.find(name, base) if depth <= _DEPTH else None
        if isinstance(origin, ClassPlace):
            return self._ancestors(origin.module, origin.node, depth + 1)
        return Ancestors((origin,), frozenset()) if origin else None


class _Module(NamedTuple):
    classes: Mapping[str, ast.ClassDef]
    imports: Mapping[str, Chain | None]


def module_of(path: str) -> str:
    """Return ``pkg.tools`` of ``pkg/tools.py`` and ``pkg/tools/__init__.py``."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports(tree: ast.Module, package: str) -> dict[str, Chain | None]:
    """Return what each imported name of a module stands for, ``None`` where it is bound to several things."""
    names: dict[str, Chain | None] = {}
    for node in within(
        n for n in tree.body if not isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    ):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                name, chain = alias.asname or alias.name, (*absolute(node, package).split("."), alias.name)
            else:
                path = tuple(alias.name.split("."))
                name, chain = (alias.asname, path) if alias.asname else (path[0], path[:1])
            names[name] = chain if names.get(name, chain) == chain else None
    return names
