"""Files of ``matrix/`` beside the graph: read when they are needed, checked, kept until one of them changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from envsmith.base.about import VERSION
from envsmith.base.cache import cached
from envsmith.base.schema import Problems, UnreadableError, parse_document
from envsmith.errors import DataError
from envsmith.knowledge.graph.fields import check_file
from envsmith.knowledge.graph.load import components
from envsmith.knowledge.graph.location import DataFiles, find_matrix

_Value = TypeVar("_Value")
# Raised when the shape of a kept value changes.
_SHAPE = 8
_LOADED: dict[tuple[str, str], Any] = {}


def cached_table(kind: str, names: tuple[str, ...], read: Callable[[DataFiles], _Value]) -> _Value:
    """Return what ``read`` makes of these files below ``matrix/``, from the cache while none of them changed."""
    files = DataFiles(find_matrix(), names)
    try:
        stamp = files.stamp()
    except OSError as error:
        hint = "Take the whole of matrix/."
        raise DataError(f"Cannot read {error.filename}: {error.strerror}.", hint=hint) from error
    if (kind, stamp) not in _LOADED:
        _LOADED[kind, stamp] = cached(
            kind,
            f"{VERSION} {_SHAPE} {stamp}",
            lambda: read(files),
            modules=("envsmith.model.", "envsmith.knowledge.symbols.", "envsmith.doctor."),
        )
    value: _Value = _LOADED[kind, stamp]
    return value


def read_table(kind: type[_Value], name: str, content: bytes, problems: Problems | None = None) -> _Value:
    """Return the value of a YAML file that names its sources under ``evidence``.

    ``DataError`` lists every problem with its key path.
    """
    problems = problems or Problems()
    value = None
    try:
        value = check_file(kind, name, parse_document(name, content), problems, components())
    except UnreadableError as error:
        problems.add(name, str(error))
    refuse(name, problems)
    assert value is not None  # noqa: S101 - there were no problems
    return value


def refuse(name: str, problems: Problems) -> None:
    """Raise ``DataError`` when there are problems in a file."""
    problems.refuse(
        f"Cannot read {name}: {len(problems.lines)} of its values are wrong.",
        hint="See matrix/README.md for its fields.",
    )
