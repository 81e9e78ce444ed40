"""What a backend of a version does with a case: expectations, read from ``matrix/collectives.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from envsmith.errors import DataError
from envsmith.files import read_bounded
from envsmith.model.version import Spec
from envsmith.schema import UnreadableError, parse_document

_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_SELECTORS = ("backend", "op", "dtype", "redop", "n", "engine")
_VERSIONS = ("torch", "nccl")
_KINDS = frozenset({"validated", "measured", "declared", "documented", "reported"})


class Expect(str, Enum):
    """What is expected of a case on a backend."""

    OK = "ok"
    REFUSED = "refused"
    WRONG = "wrong"
    EITHER = "either"
    AVOID = "avoid"


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """One line: selectors (empty means any), version ranges, what is expected and where that comes from."""

    id: str
    expect: Expect
    select: Mapping[str, frozenset[str]]
    versions: Mapping[str, Spec]
    note: str = ""
    min_sm: int | None = None
    sources: tuple[str, ...] = ()

    def matches(self, case: Mapping[str, object], backend: str, versions: Mapping[str, str]) -> bool:
        """Return whether this line speaks of ``case`` on ``backend``. An unknown version matches no range."""
        facts = {**{key: str(case.get(key, "")) for key in _SELECTORS}, "backend": backend}
        if any(facts[key] not in allowed for key, allowed in self.select.items()):
            return False
        return all(
            spec.is_any or (name in versions and spec.contains(versions[name])) for name, spec in self.versions.items()
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectations:
    """All lines, in the order of the file."""

    lines: tuple[Expectation, ...] = field(default=())

    def of(self, case: Mapping[str, object], backend: str, versions: Mapping[str, str]) -> Expectation | None:
        """Return the last line that matches. ``None`` means that the case is expected to work."""
        match = None
        for line in self.lines:
            if line.matches(case, backend, versions):
                match = line
        return match


def read_table(path: Path | None, name: str) -> tuple[str, Any]:
    """Return a file's name and document: ``path``, or ``name`` beside the package or in the checkout. ``DataError``."""
    packaged = Path(__file__).parents[1] / "_matrix" / name
    where = path or (packaged if packaged.exists() else Path(__file__).parents[2] / "matrix" / name)
    try:
        return where.name, parse_document(where.name, read_bounded(where, 1 << 20))
    except UnreadableError as error:
        raise DataError(f"Cannot read {where.name}: {error}.") from None


@cache
def load_expectations(path: Path | None = None) -> Expectations:
    """Read and check the file. Raises :class:`DataError` that lists every problem with its key path."""
    name, document = read_table(path, "collectives.yaml")
    problems: list[str] = []
    lines = _parse(document, problems)
    if problems:
        raise DataError(f"Cannot read {name}: {len(problems)} of its values are wrong.", details=problems)
    return Expectations(lines=lines)


def _parse(document: Any, problems: list[str]) -> tuple[Expectation, ...]:
    if not isinstance(document, dict) or set(document) != {"evidence", "expectations"}:
        problems.append("the file must have exactly the keys evidence and expectations")
        return ()
    evidence = document["evidence"] if isinstance(document["evidence"], dict) else {}
    for key, entry in evidence.items():
        if (
            not isinstance(entry, dict)
            or entry.get("kind") not in _KINDS
            or not entry.get("source")
            or not _DAY.fullmatch(str(entry.get("date")))
        ):
            problems.append(f"evidence.{key}: needs kind (one of {', '.join(sorted(_KINDS))}), source and date")
    lines, ids = [], set()
    for number, row in enumerate(document["expectations"] or ()):
        line = _line(row, f"expectations[{number}]", evidence, problems)
        if line is None:
            continue
        if line.id in ids:
            problems.append(f"expectations[{number}]: the id {line.id} is used twice")
        ids.add(line.id)
        lines.append(line)
    return tuple(lines)


def _line(row: Any, where: str, evidence: Mapping[str, Any], problems: list[str]) -> Expectation | None:
    columns = {"id", "when", "expect", "evidence", "note", "min_sm"}
    if not isinstance(row, dict) or not isinstance(row.get("when"), dict) or set(row) - columns:
        problems.append(f"{where}: a line has id, when, expect, evidence and optionally note, min_sm; nothing else")
        return None
    keys = row["evidence"] if isinstance(row.get("evidence"), list) else [row.get("evidence")]
    missing = [key for key in keys if key not in evidence]
    if missing:
        problems.append(
            f"{where}: no evidence named {', '.join(map(str, missing))}; a line without evidence does not load"
        )
    allowed = ", ".join((*_SELECTORS, *_VERSIONS))
    problems.extend(f"{where}.when.{key}: not one of {allowed}" for key in set(row["when"]) - {*_SELECTORS, *_VERSIONS})
    try:
        return Expectation(
            id=str(row["id"]),
            expect=Expect(row.get("expect")),
            select={key: _words(row["when"][key]) for key in _SELECTORS if key in row["when"]},
            versions={key: Spec.parse(str(row["when"][key])) for key in _VERSIONS if key in row["when"]},
            note=str(row.get("note", "")),
            min_sm=int(row["min_sm"]) if "min_sm" in row else None,
            sources=tuple(str(evidence[str(key)]["source"]) for key in keys if str(key) in evidence),
        )
    except (KeyError, ValueError) as error:
        problems.append(f"{where}: {error}")
        return None


def _words(value: Any) -> frozenset[str]:
    items: Sequence[Any] = value if isinstance(value, list) else [value]
    return frozenset(str(item) for item in items)
