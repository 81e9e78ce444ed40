"""Files of ``matrix/`` beside the graph: read when they are needed, and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from envsmith.base.schema import Problems, UnreadableError, parse_document
from envsmith.knowledge.graph.fields import check_file
from envsmith.knowledge.graph.load import components
from envsmith.knowledge.graph.location import DataFiles, find_matrix
from envsmith.knowledge.graph.tables import Table

_Value = TypeVar("_Value")


def file_table(kind: str, name: str, shape: Any, read: Callable[[bytes], _Value]) -> Table[_Value]:
    """Return the table that ``read`` makes of one file below ``matrix/``."""
    return Table(kind, lambda: DataFiles(find_matrix(), (name,)), shape, lambda files: read(files.read(name)))


def read_table(kind: type[_Value], name: str, content: bytes) -> _Value:
    """Return the value of a YAML file that names its sources under ``evidence``.

    ``DataError`` lists every problem with its key path.
    """
    problems, value = Problems(), None
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
