"""What a module takes from other packages: names, class members and arguments, read from its text. Nothing is run.

A :class:`Use` says when it runs (while the module is imported, or in a function) and under which :class:`Guard`: inside
a ``try`` that catches its failure, or under a condition that asks for a version or for the name itself.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from envsmith.knowledge.graph.refused_names import followed_calls, refused_members
from envsmith.knowledge.names.calls import attributes_of, positions_of, values_of
from envsmith.knowledge.names.dictionaries import given_keys, literal_keys
from envsmith.knowledge.names.dotted import absolute, dotted
from envsmith.knowledge.names.floors import floor_of
from envsmith.knowledge.names.guards import AVAILABLE, Guard, Test, available, decided, flagged, leaves
from envsmith.knowledge.names.lazy_modules import lazy_names, makes_names, statements
from envsmith.knowledge.names.module_uses import MAIN, Member, ModuleUses, Override, Stop, Use
from envsmith.knowledge.names.own_classes import Ancestors
from envsmith.knowledge.names.python_names import gone_name
from envsmith.knowledge.names.scopes import (
    COMPREHENSIONS,
    FUNCTIONS,
    LEAVES,
    Chain,
    Origin,
    Scope,
    children,
    makes_objects,
    own_members,
    stored_fields,
    unsure_names,
    within,
)
from envsmith.knowledge.names.signature_text import function_text
from envsmith.knowledge.names.whole_calls import WholeCall, whole_call

# What stands in a condition that asks for a version or for a feature of another package.
_ASKS = re.compile(
    r"version|hasattr|getattr|find_spec|available|installed|supported|TYPE_CHECKING|HAVE_|has_|torch_two|torch_ver|"
    r"is_torch|TORCH_|MAJOR|MINOR|_min_|is_functorch|(?:higher|lower|less|greater|newer|older)_than|"
    r"\bsignature\(|getfullargspec|co_varnames",
    re.IGNORECASE,
)
# Every ``global`` statement, and few sentences that have the word.
_REBINDS = re.compile(rb"global[ \t]*(?:\\|[\w\x80-\xff]+\s*(?:[,;#\\]|$))", re.MULTILINE)
_MAIN_TESTS = frozenset({"__name__ == '__main__'", "'__main__' == __name__"})
_TRY = (ast.Try, getattr(ast, "TryStar", ast.Try))
Parse = Callable[..., ast.Module]
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_LOADS = re.compile(r"(?:^|[._])(?:\w*import\w*|get_module|lazy_\w+)$")
_LOADERS = frozenset({"importlib.import_module", "import_module", "__import__"})


def read_uses(
    source: bytes | str,
    module: str,
    *,
    package: bool,
    own: Collection[str],
    parse: Parse = ast.parse,
    ancestors: Callable[[ast.ClassDef], Ancestors | None] | None = None,
) -> ModuleUses:
    """Read a module. ``own`` are the dotted names that belong to it, what is below them included.

    ``ancestors`` may know the classes of other packages from which a class descends through those of its own.

    Raises ``SyntaxError`` for what this Python cannot read.
    """
    reader = _Reader(module, module if package else module.rpartition(".")[0], frozenset(own))
    reader.ancestors = ancestors
    return _read(reader, source, parse)


class OpenModule:
    """A module of which its functions are read when they are asked for. ``SyntaxError`` as :func:`read_uses`.

    ``parse`` may share blocks with other releases of it. No line number is right with them.
    """

    def __init__(self, source: bytes, module: str, *, package: bool, own: Collection[str], parse: Parse) -> None:
        self._reader = _Reader(module, module if package else module.rpartition(".")[0], frozenset(own))
        self._reader.later = {}
        self.at_import = _read(self._reader, source, parse)

    def uses_later(self) -> tuple[Use, ...]:
        """Return what the public functions and classes of the module take from other packages when they run."""
        public = [name for name in self._reader.later or {} if not name.startswith("_")]
        inner = (self.function(name) for name in public)
        return tuple(use for content in inner if content for use in content.uses)

    def function(self, name: str) -> ModuleUses | None:
        """Return what a function of it takes (``Class.method`` in a class), ``None`` where it has none of that name."""
        body = (self._reader.later or {}).get(name)
        if body is None:
            return None
        self._reader.result = ModuleUses(names=self.at_import.names, lazy=self.at_import.lazy)
        body()
        return self._reader.result


def _read(reader: _Reader, source: bytes | str, parse: Parse) -> ModuleUses:
    try:
        text = source if isinstance(source, bytes) else source.encode(errors="replace")
        reader.walrus = b":=" in text
        reader.module_body(parse(source), rebinds=_REBINDS.search(text) is not None)
        reader.result.uses = [*_without_short_ways(reader.result.uses)]
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes, and expressions of thousands of operands
        raise SyntaxError(str(error) or type(error).__name__) from None
    return reader.result


class _Reader:
    def __init__(self, module: str, package: str, own: frozenset[str]) -> None:
        self.result = ModuleUses()
        self.module, self.package, self.own = module, package, own
        self.later: dict[str, Callable[[], None]] | None = None
        self.ancestors: Callable[[ast.ClassDef], Ancestors | None] | None = None
        self.lazy_annotations = False
        self.walrus = True
        self.texts: dict[str, str] = {}
        self.function: str | None = None
        self.bases: list[Origin | None] = []
        self.fields: list[Mapping[str, Origin]] = []
        self.top: list[ast.stmt] = []
        self.bodies: list[list[ast.stmt]] = []
        self.scopes: list[Scope] = []
        self.heirs: dict[str, Origin] = {}  # the own classes that the class of another package makes
        self.given: set[Chain] = set()  # what the module itself puts into others: dill.dill = dill._dill

    # -- statements ---------------------------------------------------------------------------------------------------

    def module_body(self, tree: ast.Module, *, rebinds: bool) -> None:
        self.top = tree.body
        self.lazy_annotations = any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in tree.body)
        nodes = within(tree.body) if rebinds else ()
        rebound = {name for n in nodes if isinstance(n, ast.Global) for name in n.names}
        self.scopes.append(Scope(unsure_names(tree.body, walrus=self.walrus) | rebound))
        named = ((n.targets[0], _text(n.value)) for n in tree.body if isinstance(n, ast.Assign))
        self.texts = {t.id: text for t, text in named if isinstance(t, ast.Name) and text is not None}
        self.block(tree.body, Guard())
        if makes_names(tree):
            tables = (lazy_names(node, self.package) for node in statements(tree.body))
            listed = (pair for table in tables for pair in table.items())
            self.result.lazy = {n: tuple(re.split(r"[.:]", min(places)[1:])) for n, places in listed}

    def block(self, body: list[ast.stmt], guard: Guard) -> None:
        """Read statements in order. What follows an early leave under a condition stands under its opposite.

        What follows a condition that raises, in the body of the module, runs in every import that does not fail.
        """
        for node in body:
            self.statement(node, guard)
            if isinstance(node, ast.If) and leaves(node.body) and not node.orelse:
                below = self.under(guard, node.test, holds=False)
                raises = self.function is None and isinstance(node.body[-1], ast.Raise)
                guard = replace(below, branch=guard.branch, version=guard.version) if raises else below
            elif isinstance(node, ast.Assert):
                guard = self.under(guard, node.test, holds=True)

    def statement(self, node: ast.stmt, guard: Guard) -> None:
        if isinstance(node, FUNCTIONS):
            self.define(node, node.name, guard)
        elif isinstance(node, ast.ClassDef):
            self.klass(node, guard)
        elif isinstance(node, ast.Import):
            self.plain_import(node, guard)
        elif isinstance(node, ast.ImportFrom):
            self.from_import(node, guard)
        elif isinstance(node, ast.If):
            self.branch(node, guard)
        elif isinstance(node, _TRY):
            self.attempt(node, guard)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Match)):
            self.compound(node, guard)
        else:
            self.simple(node, guard)
            if isinstance(node, ast.Raise):
                self.result.stops.append(Stop(line=node.lineno, function=self.function, guard=guard))

    def attempt(self, node: ast.Try, guard: Guard) -> None:
        self.block(node.body, guard.within(node))
        for handler in node.handlers:
            self.block(handler.body, replace(guard, branch=True, version=True))
        self.block(node.orelse, replace(guard, branch=True))
        self.block(node.finalbody, guard)

    def compound(
        self, node: ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Match, guard: Guard
    ) -> None:
        for child in children(node):
            if isinstance(child, (ast.expr, ast.withitem)):
                self.expression(child, guard)
        if isinstance(node, ast.Match):
            for case in node.cases:
                self.block(case.body, replace(guard, branch=True))
            return
        inner = guard
        if not isinstance(node, (ast.With, ast.AsyncWith)):
            inner = replace(guard, branch=True)
        elif "suppress" in ast.unparse(node.items[0].context_expr):
            inner = replace(guard, caught=True, imported=None)
        elif any(self.is_own_call(item.context_expr) for item in node.items):
            inner = replace(guard, branch=True)  # it may take every failure, as import_plugin() of modelopt does
        self.block(node.body, inner)
        self.block(getattr(node, "orelse", []), inner)

    def simple(self, node: ast.stmt, guard: Guard) -> None:
        if isinstance(node, ast.AnnAssign):
            if self.function is None and not self.lazy_annotations:
                self.expression(node.annotation, guard)
            if node.value is not None:
                self.expression(node.value, guard)
        else:
            for child in children(node):
                self.expression(child, guard)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        origin = self.object_of(value) or self.loaded(value) if len(targets) == 1 else None
        for target in targets:
            first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
            if isinstance(first, ast.Name) and (first is target or self.loaded(value)):
                self.bind(first.id, origin)

    def branch(self, node: ast.If, guard: Guard) -> None:
        if self.function is None and ast.unparse(node.test) in _MAIN_TESTS:
            self.function = MAIN
            self.block(node.body, guard)
            self.function = None
        elif (runs := decided(node.test)) is not False:
            self.expression(node.test, guard)
            self.block(node.body, self.under(guard, node.test, holds=True))
            if runs:
                return
        if node.orelse:
            self.block(node.orelse, self.under(guard, node.test, holds=False))

    def define(self, node: _Function, name: str, guard: Guard) -> None:
        """Read a function. Decorators, defaults and annotations run now, the body later."""
        for decorator in node.decorator_list:
            self.expression(decorator, guard)
            if isinstance(decorator, ast.Name) and (origin := self.lookup(decorator.id)):
                self.add_use(origin, decorator.lineno, guard)
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
        self.bind(node.name, None)
        self.result.defined |= refused_members() & {node.name}
        if (match := AVAILABLE.fullmatch(name)) and "version" in ast.unparse(node).lower():
            self.result.floors[match[1]] = floor_of(node, self.texts)
        body = partial(self.body, node, name, guard, tuple(self.scopes), self.bases[-1] if self.bases else None)
        if self.later is not None and self.function is None:
            self.later[name] = body
        else:
            body()

    def body(self, node: _Function, name: str, guard: Guard, scopes: tuple[Scope, ...], base: Origin | None) -> None:
        """Read what a function runs, in the scopes in which it stands."""
        arguments = node.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        scope = Scope(unsure_names(node.body, walrus=self.walrus))
        stated = ((a.arg, self.class_of(a.annotation)) for a in every)
        scope.names |= {name: origin and replace(origin, is_stated=True) for name, origin in stated}
        scope.names |= {a.arg: None for a in (arguments.vararg, arguments.kwarg) if a is not None}
        if scopes[-1].is_class and every and not _is_static(node):
            scope.names[every[0].arg] = base
            fields = self.fields[-1] if self.fields else {}
            scope.names |= {f"{every[0].arg}.{field}": origin for field, origin in fields.items()}
        self.bodies.append(node.body)
        function, outer, bases = self.function, self.scopes, self.bases
        self.function, self.scopes, self.bases = function or name, [*scopes, scope], [*bases, base]
        # Nothing in a function is caught by what stood around its definition.
        self.block(node.body, replace(guard, caught=False, imported=None, fits=False, nested=function is not None))
        self.function, self.scopes, self.bases = function, outer, bases
        self.bodies.pop()

    def klass(self, node: ast.ClassDef, guard: Guard) -> None:
        for part in (*node.decorator_list, *node.bases, *(k.value for k in node.keywords)):
            self.expression(part, guard)
        base = self.base_of(node)
        self.bases.append(base)
        if base and self.is_one_text and len(self.scopes) == 1 and not makes_objects(node, base.hidden):
            self.heirs[node.name] = Origin(base.chain)
        self.fields.append(self.fields_of(node) if self.is_one_text else {})
        self.bind(node.name, None)
        self.scopes.append(Scope(unsure_names(node.body, walrus=self.walrus), is_class=True))
        for child in node.body:
            if isinstance(child, FUNCTIONS):
                self.define(child, f"{node.name}.{child.name}", guard)
                if base and base.chain and self.is_one_text:
                    text = function_text(child, method=True)
                    override = Override(chain=(*base.chain, child.name), line=child.lineno, text=text, guard=guard)
                    self.result.overrides.append(override)
            else:
                self.statement(child, guard)
        self.scopes.pop()
        self.bases.pop()
        self.fields.pop()

    def base_of(self, node: ast.ClassDef) -> Origin | None:
        """Return an object of the one class of another package that a class descends from."""
        base = self.origin(node.bases[0]) if len(node.bases) == 1 else None
        if base is not None and not (self.ancestors and self.is_own(base.chain)):
            return Origin(base.chain, member=True, hidden=own_members(node))
        ancestors = self.ancestors(node) if self.ancestors and len(self.scopes) == 1 else None
        if ancestors is None or len(ancestors.chains) != 1:
            return None
        return Origin(ancestors.chains[0], member=True, hidden=ancestors.hidden, above=ancestors.hidden)

    def fields_of(self, node: ast.ClassDef) -> dict[str, Origin]:
        """Return what the methods of a class store in it, where that is an object of one imported class and nothing else."""
        fields: dict[str, Origin | None] = {}
        for name, value in stored_fields(node):
            origin = self.object_of(value)
            fields[name] = origin if fields.get(name, origin) == origin else None
        return {name: origin for name, origin in fields.items() if origin and not self.is_own(origin.chain)}

    @property
    def is_one_text(self) -> bool:
        """Return whether a project's or a published text is read: the measured tables do without fields and dictionaries."""
        return self.later is None

    # -- imports ------------------------------------------------------------------------------------------------------

    def plain_import(self, node: ast.Import, guard: Guard) -> None:
        for alias in node.names:
            chain = tuple(alias.name.split("."))
            self.add_import(chain, node.lineno, guard)
            if alias.asname:
                self.bind(alias.asname, Origin(chain))
            else:
                self.bind(chain[0], Origin(chain[:1]))

    def from_import(self, node: ast.ImportFrom, guard: Guard) -> None:
        module = tuple(absolute(node, self.package).split("."))
        for alias in node.names:
            if alias.name == "*":
                self.add_import(module, node.lineno, guard)
                if not self.is_own(module):
                    self.result.unseen.append((node.lineno, module[0]))
                continue
            self.add_import((*module, alias.name), node.lineno, guard)
            self.bind(alias.asname or alias.name, Origin((*module, alias.name)))

    def add_import(self, chain: Chain, line: int, guard: Guard) -> None:
        use = Use(chain=chain, line=line, function=self.function, imported=True, guard=guard)
        if self.is_own(chain):
            self.result.imports.append(use)
            return
        if _is_foreign(chain):
            self.result.uses.append(use)
        if gone_name(chain):
            self.result.gone.append(use)

    # -- expressions --------------------------------------------------------------------------------------------------

    def expression(self, node: ast.AST, guard: Guard) -> None:
        if type(node) in LEAVES:
            return
        if isinstance(node, ast.Attribute):
            self.attribute(node, guard)
            return
        if isinstance(node, ast.Call):
            self.called(node, guard)
            return
        if isinstance(node, ast.Lambda):
            outer, self.function = self.function, self.function or "<lambda>"
            self.within([a.arg for a in node.args.args], [node.body], guard)
            self.function = outer
            return
        if isinstance(node, COMPREHENSIONS):
            targets = {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
            self.within(targets, children(node), guard)
            return
        if isinstance(node, ast.IfExp):
            self.expression(node.test, guard)
            self.expression(node.body, self.under(guard, node.test, holds=True))
            self.expression(node.orelse, self.under(guard, node.test, holds=False))
            return
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self.expression(value, guard)
                guard = self.under(guard, value, holds=isinstance(node.op, ast.And))
            return
        for child in children(node):
            self.expression(child, guard)

    def within(self, names: Iterable[str], nodes: Iterable[ast.AST], guard: Guard) -> None:
        """Read expressions in which some names are variables of their own."""
        self.scopes.append(Scope(names=dict.fromkeys(names)))
        for node in nodes:
            self.expression(node, guard)
        self.scopes.pop()

    def attribute(self, node: ast.Attribute, guard: Guard) -> None:
        origin = self.origin(node)
        if origin is not None and isinstance(node.ctx, ast.Load):
            self.add_use(origin, node.lineno, guard)
        elif isinstance(node.ctx, ast.Load) and self.is_one_text and node.attr in refused_members():
            self.result.members.append(Member(name=node.attr, line=node.lineno, guard=guard))
        elif isinstance(node.ctx, ast.Store) and (module := self.origin(node.value)) and not module.member:
            self.given.add((*module.chain, node.attr))
        self.expression(_base(node), guard)

    def add_use(self, origin: Origin, line: int, guard: Guard, **call: Any) -> None:
        """Note a use. ``call`` are the fields of one that is called."""
        guard = guard.of_member(origin.chain)
        is_given = any(origin.chain[:depth] in self.given for depth in range(2, len(origin.chain) + 1))
        if gone_name(origin.chain) and not (is_given or origin.member or self.is_own(origin.chain)):
            self.result.gone.append(Use(chain=origin.chain, line=line, function=self.function, guard=guard))
        if not self.is_own(origin.chain) and _is_foreign(origin.chain) and not is_given:
            self.result.uses.append(
                Use(
                    chain=origin.chain,
                    line=line,
                    function=self.function,
                    member=origin.member,
                    guard=guard,
                    **call,
                )
            )

    def called(self, node: ast.Call, guard: Guard) -> None:
        origin = self.origin(node.func) or self.maker(node.func)
        if origin is not None:
            if self.is_one_text and origin.member and origin.chain[-1].lstrip("_")[:1].isupper():  # an object is called
                origin = replace(origin, chain=(*origin.chain, "__call__"))
            of_class = not origin.member and origin.chain[-2:-1] and origin.chain[-2].lstrip("_")[:1].isupper()
            positions = positions_of(node, object_first=bool(of_class)) if self.is_one_text else ()
            arguments = () if guard.fits else (*sorted(self.keywords(node)), *positions)
            self.add_use(
                origin,
                node.lineno,
                guard,
                arguments=arguments,
                values=values_of(node),
                attributes=self.attributes_of(node, origin),
                call=whole_call(node) if self.is_one_text and not (guard.fits or origin.is_stated) else "",
            )
        self.expression(node.func if origin is None else _base(node.func), guard)
        self.at_run_time(node, guard)
        self.call(node.func, guard)
        for child in (*node.args, *(k.value for k in node.keywords)):
            self.expression(child, guard)

    def maker(self, node: ast.expr) -> Origin | None:
        """Return the class of another package that makes the objects of an own class."""
        if not isinstance(node, ast.Name) or any(node.id in scope.unsure for scope in self.scopes):
            return None
        is_other = any(node.id in scope.names for scope in self.scopes[1:])
        return None if is_other else self.heirs.get(node.id)

    def keywords(self, node: ast.Call) -> Iterator[str]:
        """Yield the named arguments of a call, those in a dictionary too."""
        for keyword in node.keywords:
            if keyword.arg:
                yield keyword.arg
            elif self.is_one_text and isinstance(keyword.value, ast.Name) and self.bodies:
                yield from given_keys(self.bodies[-1], keyword.value.id, node.lineno)
            elif self.is_one_text:
                yield from literal_keys(keyword.value)

    def attributes_of(self, node: ast.Call, origin: Origin) -> frozenset[str]:
        """Return what is taken of the result of a followed call that says all of its arguments."""
        is_whole = self.is_one_text and all(keyword.arg for keyword in node.keywords)
        is_followed = is_whole and ".".join(origin.chain) in followed_calls()
        return attributes_of(node, self.bodies[-1] if self.bodies else self.top) if is_followed else frozenset()

    def at_run_time(self, node: ast.Call, guard: Guard) -> None:
        """Read ``getattr`` and ``import_module``: a use where the name is written, else a line that is not seen."""
        function = dotted(node.func)
        if function in _LOADERS and node.args:
            text = _text(node.args[0])
            if text is None:
                self.result.unseen.append((node.lineno, ""))
            elif text and not text.startswith("."):
                self.add_import(tuple(text.split(".")), node.lineno, guard)
        elif function == "getattr" and len(node.args) > 1 and (origin := self.origin(node.args[0])):
            name = _text(node.args[1])
            if name is not None:
                caught = replace(guard, caught=True, imported=None) if len(node.args) > 2 else guard
                self.add_use(replace(origin, chain=(*origin.chain, name)), node.lineno, caught)
            elif not self.is_own(origin.chain) and _is_foreign(origin.chain):
                self.result.unseen.append((node.lineno, origin.chain[0]))

    def is_own_call(self, node: ast.expr) -> bool:
        """Return whether an expression calls a function or class of the own package by its name."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            return False
        origin = self.lookup(node.func.id)
        return node.func.id not in vars(builtins) and (origin is None or self.is_own(origin.chain))

    def call(self, node: ast.expr, guard: Guard) -> None:
        """Note a function of the own package that is called: its body runs where this runs."""
        target = node.func if isinstance(node, ast.Call) else node
        if isinstance(target, ast.Name):
            origin = self.lookup(target.id)
            chain = origin.chain if origin else (*self.module.split("."), target.id)
            if self.is_own(chain):
                self.result.calls.append(Use(chain=chain, line=target.lineno, function=self.function, guard=guard))

    # -- names --------------------------------------------------------------------------------------------------------

    def origin(self, node: ast.expr) -> Origin | None:
        """Return ``("torch", "distributed", "rpc", "x")`` of ``dist.rpc.x``, where ``dist`` was imported so."""
        steps: list[str] = []
        while isinstance(node, ast.Attribute):
            steps.insert(0, node.attr)
            node = node.value
        field = self.lookup(f"{node.id}.{steps[0]}") if isinstance(node, ast.Name) and steps else None
        if field is not None:
            return replace(field, chain=(*field.chain, *steps[1:])) if len(steps) > 1 else field
        base = self.lookup(node.id) if isinstance(node, ast.Name) else self.object_of(node) if steps else None
        if base is None or (steps and steps[0] in base.hidden):
            return None
        return Origin((*base.chain, *steps), base.member, is_stated=base.is_stated) if steps else base

    def object_of(self, node: ast.expr | None) -> Origin | None:
        """Return the class of the object that an expression makes, where it is a call of an imported class."""
        if not isinstance(node, ast.Call):
            return None
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            is_own = not node.args or self.origin(node.args[0]) is None  # not what comes after another class
            base = self.bases[-1] if self.bases and is_own else None
            return Origin(base.chain, base.member, hidden=base.above) if base else None
        return self.class_of(node.func)

    def loaded(self, node: ast.expr | None) -> Origin | None:
        """Return what a function loads that is called like an import: ``get_module("numpy")``, ``optional_import("x", name="f")``.

        The latter returns two, the first of which is what was loaded.
        """
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value == 0:
            node = node.value
        is_load = self.is_one_text and isinstance(node, ast.Call) and node.args and _LOADS.search(dotted(node.func))
        path = _text(node.args[0]) if is_load and isinstance(node, ast.Call) else None
        if not path or not all(map(str.isidentifier, path.split("."))):
            return None
        names = (_text(k.value) for k in node.keywords if k.arg == "name") if isinstance(node, ast.Call) else ()
        chain = (*path.split("."), *filter(None, names))
        return Origin(chain) if _is_foreign(chain) and not self.is_own(chain) else None

    def class_of(self, node: ast.expr | None) -> Origin | None:
        """Return an object of the class that an expression names. Classes are what is written in capitals."""
        origin = self.origin(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
        is_class = origin is not None and not origin.member and origin.chain[-1].lstrip("_")[:1].isupper()
        return replace(origin, member=True) if origin is not None and is_class else None

    def lookup(self, name: str) -> Origin | None:
        for number, scope in enumerate(reversed(self.scopes)):
            if name in scope.names and not (scope.is_class and number):
                return scope.names[name]
        return None

    def bind(self, name: str, origin: Origin | None) -> None:
        scope = self.scopes[-1]
        scope.names[name] = None if name in scope.unsure else origin
        if origin is not None and not origin.member and self.function is None:
            self.result.names[name] = origin.chain

    def is_own(self, chain: Chain) -> bool:
        return any(".".join(chain[:depth]) in self.own for depth in range(1, len(chain) + 1))

    # -- guards -------------------------------------------------------------------------------------------------------

    def under(self, guard: Guard, test: ast.expr, *, holds: bool) -> Guard:
        """Return the guard below a condition that holds, or does not."""
        if decided(test) is not None:
            return guard
        if (packages := available(test, holds=holds)) is not None:
            return replace(guard, available=(*guard.available, *packages))
        if self.is_one_text and (package := flagged(test, holds=holds)):  # it may ask for a release of it too
            return replace(guard, branch=True, available=(*guard.available, package))
        tests = tuple(self.tests(test, holds=holds))
        exact = len(tests) == 1 and self.tested(test) is not None
        version = guard.version or (not exact and bool(_ASKS.search(ast.unparse(test))))
        return replace(guard, branch=guard.branch or not exact, version=version, tests=(*guard.tests, *tests))

    def tests(self, test: ast.expr, *, holds: bool) -> Iterator[Test]:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield from self.tests(test.operand, holds=not holds)
        elif isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn):
            yield from self.tests(
                ast.Compare(left=test.left, ops=[ast.In()], comparators=test.comparators), holds=not holds
            )
        elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if holds else ast.Or):
            for value in test.values:
                yield from self.tests(value, holds=holds)
        elif (pair := self.tested(test)) is not None:
            yield Test(*pair, holds)

    def tested(self, test: ast.expr) -> tuple[Chain, str] | None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.tested(test.operand)
        asking = _asking(test)
        origin, name = (self.origin(asking[0]), _text(asking[1])) if asking else (None, None)
        return (origin.chain, name) if origin is not None and name is not None else None


def _asking(test: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Return the object and the name of ``hasattr(torch, "log")`` and of ``"log" in dir(torch)``."""
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.In, ast.NotIn)):
        call = test.comparators[0]
        is_dir = isinstance(call, ast.Call) and dotted(call.func) == "dir" and len(call.args) == 1
        return (call.args[0], test.left) if is_dir and isinstance(call, ast.Call) else None
    is_hasattr = isinstance(test, ast.Call) and dotted(test.func) == "hasattr" and len(test.args) == 2
    return (test.args[0], test.args[1]) if is_hasattr and isinstance(test, ast.Call) else None


def _base(node: ast.expr) -> ast.expr:
    """Return what a chain of attributes begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def _without_short_ways(uses: Sequence[Use]) -> Iterator[Use]:
    """Yield uses. Of a conditional call beside one that gives more, in another branch, nothing is asked as a whole.

    Whoever writes both may have found out which of them the release takes.
    """
    ways = [use for use in uses if use.call and use.guard.branch]
    longest: dict[tuple[Chain, str | None], int] = {}
    for use in ways:
        key = use.chain, use.function
        longest[key] = max(longest.get(key, 0), WholeCall.of(use.call).total)
    for use in uses:
        is_short = use.call and use.guard.branch and WholeCall.of(use.call).total < longest[use.chain, use.function]
        yield replace(use, call="") if is_short else use


def _is_foreign(chain: Chain) -> bool:
    return bool(chain[0]) and chain[0] not in sys.stdlib_module_names and chain[0] != "__future__"


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_static(node: _Function) -> bool:
    return any(isinstance(d, ast.Name) and d.id in {"staticmethod", "classmethod"} for d in node.decorator_list)
