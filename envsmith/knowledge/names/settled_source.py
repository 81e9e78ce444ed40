"""A source as it runs beside stated releases: conditions on versions are decided, and what never runs is gone.

``if version.parse(flash_attn.__version__) < version.parse("2.7"):`` leaves one of its branches, an ``assert`` or a
``raise`` behind such a condition is a :class:`VersionRefusal`. What cannot be worked out stays as it stands.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from envsmith.knowledge.names.function_runs import FunctionRuns, bound, bound_by, is_warning, kind_of, takes
from envsmith.knowledge.names.guards import decided, leaves
from envsmith.knowledge.names.own_classes import module_of
from envsmith.knowledge.names.scopes import FUNCTIONS, Chain, within
from envsmith.knowledge.names.version_values import (
    PYTHON,
    Evaluator,
    ForeignName,
    Function,
    RefusedError,
    ValueScope,
    Worth,
)

# The word in code: prose, licences and conversions speak of versions too.
_VERSION = rb"[._]version|\bversion(?:\.[a-z_]|_|\()|import version|Version\(|VERSION|greater_or_equal"
_ASKING = re.compile(_VERSION + rb"|find_spec|\bwith \S*[iI]mport|except \(?(?:ImportError|ModuleNotFoundError)")
_COMPOUND = (ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, getattr(ast, "TryStar", ast.Try))
# Of these the body is run.
_RUN = (ast.With, ast.AsyncWith, ast.Try, getattr(ast, "TryStar", ast.Try))
_PLACEHOLDERS = frozenset({"object", "None", "Any", "typing.Any"})
_LONGEST = 160
_Node = TypeVar("_Node", bound=ast.AST)


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionRefusal:
    """A statement that stops a release beside stated ones, or warns of them. ``condition`` is what does not hold, or holds, there."""

    packages: frozenset[str]
    condition: str


class SettledSources:
    """The sources of a package beside stated releases.

    ``releases`` are versions by distribution, ``python`` is that of Python, ``distribution`` is asked for that of a module, ``has_name``
    whether the stated release of it surely has a name. ``itself`` names the distribution of the sources.
    """

    def __init__(
        self,
        texts: Mapping[str, bytes],
        releases: Mapping[str, str],
        python: str | None,
        distribution: Callable[[str], str],
        has_name: Callable[[Chain], bool],
        *,
        itself: frozenset[str] = frozenset(),
    ) -> None:
        self._texts = texts
        self._paths = {module_of(path): path for path in texts if path.endswith(".py")}
        stated = {**releases, **({PYTHON: python} if python else {})}
        self._evaluator = FunctionRuns(stated, distribution, self._own, has_name, itself=itself)
        self._scopes: dict[str, ValueScope] = {}
        self._settlers: dict[str, _Settler] = {}
        self.refusals: dict[tuple[str, int], VersionRefusal] = {}
        self.warnings: dict[tuple[str, int], VersionRefusal] = {}
        self._asking = self._names_of_tests()

    def parse(self, path: str, source: bytes) -> ast.Module:
        """Return the tree of a source as it runs. ``SyntaxError`` and ``ValueError`` as ``ast.parse`` raises them."""
        if not self.asks(source):
            return ast.parse(source)
        self._scope(module_of(path))
        return self._settlers[path].tree() if path in self._settlers else ast.parse(source)

    def asks(self, source: bytes) -> bool:
        """Return whether a source may ask for a version: of one that does not, all runs."""
        return bool(self._asking.search(source))

    def _names_of_tests(self) -> re.Pattern[bytes]:
        """Return what a source says that asks for a version itself, or takes an answer from another one."""
        names = set[str]()
        for module, path in self._paths.items():
            if _ASKING.search(self._texts[path]):
                scope = self._scope(module)
                names |= {
                    n
                    for n, w in scope.names.items()
                    if w and (w.packages or (isinstance(w.value, Function) and _ASKING.search(n.encode())))
                }
        words = (re.escape(name).encode() for name in sorted(names))
        return re.compile(b"%s|%s" % (_ASKING.pattern, rb"\b(?:%s)\b" % b"|".join(words))) if names else _ASKING

    def _own(self, chain: Chain) -> Worth | None:
        """Return what a name of the package is worth."""
        module = ".".join(chain[:-1])
        names = self._scope(module) if module in self._paths else None
        return names.get(chain[-1]) if names and chain[-1] in names.names else None

    def _scope(self, module: str) -> ValueScope:
        if module not in self._scopes:
            path = self._paths[module]
            package = module if path.endswith("/__init__.py") else module.rpartition(".")[0]
            scope = self._scopes[module] = ValueScope(package=package)
            try:
                tree = ast.parse(self._texts[path])
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return scope
            notes = self.refusals, self.warnings
            self._settlers[path] = settler = _Settler(self._evaluator, scope, path, *notes)
            settler.read(tree)
        return self._scopes[module]


class _Settler:
    """Rewrites the statements of one source."""

    def __init__(
        self,
        evaluator: FunctionRuns,
        scope: ValueScope,
        path: str,
        refusals: dict[tuple[str, int], VersionRefusal],
        warnings: dict[tuple[str, int], VersionRefusal],
    ) -> None:
        self._evaluator, self._scope, self._path = evaluator, scope, path
        self._refusals, self._warnings = refusals, warnings
        self._doubts = 0  # statements around that may not run at the import
        self._body: list[ast.stmt] = []
        self._later: list[Callable[[], None]] = []
        self._tries: list[ast.Try] = []

    def read(self, tree: ast.Module) -> None:
        """Work out what the names of the module are worth."""
        declarations = (node for node in within(tree.body) if isinstance(node, ast.Global))
        self._scope.changing = frozenset(name for node in declarations for name in node.names)
        self._body = self._block(tree.body, self._scope)

    def tree(self) -> ast.Module:
        """Return what is left of the module. What is inside of its functions is settled now."""
        self._doubts += 1
        while self._later:
            self._later.pop()()
        return ast.Module(body=self._body, type_ignores=[])

    def _block(self, body: Sequence[ast.stmt], scope: ValueScope) -> list[ast.stmt]:
        settled: list[ast.stmt] = []
        for node in body:
            settled += self._statement(node, scope)
            if settled and leaves(settled) and not leaves([node]):
                break
        return settled

    def _statement(self, node: ast.stmt, scope: ValueScope) -> list[ast.stmt]:
        """Return what is left of a statement: a ``raise`` in the place of one that surely comes to it for stated releases."""
        self._evaluator.begin()
        try:
            return self._settled(node, scope)
        except RefusedError as refused:
            self._forget([node], scope)
            return self._stop(node, refused) if refused.packages else [node]

    def _settled(self, node: ast.stmt, scope: ValueScope) -> list[ast.stmt]:
        if isinstance(node, ast.If):
            return self._branch(node, scope)
        if isinstance(node, ast.Assert):
            return self._assertion(node, scope)
        if isinstance(node, FUNCTIONS):
            return [self._function(node, scope)]
        if isinstance(node, ast.ClassDef):
            scope.names[node.name] = None
            return [_with(node, body=self._block(node.body, ValueScope(scope)))]
        if isinstance(node, _COMPOUND):
            return self._compound(node, scope)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._evaluator.bind(node, scope)
            return [node]
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            self._evaluator.bind(node, scope)
        else:
            if isinstance(node, ast.Expr):
                self._evaluator.warned.clear()
                self._evaluator.follow(node.value, scope)
                self._warned(node)
            self._forget([node], scope)
        if any(isinstance(part, (ast.IfExp)) for part in within([node])):
            return [_Expressions(self._evaluator, scope).visit(copy.deepcopy(node))]
        return [node]

    def _branch(self, node: ast.If, scope: ValueScope) -> list[ast.stmt]:
        test = self._evaluator.truth(node.test, scope) or _of_system(node.test)
        if test and test.packages:
            branch = node.body if test.value else node.orelse
            return self._because(test.packages, self._refused(branch, test, node.test, scope), scope) or [
                ast.copy_location(ast.Pass(), node)
            ]
        self._refused_in_part(node, scope)
        parts = [[each for each in part if not self._is_fallback(each, scope)] for part in (node.body, node.orelse)]
        inner = (ValueScope(scope), ValueScope(scope))
        with self._in_doubt():
            branches = [self._block(part, names) for part, names in zip(parts, inner, strict=True)]
        if test:
            scope.names |= inner[not test.value].names
        else:
            self._forget([*parts[0], *parts[1]], scope)
        reduced = self._reduced(node.test, scope)
        return [
            _with(node, test=reduced, body=branches[0] or [ast.copy_location(ast.Pass(), node)], orelse=branches[1])
        ]

    def _refused_in_part(self, node: ast.If, scope: ValueScope) -> None:
        """Note what stops below several conditions, of which stated releases decide some and nobody knows the others."""
        is_joined = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
        if not (is_joined and isinstance(node.test, ast.BoolOp) and isinstance(node.body[-1], ast.Raise)):
            return
        truths = [(part, self._evaluator.truth_if_reached(part, scope)) for part in node.test.values]
        if any(truth is None and "available" in ast.unparse(part).lower() for part, truth in truths):
            return  # it asks for another package, not for another release
        for part, truth in truths:
            if truth and truth.packages and truth.value:
                self._stop(node.body[-1], RefusedError(kind_of(node.body[-1])).under(truth, part))

    @staticmethod
    def _is_fallback(node: ast.stmt, scope: ValueScope) -> bool:
        """Return whether a statement binds what stands for a name where its import failed, which it surely did not."""
        if not isinstance(node, ast.Assign) or ast.unparse(node.value) not in _PLACEHOLDERS:
            return False
        bound = [scope.get(target.id) if isinstance(target, ast.Name) else None for target in node.targets]
        return all(each and isinstance(each.value, ForeignName) and each.packages for each in bound)

    def _reduced(self, test: ast.expr, scope: ValueScope) -> ast.expr:
        """Return a condition without what is decided and does not decide it."""
        if not isinstance(test, ast.BoolOp):
            return test
        open_parts = []
        for part in test.values:
            truth = self._evaluator.truth_if_reached(part, scope)
            if not (truth and truth.packages):
                open_parts.append(part)
        return (
            test
            if len(open_parts) in {0, len(test.values)}
            else open_parts[0]
            if len(open_parts) == 1
            else _with(test, values=open_parts)
        )

    def _refused(
        self, branch: Sequence[ast.stmt], test: Worth, condition: ast.expr, scope: ValueScope
    ) -> list[ast.stmt]:
        """Return a branch with a ``raise`` in the place of what ends the program, and note what stops there."""
        holds = bool(test.value)
        self._evaluator.warned[:] = [RefusedError().under(test, condition, holds=holds)]
        for part in filter(is_warning, branch):
            self._warned(part)
        stopped = list[ast.stmt]()
        for part in branch:
            end = self._end(part, scope)
            stopped += self._stop(part, end.under(test, condition, holds=holds)) if end else [part]
        return stopped

    def _warned(self, node: ast.stmt) -> None:
        for warned in self._evaluator.warned if not self._doubts else ():
            refusal = VersionRefusal(packages=warned.packages, condition=warned.condition[:_LONGEST])
            self._warnings.setdefault((self._path, node.lineno), refusal)

    @contextmanager
    def _in_doubt(self) -> Iterator[None]:
        self._doubts += 1
        try:
            yield
        finally:
            self._doubts -= 1

    def _end(self, node: ast.stmt, scope: ValueScope) -> RefusedError | None:
        """Return how a statement ends the program, whatever is stated."""
        if isinstance(node, ast.Expr):
            try:
                self._evaluator.follow(node.value, scope)
            except RefusedError as refused:
                return None if refused.packages or refused.condition else refused
        return RefusedError(kind_of(node)) if isinstance(node, ast.Raise) else None

    def _stop(self, node: ast.stmt, refused: RefusedError) -> list[ast.stmt]:
        refusal = VersionRefusal(packages=refused.packages, condition=refused.condition[:_LONGEST])
        if not any(takes(each, refused.kind) for each in self._tries):
            self._refusals[self._path, node.lineno] = refusal
        return [node if isinstance(node, ast.Raise) else ast.copy_location(ast.Raise(exc=None, cause=None), node)]

    def _assertion(self, node: ast.Assert, scope: ValueScope) -> list[ast.stmt]:
        test = self._evaluator.truth(node.test, scope)
        if not (test and test.packages):
            return [node]
        if test.value:
            return []
        return self._stop(node, RefusedError("AssertionError").under(test, node.test, holds=False))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: ValueScope) -> ast.stmt:
        scope.names[node.name] = Worth(Function(node, scope)) if isinstance(node, ast.FunctionDef) else None
        settled = _with(node)
        arguments = node.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)

        def later() -> None:
            inner = ValueScope(scope, dict.fromkeys(a.arg for a in every if a))
            settled.body = self._block(node.body, inner) or node.body

        self._later.append(later)
        return settled

    def _compound(self, node: ast.stmt, scope: ValueScope) -> list[ast.stmt]:
        packages = self._surely(node.body, scope) if isinstance(node, (ast.Try, ast.With)) else frozenset[str]()
        if packages and isinstance(node, ast.Try):
            return self._because(packages, [*node.body, *node.orelse, *node.finalbody], scope)
        if packages and isinstance(node, ast.With):
            return [_with(node, body=self._because(packages, node.body, scope))]
        fields: dict[str, list[ast.stmt] | list[ast.ExceptHandler]] = {}
        runs_through = _runs_through(node)
        for name in ("body", "orelse", "finalbody"):
            is_certain = name == "body" and isinstance(node, _RUN)
            with nullcontext() if is_certain else self._in_doubt():
                if part := getattr(node, name, None):
                    self._tries += [node] if isinstance(node, ast.Try) and name == "body" else []
                    fields[name] = self._block(part, scope if runs_through else ValueScope(scope))
                    self._tries = [each for each in self._tries if each is not node]
        if handlers := getattr(node, "handlers", None):
            with self._in_doubt():
                fields["handlers"] = [_with(h, body=self._block(h.body, ValueScope(scope))) for h in handlers]
        if not runs_through:
            self._forget([node], scope)
        return [_with(node, **fields)]

    def _because(self, packages: frozenset[str], body: Sequence[ast.stmt], scope: ValueScope) -> list[ast.stmt]:
        """Return statements that run because of the releases of packages: what they bind comes from these too."""
        settled = self._block(body, scope)
        for name in bound(body):
            if worth := scope.names.get(name):
                scope.names[name] = Worth(worth.value, worth.packages | packages)
        return settled

    def _surely(self, body: Sequence[ast.stmt], scope: ValueScope) -> frozenset[str]:
        """Return the packages from which statements take what is there. They do nothing that may fail."""
        names, packages = ValueScope(scope), frozenset[str]()
        for part in body:
            if isinstance(part, (ast.Import, ast.ImportFrom)):
                self._evaluator.bind(part, names)
                origins = self._evaluator.taken_by(part, names)
            elif isinstance(part, ast.Assign) and (worth := self._evaluator.worth(part.value, names)):
                self._evaluator.bind(part, names)
                origins = worth.packages
            else:
                origins = None
            if origins is None:
                return frozenset()
            packages |= origins
        return packages

    def _forget(self, nodes: Sequence[ast.AST], scope: ValueScope) -> None:
        """Note that what a statement binds is not known any more, but for the one package that a name stands for."""
        imports: dict[str, Worth] = {}
        names = set[str]()
        for node in within(nodes):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name.partition(".")[0]
                    if self._evaluator.is_there((root,)) and alias.name in {root, alias.asname or root}:
                        imports[alias.asname or root] = Worth(ForeignName((root,)))
            names.update(bound_by(node))
        scope.names |= {name: imports.get(name) for name in names}


class _Expressions(ast.NodeTransformer):
    """Leaves one side of each ``x if version >= … else y`` that is decided."""

    def __init__(self, evaluator: Evaluator, scope: ValueScope) -> None:
        self._evaluator, self._scope = evaluator, scope

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Return the side that is taken."""
        self.generic_visit(node)
        test = self._evaluator.truth_if_reached(node.test, self._scope)
        return (node.body if test.value else node.orelse) if test and test.packages else node


def _of_system(test: ast.expr) -> Worth | None:
    """Return whether a condition holds on every Linux and Python that is still in use."""
    holds = decided(test)
    return None if holds is None else Worth(holds)


def _runs_through(node: ast.stmt) -> bool:
    """Return whether what follows a statement runs only after all of its body did."""
    if isinstance(node, ast.Try):
        return all(leaves(handler.body) for handler in node.handlers)
    return isinstance(node, (ast.With, ast.AsyncWith))


def _with(node: _Node, **fields: object) -> _Node:
    """Return a node with other fields, and its place."""
    copied = type(node)(**{name: getattr(node, name) for name in node._fields if hasattr(node, name)} | fields)
    return ast.copy_location(copied, node)
