"""The names that a module, class or function binds, and what they stand for."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from envsmith.knowledge.names.blocks import remember

Chain = tuple[str, ...]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Fields that hold no node in which a name could stand.
_PLAIN = frozenset({"ctx", "op", "ops", "id", "attr", "arg", "module", "level", "kind", "type_comment"})
_INNER = {
    kind: tuple(name for name in kind._fields if name not in _PLAIN)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}
# Nothing of interest is inside of them.
LEAVES = frozenset({ast.Name, ast.Constant, *ast.expr_context.__subclasses__(), *ast.operator.__subclasses__()})
# What is inside of them is of another scope, or binds nothing.
_CLOSED = frozenset({*FUNCTIONS, ast.ClassDef, ast.Lambda, *COMPREHENSIONS, ast.Name, ast.Constant})
_TARGETS = frozenset({ast.Tuple, ast.List, ast.Starred})
_BINDING = frozenset({*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Name, ast.ExceptHandler, ast.Assign})


@dataclass(frozen=True, slots=True)
class Origin:
    """What a name stands for: something of another package, or (``member``) an object of a class of it.

    ``hidden`` are names that the object has of its own, ``above`` those that ``super()`` may find before its class.
    ``is_stated``: an annotation says so, and the object may be of a class below.
    """

    chain: Chain
    member: bool = False
    hidden: frozenset[str] = frozenset()
    above: frozenset[str] = frozenset()
    is_stated: bool = False


@dataclass(slots=True)
class Scope:
    """The names of a module, class or function. ``unsure`` are bound to several things, so nothing is said of them."""

    unsure: frozenset[str] = frozenset()
    is_class: bool = False
    names: dict[str, Origin | None] = field(default_factory=dict)


def children(node: ast.AST) -> list[ast.AST]:
    """Return the nodes directly inside one in which a name may stand, in a third of ``ast.iter_child_nodes``'s time."""
    inner: list[ast.AST] = []
    for name in _INNER[type(node)]:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            inner.append(value)
        elif isinstance(value, list):
            inner += [item for item in value if isinstance(item, ast.AST)]
    return inner


def within(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield nodes and all that is inside them, in no order."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        if type(node) not in LEAVES:
            pending += children(node)


def own_members(node: ast.ClassDef) -> frozenset[str]:
    """Return what a class defines itself, and what its methods store in the object."""
    return remember(node, "own_members", lambda: _own_members(node))


def _own_members(node: ast.ClassDef) -> frozenset[str]:
    stored = {n.attr for n in within(node.body) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    return frozenset(stored | {name for name, _ in _bindings(node.body)})


def makes_objects(node: ast.ClassDef, members: frozenset[str]) -> bool:
    """Return whether a class may be called otherwise than its base: by own methods, a decorator, or what reads fields."""
    has_fields = any(isinstance(each, ast.AnnAssign) for each in node.body)
    return has_fields or bool(node.keywords or node.decorator_list or members & {"__init__", "__new__"})


def stored_fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield what the methods of a class store in the object, each with the value that is written, ``None`` for none."""
    for method in (each for each in node.body if isinstance(each, FUNCTIONS) and each.args.args):
        this = method.args.args[0].arg
        values = {id(n.targets[0]): n.value for n in within(method.body) if isinstance(n, ast.Assign)}
        for part in within(method.body):
            if not isinstance(part, ast.Attribute) or isinstance(part.ctx, ast.Load):
                continue
            if isinstance(part.value, ast.Name) and part.value.id == this:
                yield part.attr, values.get(id(part))


def unsure_names(body: list[ast.stmt], *, walrus: bool = True) -> frozenset[str]:
    """Return names that a scope binds to several things: an import and its fallback, the branches of a condition.

    ``walrus`` says whether an expression may bind a name: without one, none is looked into.
    """
    things: dict[str, set[object]] = {}
    for name, thing in _bindings(body, walrus=walrus):
        things.setdefault(name, set()).add(thing)
    unsure = set()
    for name, values in things.items():
        if len(values - {None}) > 1 or (None in values and any(isinstance(v, tuple) and len(v) > 1 for v in values)):
            unsure.add(name)
    return frozenset(unsure)


def bound_once(body: list[ast.stmt]) -> frozenset[str]:
    """Return the names that a scope binds in one place alone."""
    counts = Counter(name for name, _ in _bindings(body))
    return frozenset(name for name, count in counts.items() if count == 1)


def _bindings(body: Iterable[ast.AST], *, walrus: bool = True) -> Iterator[tuple[str, object]]:
    """Yield each name that a scope binds, with what: the chain of an import, ``None`` for a constant, else a number."""
    for node in _in_scope(body, walrus=walrus):
        if type(node) not in _BINDING:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                chain = tuple(alias.name.split("."))
                yield (alias.asname, chain) if alias.asname else (chain[0], chain[:1])
        elif isinstance(node, ast.ImportFrom):
            module = (*(["." * node.level] if node.level else []), *(node.module or "").split("."))
            for alias in node.names:
                yield alias.asname or alias.name, (*module, alias.name)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            yield node.name, id(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            yield node.id, id(node)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name, id(node)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            yield from ((t.id, None) for t in node.targets if isinstance(t, ast.Name))


def _in_scope(nodes: Iterable[ast.AST], *, walrus: bool) -> Iterator[ast.AST]:
    """Yield nodes of one scope: functions, classes and comprehensions themselves, not what is inside them."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        kind = type(node)
        is_plain = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)  # it yields its targets itself
        is_asked = walrus or kind in _TARGETS or not isinstance(node, ast.expr)
        if is_asked and not is_plain and kind not in _CLOSED:
            pending += children(node)
