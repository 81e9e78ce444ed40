"""The days of a lock: the last one that counts, where it ends, and the later ones that a date gives way to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from envsmith.base.files import now
from envsmith.errors import LockError, UsageError
from envsmith.knowledge.graph.load import version_graph
from envsmith.model.cell import Cell

# How long after the date packages may have come out, before the date is given up.
_DAYS_LATER = (0, 91, 365)


def last_day() -> str:
    """Return the last complete UTC day, which ``exclude_newer`` defaults to.

    ``SOURCE_DATE_EPOCH`` sets another present. Today would not do: what is published in its course would change a lock
    that was made on the same date.
    """
    return (now().date() - dt.timedelta(days=1)).isoformat()


def day_of(cell: Cell, named: str | None) -> str:
    """Return the day after which nothing of a cell counts: the one named, else the last one by this machine's clock."""
    if named:
        return named
    day, graph = last_day(), version_graph()
    released, name = max((graph.released_on(name, cell.components[name]), name) for name in cell.chosen)
    if released > day:
        raise LockError(
            f"Cannot lock {cell.id}: by this machine's clock the last whole day is {day}, and {name} "
            f"{cell.components[name]} came out on {released}.",
            hint="Set the clock, or name a day with --exclude-newer.",
        )
    return day


def as_of(cell: Cell, date: str | None) -> str | None:
    """Return the date, or the day on which the youngest part of the cell came out where that is later."""
    graph = version_graph()
    return date and max(date, *(graph.released_on(name, cell.components[name]) for name in cell.chosen))


def cutoff(day: str) -> str:
    """Return the first moment after an ISO day, in UTC. ``UsageError`` for what is not a day.

    uv reads a bare day in the time zone of the host, which would give two hosts two locks.
    """
    try:
        return f"{dt.date.fromisoformat(day.strip()) + dt.timedelta(days=1)}T00:00:00Z"
    except (ValueError, OverflowError):
        raise UsageError(f"Cannot read {day!r}: it is not a day.", hint="Write it as 2026-11-20.") from None


def days_from(date: str | None, last: str) -> Iterator[str]:
    """Yield the days on which uv may stand: the date, some time after it, then the last one."""
    for days in _DAYS_LATER if date else ():
        day = (dt.date.fromisoformat(date or "") + dt.timedelta(days=days)).isoformat()
        if day < last:
            yield day
    yield last
