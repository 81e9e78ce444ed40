"""Tables of ``matrix/`` that describe images: YAML -> rows -> values, every problem of a file told at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from envsmith.errors import DataError, EnvsmithError

__all__ = ["TableReader", "load_table"]

_Value = TypeVar("_Value")


class TableReader:
    """Turns the rows of one file into values and collects problems on the way; :meth:`check` raises them together."""

    def __init__(self, name: str, data: object) -> None:
        self.name = name
        self.data: dict[str, Any] = data if isinstance(data, dict) else {}
        self.problems: list[str] = [] if isinstance(data, dict) else [f"{name}: not a mapping"]

    def check(self) -> None:
        """``DataError`` with every problem that was met."""
        if self.problems:
            raise DataError(
                f"{self.name}: {len(self.problems)} problems", details=self.problems, hint="see matrix/README.md"
            )

    def each(self, section: str, parse: Callable[[Mapping[str, Any]], _Value]) -> list[_Value]:
        """The values of a section's rows; a row that ``parse`` refuses is noted with its place, and left out."""
        rows = self.data.get(section)
        if not isinstance(rows, list):
            self.problems.append(f"{section}: a list is wanted")
            return []
        found = [self._one(f"{section}[{number}]", row, parse) for number, row in enumerate(rows)]
        return [value for value in found if value is not None]

    def _one(self, where: str, row: object, parse: Callable[[Mapping[str, Any]], _Value]) -> _Value | None:
        if not isinstance(row, dict):
            self.problems.append(f"{where}: a mapping is wanted")
            return None
        try:
            return parse(row)
        except KeyError as error:
            self.problems.append(f"{where}: {error.args[0]} is missing")
        except EnvsmithError as error:  # a value that is not plain
            self.problems.append(f"{where}: {error.message}")
        except (ValueError, TypeError, AttributeError) as error:
            self.problems.append(f"{where}: {error}")
        return None

    def evidence(self, row: Mapping[str, Any]) -> str:
        """``kind date: source`` of the evidence that a row names; ``ValueError`` when the file defines none of that name."""
        known = self.data.get("evidence")
        entry = known.get(row["evidence"]) if isinstance(known, dict) else None
        if not isinstance(entry, dict):
            raise ValueError(f"evidence {row['evidence']!r} is not defined")  # noqa: TRY004 - told like every other problem
        return f"{entry['kind']} {entry['date']}: {entry['source']}"


def load_table(name: str, folder: Path | None) -> object:
    """The parsed YAML of ``matrix/<name>``, or of that file in ``folder``; ``DataError`` when it cannot be read."""
    import yaml

    from envsmith.graph.data import find_matrix

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(((folder or find_matrix()) / name).read_bytes(), Loader=loader)  # noqa: S506 - a safe loader
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{name}: cannot be read: {error}") from error
