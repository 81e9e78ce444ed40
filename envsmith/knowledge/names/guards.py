"""What stands between a use and its failure: handlers, conditions, and what a condition asks for."""

from __future__ import annotations

import ast
import re
from collections.abc import Container
from dataclasses import dataclass, replace
from typing import NamedTuple

from envsmith.knowledge.names.conditions import Truth, truth
from envsmith.knowledge.names.dotted import dotted
from envsmith.knowledge.names.scopes import Chain
from envsmith.model.project_name import normal_name

AVAILABLE = re.compile(r"(?:\w+\.)*_?is_(\w+)_available")
# A constant that says whether a package is there: ``_SQLALCHEMY_INSTALLED``, ``HAS_TORCH``.
_FLAG = re.compile(r"_?(?:HAS|HAVE)_(?P<has>[A-Z0-9_]+)|_?(?P<is>[A-Z0-9_]+)_(?:INSTALLED|AVAILABLE)")
TYPE_ERRORS = frozenset({"TypeError", "Exception", "BaseException"})
_MEMBER_ERRORS = frozenset({"AttributeError", "Exception", "BaseException"})
_CATCHES = _MEMBER_ERRORS | {"ImportError", "ModuleNotFoundError"}


class Test(NamedTuple):
    """``hasattr(torch.compiler, "is_compiling")`` was true, or false, on the way here."""

    chain: Chain
    name: str
    holds: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """``caught``: a handler takes the failure. ``version``: a condition asks for it. ``branch``: another condition.

    ``fits``: a handler takes what a call does not accept. ``available`` are packages that a condition wants to be there
    (``is_accelerate_available()``). ``nested``: in a function inside of another one, which may never be called. ``imported``: where a handler takes the failure of imports
    alone, the modules and names that are imported there.
    """

    caught: bool = False
    imported: frozenset[Chain] | None = None
    fits: bool = False
    version: bool = False
    branch: bool = False
    nested: bool = False
    available: tuple[str, ...] = ()
    tests: tuple[Test, ...] = ()

    @property
    def asks(self) -> bool:
        """Return whether the code itself asks for a version or a package, or takes the failure."""
        return self.caught or self.version or bool(self.available)

    def within(self, node: ast.Try) -> Guard:
        """Return what stands around the body of an attempt."""
        takes_members, takes_imports = catches(node, _MEMBER_ERRORS), catches(node)
        imported = None if takes_members else self.imported
        if takes_imports and not takes_members and not (self.caught and imported is None):
            imported = _imported(node) | (imported or frozenset())
        fits = self.fits or catches(node, TYPE_ERRORS)
        return replace(self, caught=self.caught or takes_imports, imported=imported, fits=fits)

    def of_member(self, chain: Chain) -> Guard:
        """Return what stands around what is taken of a name. ``except ImportError`` does not take ``np.bool8`` that is gone.

        It does where what is missing may lie in an import of more than a root, which fails first.
        """
        names = self.imported
        if names is None or any(len(each) > 1 and chain[: len(each)] == each for each in names):
            return self
        return replace(self, caught=False)

    def beside(self, present: Container[str]) -> Guard:
        """Return what is left of it where packages are there: ``is_peft_available()`` asks for nothing beside peft."""
        return replace(self, available=tuple(name for name in self.available if normal_name(name) not in present))


def leaves(body: list[ast.stmt]) -> bool:
    """Return whether what follows a condition with that body runs only where the condition does not hold."""
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))


def catches(node: ast.Try, errors: frozenset[str] = _CATCHES) -> bool:
    """Return whether a handler takes a missing name, or one of other errors. One that raises another error does not."""
    for handler in node.handlers:
        parts = {getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(handler.type)} if handler.type else _CATCHES
        if parts & errors:
            return not isinstance(handler.body[-1], ast.Raise)
    return False


def _imported(node: ast.Try) -> frozenset[Chain]:
    """Return the modules and names of other packages that the body of an attempt imports."""
    chains: set[Chain] = set()
    for statement in (each for child in node.body for each in ast.walk(child)):
        if isinstance(statement, ast.Import):
            chains |= {tuple(alias.name.split(".")) for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            chains |= {(*statement.module.split("."), alias.name) for alias in statement.names}
    return frozenset(chains)


def decided(test: ast.expr) -> bool | None:
    """Return whether a condition holds on Linux at run time, ``None`` where that depends on more."""
    if available(test, holds=True) is not None or available(test, holds=False) is not None:
        return None
    return {Truth.YES: True, Truth.NO: False}.get(truth(test))


def available(test: ast.expr, *, holds: bool) -> tuple[str, ...] | None:
    """Return the packages that are there where a condition holds, ``None`` where it asks for anything else."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return available(test.operand, holds=not holds)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if holds else ast.Or):
        parts = [available(value, holds=holds) for value in test.values]
        return None if None in parts else tuple(name for part in parts for name in part or ())
    if holds and isinstance(test, ast.Call) and not test.args and not test.keywords:
        match = AVAILABLE.fullmatch(ast.unparse(test.func))
        return (match[1],) if match else None
    return None


def flagged(test: ast.expr, *, holds: bool) -> str | None:
    """Return the package that is there where a constant holds, ``None`` where a condition is no such constant."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return flagged(test.operand, holds=not holds)
    match = _FLAG.fullmatch(dotted(test).rpartition(".")[2]) if holds else None
    return (match["has"] or match["is"]).lower() if match else None
