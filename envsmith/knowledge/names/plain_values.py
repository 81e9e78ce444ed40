"""What calls and operators answer for texts, numbers, lists and matches, as in Python. What may grow or last without end is refused.

Lists are tuples here, so that no value ever changes.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

# No text or list that is made is longer, and no number greater.
_MOST, _GREATEST = 1000, 10**9
# The longest text that is held against a pattern, and against one that repeats a group: steps may double with each letter.
_LONGEST_TEXT, _LONGEST_FOR_GROUPS = 24, 16
# How often a pattern may repeat parts, and groups.
_MOST_REPEATS, _MOST_GROUPS = 6, 1
_OF_PATTERNS = frozenset({"findall", "fullmatch", "match", "search", "split", "sub"})
_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset([
        "count", "endswith", "find", "index", "isalnum", "isalpha", "isdecimal", "isdigit", "isnumeric", "join",
        "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rpartition", "rsplit",
        "rstrip", "split", "startswith", "strip", "upper",
    ]),
    tuple: frozenset({"copy", "count", "index"}),
    dict: frozenset({"get", "items", "keys", "values"}),
    re.Pattern: _OF_PATTERNS,
    re.Match: frozenset({"end", "group", "groups", "start"}),
}  # fmt: skip
_BUILTINS: Mapping[str, Callable[..., object]] = {
    "abs": abs, "all": all, "any": any, "bool": bool, "enumerate": lambda values: tuple(enumerate(values)), "float": float,
    "int": int, "len": len, "list": tuple, "max": max, "min": min, "range": range, "sorted": sorted, "str": str,
    "tuple": tuple, "zip": lambda *parts: tuple(zip(*parts, strict=False)),
}  # fmt: skip
_COMBINED: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.FloorDiv: operator.floordiv, ast.Mult: operator.mul,
}  # fmt: skip
_COMPARING = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})


def method(value: Any, name: str) -> Callable[..., object] | None:
    """Return a method of a plain value, ``None`` where it is not one that is worked out."""
    kind = next((kind for kind in _METHODS if isinstance(value, kind)), None)
    if kind is None or name not in _METHODS[kind]:
        return None
    if kind is re.Pattern:
        return lambda *arguments: _matched(value, name, *arguments)
    if kind is tuple and name == "copy":
        return lambda: value
    answer: Callable[..., object] = getattr(str(value) if kind is str else value, name)
    return answer


def function(name: str) -> Callable[..., object] | None:
    """Return a function of Python by its dotted name. Those of the environment find no variable."""
    module, _, member = name.rpartition(".")
    if module == "builtins" and member in _BUILTINS:
        return _BUILTINS[member]
    if name in {"os.getenv", "os.environ.get"}:
        return lambda _name, default=None: default
    if name == "re.compile":
        return re.compile
    if module == "operator" and member in _COMPARING:
        answer: Callable[..., object] = getattr(operator, member)
        return answer
    if module == "re" and member in _OF_PATTERNS:
        return lambda pattern, *arguments: _matched(re.compile(pattern), member, *arguments)
    return None


def combined(kind: ast.operator, first: Any, second: Any) -> object:
    """Return what an operator makes of two values. ``ValueError`` where that is not worked out."""
    factors = [each if isinstance(each, (int, float)) else len(each) for each in (first, second)]
    if type(kind) not in _COMBINED or (isinstance(kind, ast.Mult) and abs(factors[0] * factors[1]) > _MOST):
        raise ValueError("Cannot work out a value: the operator is not known, or makes too much.")
    return _COMBINED[type(kind)](first, second)


def bounded(value: Any) -> object:
    """Return a value, a tuple for what is a list or a view. ``ValueError`` where it is too great, or lists are in lists of lists."""
    is_great = isinstance(value, (int, float)) and abs(value) > _GREATEST
    if is_great or (hasattr(value, "__len__") and len(value) > _MOST):
        raise ValueError("Cannot work out a value: it is too great.")
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return value
    inner = [each for each in (value.values() if isinstance(value, dict) else value) if isinstance(each, (tuple, dict))]
    if any(isinstance(part, (tuple, dict)) for each in inner for part in each):
        raise ValueError("Cannot work out a value: it is too deep.")
    return value if isinstance(value, dict) else tuple(value)


def _matched(pattern: re.Pattern[str], name: str, *arguments: Any) -> object:
    """Return what a method of a pattern answers. ``ValueError`` where that may last."""
    signs, longest = pattern.pattern, max(len(str(each)) for each in arguments)
    groups = len(re.findall(r"\)[*+{]", signs))
    if (
        longest > (_LONGEST_FOR_GROUPS if groups else _LONGEST_TEXT)
        or groups > _MOST_GROUPS
        or len(re.findall(r"[*+{]", signs)) > _MOST_REPEATS
    ):
        raise ValueError("Cannot hold a text against a pattern: it may last.")
    return getattr(pattern, name)(*arguments)
