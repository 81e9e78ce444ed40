"""What an expression of a source is worth beside stated releases: the versions that it asks for, and what it compares with them.

Nothing is run. What cannot be worked out is ``None``.
"""

from __future__ import annotations

import ast
import builtins
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from envsmith.knowledge.names.scopes import Chain

PYTHON = "python"
# Their versions may name a build, which is not stated.
_WITH_BUILDS = frozenset({"torch", "torchaudio", "torchvision"})
# Calls of functions inside of functions that are followed.
_DEPTH = 5
_OWN_VERSION = frozenset({"__version__", "VERSION"})
_PLACES_OF_VERSION = frozenset({(), ("version",), ("compat", "v1"), ("compat", "v2")})  # of tensorflow
_MAKE_VERSION = re.compile(
    r".*\b(?:Version|parse_version|LooseVersion|StrictVersion|TorchVersion|digit_version|version\.parse|packaging\.parse)|parse"
)
_DISTRIBUTION = re.compile(r".*\b(?:get_distribution|metadata\.distribution)")
# ``is_torch_version(">=", "2.1")``, ``is_torch_greater_or_equal("2.1")`` and ``is_torch_greater_or_equal_than_2_1``.
_ASKED_BY = re.compile(r"is_(?P<package>\w+?)_(?:version|greater_or_equal(?:_than)?(?:_(?P<floor>\d+(?:_\d+)*))?)")
_COMPARE = re.compile(r".*\b_?compare_versions?")
_FINDER = re.compile(r".*\bfind_spec")
_CACHES = frozenset({"lru_cache", "cache", "functools.lru_cache", "functools.cache"})
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_COMPARING: Mapping[type[ast.cmpop], str] = {
    ast.GtE: ">=", ast.Gt: ">", ast.LtE: "<=", ast.Lt: "<", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_OF_TEXT = frozenset({"split", "startswith", "endswith", "partition", "strip", "replace", "lower"})
_OF_VERSION = frozenset({"major", "minor", "micro", "release", "base_version", "public"})
_PLAIN: Mapping[str, Callable[..., object]] = {"int": int, "str": str, "tuple": tuple, "list": list, "len": len, "bool": bool, "float": float}  # fmt: skip


class _TorchText(str):
    """The version of torch, which compares with texts as a version does."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Worth:
    """A value that was worked out, and the packages whose releases it comes from."""

    value: Any
    packages: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ForeignName:
    """Something of another package, by its name."""

    chain: Chain


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the source, and the names that stand around it."""

    node: ast.FunctionDef
    scope: ValueScope


@dataclass(slots=True)
class ValueScope:
    """The names of a module, class or function with what they are worth, ``None`` where that is not known."""

    outer: ValueScope | None = None
    names: dict[str, Worth | None] = field(default_factory=dict)

    def get(self, name: str) -> Worth | None:
        """Return what a name is worth here."""
        scope: ValueScope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return Worth(ForeignName(("builtins", name))) if hasattr(builtins, name) else None


class Evaluator:
    """Works out expressions. ``releases`` are texts of versions by distribution, ``python`` among them.

    ``distribution`` is asked for that of a module, ``own`` for the value of a name of the same package, ``has_name``
    whether the stated release of another one surely has a name.
    """

    def __init__(
        self,
        releases: Mapping[str, str],
        distribution: Callable[[str], str],
        own: Callable[[Chain], Worth | None],
        has_name: Callable[[Chain], bool],
    ) -> None:
        self._releases, self._own, self._has_name = releases, own, has_name
        self.distribution = distribution

    def is_there(self, chain: Chain) -> bool:
        """Return whether a name is surely there: that of a package whose release is stated, or one that this has."""
        is_stated = self.distribution(chain[0]) in self._releases
        return is_stated and (len(chain) == 1 or self._has_name(chain))

    def worth(self, node: ast.expr | None, scope: ValueScope, depth: int = 0) -> Worth | None:
        """Return what an expression is worth."""
        if node is None:
            return None
        try:
            return self._worth(node, scope, depth)
        except (
            TypeError,
            ValueError,
            IndexError,
            AttributeError,
            InvalidVersion,
            InvalidSpecifier,
            InvalidRequirement,
        ):
            return None  # as the source itself would fail, or a value of another kind

    def _worth(self, node: ast.expr, scope: ValueScope, depth: int) -> Worth | None:
        if isinstance(node, ast.Constant):
            return Worth(node.value)
        if isinstance(node, ast.Name):
            bound = scope.get(node.id)
            return self._named(bound.value.chain) if bound and isinstance(bound.value, ForeignName) else bound
        if isinstance(node, ast.Attribute):
            return self._attribute(node, scope, depth)
        if isinstance(node, ast.Call):
            return self._call(node, scope, depth)
        if isinstance(node, ast.Compare):
            return self._compare(node, scope, depth)
        if isinstance(node, ast.BoolOp):
            return self._joined(node, scope, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.truth(node.operand, scope, depth)
            return inner and Worth(not inner.value, inner.packages)
        if isinstance(node, ast.IfExp):
            test = self.truth(node.test, scope, depth)
            return test and self._also(self.worth(node.body if test.value else node.orelse, scope, depth), [test])
        if isinstance(node, (ast.Tuple, ast.List)):
            return self._made(tuple, [self.worth(each, scope, depth) for each in node.elts])
        if isinstance(node, ast.Subscript):
            return self._part(node, scope, depth)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return self._comprehension(node, scope, depth)
        return None

    def truth(self, node: ast.expr, scope: ValueScope, depth: int = 0) -> Worth | None:
        """Return whether an expression holds."""
        worth = self.worth(node, scope, depth)
        if worth is None or isinstance(worth.value, (ForeignName, Function)):
            return None
        return Worth(bool(worth.value), worth.packages)

    # -- names --------------------------------------------------------------------------------------------------------

    def _named(self, chain: Chain) -> Worth | None:
        if own := self._own(chain):
            return own
        if chain == ("sys", "version_info"):
            python = self._releases.get(PYTHON, "")
            numbers = tuple(int(part) for part in python.split(".")) if python else ()
            return Worth(numbers, frozenset({PYTHON})) if numbers else None
        if chain[-1] in _OWN_VERSION and chain[1:-1] in _PLACES_OF_VERSION:
            return self._release(chain[0])
        if (match := _ASKED_BY.fullmatch(chain[-1])) and match["floor"]:
            return self._compared(match["package"], ">=", match["floor"].replace("_", "."))
        return Worth(ForeignName(chain))

    def _release(self, name: str) -> Worth | None:
        """Return the version of a distribution, which may be named by its module."""
        distribution = self.distribution(name)
        text = self._releases.get(distribution)
        kind = _TorchText if distribution == "torch" else str
        return Worth(kind(text), frozenset({distribution})) if text else None

    def _compared(self, package: str, relation: str, version: str) -> Worth | None:
        stated = self._release(package)
        if stated is None:
            return None
        return Worth(_OPERATORS[relation](Version(str(stated.value)), Version(version)), stated.packages)

    def _attribute(self, node: ast.Attribute, scope: ValueScope, depth: int) -> Worth | None:
        base = self.worth(node.value, scope, depth)
        if base is None:
            return None
        if isinstance(base.value, ForeignName):
            return self._named((*base.value.chain, node.attr))
        if isinstance(base.value, Version):
            if node.attr in _OF_VERSION:
                return Worth(getattr(base.value, node.attr), base.packages)
            return base if node.attr in {"version", "parsed_version"} else None
        if node.attr in {"major", "minor"} and PYTHON in base.packages and isinstance(base.value, tuple):
            return Worth(base.value[node.attr == "minor"], base.packages)
        return None

    # -- calls --------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, scope: ValueScope, depth: int) -> Worth | None:
        values = [self.worth(each, scope, depth) for each in node.args]
        if isinstance(node.func, ast.Attribute) and node.func.attr in {*_OF_TEXT, "contains"}:
            base = self.worth(node.func.value, scope, depth)
            if base and isinstance(base.value, str) and node.func.attr in _OF_TEXT:
                return self._made(getattr(str(base.value), node.func.attr), values, [base], spread=True)
            if base and isinstance(base.value, SpecifierSet):
                return self._made(
                    lambda version: base.value.contains(version, prereleases=True), values, [base], spread=True
                )
        function = self.worth(node.func, scope, depth)
        if function is None or depth > _DEPTH:
            return None
        if isinstance(function.value, Function):
            named = {k.arg: self.worth(k.value, scope, depth) for k in node.keywords if k.arg}
            return self._run(function.value, values, named, depth + 1)
        if isinstance(function.value, ForeignName):
            return self._foreign(function.value.chain, values, node)
        return None

    def _foreign(self, chain: Chain, values: Sequence[Worth | None], node: ast.Call) -> Worth | None:
        """Return what a function of another package answers, where it is one that is known."""
        arguments = [each.value if each else None for each in values]
        texts = [value for value in arguments if isinstance(value, str)]
        text, name = ".".join(chain), chain[-1]
        if chain[0] == "builtins":
            return self._builtin(name, values)
        if _FINDER.fullmatch(text) and texts:
            root = texts[0].partition(".")[0]
            return Worth(root, frozenset({self.distribution(root)})) if self.is_there((root,)) else None
        if "metadata" in text and name == "version" and texts:
            return self._release(texts[0])
        if _DISTRIBUTION.fullmatch(text) and texts:
            return self._made(Version, [self._release(texts[0])], spread=True)
        if name == "SpecifierSet" and texts:
            return Worth(SpecifierSet(texts[0]))
        if name == "RequirementCache" and len(texts) == 1 and not node.keywords:
            requirement = Requirement(texts[0])
            return self._made(requirement.specifier.contains, [self._release(requirement.name)], spread=True)
        if _COMPARE.fullmatch(text) and len(values) == 3:
            return self._comparing(values)
        if (match := _ASKED_BY.fullmatch(name)) and texts and not match["floor"]:
            return self._compared(match["package"], texts[0] if len(texts) > 1 else ">=", texts[-1])
        if _MAKE_VERSION.fullmatch(text) and len(values) == 1:
            return self._made(
                lambda value: value if isinstance(value, Version) else Version(value), values, spread=True
            )
        return None

    def _comparing(self, values: Sequence[Worth | None]) -> Worth | None:
        """Return what ``compare_version("torch", operator.ge, "2.1")`` answers."""
        package, relation, version = values
        if not (package and relation and version and isinstance(version.value, str)):
            return None
        by_name = {f"operator.{f.__name__}": sign for sign, f in _OPERATORS.items()}
        named = ".".join(relation.value.chain) if isinstance(relation.value, ForeignName) else ""
        sign = relation.value if relation.value in _OPERATORS else by_name.get(named)
        if not isinstance(sign, str):
            return None
        if isinstance(package.value, Version):
            return Worth(_OPERATORS[sign](package.value, Version(version.value)), package.packages)
        return self._compared(package.value, sign, version.value) if isinstance(package.value, str) else None

    def _builtin(self, name: str, values: Sequence[Worth | None]) -> Worth | None:
        if name in _PLAIN:
            return self._made(_PLAIN[name], values, spread=True)
        if name in {"getattr", "hasattr"} and len(values) > 1 and values[0] and values[1]:
            module, member = values[0].value, values[1].value
            if not isinstance(module, ForeignName) or not isinstance(member, str):
                return None
            chain = (*module.chain, member)
            if name == "getattr":
                return self._named(chain)
            return Worth(member, frozenset({self.distribution(chain[0])})) if self.is_there(chain) else None
        if (
            name == "map"
            and len(values) == 2
            and values[0]
            and values[1]
            and values[0].value == ForeignName(("builtins", "int"))
        ):
            return Worth(tuple(int(part) for part in values[1].value), values[1].packages)
        return None

    def _run(
        self, function: Function, values: Sequence[Worth | None], named: Mapping[str, Worth | None], depth: int
    ) -> Worth | None:
        """Return what a function answers. One that does more than work out a value answers nothing."""
        node, scope = function.node, ValueScope(function.scope)
        if any(ast.unparse(d.func if isinstance(d, ast.Call) else d) not in _CACHES for d in node.decorator_list):
            return None
        arguments = [*node.args.posonlyargs, *node.args.args]
        scope.names = dict.fromkeys((a.arg for a in (*arguments, *node.args.kwonlyargs)), None)
        defaults = zip(reversed(arguments), reversed(node.args.defaults), strict=False)
        scope.names |= {a.arg: self.worth(default, function.scope, depth) for a, default in defaults}
        scope.names |= {
            a.arg: self.worth(d, function.scope, depth)
            for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        }
        scope.names |= {a.arg: value for a, value in zip(arguments, values, strict=False)}
        scope.names |= named
        ended = self._body(node.body, scope, depth)
        return ended.answer if isinstance(ended, _Ended) else None

    def _body(self, body: Sequence[ast.stmt], scope: ValueScope, depth: int) -> _Ended | None:
        """Run statements, and return how they ended: ``None`` where they go on."""
        for node in body:
            ended = self._statement(node, scope, depth)
            if ended is not None:
                return ended
        return None

    def _statement(self, node: ast.stmt, scope: ValueScope, depth: int) -> _Ended | None:
        if isinstance(node, ast.Return):
            return _Ended(self.worth(node.value, scope, depth))
        if isinstance(node, ast.If):
            test = self.truth(node.test, scope, depth)
            if test is None:
                return _Ended(None)
            ended = self._body(node.body if test.value else node.orelse, scope, depth)
            return ended and _Ended(self._also(ended.answer, [test]))
        if isinstance(node, ast.Try):
            return self._body([*node.body, *node.orelse], scope, depth)
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)):
            self.bind(node, scope, depth)
            return None
        if isinstance(node, (ast.Pass, ast.Expr)):
            return None
        return _Ended(None)

    def bind(
        self, node: ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign, scope: ValueScope, depth: int = 0
    ) -> None:
        """Note what a statement gives names. A relative import must be absolute by then."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                chain = tuple(alias.name.split("."))
                scope.names[alias.asname or chain[0]] = Worth(ForeignName(chain if alias.asname else chain[:1]))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                scope.names[alias.asname or alias.name] = Worth(
                    ForeignName((*(node.module or "").split("."), alias.name))
                )
        else:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            value = self.worth(node.value, scope, depth)
            for target in targets:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                values = (
                    value.value if value and isinstance(value.value, tuple) and len(value.value) == len(parts) else None
                )
                for at, part in enumerate(parts):
                    if isinstance(part, ast.Name) and len(parts) == 1:
                        scope.names[part.id] = value
                    elif isinstance(part, ast.Name):
                        scope.names[part.id] = Worth(values[at], value.packages) if values and value else None

    # -- values -------------------------------------------------------------------------------------------------------

    def _compare(self, node: ast.Compare, scope: ValueScope, depth: int) -> Worth | None:
        sides = [self.worth(each, scope, depth) for each in (node.left, *node.comparators)]
        pairs = [self._pair(*pair) for pair in zip(sides, node.ops, sides[1:], strict=False)]
        if failing := next((pair for pair in pairs if pair and not pair.value), None):
            return failing
        return self._also(pairs[0], pairs) if None not in pairs else None

    @staticmethod
    def _pair(first: Worth | None, relation: ast.cmpop, second: Worth | None) -> Worth | None:
        """Return whether two values stand in a relation. Of Python, the patch release is not stated."""
        if (
            first is None
            or second is None
            or any(isinstance(side.value, (ForeignName, Function)) for side in (first, second))
        ):
            return None
        one, another, packages = first.value, second.value, first.packages | second.packages
        if isinstance(relation, (ast.In, ast.NotIn)):
            is_container = isinstance(another, (tuple, SpecifierSet))
            return Worth((one in another) is isinstance(relation, ast.In), packages) if is_container else None
        if isinstance(relation, (ast.Is, ast.IsNot)):
            is_none = one is None or another is None
            return Worth((one is another) is isinstance(relation, ast.Is), packages) if is_none else None
        if PYTHON in first.packages and isinstance(one, tuple) and isinstance(another, tuple):
            is_exact = isinstance(relation, (ast.GtE, ast.Lt)) or one != another[: len(one)]
            return (
                Worth(_OPERATORS[_COMPARING[type(relation)]](one, another), packages)
                if is_exact and len(another) <= len(one)
                else None
            )
        if any(isinstance(value, (Version, _TorchText)) for value in (one, another)):
            one, another = (value if isinstance(value, Version) else Version(str(value)) for value in (one, another))
        if packages & _WITH_BUILDS and one == another and not isinstance(relation, (ast.GtE, ast.Lt)):
            return None  # ``2.1.0+cu121`` is later than ``2.1.0``
        is_alike = type(one) is type(another) or {type(one), type(another)} <= {int, float, bool}
        return Worth(_OPERATORS[_COMPARING[type(relation)]](one, another), packages) if is_alike else None

    def _joined(self, node: ast.BoolOp, scope: ValueScope, depth: int) -> Worth | None:
        parts = [self.truth(each, scope, depth) for each in node.values]
        ends = isinstance(node.op, ast.Or)
        if decisive := next((part for part in parts if part and bool(part.value) is ends), None):
            return decisive
        return self._also(Worth(not ends), parts) if None not in parts else None

    def _part(self, node: ast.Subscript, scope: ValueScope, depth: int) -> Worth | None:
        base = self.worth(node.value, scope, depth)
        if base is None or not isinstance(base.value, (str, tuple, list)):
            return None
        if isinstance(node.slice, ast.Slice):
            bounds = [
                self.worth(each, scope, depth) if each else Worth(None) for each in (node.slice.lower, node.slice.upper)
            ]
            return (
                self._made(lambda low, high: base.value[low:high], bounds, [base], spread=True)
                if not node.slice.step
                else None
            )
        return self._made(lambda at: base.value[at], [self.worth(node.slice, scope, depth)], [base], spread=True)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp, scope: ValueScope, depth: int) -> Worth | None:
        (generator, *nested), inner = node.generators, ValueScope(scope)
        values = self.worth(generator.iter, scope, depth)
        if (
            nested
            or generator.ifs
            or values is None
            or not isinstance(generator.target, ast.Name)
            or not isinstance(values.value, (tuple, list))
        ):
            return None
        result: list[Worth | None] = []
        for value in values.value:
            inner.names[generator.target.id] = Worth(value, values.packages)
            result.append(self.worth(node.elt, inner, depth))
        return self._made(tuple, result)

    @staticmethod
    def _also(worth: Worth | None, sources: Iterable[Worth | None]) -> Worth | None:
        """Return a value with the packages that sources come from."""
        return worth and Worth(worth.value, worth.packages.union(*(each.packages for each in sources if each)))

    def _made(
        self,
        make: Callable[..., object],
        parts: Sequence[Worth | None],
        sources: Iterable[Worth] = (),
        *,
        spread: bool = False,
    ) -> Worth | None:
        """Return what is made of values, ``None`` where one is not known."""
        certain = [part for part in parts if part is not None]
        if len(certain) < len(parts) or any(isinstance(part.value, (ForeignName, Function)) for part in certain):
            return None
        values = [part.value for part in certain]
        result = make(*values) if spread else make(values)
        return self._also(Worth(tuple(result) if isinstance(result, list) else result), [*certain, *sources])


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a function ended: its answer, ``None`` where that is not known."""

    answer: Worth | None
