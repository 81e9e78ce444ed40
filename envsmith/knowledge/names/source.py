"""One module's source text as lines that say what it binds. Nothing is run.

A line is ``NAME BODY``. ``BODY`` begins with marks and then a kind:

``?``  bound only where something optional is installed     ``-`` ``+``  a star import skips it, or brings it in spite of ``_``
``=x`` value (``x`` where it is another name)               ``(a,b=,*,**`` function (``|`` keywords follow, ``/`` positions end)
``~d(`` function below ``@d``, which may change arguments    ``:A,B`` class with its bases (``@:`` writes ``__init__`` from fields)
``&x(`` function that touches no argument but ``x`` where it is a decorator (``decorators.py``). Tables have neither ``d`` nor ``&x``
``>m:n`` ``n`` of module ``m``, ``>m`` the module           ``~`` a text of a module that makes names when they are asked for
``*``  listed in ``__all__`` and bound by a star import     ``^x`` a message of the module says: use ``x``

Members are ``Class.member``: ``=`` and ``(`` as above, ``.`` set on instances, ``!`` a field. The name ``*`` speaks of the
whole module (``C.*`` of a class): ``>m`` a star import (``>=x`` of what ``x`` is here), ``?`` names are made at run time (``?x`` those that end in
``x``), ``/`` what the packages in its folder list, ``!`` a compiled module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from envsmith.knowledge.names.blocks import Blocks, remember
from envsmith.knowledge.names.conditions import Truth, cannot_fail, provides_dummies, truth
from envsmith.knowledge.names.dotted import absolute, constant, dotted
from envsmith.knowledge.names.lazy_modules import (
    aliases_of,
    answers_for_members,
    endings,
    lazy_names,
    lists_folder,
    makes_names,
    names_of_loop,
    names_of_table,
    names_put,
    star_of_loop,
    texts_of,
)
from envsmith.knowledge.names.signature_text import attributes_given, class_text, function_text, instance_names
from envsmith.knowledge.names.stubs import without_types

# Names at the left edge of a stub. Nothing more is read of one as long as torch/_C/_VariableFunctions.pyi (1.2 MB), or
# of one in the syntax of a later Python (numpy).
_STUBBED = re.compile(rb"^(?:def |class |async def )?([A-Za-z_]\w*)(?= *[:=(])", re.MULTILINE)
_LONG_STUB = 1_000_000
# A module of another name is put beside this one.
_MAKES_MODULES = re.compile(rb"sys\.modules\[(?!__name__\])[^\]]+\] = |sys\.meta_path\.(?:append|insert)")
# Modules of the package are looked for elsewhere too.
_MOVES_PATH = re.compile(rb"\b__path__(?: = |\.(?:append|insert|extend)\()")
_MAKERS = {"globals().update", "vars().update", "locals().update"}
_EXTENDERS = {"__all__.extend", "__all__.append"}
_WORDS = ("deprecated", "removed", "renamed")
_MESSAGE_WORDS = tuple(word.encode() for word in _WORDS)
_MESSAGE = re.compile(
    r"[`'\"]?([A-Za-z_][\w.]*)[`'\"]?(?:\(\))?\s+(?:argument\s+|parameter\s+)?(?:is|are|has been|was|will be)\b[^.]{0,120}?"
    r"(?:deprecated|removed|renamed).{0,200}?(?:[Uu]se|favou?r of|replaced (?:by|with)|renamed to)\s+[`'\"]([A-Za-z_][\w.]*)",
    re.DOTALL,
)


@dataclass(slots=True)
class Binding:
    """What a name is bound to: every body that is possible, and whether one of them is certain."""

    bodies: frozenset[str]
    certain: bool = True


Bindings = dict[str, Binding]


def read_module(
    source: bytes, module: str, *, package: bool, stub: bool = False, blocks: Blocks | None = None
) -> frozenset[str]:
    """Return the lines of a module. A source that this Python cannot parse makes no statement about any name.

    ``blocks`` are those of the module in other releases.
    """
    if stub and len(source) > _LONG_STUB:
        return _left_edge(source)
    try:
        tree = (blocks or Blocks()).parse(source)
        tree = without_types(tree) if stub else tree
        reader = _Reader(tree, module, module if package else module.rpartition(".")[0], stub=stub)
        return reader.lines(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _left_edge(source) if stub else frozenset({"* ?"})


def _left_edge(stub: bytes) -> frozenset[str]:
    return frozenset(f"{name.decode()} =" for name in _STUBBED.findall(stub))


@dataclass(slots=True)
class _Exports:
    """``__all__``: what it lists, ``None`` where it is computed. ``stars`` are modules whose own list is added to it."""

    names: set[str] | None = None
    stars: set[str] = field(default_factory=set)
    computed: bool = False

    def add(self, value: ast.expr) -> None:
        if isinstance(value, (ast.List, ast.Tuple, ast.Set)) and all(
            isinstance(i, ast.Constant) and isinstance(i.value, str) for i in value.elts
        ):
            items = {i.value for i in value.elts if isinstance(i, ast.Constant) and isinstance(i.value, str)}
            self.names = (self.names or set()) | items
        elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            self.add(value.left)
            self.add(value.right)
        elif isinstance(value, ast.Constant) and isinstance(value.value, str):
            self.names = (self.names or set()) | {value.value}
        else:
            self.computed = True


class _Reader:
    def __init__(self, tree: ast.Module, module: str, package: str, *, stub: bool) -> None:
        self.tree = tree
        self.module = module
        self.package = package
        self.stub = stub
        self.lazy = not stub and makes_names(tree)
        self.members: set[str] = set()
        self.wide: set[str] = set()  # bodies of the name *
        self.shown: set[str] = set()  # names that a lazy module lists
        self.own: set[str] = set()  # names of the module itself: module = sys.modules[__name__]
        self.replaced = False
        self.makes_modules = False
        self.exports = _Exports()

    def lines(self, source: bytes) -> frozenset[str]:
        bindings = self.block(self.tree.body) or {}
        self.exports.computed |= b"__all__." in source and _extended_in_function(self.tree)
        if self.replaced:  # what stands in its place answers for what it lists, and for nothing else
            bindings = {name: bound for name, bound in bindings.items() if name in self.shown or name == "__version__"}
        listed = None if self.exports.computed else self.exports.names
        lines = {f"{name} {body}" for name, bound in bindings.items() for body in self._marked(name, bound, listed)}
        answered = names_of_table(self.tree) if b"__getattr__ = " in source else set()
        for name in (answered | (listed or set())) - bindings.keys():
            lines.add(f"{name} *")
        mark = "-" if listed is not None else ""
        lines |= {f"* {mark if body.startswith('>') else ''}{body}" for body in self.wide}
        if b"attach_stub(" in source or (b"__members__" in source and answers_for_members(self.tree)):
            lines.add("* ?")
        root = self.module.partition(".")[0]
        if not self.stub and (b"setattr(" in source or re.search(rb"['\"]%s[\w.]*:[\w{]" % root.encode(), source)):
            lines |= {f"* @{name}" for name in names_put(self.tree, root)}
        lines |= {f"* @.{name}" for name in attributes_given(source)} if not self.stub else set()
        lines |= {"__path__ ~"} if _MOVES_PATH.search(source) else set()
        if b"define_import_structure" in source and lists_folder(self.tree):
            lines.add("* /")
        made_later = _globals_of(self.tree) if b"global " in source else set()
        made_later |= texts_of(self.tree) if self.lazy and not self.replaced else set()
        makes_modules = self.makes_modules or (self.replaced and _MAKES_MODULES.search(source))
        made_later |= aliases_of(self.tree) if makes_modules else set()
        lines |= {f"{name} ~" for name in made_later - bindings.keys()}
        if any(word in source for word in _MESSAGE_WORDS):
            lines |= {f"{old} ^{new}" for node in self.tree.body for old, new in _successors(node)}
        return frozenset(lines | self.members)

    @staticmethod
    def _marked(name: str, bound: Binding, listed: set[str] | None) -> Iterator[str]:
        by_custom = not name.startswith("_")
        brought = name in listed if listed is not None else by_custom
        mark = "" if brought == by_custom else "+" if brought else "-"
        for body in bound.bodies:
            yield ("" if bound.certain else "?") + mark + body

    # -- statements ---------------------------------------------------------------------------------------------------

    def block(self, body: Iterable[ast.stmt]) -> Bindings | None:
        """Return what statements bind one after the other. ``None`` when they always raise."""
        bindings: Bindings = {}
        for node in body:
            if isinstance(node, ast.Raise):
                return None
            if isinstance(node, ast.Delete):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        bindings.pop(target.id, None)
                continue
            later = self.statement(node)
            if later is None:
                return None
            self._follow(bindings, later)
        return bindings

    def _follow(self, bindings: Bindings, later: Bindings) -> None:
        for name, bound in later.items():
            before = bindings.get(name)
            if before is None or (bound.certain and not self.stub):
                bindings[name] = bound
            else:
                bindings[name] = Binding(before.bodies | bound.bodies, before.certain or bound.certain)

    def statement(self, node: ast.stmt) -> Bindings | None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return {node.name: Binding(frozenset({function_text(node, method=False)}))}
        if isinstance(node, ast.ClassDef):
            self.read_class(node, node.name)
            return {node.name: Binding(frozenset({class_text(node)}))}
        if isinstance(node, ast.If):
            return self.branch(node)
        if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            return self.attempt(node)  # type: ignore[arg-type]
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            return self.loop(node)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            items = [i.optional_vars for i in node.items if i.optional_vars is not None]
            inner = self.block(node.body)
            return None if inner is None else {**_stored(items), **self._softened(inner, node)}
        if isinstance(node, ast.Match):
            return _either([self.block(case.body) for case in node.cases] + [{}])
        if isinstance(node, ast.Import):
            return self.plain_import(node)
        if isinstance(node, ast.ImportFrom):
            return self.from_import(node)
        return self.simple(node)

    @staticmethod
    def _softened(inner: Bindings, node: ast.With | ast.AsyncWith) -> Bindings:
        """Take what ``with suppress(ImportError)`` binds as optional."""
        context = node.items[0].context_expr
        if not (isinstance(context, ast.Call) and dotted(context.func).endswith("suppress")):
            return inner
        return _maybe(inner)

    def branch(self, node: ast.If) -> Bindings | None:
        outcome = truth(node.test, lazy=self.lazy)
        if outcome is Truth.BOTH:
            bindings = self.block(node.body) or {}
            self.shown |= bindings.keys()
            self._follow(bindings, self.block(node.orelse) or {})
            return bindings
        if outcome is not Truth.UNKNOWN:
            return self.block(node.body if outcome is Truth.YES else node.orelse)
        return _either([self.block(node.body), self.block(node.orelse)])

    def attempt(self, node: ast.Try) -> Bindings | None:
        body = self.block(node.body)
        complete = None
        if body is not None:
            complete = dict(body)
            orelse = self.block(node.orelse)
            complete = None if orelse is None else {**complete, **orelse}
        paths = [complete]
        if not cannot_fail(node.body):
            for handler in node.handlers:
                bindings = None if provides_dummies(handler) else self.block(handler.body)
                paths.append(None if bindings is None else {**_maybe(body or {}), **bindings})
        bindings = _either(paths)
        last = self.block(node.finalbody)
        return None if bindings is None or last is None else {**bindings, **last}

    def loop(self, node: ast.For | ast.AsyncFor | ast.While) -> Bindings:
        star = star_of_loop(node)
        bindings: Bindings = {}
        if star is not None:
            self.wide.add(f">{star}")
        else:
            before, names = set(self.wide), names_of_loop(node)
            bindings = self.block(node.body) or {}
            if names is not None:
                self.wide = before
                bindings |= {name: Binding(frozenset({"="})) for name in names}
        if isinstance(node, (ast.For, ast.AsyncFor)):
            bindings = {**_stored([node.target]), **bindings}
        self._follow(bindings, self.block(node.orelse) or {})
        return bindings

    # -- imports and assignments --------------------------------------------------------------------------------------

    def plain_import(self, node: ast.Import) -> Bindings:
        bindings: Bindings = {}
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            bindings[name] = Binding(frozenset({f">{alias.name if alias.asname else name}"}))
        return bindings

    def from_import(self, node: ast.ImportFrom) -> Bindings:
        origin = absolute(node, self.package)
        bindings: Bindings = {}
        for alias in node.names:
            if alias.name == "*":
                self.wide.add(f">{origin}")
            else:
                bindings[alias.asname or alias.name] = Binding(frozenset({f">{origin}:{alias.name}"}))
        return bindings

    def simple(self, node: ast.stmt) -> Bindings:
        targets = node.targets if isinstance(node, ast.Assign) else [t] if (t := getattr(node, "target", None)) else []
        value = getattr(node, "value", None)
        self._export(targets, value)
        if isinstance(value, ast.Subscript) and ast.unparse(value).lstrip("_") in {
            "sys.modules[__name__]",
            f"sys.modules[{self.module!r}]",
        }:
            self.own |= {dotted(target) for target in targets}
        bindings = lazy_names(node, self.package) if self.lazy else {}
        bound = {name: Binding(bodies) for name, bodies in bindings.items()}
        self.shown |= bound.keys()
        if isinstance(node, ast.AnnAssign) and value is None and not self.stub:
            return bound
        alias = dotted(value).removesuffix("()")
        alias = "" if "()" in alias or isinstance(value, ast.Call) else alias
        stored = {n: Binding(frozenset({f"={alias}"})) for n in _stored(targets)} if alias else _stored(targets)
        for child in ast.walk(node):
            if isinstance(child, ast.NamedExpr) and isinstance(child.target, ast.Name):
                stored[child.target.id] = Binding(frozenset({"="}))
            elif isinstance(child, ast.Subscript) and isinstance(child.ctx, ast.Store):
                self._written(child, stored)
            elif isinstance(child, ast.Call) and not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                self._called(child)
        return {**bound, **stored}

    def _export(self, targets: list[ast.expr], value: ast.expr | None) -> None:
        """Read what a statement adds to ``__all__``."""
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets) and value is not None:
            self.exports.add(value)
        elif isinstance(value, ast.Call) and dotted(value.func) in _EXTENDERS:
            for argument in value.args:
                self.exports.add(argument)

    def _is_below(self, key: ast.expr) -> bool:
        """Return whether a text names a module below this one: ``f"torch.distributed._tensor.{name}"``."""
        first = key.values[0] if isinstance(key, ast.JoinedStr) and key.values else key
        own = isinstance(first, ast.FormattedValue) and dotted(first.value) == "__name__"
        return own or constant(first).startswith(f"{self.module}.")

    def _written(self, target: ast.Subscript, stored: Bindings) -> None:
        """Read ``globals()["x"] = …``: the name where it stands there, else the module makes names."""
        place = dotted(target.value)
        if place.endswith(".__dict__"):
            self.wide.add("?")
        if place == "sys.modules" and dotted(target.slice) == "__name__":
            if self.lazy:
                self.replaced = True
            else:  # an object that answers for itself stands in the module's place
                self.wide.add("?")
        self.makes_modules |= place == "sys.modules" and self._is_below(target.slice)
        if not place.startswith(("globals()", "vars()", "locals()")):
            return
        if isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str):
            stored[target.slice.value] = Binding(frozenset({"="}))
        else:
            self.wide.add("?")

    def _called(self, call: ast.Call) -> None:
        callee = dotted(call.func)
        module = ast.unparse(call.args[0]) if callee == "setattr" and call.args else ""
        if callee in _MAKERS or module in self.own or "__name__" in module:
            self.wide.add("?")

    # -- classes ------------------------------------------------------------------------------------------------------

    def read_class(self, node: ast.ClassDef, path: str) -> None:
        """Add the lines of the members of a class and of the classes in it."""
        reader = _ClassReader(self, path)
        bindings = reader.block(node.body) or {}
        for name, bound in bindings.items():
            self.members |= {f"{path}.{name} {'' if bound.certain else '?'}{b}" for b in bound.bodies}
        for name in instance_names(node) - bindings.keys():
            self.members.add(f"{path}.{name} ?" if name == "*" else f"{path}.{name} .")
        if "__getattr__" in bindings or "__getattribute__" in bindings:
            self.members |= {f"{path}.* ?", *(f"{path}.* ?{ending}" for ending in endings(node))}


class _ClassReader(_Reader):
    """The same statements in the body of a class."""

    def __init__(self, outer: _Reader, path: str) -> None:
        self.tree = ast.Module(body=[], type_ignores=[])
        self.outer = outer
        self.path = path
        self.module, self.package, self.stub, self.lazy = outer.module, outer.package, outer.stub, False
        self.members = outer.members
        self.wide, self.shown, self.own, self.replaced, self.exports = set(), set(), set(), False, _Exports()
        self.makes_modules = False

    def statement(self, node: ast.stmt) -> Bindings | None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return {node.name: Binding(frozenset({function_text(node, method=True)}))}
        if isinstance(node, ast.ClassDef):
            self.outer.read_class(node, f"{self.path}.{node.name}")
            return {node.name: Binding(frozenset({class_text(node)}))}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            kind = node.annotation.value if isinstance(node.annotation, ast.Subscript) else node.annotation
            if dotted(kind).endswith("ClassVar"):
                return {node.target.id: Binding(frozenset({"="}))}
            return {node.target.id: Binding(frozenset({"!" if node.value is None else "!="}))}
        return super().statement(node)


def _globals_of(tree: ast.Module) -> set[str]:
    """Return the names that functions bind with ``global``."""
    return {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}


def _extended_in_function(tree: ast.Module) -> bool:
    """Return whether a function adds to ``__all__``: numpy's ``extend_all(module)`` passes on what a module lists."""
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    calls = (node for function in functions for node in ast.walk(function) if isinstance(node, ast.Call))
    return any(dotted(call.func) in _EXTENDERS for call in calls)


def _either(paths: list[Bindings | None]) -> Bindings | None:
    """Return what is bound on one of several paths. A path that always raises counts for nothing."""
    open_paths = [p for p in paths if p is not None]
    if not open_paths:
        return None
    bindings: Bindings = {}
    for name in dict.fromkeys(n for p in open_paths for n in p):
        bound = [p[name] for p in open_paths if name in p]
        certain = len(bound) == len(open_paths) and all(b.certain for b in bound)
        bindings[name] = Binding(frozenset().union(*(b.bodies for b in bound)), certain)
    return bindings


def _maybe(bindings: Bindings) -> Bindings:
    return {name: Binding(bound.bodies, certain=False) for name, bound in bindings.items()}


def _stored(targets: Iterable[ast.expr]) -> Bindings:
    names = (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return {name: Binding(frozenset({"="})) for name in names}


def _successors(statement: ast.stmt) -> frozenset[tuple[str, str]]:
    """Return what messages say: ``("evaluation_strategy", "eval_strategy")``."""
    if isinstance(statement, ast.ClassDef):
        return frozenset().union(*(_successors(inner) for inner in statement.body))
    return remember(statement, "successors", lambda: frozenset(_messages(statement)))


def _messages(statement: ast.stmt) -> Iterator[tuple[str, str]]:
    for text in (_text(node) for node in ast.walk(statement)):
        if any(word in text for word in _WORDS):
            for match in _MESSAGE.finditer(text[:4000]):
                old, new = match[1].rstrip("."), match[2].rstrip(".")
                if old != new and len(old) > 2:
                    yield old.rpartition(".")[2], new


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)
    return constant(node)
