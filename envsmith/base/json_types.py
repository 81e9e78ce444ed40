"""What a parsed JSON, YAML or TOML document is, as a type, and its parts where they have the form that they must have.

Who reads a part says what stands there. What has another form counts as absent: a reader of logs goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import TypeAlias  # noqa: UP035 - typing has it from Python 3.10 on

    Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
    # An object of such a document: one that is read, and one that is written.
    JsonFields = Mapping[str, Json]
    JsonDict = dict[str, Json]
else:  # who evaluates annotations, as schemas do, cannot evaluate a type that names itself
    Json, JsonFields, JsonDict = object, Mapping[str, object], dict[str, object]


def object_in(fields: JsonFields, key: str) -> JsonFields:
    """Return an object, or an empty one."""
    value = fields.get(key)
    return value if isinstance(value, Mapping) else {}


def objects_in(fields: JsonFields, key: str) -> tuple[JsonFields, ...]:
    """Return the objects of a list."""
    value = fields.get(key)
    return tuple(row for row in value if isinstance(row, Mapping)) if isinstance(value, (list, tuple)) else ()


def texts_in(fields: JsonFields, key: str) -> dict[str, str]:
    """Return the texts of an object by their names."""
    return {name: value for name, value in object_in(fields, key).items() if isinstance(value, str)}


def numbers_in(fields: JsonFields, key: str) -> dict[str, int]:
    """Return the whole numbers of an object by their names."""
    return {name: value for name, value in object_in(fields, key).items() if isinstance(value, int)}


def text_in(fields: JsonFields, key: str) -> str:
    """Return a text, or an empty one."""
    value = fields.get(key)
    return value if isinstance(value, str) else ""


def list_in(fields: JsonFields, key: str) -> tuple[str, ...]:
    """Return the texts of a list."""
    value = fields.get(key)
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, (list, tuple)) else ()


def number_in(fields: JsonFields, key: str) -> int:
    """Return a whole number, or 0."""
    value = fields.get(key)
    return value if isinstance(value, int) else 0


def seconds_in(fields: JsonFields, key: str) -> float:
    """Return a number, or 0."""
    value = fields.get(key)
    return float(value) if isinstance(value, (int, float)) else 0.0
