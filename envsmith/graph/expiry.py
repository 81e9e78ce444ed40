"""How long a record counts (``matrix/expiry.yaml``), and what it counts for when that time is over."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from envsmith.errors import DataError
from envsmith.graph.fields import Node, parse_yaml
from envsmith.graph.load import knowledge
from envsmith.model.record import Record, Rung
from envsmith.model.version import version_key
from envsmith.schema import Problems

_SCHEMA = 1
_RECENT = 4
_MAX_DAYS = 3650


class TorchAge(str, Enum):
    """How new a torch series is among those that are known."""

    NEWEST = "newest"
    RECENT = "recent"
    OLDER = "older"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """``passed`` is ``None`` when the line speaks of both."""

    torch: TorchAge
    days: int
    passed: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Expiry:
    """``series`` are the known torch series, newest first."""

    lines: tuple[Line, ...]
    series: tuple[str, ...]
    stale_counts_as: Rung

    def torch_age(self, torch: str) -> TorchAge:
        """Of a torch version; one that is not known is old."""
        own = _series(torch)
        if own not in self.series:
            return TorchAge.OLDER
        place = self.series.index(own)
        return TorchAge.NEWEST if place == 0 else TorchAge.RECENT if place <= _RECENT else TorchAge.OLDER

    def until(self, record: Record) -> dt.date:
        """Return the last day on which a record counts in full."""
        return self.last_day(
            record.components.get("torch", ""), dt.date.fromisoformat(record.day), passed=record.passed
        )

    def last_day(self, torch: str, day: dt.date, *, passed: bool) -> dt.date:
        """Return the last day on which a run of ``day`` with a torch counts in full."""
        age = self.torch_age(torch)
        days = (line.days for line in self.lines if line.torch is age and line.passed in {None, passed})
        return day + dt.timedelta(days=next(days, 0))

    def is_stale(self, record: Record, today: dt.date) -> bool:
        """Whether its time is over."""
        return self.until(record) < today

    def rung(self, record: Record, today: dt.date) -> Rung:
        """What the record counts for on that day."""
        ladder = list(Rung)
        if not self.is_stale(record, today):
            return record.rung
        return min(record.rung, self.stale_counts_as, key=ladder.index)


def load_expiry(root: Path, torches: Iterable[str] | None = None) -> Expiry:
    """Read ``expiry.yaml`` below ``root``; ``torches`` are the known versions (default: the installed knowledge's). ``DataError``."""
    path = root / "expiry.yaml"
    problems = Problems()
    try:
        node = parse_yaml(path.name, path.read_bytes(), problems)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    expiry = _expiry(node, _known() if torches is None else torches) if node is not None else None
    if problems.lines or expiry is None:
        raise DataError(f"{path}: no table of expiry", details=problems.lines)
    return expiry


def _known() -> list[str]:

    return [release.version for release in knowledge().releases.get("torch", ())]


def _expiry(root: Node, torches: Iterable[str]) -> Expiry:
    fields = root.fields(("schema", "stale_counts_as", "expiry"))
    if "schema" in fields and fields["schema"].value != _SCHEMA:
        fields["schema"].wrong("another schema", f"this envsmith reads schema: {_SCHEMA}")
    counts = fields["stale_counts_as"].choice(Rung) if "stale_counts_as" in fields else None
    lines = [
        _line(node.fields(("torch", "days"), ("passed",)))
        for node in (fields["expiry"].sequence() if "expiry" in fields else [])
    ]
    series = sorted({_series(t) for t in torches}, key=lambda s: tuple(map(int, s.split("."))), reverse=True)
    return Expiry(lines=tuple(x for x in lines if x), series=tuple(series), stale_counts_as=counts or Rung.LOCKED)


def _line(fields: Mapping[str, Node]) -> Line | None:
    age = fields["torch"].choice(TorchAge) if "torch" in fields else None
    days = fields["days"].value if "days" in fields else None
    if isinstance(days, bool) or not isinstance(days, int) or not 0 < days <= _MAX_DAYS:
        if "days" in fields:
            fields["days"].wrong(f"a number of days from 1 to {_MAX_DAYS} belongs here")
        return None
    passed = fields["passed"].flag() if "passed" in fields else None
    return Line(torch=age, days=days, passed=passed) if age else None


def _series(torch: str) -> str:
    key = version_key(torch) if torch else None
    return ".".join(map(str, key.release[:2])) if key else ""


def latest(records: Iterable[Record]) -> list[Record]:
    """The newest record of each cell and engine, by cell."""
    newest: dict[tuple[str, str], Record] = {}
    for record in records:
        key = (record.cell, record.engine)
        if key not in newest or (newest[key].started, newest[key].name) < (record.started, record.name):
            newest[key] = record
    return [newest[key] for key in sorted(newest)]
