"""What the functions of a source answer beside stated releases, and where they surely come to a ``raise``.

Their statements are followed one by one, with loops that end soon. Nothing of the source itself is run. Where a way
depends on what nobody stated, the answer is not known: but for a ``raise`` on it, which is as if it did not come.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from envsmith.knowledge.names.blocks import remember
from envsmith.knowledge.names.dotted import absolute, dotted
from envsmith.knowledge.names.scopes import FUNCTIONS, within
from envsmith.knowledge.names.version_values import (
    ENDS,
    Evaluator,
    ForeignName,
    Function,
    RefusedError,
    ValueScope,
    Worth,
)

_WARNING = frozenset({"warn", "warning", "warn_once", "warning_once"})
_OF_LATER = frozenset({"DeprecationWarning", "FutureWarning", "PendingDeprecationWarning"})
_CACHES = frozenset({"lru_cache", "cache", "functools.lru_cache", "functools.cache"})
_ADDING = frozenset({"append", "extend"})
_CHANGING = _ADDING | {"clear", "insert", "pop", "remove", "reverse", "setdefault", "sort", "update"}
_MAKING = (ast.Yield, ast.YieldFrom)
_LEAVING = (ast.Return, ast.Break, ast.Continue, ast.Raise)
# Modules that are there wherever packages check versions.
_PRESENT = sys.stdlib_module_names | {"packaging", "pkg_resources", "importlib_metadata", "setuptools"}


@dataclass(slots=True)
class _Frame:
    """One call of a function: ``test`` is the last condition that was decided, ``packages`` those that all depend on.

    ``tries``: a failure would be taken by a handler.
    """

    scope: ValueScope
    depth: int
    packages: frozenset[str] = frozenset()
    test: tuple[ast.expr, bool] | None = None
    tries: bool = False


@dataclass(frozen=True, slots=True)
class _Ended:
    """How statements ended: ``answer`` is ``None`` where that is not known."""

    answer: Worth | None = None
    by: type[ast.stmt] = field(default=ast.Return)


class FunctionRuns(Evaluator):
    """An evaluator that follows functions."""

    def run(
        self, called: Function, values: Sequence[Worth | None], named: Mapping[str, Worth | None], depth: int
    ) -> Worth | None:
        """Return what a function answers. ``RefusedError`` where it surely raises."""
        node, arguments = called.node, called.node.args
        decorators = (ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list)
        if any(name not in _CACHES for name in decorators):
            return None
        if remember(node, "makes", lambda: any(isinstance(part, _MAKING) for part in within(node.body))):
            return None
        positional = [*arguments.posonlyargs, *arguments.args]
        every = (*positional, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
        scope = ValueScope(called.scope, dict.fromkeys(a.arg for a in every if a))
        defaults = [
            *zip(reversed(positional), reversed(arguments.defaults), strict=False),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        scope.names |= {a.arg: self.worth(default, called.scope, depth) for a, default in defaults}
        scope.names |= {a.arg: value for a, value in zip(positional, values, strict=False)}
        scope.names |= named
        frame = _Frame(scope, depth)
        try:
            ended = self._body(node.body, frame)
        except RefusedError as refused:
            if refused.packages or not frame.test:
                raise
            raise refused.under(Worth(None, frame.packages), frame.test[0], holds=frame.test[1]) from None
        return self._also((ended or _Ended(Worth(None))).answer, [Worth(None, frame.packages)])

    def follow(self, node: ast.expr, scope: ValueScope) -> None:
        """Follow a call of a function of the source, or one that ends the program. ``RefusedError`` where it surely raises."""
        called = self.worth(node.func, scope) if isinstance(node, ast.Call) else None
        is_end = called and isinstance(called.value, ForeignName) and ".".join(called.value.chain) in ENDS
        if called and (is_end or isinstance(called.value, Function)):
            self.worth(node, scope)

    def _body(self, body: Sequence[ast.stmt], frame: _Frame) -> _Ended | None:
        """Follow statements, and return how they ended: ``None`` where they go on."""
        for node in body:
            self.step()
            ended = self._statement(node, frame)
            if ended is not None:
                return ended
        return None

    def _statement(self, node: ast.stmt, frame: _Frame) -> _Ended | None:
        if isinstance(node, ast.Return):
            return _Ended(self.worth(node.value, frame.scope, frame.depth) if node.value else Worth(None))
        if isinstance(node, (ast.Break, ast.Continue)):
            return _Ended(by=type(node))
        if isinstance(node, ast.Raise):
            raise RefusedError(kind_of(node))
        if isinstance(node, ast.If):
            return self._branch(node, frame)
        if isinstance(node, ast.Assert):
            return self._assertion(node, frame)
        if isinstance(node, ast.For):
            return self._for(node, frame)
        if isinstance(node, ast.While):
            return self._while(node, frame)
        if isinstance(node, ast.Try):
            return self._try(node, frame)
        if isinstance(node, ast.With) and "suppress" not in ast.unparse(node.items[0].context_expr):
            frame.scope.names |= dict.fromkeys(bound(node.items))
            return self._body(node.body, frame)
        return self._simple(node, frame)

    def _simple(self, node: ast.stmt, frame: _Frame) -> _Ended | None:
        scope, is_known = frame.scope, True
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self.bind(node, scope, frame.depth)
            is_known = not frame.tries or self.taken_by(node, scope) is not None
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            self.bind(node, scope, frame.depth)
            is_known = all(scope.get(name) for name in bound([node]))
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            value = ast.BinOp(left=ast.Name(id=node.target.id, ctx=ast.Load()), op=node.op, right=node.value)
            scope.names[node.target.id] = self.worth(value, scope, frame.depth)
        elif isinstance(node, ast.FunctionDef):
            scope.names[node.name] = Worth(Function(node, scope))
        elif isinstance(node, ast.Global):  # as it is when the function is called for the first time
            scope.names |= {name: scope.module.names.get(name) for name in node.names}
        elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            is_known = self._expression(node.value, frame)
        elif not isinstance(node, (ast.Pass, ast.Expr)):
            return self._undecided(node, frame)
        return None if is_known or not frame.tries else _Ended()

    def _expression(self, node: ast.expr, frame: _Frame) -> bool:
        """Follow what an expression does, and return whether that is known."""
        target = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        if isinstance(target, ast.Name) and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            values, old = [self.worth(each, frame.scope, frame.depth) for each in node.args], frame.scope.get(target.id)
            is_local = target.id in frame.scope.names and old is not None and isinstance(old.value, tuple)
            if is_local and node.func.attr in _ADDING and len(values) == 1:
                is_one = node.func.attr == "append"
                added = self._made(lambda first, last: (*first, last) if is_one else (*first, *last), [old, *values])
                frame.scope.names[target.id] = added
                return added is not None
        value = self.worth(node, frame.scope, frame.depth)
        if value is None:
            frame.scope.names |= dict.fromkeys(_changeable([node], frame.scope))
        return value is not None

    def _branch(self, node: ast.If, frame: _Frame) -> _Ended | None:
        test = self.truth(node.test, frame.scope, frame.depth)
        if test is None:
            is_refusing = isinstance(node.body[-1], ast.Raise) and not frame.tries
            return self._body(node.orelse, frame) if is_refusing else self._undecided(node, frame)
        self._decided(test, node.test, frame)
        branch = node.body if test.value else node.orelse
        if test.packages and any(map(is_warning, branch)):
            self.warned.append(RefusedError().under(test, node.test, holds=bool(test.value)))
        try:
            return self._body(branch, frame)
        except RefusedError as refused:
            raise refused.under(test, node.test, holds=test.value) from None

    def _assertion(self, node: ast.Assert, frame: _Frame) -> _Ended | None:
        test = self.truth(node.test, frame.scope, frame.depth)
        if test is None:
            return _Ended() if frame.tries else None
        self._decided(test, node.test, frame)
        if not test.value:
            raise RefusedError("AssertionError").under(test, node.test, holds=False)
        return None

    @staticmethod
    def _decided(test: Worth, condition: ast.expr, frame: _Frame) -> None:
        frame.packages |= test.packages
        frame.test = (condition, bool(test.value)) if test.packages else frame.test

    def _for(self, node: ast.For, frame: _Frame) -> _Ended | None:
        values = self.worth(node.iter, frame.scope, frame.depth)
        if values is None or not isinstance(values.value, (str, tuple, dict)):
            return self._undecided(node, frame)
        for value in values.value:
            self.assign(node.target, Worth(value, values.packages), frame.scope)
            ended = self._body(node.body, frame)
            if ended and ended.by is not ast.Continue:
                return None if ended.by is ast.Break else ended
        return self._body(node.orelse, frame)

    def _while(self, node: ast.While, frame: _Frame) -> _Ended | None:
        while (test := self.truth(node.test, frame.scope, frame.depth)) and test.value:
            self._decided(test, node.test, frame)
            ended = self._body(node.body, frame)
            if ended and ended.by is not ast.Continue:
                return None if ended.by is ast.Break else ended
        return self._body(node.orelse, frame) if test else self._undecided(node, frame)

    def _try(self, node: ast.Try, frame: _Frame) -> _Ended | None:
        tries, frame.tries = frame.tries, takes(node)
        try:
            ended = self._body(node.body, frame)
        except RefusedError as refused:
            if takes(node, refused.kind):
                return _Ended()
            raise
        finally:
            frame.tries = tries
        return ended or self._body([*node.orelse, *node.finalbody], frame)

    def _undecided(self, node: ast.stmt, frame: _Frame) -> _Ended | None:
        """Forget what a statement may change. It may end the function too."""
        if frame.tries or remember(node, "leaves", lambda: any(isinstance(part, _LEAVING) for part in within([node]))):
            return _Ended()
        frame.scope.names |= dict.fromkeys([*bound([node]), *_changeable([node], frame.scope)])
        return None

    def taken_by(self, node: ast.Import | ast.ImportFrom, scope: ValueScope) -> frozenset[str] | None:
        """Return the stated packages that an import takes from, ``None`` where it may fail."""
        module = absolute(node, scope.module.package) if isinstance(node, ast.ImportFrom) else ""
        chains = [(*filter(None, module.split(".")), *alias.name.split(".")) for alias in node.names]
        foreign = [
            chain for chain in chains if chain[0] not in _PRESENT and self._named(chain) == Worth(ForeignName(chain))
        ]
        if not all(map(self.is_there, foreign)):
            return None
        return frozenset(self.distribution(chain[0]) for chain in foreign)


def is_warning(node: ast.stmt) -> bool:
    """Return whether a statement tells the user something, but of what a later release will do."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or dotted(call.func).rpartition(".")[2] not in _WARNING:
        return False
    return not any(isinstance(part, ast.Name) and part.id in _OF_LATER for part in within([call]))


def bound(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the names that nodes and what is inside of them bind or change."""
    return (name for node in within(nodes) for name in bound_by(node))


def bound_by(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds itself, or whose value it changes."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.Attribute) and node.attr in _CHANGING and isinstance(node.value, ast.Name):
        yield node.value.id


def _changeable(nodes: Sequence[ast.AST], scope: ValueScope) -> Iterator[str]:
    """Yield the names of lists and dictionaries in nodes, which whoever gets them may change."""
    for name in {node.id for node in within(nodes) if isinstance(node, ast.Name)}:
        worth = scope.get(name)
        if worth and isinstance(worth.value, (tuple, dict)):
            yield name


def kind_of(node: ast.Raise) -> str:
    """Return the name of the exception that a statement raises."""
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return ast.unparse(raised) if raised else ""


def takes(node: ast.Try, kind: str = "") -> bool:
    """Return whether a handler may take an exception of a kind, and does not raise one itself. ``""`` is any kind."""
    raised = getattr(builtins, kind, None)
    for handler in node.handlers:
        parts = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        names = (ast.unparse(part).rpartition(".")[2] if part else "BaseException" for part in parts)
        caught = [each for each in (getattr(builtins, name, None) for name in names) if isinstance(each, type)]
        is_taken = not isinstance(raised, type) or any(issubclass(raised, each) for each in caught)
        if is_taken and not isinstance(handler.body[-1], ast.Raise):
            return True
    return False
