"""The days of a lock: the last one that counts, where it ends, and the later ones that a date gives way to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from envsmith.base.files import now
from envsmith.errors import UsageError

# How long after the date packages may have come out, before the date is given up.
_DAYS_LATER = (0, 91, 365)


def last_day() -> str:
    """Return the last complete UTC day, which ``exclude_newer`` defaults to.

    ``SOURCE_DATE_EPOCH`` sets another present. Today would not do: what is published in its course would change a lock
    that was made on the same date.
    """
    return (now().date() - dt.timedelta(days=1)).isoformat()


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
