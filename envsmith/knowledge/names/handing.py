"""What a function does as a decorator to the arguments of another one, as its own text says. Nothing is run.

It *hands on* what a call names when every way through the function that it puts in the place of the other one calls
that one with all of it. What it takes out by name, or has as a parameter of its own, it *touches*. Of a decorator that
does anything else nothing is said.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from envsmith.knowledge.names.decorators import STATED, is_harmless, name_of, stated_words
from envsmith.knowledge.names.dotted import dotted
from envsmith.knowledge.names.scopes import COMPREHENSIONS, FUNCTIONS, children, within

Function = ast.FunctionDef | ast.AsyncFunctionDef
Touched = frozenset[str]
_WRAPS = ("wraps", "update_wrapper")
# What returns the function that is its first argument, or its second.
_SAME = {"update_wrapper": 0, "staticmethod": 0, "classmethod": 0, "cast": 1}
# What reads a dictionary, or adds to it, and takes nothing out of it.
_LOOKS = frozenset({"get", "items", "keys", "values", "copy", "update", "setdefault"})
_READERS = frozenset(
    {"len", "dict", "list", "tuple", "set", "frozenset", "sorted", "bool", "str", "repr", "iter", "enumerate", "zip"}
)


def handing(node: Function) -> str:
    """Return ``&old&[new,?]``: what a function touches as a decorator, ``@it``, and in brackets as ``@it(...)``.

    Empty where it is no decorator that hands on what a call names.
    """
    if node.decorator_list or not (any(isinstance(n, FUNCTIONS) for n in _own(node)) or _returns_first(node)):
        return ""
    decorator = _Decorator(node)
    effects = ((decorator.plain(), "&{}"), (decorator.called(), "&[{}]"))
    return "".join(form.format(",".join(sorted(touched))) for touched, form in effects if touched is not None)


def _returns_first(node: Function) -> bool:
    return isinstance(node.body[-1], ast.Return) and dotted(node.body[-1].value) in {_first(node.args), ""} - {""}


def _first(arguments: ast.arguments) -> str:
    return next((argument.arg for argument in (*arguments.posonlyargs, *arguments.args)), "")


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    plain = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return (argument.arg for argument in (*plain, arguments.vararg, arguments.kwarg) if argument is not None)


def _inside(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements that are directly inside of a node."""
    for inner in children(node):
        if isinstance(inner, ast.stmt):
            yield inner
        elif isinstance(inner, (ast.ExceptHandler, ast.match_case)):
            yield from _inside(inner)


def _own(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements inside of a node, those of functions and classes in it left out."""
    for inner in _inside(node):
        yield inner
        if not isinstance(inner, (*FUNCTIONS, ast.ClassDef)):
            yield from _own(inner)


def _bound(nodes: Iterable[ast.AST]) -> Counter[str]:
    names = (node for node in within(nodes) if isinstance(node, ast.Name))
    return Counter(name.id for name in names if not isinstance(name.ctx, ast.Load))


class _Decorator:
    """A function that takes another one. ``parameters`` are those of the functions around it."""

    def __init__(self, node: Function, parameters: Iterable[str] = ()) -> None:
        arguments = node.args
        self.node, self.first = node, _first(arguments)
        self.bound = _bound(node.body)
        self.parameters = {*parameters, *_parameters(arguments)} - self.bound.keys()
        self.defaults = [*arguments.defaults, *filter(None, arguments.kw_defaults)]
        self.inner: dict[str, list[Function]] = defaultdict(list)
        self.values: dict[str, ast.expr] = {}
        for inner in _own(node):
            if isinstance(inner, FUNCTIONS):
                self.inner[inner.name].append(inner)
            elif isinstance(inner, ast.Assign):
                self.values |= {dotted(target): inner.value for target in inner.targets}

    def plain(self) -> Touched | None:
        """Return what ``@it`` touches."""
        if not self.first or self.first in self.bound or self.first in self.inner:
            return None
        return _all(map(self._put, self._returned(_inside(self.node))))

    def called(self) -> Touched | None:
        """Return what ``@it(...)`` touches. What the call does not say, the defaults do."""
        values = [node.value for node in _own(self.node) if isinstance(node, ast.Return)]
        decorators = [self._decorating(value) for value in values]
        functions = [self._put(value) for value, answer in zip(values, decorators, strict=True) if answer is None]
        touched = _all([*filter(_is_read, decorators), *functions]) if any(map(_is_read, decorators)) else None
        if touched is None or STATED not in touched:
            return touched
        words = stated_words(self.defaults)
        return None if STATED in words else touched | words.keys()

    def _returned(self, body: Iterable[ast.stmt]) -> Iterator[ast.expr | None]:
        """Yield what may be returned where the first argument is a function."""
        for node in body:
            if isinstance(node, ast.Return):
                yield node.value
            elif isinstance(node, ast.If) and (wants := self._wants(node.test)) is not None:
                chosen = node.body if wants else node.orelse
                yield from self._returned(chosen)
                if chosen and isinstance(chosen[-1], (ast.Return, ast.Raise)):
                    return
            elif not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                yield from self._returned(_inside(node))

    def _wants(self, test: ast.expr) -> bool | None:
        """Return whether a condition holds only with the first argument, or only without it."""
        if isinstance(test, ast.Compare) and dotted(test.left) == self.first:
            is_none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
            return {ast.Is: False, ast.IsNot: True}.get(type(test.ops[0])) if is_none else None
        is_called = isinstance(test, ast.Call) and dotted(test.func) == "callable"
        return True if is_called and [dotted(a) for a in test.args] == [self.first] else None  # type: ignore[attr-defined]

    def _put(self, value: ast.expr | None) -> Touched | None:
        """Return what is touched by what stands in the place of the function, ``None`` where that is not read."""
        name = dotted(value)
        if name == self.first:
            return frozenset() if name else None
        if name in self.inner and name not in self.bound:
            return _all(self._handed(inner) for inner in self.inner[name])
        if name in self.values and self.bound[name] == 1 and name not in self.inner:
            return self._put(self.values.pop(name))
        if not isinstance(value, ast.Call):
            return None
        callee = dotted(value.func)
        if isinstance(value.func, ast.Call) and dotted(value.func.func).endswith(_WRAPS) and len(value.args) == 1:
            return self._put(value.args[0])
        at = _SAME.get(callee.rpartition(".")[2], len(value.args))
        if at < len(value.args):
            return self._put(value.args[at])
        is_applied = [dotted(argument) for argument in value.args] == [self.first] and not value.keywords
        return self._decorating(value.func) if is_applied else None

    def _decorating(self, value: ast.expr | None) -> Touched | None:
        """Return what a decorator touches that is returned, ``None`` where it is not read."""
        name = dotted(value)
        if name in self.inner and name not in self.bound:
            return _all(_Decorator(inner, self.parameters).plain() for inner in self.inner[name])
        is_partial = isinstance(value, ast.Call) and dotted(value.func).endswith("partial") and len(value.args) == 1
        return self.plain() if is_partial and dotted(value.args[0]) == self.node.name else None  # type: ignore[union-attr]

    def _handed(self, wrapper: Function) -> Touched | None:
        """Return what a function touches that stands in the place of the first argument."""
        keywords, own = wrapper.args.kwarg, {*_parameters(wrapper.args)}
        is_plain = all(name_of(d).endswith(_WRAPS) or is_harmless(d) for d in wrapper.decorator_list)
        if keywords is None or self.first in own or not is_plain:
            return None
        if not _always_calls(wrapper.body, self.first, keywords.arg):
            return None
        touched = _Dictionary(keywords.arg, self.parameters - own - {self.first}, wrapper.body).touched()
        return None if touched is None else touched | own


class _Dictionary:
    """What a function does with the dictionary of its further arguments, of that name.

    ``parameters`` hold what the arguments of a decorator state.
    """

    def __init__(self, name: str, parameters: set[str], body: Sequence[ast.stmt]) -> None:
        self.name, self.parameters = name, parameters
        self.nodes = list(within(body))
        self.loops: dict[str, list[ast.expr]] = defaultdict(list)
        for loop in self.nodes:
            if isinstance(loop, (ast.For, ast.comprehension)):
                for bound in _bound([loop.target]):
                    self.loops[bound].append(loop.iter)
        self.bound = _bound(body)

    def touched(self) -> Touched | None:
        """Return the keys that are taken out, ``None`` where it may lose others."""
        places = {id(place) for node in self.nodes for place in _looked_at(node, self.name)}
        keys = [key for node in self.nodes for key in self._taken(node, places)]
        if any(id(node) not in places for node in self.nodes if dotted(node) == self.name):
            return None
        return _all([frozenset[str](), *map(self._key, keys)])

    def _taken(self, node: ast.AST, places: set[int]) -> Iterator[ast.expr]:
        """Yield the keys that a node takes out, and see where it does."""
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Del) and dotted(node.value) == self.name:
            yield node.slice
        elif isinstance(node, ast.Call) and dotted(node.func) == f"{self.name}.pop" and node.args:
            places.add(id(node.func.value))  # type: ignore[attr-defined]
            yield node.args[0]

    def _key(self, key: ast.expr) -> Touched | None:
        if isinstance(key, ast.Constant):
            return frozenset({str(key.value)})
        name = dotted(key)
        loops = self.loops.get(name, [])
        is_stated = len(loops) == self.bound[name] if self.bound[name] else name in self.parameters
        return frozenset({STATED}) if is_stated and all(map(self._is_stated, loops)) else None

    def _is_stated(self, value: ast.expr) -> bool:
        nodes = list(within([value]))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        return bool(names & self.parameters) and names <= self.parameters | _READERS and attributes <= _LOOKS


def _looked_at(node: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yield places in which a dictionary of that name loses nothing."""
    if isinstance(node, (ast.Subscript, ast.FormattedValue)) or (isinstance(node, ast.keyword) and node.arg is None):
        yield node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOOKS:
        yield node.func.value
    elif isinstance(node, ast.Call) and dotted(node.func) in _READERS:
        yield from node.args
    elif isinstance(node, ast.Compare):
        yield from (node.left, *node.comparators)
    elif isinstance(node, (ast.If, ast.IfExp)):
        yield from (node.test, *(node.test.values if isinstance(node.test, ast.BoolOp) else ()))
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield node.iter
    elif isinstance(node, ast.Dict):
        yield from (value for key, value in zip(node.keys, node.values, strict=True) if key is None)
    elif isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1 and _keeps(node.value, name):
        yield node.targets[0]


def _keeps(value: ast.expr, name: str) -> bool:
    """Return whether a dictionary, or a list of its items, has all that the dictionary of that name has."""
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr in {"items", "copy"}:
            return _keeps(value.func.value, name)
        inner = [*value.args, *(keyword.value for keyword in value.keywords if keyword.arg is None)]
        return dotted(value.func) in {"dict", "list", "tuple"} and any(_keeps(each, name) for each in inner)
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.BitOr)):
        return _keeps(value.left, name) or _keeps(value.right, name)
    if isinstance(value, ast.Dict):
        spread = (each for key, each in zip(value.keys, value.values, strict=True) if key is None)
        return any(_keeps(each, name) for each in spread)
    return dotted(value) == name


def _always_calls(body: Sequence[ast.stmt], function: str, keywords: str) -> bool:
    """Return whether every way through statements comes to a call of a function with all of ``**keywords``, or fails."""

    def calls(value: ast.AST | None) -> bool:
        if value is None or isinstance(value, (ast.Lambda, *COMPREHENSIONS)):
            return False
        if isinstance(value, ast.IfExp):
            return calls(value.test) or (calls(value.body) and calls(value.orelse))
        if isinstance(value, ast.BoolOp):
            return calls(value.values[0])
        if isinstance(value, ast.Call) and dotted(value.func) == function:
            spread = (keyword.value for keyword in value.keywords if keyword.arg is None)
            if any(_keeps(each, keywords) for each in spread):
                return True
        return any(map(calls, children(value)))

    def follow(nodes: Iterable[ast.stmt]) -> bool | None:
        """Return ``True`` where every way calls, ``False`` where one returns without it, ``None`` where one goes on."""
        return next((answer for node in nodes if (answer := statement(node)) is not None), None)

    def statement(node: ast.stmt) -> bool | None:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            return None
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Return):
            return calls(node.value)
        if isinstance(node, (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign)):
            return calls(node.value) or None
        if isinstance(node, ast.If):
            return calls(node.test) or _both(follow(node.body), follow(node.orelse))
        if isinstance(node, (ast.With, ast.AsyncWith)) and not any(map(_suppresses, node.items)):
            return follow(node.body)
        if isinstance(node, ast.Try):
            ways = (follow((*node.body, *node.orelse)), *(follow(handler.body) for handler in node.handlers))
            ended = follow(node.finalbody)
            return _both(*ways) if ended is None else ended
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            return False if follow(node.body) is False or follow(node.orelse) is False else None
        return False if any(isinstance(inner, ast.Return) for inner in _own(node)) else None

    return follow(body) is True


def _suppresses(item: ast.withitem) -> bool:
    return name_of(item.context_expr).endswith("suppress")


def _both(*answers: bool | None) -> bool | None:
    return False if False in answers else None if None in answers else True


def _is_read(answer: Touched | None) -> bool:
    return answer is not None


def _all(answers: Iterable[Touched | None]) -> Touched | None:
    """Return all that is touched, ``None`` where there is no answer or one is not known."""
    answers = list(answers)
    touched = frozenset().union(*filter(None, answers))
    return touched if answers and None not in answers else None
