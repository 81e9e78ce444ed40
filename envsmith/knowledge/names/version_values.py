"""What an expression of a source is worth beside stated releases: the versions that it asks for, and what it compares with them.

What cannot be worked out is ``None``. Functions of the source are run by ``function_runs``.
"""

from __future__ import annotations

import ast
import builtins
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envsmith.knowledge.names.dotted import absolute
from envsmith.knowledge.names.plain_values import bounded, combined, function, method
from envsmith.knowledge.names.scopes import Chain

PYTHON = "python"
# Their versions may name a build, which is not stated.
_WITH_BUILDS = frozenset({"torch", "torchaudio", "torchvision"})
# Calls of functions inside of functions that are followed, and steps for one question.
_DEPTH, _MOST_STEPS = 5, 2000
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
# Functions of other packages that raise where a requirement is not met: transformers' and setuptools'.
_DEMANDS = re.compile(r".*\brequire_version(?:_core)?|pkg_resources\.require")
ENDS = frozenset({"sys.exit", "os._exit", "os.exit", "builtins.exit", "builtins.quit"})
# Modules of the package that hand on what others of it define, one behind another.
_MOST_RE_EXPORTS = 6
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_COMPARING: Mapping[type[ast.cmpop], str] = {
    ast.GtE: ">=", ast.Gt: ">", ast.LtE: "<=", ast.Lt: "<", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
# All but the build, which is not stated.
_OF_VERSION = frozenset(
    {"base_version", "epoch", "is_devrelease", "is_postrelease", "is_prerelease", "major", "micro", "minor"}
    | {"post", "pre", "public", "release"}
)
_FAILURES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, re.error)


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
    """The names of a module, class or function with what they are worth, ``None`` where that is not known.

    ``package`` is what relative imports of a module begin at, ``changing`` are names of it that functions bind again.
    """

    outer: ValueScope | None = None
    names: dict[str, Worth | None] = field(default_factory=dict)
    package: str = ""
    changing: frozenset[str] = frozenset()

    def get(self, name: str) -> Worth | None:
        """Return what a name is worth here."""
        scope: ValueScope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name] if name not in scope.changing else None
            scope = scope.outer
        return Worth(ForeignName(("builtins", name))) if hasattr(builtins, name) else None

    @property
    def module(self) -> ValueScope:
        """Return the names of the module around it."""
        return self.outer.module if self.outer else self


class RefusedError(Exception):
    """A ``raise`` that a source comes to, by its ``kind``. ``condition`` is what holds there, of ``packages``."""

    def __init__(self, kind: str = "", packages: frozenset[str] = frozenset(), condition: str = "") -> None:
        super().__init__(condition)
        self.kind, self.packages, self.condition = kind, packages, condition

    def under(self, test: Worth, condition: ast.expr, *, holds: bool = True) -> RefusedError:
        """Return it behind a condition that holds, or not."""
        words = condition if holds else ast.UnaryOp(op=ast.Not(), operand=condition)
        return RefusedError(self.kind, self.packages | test.packages, self.condition or ast.unparse(words))


class Evaluator:
    """Works out expressions. ``releases`` are texts of versions by distribution, ``python`` among them.

    ``distribution`` is asked for that of a module, ``own`` for the value of a name of the same package, ``has_name``
    whether the stated release of another one surely has a name. ``itself`` names the distribution that is read.
    Each answer may be a :class:`RefusedError`, where the source surely comes to a ``raise``. ``warned`` are such where it
    came to a warning.
    """

    def __init__(
        self,
        releases: Mapping[str, str],
        distribution: Callable[[str], str],
        own: Callable[[Chain], Worth | None],
        has_name: Callable[[Chain], bool],
        *,
        itself: frozenset[str] = frozenset(),
    ) -> None:
        self._releases, self._own, self._has_name, self._itself = releases, own, has_name, itself
        self.distribution, self._steps = distribution, 0
        self.warned: list[RefusedError] = []

    def begin(self) -> None:
        """Begin another question, whose answer may take as many steps again."""
        self._steps = 0

    def step(self) -> None:
        """Count what is followed again and again. ``ValueError`` where that is too much."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise ValueError("Cannot work out a value: it takes too many steps.")

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
        except _FAILURES:
            return None  # as the source itself would fail, or a value of another kind

    def _worth(self, node: ast.expr, scope: ValueScope, depth: int) -> Worth | None:
        if isinstance(node, ast.Constant):
            return Worth(node.value)
        if isinstance(node, ast.Name):
            bound = scope.get(node.id)
            return self._named(bound.value.chain) if bound and isinstance(bound.value, ForeignName) else bound
        if isinstance(node, ast.Attribute):
            return self._member(self.worth(node.value, scope, depth), node.attr)
        if isinstance(node, ast.Call):
            return self._call(node, scope, depth)
        if isinstance(node, ast.Compare):
            return self._compare(node, scope, depth)
        if isinstance(node, ast.BoolOp):
            return self._joined(node, scope, depth)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.truth(node.operand, scope, depth)
            return inner and Worth(not inner.value, inner.packages)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._made(operator.neg, [self.worth(node.operand, scope, depth)])
        if isinstance(node, ast.BinOp):
            sides = [self.worth(each, scope, depth) for each in (node.left, node.right)]
            return self._made(lambda first, second: combined(node.op, first, second), sides)
        if isinstance(node, ast.IfExp):
            test = self.truth(node.test, scope, depth)
            return test and self._also(self.worth(node.body if test.value else node.orelse, scope, depth), [test])
        if isinstance(node, (ast.Tuple, ast.List)):
            return self._made(lambda *values: values, [self.worth(each, scope, depth) for each in node.elts])
        if isinstance(node, ast.JoinedStr):
            return self._made(lambda *texts: "".join(texts), [self._filled(each, scope, depth) for each in node.values])
        if isinstance(node, ast.Dict):
            return self._table(node, scope, depth)
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

    def truth_if_reached(self, node: ast.expr, scope: ValueScope, depth: int = 0) -> Worth | None:
        """Return whether an expression holds that the source may not come to."""
        try:
            return self.truth(node, scope, depth)
        except RefusedError:
            return None

    def run(
        self, called: Function, values: Sequence[Worth | None], named: Mapping[str, Worth | None], depth: int
    ) -> Worth | None:
        """Return what a function of the source answers."""
        raise NotImplementedError

    # -- names --------------------------------------------------------------------------------------------------------

    def _named(self, chain: Chain, depth: int = 0) -> Worth | None:
        if own := self._own(chain):
            is_elsewhere = isinstance(own.value, ForeignName) and own.value.chain != chain and depth < _MOST_RE_EXPORTS
            return self._named(own.value.chain, depth + 1) if is_elsewhere else own
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
        return Worth(kind(text), frozenset({distribution} - self._itself)) if text else None

    def _compared(self, package: str, relation: str, version: str) -> Worth | None:
        stated = self._release(package)
        if stated is None:
            return None
        return Worth(_OPERATORS[relation](Version(str(stated.value)), Version(version)), stated.packages)

    def _member(self, base: Worth | None, name: str) -> Worth | None:
        if base is None:
            return None
        if isinstance(base.value, ForeignName):
            return self._named((*base.value.chain, name))
        if isinstance(base.value, Version):
            if name in _OF_VERSION:
                return Worth(getattr(base.value, name), base.packages)
            return base if name in {"version", "parsed_version"} else None
        if name in {"major", "minor"} and PYTHON in base.packages and isinstance(base.value, tuple):
            return Worth(base.value[name == "minor"], base.packages)
        return None

    # -- calls --------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call, scope: ValueScope, depth: int) -> Worth | None:
        base, name = None, ""
        if isinstance(node.func, ast.Attribute):
            base, name = self.worth(node.func.value, scope, depth), node.func.attr
        called = self._member(base, name) if name else self.worth(node.func, scope, depth)
        answer = method(base.value, name) if base else None
        if called is None and answer is None and not (base and isinstance(base.value, SpecifierSet)):
            return None
        values = [self.worth(each, scope, depth) for each in node.args]
        named = {k.arg: self.worth(k.value, scope, depth) for k in node.keywords if k.arg}
        if base and isinstance(base.value, SpecifierSet) and name == "contains":
            return self._made(lambda version: base.value.contains(version, prereleases=True), values, [base])
        if base and answer:
            return self._made(answer, values, [base], named)
        if called is None or depth > _DEPTH:
            return None
        if isinstance(called.value, Function):
            return self.run(called.value, values, named, depth + 1)
        if isinstance(called.value, ForeignName):
            return self._foreign(called.value.chain, values, named, depth)
        return None

    def _foreign(
        self, chain: Chain, values: Sequence[Worth | None], named: Mapping[str, Worth | None], depth: int
    ) -> Worth | None:
        """Return what a function of another package answers, where it is one that is known."""
        arguments = [each.value if each else None for each in values]
        texts = [value for value in arguments if isinstance(value, str)]
        text, name = ".".join(chain), chain[-1]
        if text in ENDS:
            raise RefusedError("SystemExit")
        if _DEMANDS.fullmatch(text) and texts:
            return self._demanded(texts[0])
        if answer := function(text):
            return self._made(answer, values, (), named)
        if chain[0] == "builtins" and name != "__import__":
            return self._builtin(name, values, depth)
        if name in {"import_module", "__import__"} and len(texts) == len(values) == 1:
            return Worth(ForeignName(tuple(texts[0].split(".")))) if not texts[0].startswith(".") else None
        if _FINDER.fullmatch(text) and texts:
            root = texts[0].partition(".")[0]
            return Worth(root, frozenset({self.distribution(root)})) if self.is_there((root,)) else None
        if "metadata" in text and name == "version" and texts:
            return self._release(texts[0])
        if _DISTRIBUTION.fullmatch(text) and texts:
            return self._made(Version, [self._release(texts[0])])
        if name == "SpecifierSet" and texts:
            return Worth(SpecifierSet(texts[0]))
        if name == "RequirementCache" and len(texts) == 1 and not named:
            requirement = Requirement(texts[0])
            return self._made(requirement.specifier.contains, [self._release(requirement.name)])
        if _COMPARE.fullmatch(text) and len(values) == 3:
            return self._comparing(values)
        if (match := _ASKED_BY.fullmatch(name)) and texts and not match["floor"]:
            return self._compared(match["package"], texts[0] if len(texts) > 1 else ">=", texts[-1])
        if _MAKE_VERSION.fullmatch(text) and len(values) == 1:
            return self._made(lambda value: value if isinstance(value, Version) else Version(value), values)
        return None

    def _demanded(self, text: str) -> Worth | None:
        """Return nothing where a requirement is met. ``RefusedError`` where a stated release surely does not meet it."""
        requirement = Requirement(text)
        stated = self._release(requirement.name)
        if stated is None or PYTHON in stated.packages or requirement.marker:
            return None
        version = Version(str(stated.value))
        if requirement.specifier.contains(version, prereleases=True):
            return Worth(None, stated.packages)
        bounds = {clause.version for clause in requirement.specifier}
        if stated.packages & _WITH_BUILDS and any(Version(b.removesuffix(".*")) == version for b in bounds):
            return None  # of the release that is named, a build may be another one
        raise RefusedError("", stated.packages, f"not ({text})")

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

    def _builtin(self, name: str, values: Sequence[Worth | None], depth: int) -> Worth | None:
        """Return what ``getattr``, ``hasattr``, ``isinstance`` or ``map`` answers."""
        if len(values) < 2 or not (values[0] and values[1]):
            return None
        first, second = values[0].value, values[1].value
        if name == "isinstance":
            return self._is_instance(values[0], second)
        if isinstance(first, ForeignName) and isinstance(second, str):
            chain = (*first.chain, second)
            member = self._named(chain)
            if name == "getattr":
                return member
            is_there = (member is not None and bool(member.packages)) or self.is_there(chain)
            return Worth(value=True, packages=frozenset({self.distribution(chain[0])})) if is_there else None
        if name == "map" and isinstance(second, tuple):
            return self._made(
                lambda *each: each, [self._applied(values[0], Worth(v, values[1].packages), depth) for v in second]
            )
        return None

    @staticmethod
    def _is_instance(worth: Worth, kind: object) -> Worth | None:
        """Return whether a text or a version is of a kind."""
        kinds = {("builtins", "str"): str, ("packaging", "version", "Version"): Version}
        expected = kinds.get(kind.chain) if isinstance(kind, ForeignName) else None
        is_plain = isinstance(worth.value, (str, Version))
        return Worth(isinstance(worth.value, expected), worth.packages) if expected and is_plain else None

    def _applied(self, called: Worth, value: Worth, depth: int) -> Worth | None:
        if isinstance(called.value, Function):
            return self.run(called.value, [value], {}, depth + 1)
        return self._foreign(called.value.chain, [value], {}, depth) if isinstance(called.value, ForeignName) else None

    # -- statements ---------------------------------------------------------------------------------------------------

    def bind(
        self, node: ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign, scope: ValueScope, depth: int = 0
    ) -> None:
        """Note what a statement gives names."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                chain = tuple(alias.name.split("."))
                scope.names[alias.asname or chain[0]] = Worth(ForeignName(chain if alias.asname else chain[:1]))
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node, scope.module.package).split(".")
            for alias in node.names:
                scope.names[alias.asname or alias.name] = Worth(ForeignName((*module, alias.name)))
        else:
            value = self.worth(node.value, scope, depth)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.assign(target, value, scope)

    def assign(self, target: ast.expr, value: Worth | None, scope: ValueScope) -> None:
        """Note what a target is worth from now on. What a part of it is given changes all of it."""
        if isinstance(target, ast.Name):
            scope.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            is_known = value is not None and isinstance(value.value, tuple) and len(value.value) == len(target.elts)
            for at, part in enumerate(target.elts):
                self.assign(part, Worth(value.value[at], value.packages) if is_known and value else None, scope)
        elif isinstance(target, (ast.Subscript, ast.Starred)):
            self.assign(target.value, None, scope)

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
            is_container = isinstance(another, (tuple, dict, SpecifierSet)) or (
                isinstance(one, str) and isinstance(another, str)
            )
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
        is_ordered = isinstance(relation, (ast.GtE, ast.Lt))
        if packages & _WITH_BUILDS and one == another and not (is_ordered or _is_series(one)):
            return None  # ``2.1.0+cu121`` is later than ``2.1.0``
        is_alike = type(one) is type(another) or {type(one), type(another)} <= {int, float, bool}
        return Worth(_OPERATORS[_COMPARING[type(relation)]](one, another), packages) if is_alike else None

    def _joined(self, node: ast.BoolOp, scope: ValueScope, depth: int) -> Worth | None:
        ends, parts = isinstance(node.op, ast.Or), list[Worth | None]()
        for each in node.values:
            is_reached = all(part is not None and bool(part.value) is not ends for part in parts)
            parts.append(self.truth(each, scope, depth) if is_reached else self.truth_if_reached(each, scope, depth))
        if decisive := next((part for part in parts if part and bool(part.value) is ends), None):
            return decisive
        return self._also(Worth(not ends), parts) if None not in parts else None

    def _filled(self, node: ast.expr, scope: ValueScope, depth: int) -> Worth | None:
        """Return a part of a formatted text, ``None`` where it is no text before it is put there."""
        is_plain = isinstance(node, ast.FormattedValue) and node.conversion == -1 and node.format_spec is None
        part = self.worth(node.value if is_plain and isinstance(node, ast.FormattedValue) else node, scope, depth)
        return part if part and isinstance(part.value, str) else None

    def _table(self, node: ast.Dict, scope: ValueScope, depth: int) -> Worth | None:
        """Return a dictionary, whose values may be functions."""
        keys = self._made(lambda *each: each, [self.worth(each, scope, depth) for each in node.keys])
        values = [self.worth(each, scope, depth) for each in node.values]
        known = [value for value in values if value]
        if keys is None or len(known) < len(values):
            return None
        return self._also(Worth(bounded(dict(zip(keys.value, (v.value for v in known), strict=True)))), [keys, *known])

    def _part(self, node: ast.Subscript, scope: ValueScope, depth: int) -> Worth | None:
        base = self.worth(node.value, scope, depth)
        if base is None or not isinstance(base.value, (str, tuple, dict, re.Match)):
            return None
        if isinstance(node.slice, ast.Slice):
            bounds = [
                self.worth(each, scope, depth) if each else Worth(None) for each in (node.slice.lower, node.slice.upper)
            ]
            return self._made(lambda low, high: base.value[low:high], bounds, [base]) if not node.slice.step else None
        return self._made(lambda at: base.value[at], [self.worth(node.slice, scope, depth)], [base])

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp, scope: ValueScope, depth: int) -> Worth | None:
        (generator, *nested), inner = node.generators, ValueScope(scope)
        values = self.worth(generator.iter, scope, depth)
        if nested or values is None or not isinstance(values.value, tuple):
            return None
        result: list[Worth | None] = []
        for value in values.value:
            self.step()
            self.assign(generator.target, Worth(value, values.packages), inner)
            tests = [self.truth(each, inner, depth) for each in generator.ifs]
            if None in tests:
                return None
            if all(test and test.value for test in tests):
                result.append(self.worth(node.elt, inner, depth))
        return self._made(lambda *each: each, result, [values])

    @staticmethod
    def _also(worth: Worth | None, sources: Iterable[Worth | None]) -> Worth | None:
        """Return a value with the packages that sources come from."""
        return worth and Worth(worth.value, worth.packages.union(*(each.packages for each in sources if each)))

    def _made(
        self,
        make: Callable[..., object],
        parts: Sequence[Worth | None],
        sources: Iterable[Worth] = (),
        named: Mapping[str, Worth | None] | None = None,
    ) -> Worth | None:
        """Return what is made of values, ``None`` where one is not known."""
        every = [*parts, *(named or {}).values()]
        certain = [part for part in every if part is not None]
        if len(certain) < len(every) or any(isinstance(part.value, (ForeignName, Function)) for part in certain):
            return None
        keywords = {name: part.value for name, part in (named or {}).items() if part}
        result = make(*(part.value for part in parts if part), **keywords)
        return self._also(Worth(bounded(result)), [*certain, *sources])


def _is_series(value: object) -> bool:
    """Return whether a part of a version ends before its third number, where a build may follow."""
    if isinstance(value, (str, tuple)):
        return len(value.split(".") if isinstance(value, str) else value) < 3
    return isinstance(value, int)
