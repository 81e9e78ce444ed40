"""Files of ``matrix/`` that are edited line by line: what an updater does not touch keeps its bytes.

A file is a head (comments, ``component:``, ``evidence:`` with one entry a line) and a table (``releases:``, ``builds:``
or ``tested:``) with one record a line in flow style, comments between them allowed. Reading and writing without a
change gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envsmith.base.schema import UnreadableError, parse_document
from envsmith.errors import DataError

# Fields whose text is quoted: versions, which YAML would read as numbers, and free text. Words, days and lists of
# architectures stay bare.
_BARE = frozenset({"platform", "date", "index", "kind", "evidence", "gpu", "ptx", "build_imports", "evidence_of"})
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]*|\d{4}-\d{2}-\d{2}")
_RESERVED = frozenset({"true", "false", "yes", "no", "on", "off", "null", "none", "y", "n"})
_SECTION = re.compile(r"(releases|builds|tested):\s*(?:#.*)?")


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) <= 0xFFFF else f"\\U{ord(character):08x}"


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _value(value: object, *, bare: bool) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_value(v, bare=bare)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(v, bare=bare) for v in value) + "]"
    if isinstance(value, int):
        return str(value).lower()  # true and false
    text = str(value)
    plain = bare and _PLAIN.fullmatch(text) and text.lower() not in _RESERVED
    return text if plain else _quoted(text)


def flow(record: Mapping[str, Any]) -> str:
    """Return one record as it stands in a file: ``{version: "2.9.1+cu128", platform: linux-64, …}``."""
    return "{" + ", ".join(f"{k}: {_value(v, bare=k in _BARE)}" for k, v in record.items()) + "}"


@dataclass(slots=True)
class TableLine:
    """A line of the table: its text, and the record in it (``None`` for a comment)."""

    text: str
    record: dict[str, Any] | None = None


@dataclass(slots=True)
class LineTable:
    """One file. ``name`` is shown in errors; ``named`` is its ``evidence:``."""

    name: str
    head: list[str]
    lines: list[TableLine]
    named: dict[str, dict[str, Any]]

    @classmethod
    def parse(cls, text: str, name: str) -> LineTable:
        """Read a file. ``DataError`` has every line that is not a record."""
        rows = text.split("\n")
        start = next((i for i, row in enumerate(rows) if _SECTION.fullmatch(row)), None)
        if start is None:
            raise DataError(
                f"Cannot update {name}: it has no line `releases:`, `builds:` or `tested:`.",
                hint="Add the table that the updater maintains.",
            )
        problems: list[str] = []
        lines = [cls._line(row, f"{name}:{start + 2 + i}", problems) for i, row in enumerate(rows[start + 1 :])]
        if problems:
            raise DataError(
                f"Cannot update {name}: its records do not stand on one line each.",
                details=problems,
                hint="Write each record on one line: - {…}.",
            )
        return cls(name, rows[: start + 1], lines, parse_record("\n".join(rows[:start]), name).get("evidence") or {})

    @staticmethod
    def _line(row: str, where: str, problems: list[str]) -> TableLine:
        if not row.startswith("- {"):
            if row.strip() and not row.lstrip().startswith("#"):
                problems.append(f"{where}: {row[:60]}")
            return TableLine(row)
        return TableLine(row, parse_record(row[2:], where))

    @property
    def records(self) -> list[dict[str, Any]]:
        """Return every record, in file order."""
        return [line.record for line in self.lines if line.record is not None]

    def text(self) -> str:
        """Return the file."""
        return "\n".join([*self.head, *(line.text for line in self.lines)])

    def replace(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
        """Put ``new`` in the place of ``old`` and return whether something changed. An equal record keeps its line."""
        if dict(old) == dict(new):
            return False
        line = next(line for line in self.lines if line.record is old)
        line.record = dict(new)
        line.text = "- " + flow(new)
        return True

    def insert(self, record: Mapping[str, Any], key: Callable[[Mapping[str, Any]], Any]) -> None:
        """Add a record before the first one whose ``key`` is greater (files are oldest first)."""
        line = TableLine("- " + flow(record), dict(record))
        numbered = [(i, one.record) for i, one in enumerate(self.lines) if one.record is not None]
        end = numbered[-1][0] + 1 if numbered else 0
        place = next((i for i, one in numbered if key(one) > key(record)), end)
        self.lines.insert(place, line)

    # -- evidence ------------------------------------------------------------------------------------------------------

    def evidence_key(self, base: str, kind: str, source: str, date: str) -> str:
        """Return the key of an entry of that kind and source read on ``date``, which is added when it is missing.

        An entry under ``base`` that says the same but for its date is not touched, so that older lines keep their day.
        """
        if existing := self.find_evidence(kind, source, date):
            return existing
        key = base if base not in self.named else f"{base}_{date.replace('-', '_')}"
        self.named[key] = {"kind": kind, "source": source, "date": date}
        self.add_evidence(key)
        return key

    def find_evidence(self, kind: str, source: str, date: str) -> str | None:
        """Return the key of an entry of that kind and source read on ``date``, or ``None``."""
        for key, entry in self.named.items():
            if (entry.get("kind"), entry.get("source"), str(entry.get("date"))) == (kind, source, date):
                return key
        return None

    def add_evidence(self, key: str) -> None:
        """Write the entry ``named[key]`` as the last line of the head's ``evidence:``."""
        entry = self.named[key]
        texts = (f"{k}: {v if k in {'kind', 'date'} else _quoted(str(v))}" for k, v in entry.items())
        if not any(row.startswith("evidence:") for row in self.head):
            self.head.insert(len(self.head) - 1, "evidence:")
        end = next(i for i, row in enumerate(self.head) if row.startswith("evidence:")) + 1
        while end < len(self.head) and self.head[end].startswith((" ", "#")):
            end += 1
        self.head.insert(end, f"  {key}: {{{', '.join(texts)}}}")

    def fold_evidence(self, base: str, key: str) -> None:
        """Let ``base`` carry the new day and drop ``key``, once no line names ``base`` any more."""
        if key == base or base not in self.named or key not in self.named:
            return
        if any(base in used_evidence(r) for r in self.records):
            return
        date = str(self.named[key]["date"])
        for line in self.lines:
            if line.record is not None and key in used_evidence(line.record):
                renamed = {
                    k: _renamed(v, key, base) if k in {"evidence", "evidence_of"} else v for k, v in line.record.items()
                }
                line.record, line.text = renamed, "- " + flow(renamed)
        self.head = [row for row in self.head if not row.startswith(f"  {key}: ")]
        old = self.named.pop(base)
        new = self.named.pop(key)
        self.named[base] = {**old, "source": new["source"], "date": date}
        for i, row in enumerate(self.head):
            if row.startswith(f"  {base}: "):
                note = f", note: {_quoted(str(old['note']))}" if old.get("note") else ""
                self.head[i] = (
                    f"  {base}: {{kind: {new['kind']}, source: {_quoted(str(new['source']))}, date: {date}{note}}}"
                )


def used_evidence(record: Mapping[str, Any]) -> list[str]:
    """Return the keys of evidence that a record names."""
    named, by_field = record.get("evidence"), record.get("evidence_of")
    keys: list[Any] = [*(named if isinstance(named, list) else [named])]
    keys += by_field.values() if isinstance(by_field, dict) else ()
    return [key for key in keys if isinstance(key, str)]


def _renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {k: _renamed(v, old, new) for k, v in value.items()}
    if isinstance(value, list):
        return [_renamed(v, old, new) for v in value]
    return new if value == old else value


def parse_record(text: str, where: str) -> dict[str, Any]:
    """Return a mapping in YAML. ``DataError`` names ``where`` when it is none."""
    try:
        mapping = parse_document(where, text.encode())
    except UnreadableError as error:
        raise DataError(f"Cannot read {where}: it is not a mapping.", details=[f"{where}: {error}"]) from None
    if not isinstance(mapping, dict):
        raise DataError(f"Cannot read {where}: it is not a mapping.")
    return mapping
