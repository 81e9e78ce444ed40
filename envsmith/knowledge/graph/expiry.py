"""How long a record counts (``matrix/expiry.yaml``), and what it counts for when that time is over."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

from envsmith.base.schema import Flag, exactly, strict, whole_number
from envsmith.knowledge.graph.fields import load_table
from envsmith.knowledge.graph.load import knowledge
from envsmith.model.record import Record, Rung
from envsmith.model.version import version_key

_RECENT = 4


class TorchAge(str, Enum):
    """How new a torch series is among those that are known."""

    NEWEST = "newest"
    RECENT = "recent"
    OLDER = "older"


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class ExpiryLine:
    """``passed`` is ``None`` when the line speaks of both."""

    torch: TorchAge
    days: Annotated[int, whole_number(1, 3650, "a number of days")]
    passed: Flag | None = None


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _ExpiryFile:
    schema: Annotated[int, exactly(1, "this envsmith reads schema: 1")]
    stale_counts_as: Rung
    expiry: tuple[ExpiryLine, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Expiry:
    """``series`` are the known torch series, newest first."""

    lines: tuple[ExpiryLine, ...]
    series: tuple[str, ...]
    stale_counts_as: Rung

    def torch_age(self, torch: str) -> TorchAge:
        """Return the age of a torch version. One that is not known is old."""
        own = _series(torch)
        if own not in self.series:
            return TorchAge.OLDER
        place = self.series.index(own)
        return TorchAge.NEWEST if place == 0 else TorchAge.RECENT if place <= _RECENT else TorchAge.OLDER

    def until(self, record: Record) -> dt.date:
        """Return the last day on which a record counts in full."""
        age = self.torch_age(record.components.get("torch", ""))
        days = (line.days for line in self.lines if line.torch is age and line.passed in {None, record.passed})
        return dt.date.fromisoformat(record.day) + dt.timedelta(days=next(days, 0))

    def is_stale(self, record: Record, today: dt.date) -> bool:
        """Tell whether the time of a record is over."""
        return self.until(record) < today

    def rung(self, record: Record, today: dt.date) -> Rung:
        """Return the rung that the record counts for on that day."""
        ladder = list(Rung)
        if not self.is_stale(record, today):
            return record.rung
        return min(record.rung, self.stale_counts_as, key=ladder.index)


def load_expiry(root: Path, torches: Iterable[str] | None = None) -> Expiry:
    """Read ``expiry.yaml`` below ``root``.

    ``torches`` are the known versions (default: the installed knowledge's). ``DataError``.
    """
    file = load_table(_ExpiryFile, "expiry.yaml", root)
    if torches is None:
        torches = [release.version for release in knowledge().releases.get("torch", ())]
    series = sorted({_series(t) for t in torches}, key=lambda s: tuple(map(int, s.split("."))), reverse=True)
    return Expiry(lines=file.expiry, series=tuple(series), stale_counts_as=file.stale_counts_as)


def _series(torch: str) -> str:
    key = version_key(torch) if torch else None
    return ".".join(map(str, key.release[:2])) if key else ""


def latest(records: Iterable[Record]) -> list[Record]:
    """Return the newest record of each cell and engine, by cell."""
    newest: dict[tuple[str, str], Record] = {}
    for record in records:
        key = (record.cell, record.engine)
        if key not in newest or (newest[key].started, newest[key].name) < (record.started, record.name):
            newest[key] = record
    return [newest[key] for key in sorted(newest)]
