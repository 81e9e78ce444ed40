"""The form of what is kept in files, read by people: every key, what is left out when, and the bounds of every text."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest

from envsmith.base.schema import _Mark
from envsmith.model import component, finding, lock, record, rule


def _bounds(mark: _Mark) -> str:
    """The function of a mark with what it was made with: ``text_of(maximum=200)``."""
    function = mark.function
    inner = inspect.getclosurevars(function).nonlocals if getattr(function, "__closure__", None) else {}
    usual = {"advice": "", "complaint": "not a value of this field", "minimum": 1, "pattern": None}
    values = {name: getattr(value, "pattern", value) for name, value in inner.items() if value != usual.get(name, ...)}
    return function.__qualname__.split(".")[0] + (str(values) if values else "")


def _kind(hint: Any) -> str:
    parts = [_bounds(part) if isinstance(part, _Mark) else _kind(part) for part in typing.get_args(hint)]
    if not parts:
        return hint.__name__ if isinstance(hint, type) else str(hint)
    if typing.get_origin(hint) in {types.UnionType, typing.Union}:
        return " | ".join(parts)
    return f"{getattr(typing.get_origin(hint), '__name__', 'Annotated')}[{', '.join(parts)}]"


def _default(member: dataclasses.Field[Any]) -> str:
    if member.default_factory is not dataclasses.MISSING:
        return f" = {member.default_factory.__name__}()"
    return "" if member.default is dataclasses.MISSING else f" = {member.default!r}"


def _form(module: types.ModuleType) -> str:
    lines = []
    for name, kind in vars(module).items():
        if not isinstance(kind, type) or kind.__module__ != module.__name__:
            continue
        if issubclass(kind, enum.Enum):
            lines.append(f"{name}: {[member.value for member in kind]}")
        elif dataclasses.is_dataclass(kind):
            hints = typing.get_type_hints(kind, include_extras=True)
            lines.append(f"{name}")
            lines += [
                f"    {member.name}: {_kind(hints[member.name])}{_default(member)} {dict(member.metadata) or ''}".rstrip()
                for member in dataclasses.fields(kind)
            ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "module", [component, finding, lock, record, rule], ids=lambda module: module.__name__.rpartition(".")[2]
)
def test_form_of_what_is_kept_is_the_one_that_was_read(
    module: types.ModuleType, golden: Callable[[str, str], None]
) -> None:
    golden(f"form/{module.__name__.rpartition('.')[2]}.txt", _form(module))
