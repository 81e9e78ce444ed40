"""What a module of a release uses of its dependencies: names that it imports, and attributes that it takes from modules.

A :class:`Use` says when it runs (at import, or in a function), and under which guards: inside a ``try`` that catches it, under an ``if``
that asks for a version or for the name itself. ``hasattr(torch.x, "y")`` is kept as a condition that can be answered for a release.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from missing.offered import absolute, statements

__all__ = ["Asked", "Guard", "Read", "Use", "read_module"]

# What stands in a condition that asks for a version or for a feature of a dependency.
_VERSION = re.compile(
    r"version|hasattr|TYPE_CHECKING|TORCH_|is_torch|torch_two|available|HAVE_|_has_|has_|MAJOR|MINOR|installed|find_spec|"
    r"is_functorch|_min_|getattr|is_compile_supported|torch_ver",
    re.IGNORECASE,
)
_CATCHES = {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """``hasattr(torch.compiler, "is_compiling")`` was true (or false) on the way here."""

    chain: tuple[str, ...]
    name: str
    there: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """``caught``: a handler takes the failure. ``version``: a condition speaks of versions. ``branch``: any other condition."""

    caught: bool = False
    version: bool = False
    branch: bool = False
    asked: tuple[Asked, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """``chain`` is absolute: ``("torch", "distributed", "log")``. ``imported``: by ``from``/``import``, so its parents need not be modules that are loaded.

    ``function`` is the name of the outermost function around it, ``None`` at module level. ``keywords`` are those of a call; ``positions`` how many other
    arguments it has, ``None`` for no call or one with ``*`` or ``**`` in it.
    """

    chain: tuple[str, ...]
    line: int
    function: str | None
    imported: bool = False
    keywords: tuple[str, ...] = ()
    positions: int | None = None
    guard: Guard = field(default_factory=Guard)


@dataclass(kw_only=True, slots=True)
class Read:
    """One module: what it uses of others, which modules of its own package it imports, which functions run while it is imported."""

    uses: list[Use] = field(default_factory=list)
    imports: list[Use] = field(default_factory=list)
    calls: list[Use] = field(default_factory=list)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read_module(source: bytes, module: str, *, package: bool, own: str, others: Iterable[str]) -> Read:
    """Raises ``SyntaxError`` for what this Python cannot read. ``own`` is the top package, ``others`` the import names that are asked for."""
    tree = ast.parse(source)
    reader = _Reader(module if package else module.rpartition(".")[0], module, own, frozenset(others))
    future = any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in tree.body)
    reader.lazy_annotations = future
    reader.fallbacks = _bound_here(tree.body)
    reader.block(tree.body, Guard())
    return reader.read


class _Reader:
    def __init__(self, package: str, module: str, own: str, others: frozenset[str]) -> None:
        self.read = Read()
        self.package = package
        self.module = module
        self.own = own
        self.others = others
        self.lazy_annotations = False
        self.fallbacks: frozenset[str] = frozenset()
        self.function: str | None = None
        self.aliases: list[dict[str, tuple[str, ...] | None]] = [{}]

    # -- statements ---------------------------------------------------------------------------------------------------

    def block(self, body: list[ast.stmt], guard: Guard) -> None:
        """Statements in order; what follows an early leave under a version condition stands under that condition too."""
        for node in body:
            self.statement(node, guard)
            if isinstance(node, ast.If) and _leaves(node.body) and not node.orelse:
                guard = _under(guard, node.test, self, there=False)
            elif isinstance(node, ast.Assert):
                guard = _under(guard, node.test, self, there=True)

    def statement(self, node: ast.stmt, guard: Guard) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.define(node, guard)
        elif isinstance(node, ast.ClassDef):
            self.klass(node, guard)
        elif isinstance(node, ast.Import):
            self.plain_import(node, guard)
        elif isinstance(node, ast.ImportFrom):
            self.from_import(node, guard)
        elif isinstance(node, ast.If):
            self.branch(node, guard)
        elif isinstance(node, ast.Try):
            inner = replace(guard, caught=guard.caught or _catches(node))
            self.block(node.body, inner)
            for handler in node.handlers:
                self.block(handler.body, replace(guard, branch=True, version=True))
            self.block(node.orelse, replace(guard, branch=True))
            self.block(node.finalbody, guard)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith)):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, (ast.expr, ast.withitem)):
                    self.expression(child, guard)
            inner = replace(guard, branch=guard.branch or not isinstance(node, (ast.With, ast.AsyncWith)))
            if isinstance(node, (ast.With, ast.AsyncWith)) and "suppress" in ast.unparse(node.items[0].context_expr):
                inner = replace(guard, caught=True)
            self.block(node.body, inner)
            self.block(getattr(node, "orelse", []), inner)
        else:
            self.bind(node)
            self.simple(node, guard)

    def simple(self, node: ast.stmt, guard: Guard) -> None:
        if isinstance(node, ast.AnnAssign):
            if self.function is None and not self.lazy_annotations:
                self.expression(node.annotation, guard)
            if node.value is not None:
                self.expression(node.value, guard)
            return
        for child in ast.iter_child_nodes(node):
            self.expression(child, guard)

    def branch(self, node: ast.If, guard: Guard) -> None:
        test = ast.unparse(node.test)
        if test in {"TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'"}:
            self.block(node.orelse, guard)
            return
        self.expression(node.test, guard)
        self.block(node.body, _under(guard, node.test, self, there=True))
        self.block(node.orelse, _under(guard, node.test, self, there=False))

    def define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, guard: Guard) -> None:
        """Decorators, defaults and annotations run now; the body later."""
        for decorator in node.decorator_list:
            self.expression(decorator, guard)
            if self.function is None:
                self.call(decorator, guard)
        arguments = node.args
        for default in (*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)):
            self.expression(default, guard)
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        if not self.lazy_annotations:
            for annotation in (*(a.annotation for a in every), node.returns):
                if annotation is not None:
                    self.expression(annotation, guard)
        self.bind_name(node.name, None)
        local: dict[str, tuple[str, ...] | None] = {a.arg: None for a in every}
        local |= {a.arg: None for a in (arguments.vararg, arguments.kwarg) if a is not None}
        outer = self.function
        self.function = outer or node.name
        self.aliases.append(local)
        # Inside a function nothing is caught by what stood around its definition.
        self.block(node.body, replace(guard, caught=False))
        self.aliases.pop()
        self.function = outer

    def klass(self, node: ast.ClassDef, guard: Guard) -> None:
        for part in (*node.decorator_list, *node.bases, *(k.value for k in node.keywords)):
            self.expression(part, guard)
        self.bind_name(node.name, None)
        self.aliases.append({})
        outer = self.function
        for child in node.body:
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and outer is None:
                self.method(child, node.name, guard)
            else:
                self.statement(child, guard)
        self.aliases.pop()

    def method(self, node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, guard: Guard) -> None:
        """Named after its class, so that a call of the class at import finds ``__init__``."""
        before = len(self.read.uses), len(self.read.imports), len(self.read.calls)
        self.define(node, guard)
        for start, found in zip(before, (self.read.uses, self.read.imports, self.read.calls), strict=True):
            found[start:] = [
                replace(u, function=f"{name}.{node.name}") if u.function == node.name else u for u in found[start:]
            ]

    # -- imports ------------------------------------------------------------------------------------------------------

    def plain_import(self, node: ast.Import, guard: Guard) -> None:
        for alias in node.names:
            chain = tuple(alias.name.split("."))
            self.add_import(chain, node.lineno, guard)
            if alias.asname:
                self.bind_name(alias.asname, chain)
            else:
                self.bind_name(chain[0], (chain[0],))

    def from_import(self, node: ast.ImportFrom, guard: Guard) -> None:
        origin = tuple(absolute(node, self.package).split("."))
        for alias in node.names:
            if alias.name == "*":
                self.add_import(origin, node.lineno, guard)
                continue
            self.add_import((*origin, alias.name), node.lineno, guard)
            self.bind_name(alias.asname or alias.name, (*origin, alias.name))

    def add_import(self, chain: tuple[str, ...], line: int, guard: Guard) -> None:
        use = Use(chain=chain, line=line, function=self.function, imported=True, guard=guard)
        if _below(chain, self.own):
            self.read.imports.append(use)
        elif chain[0] in self.others:
            self.read.uses.append(use)

    # -- expressions --------------------------------------------------------------------------------------------------

    def expression(self, node: ast.AST, guard: Guard) -> None:
        if isinstance(node, (ast.Name, ast.Constant, ast.expr_context, ast.operator)):
            return
        if isinstance(node, ast.Attribute):
            chain = self.chain(node)
            if chain is not None:
                if isinstance(node.ctx, ast.Load) and chain[0] in self.others:
                    self.read.uses.append(Use(chain=chain, line=node.lineno, function=self.function, guard=guard))
                return
        elif isinstance(node, ast.Call):
            self.called(node, guard)
            return
        elif isinstance(node, ast.Lambda):
            self.lambda_(node, guard)
            return
        elif isinstance(node, ast.IfExp):
            self.expression(node.test, guard)
            self.expression(node.body, _under(guard, node.test, self, there=True))
            self.expression(node.orelse, _under(guard, node.test, self, there=False))
            return
        elif isinstance(node, ast.BoolOp):
            inner = guard
            for value in node.values:
                self.expression(value, inner)
                inner = _under(inner, value, self, there=isinstance(node.op, ast.And))
            return
        for child in ast.iter_child_nodes(node):
            self.expression(child, guard)

    def lambda_(self, node: ast.Lambda, guard: Guard) -> None:
        outer = self.function
        self.function = outer or "<lambda>"
        self.aliases.append({a.arg: None for a in node.args.args})
        self.expression(node.body, guard)
        self.aliases.pop()
        self.function = outer

    def called(self, node: ast.Call, guard: Guard) -> None:
        chain = self.chain(node.func) if isinstance(node.func, (ast.Attribute, ast.Name)) else None
        if chain is not None and chain[0] in self.others:
            keywords = tuple(sorted(k.arg for k in node.keywords if k.arg))
            open_ended = any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords)
            self.read.uses.append(
                Use(
                    chain=chain,
                    line=node.lineno,
                    function=self.function,
                    keywords=keywords,
                    positions=None if open_ended else len(node.args),
                    guard=guard,
                )
            )
        else:
            self.expression(node.func, guard)
        self.call(node.func, guard)
        for child in (*node.args, *(k.value for k in node.keywords)):
            self.expression(child, guard)

    def call(self, node: ast.expr, guard: Guard) -> None:
        """A function of the own package that is called: its body runs where this runs."""
        target = node.func if isinstance(node, ast.Call) else node
        if isinstance(target, ast.Name):
            found = self.lookup(target.id)
            chain = found or (*self.module.split("."), target.id)
            if _below(chain, self.own):
                self.read.calls.append(Use(chain=chain, line=target.lineno, function=self.function, guard=guard))

    # -- names --------------------------------------------------------------------------------------------------------

    def chain(self, node: ast.expr) -> tuple[str, ...] | None:
        """``dist.rpc.x`` -> ``("torch", "distributed", "rpc", "x")`` where ``dist`` was imported; ``None`` for anything else."""
        steps: list[str] = []
        while isinstance(node, ast.Attribute):
            steps.append(node.attr)
            node = node.value
        base = self.lookup(node.id) if isinstance(node, ast.Name) else None
        return (*base, *reversed(steps)) if base else None

    def lookup(self, name: str) -> tuple[str, ...] | None:
        for scope in reversed(self.aliases):
            if name in scope:
                return scope[name]
        return None

    def bind_name(self, name: str, chain: tuple[str, ...] | None) -> None:
        if self.function is None and name in self.fallbacks and chain is not None and len(chain) > 1:
            chain = None  # the module has a definition of its own for where the import fails
        self.aliases[-1][name] = chain
        if chain is not None and self.function is None:
            self.read.names[name] = chain

    def bind(self, node: ast.stmt) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for inner in ast.walk(target) if target is not None else ():
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    self.bind_name(inner.id, None)


def _bound_here(body: list[ast.stmt]) -> frozenset[str]:
    """Names that a module defines or assigns itself, under whatever condition."""
    found: set[str] = set()
    for node in statements(body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {t.id for t in node.targets if isinstance(t, ast.Name)}
    return frozenset(found)


def _below(chain: tuple[str, ...], own: str) -> bool:
    return ".".join(chain[: own.count(".") + 1]) == own


def _leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))


def _catches(node: ast.Try) -> bool:
    for handler in node.handlers:
        if handler.type is None:
            return True
        names = {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)}
        if names & _CATCHES:
            return True
    return False


def _under(guard: Guard, test: ast.expr, reader: _Reader, *, there: bool) -> Guard:
    """The guard below a condition (``there``: where it holds)."""
    asked = tuple(_asked(test, reader, there=there))
    exact = len(asked) == 1 and _hasattr(test, reader) is not None
    version = guard.version or (not exact and bool(_VERSION.search(ast.unparse(test))))
    return replace(guard, branch=guard.branch or not exact, version=version, asked=(*guard.asked, *asked))


def _asked(test: ast.expr, reader: _Reader, *, there: bool) -> Iterator[Asked]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _asked(test.operand, reader, there=not there)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if there else ast.Or):
        for value in test.values:
            yield from _asked(value, reader, there=there)
    elif (found := _hasattr(test, reader)) is not None:
        yield Asked(chain=found[0], name=found[1], there=there)


def _hasattr(test: ast.expr, reader: _Reader) -> tuple[tuple[str, ...], str] | None:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _hasattr(test.operand, reader)
    if not (isinstance(test, ast.Call) and ast.unparse(test.func) == "hasattr" and len(test.args) == 2):
        return None
    name = test.args[1]
    chain = reader.chain(test.args[0]) if isinstance(test.args[0], (ast.Name, ast.Attribute)) else None
    if chain is None or not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
        return None
    return chain, name.value
