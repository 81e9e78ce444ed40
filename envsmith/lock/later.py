"""What a date is too early for: the days after it, and the next release that has a wheel for the cell's Python."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator

from envsmith.errors import EnvsmithError
from envsmith.lock.index.index import PackageIndex, find_index
from envsmith.lock.index.index_wheels import next_with_wheel
from envsmith.lock.uv_output import Resolved
from envsmith.model.cell import Cell
from envsmith.model.version import minor_of
from envsmith.net.http import HttpClient

# How long after the date packages may have come out, before the date is given up.
_DAYS_LATER = (0, 91, 365)
# Name and version of what would be compiled, and the cell: the later release.
Later = Callable[[str, str, Cell], "str | None"]


def days_from(date: str | None, last: str) -> Iterator[str]:
    """Yield the days on which uv may stand: the date, some time after it, then the last one."""
    for days in _DAYS_LATER if date else ():
        day = (dt.date.fromisoformat(date or "") + dt.timedelta(days=days)).isoformat()
        if day < last:
            yield day
    yield last


def later_wheel(name: str, version: str, cell: Cell) -> str | None:
    """Return the next release with a wheel for the cell. ``None`` where the release has one, or none is known."""
    try:
        project = PackageIndex(HttpClient(), find_index()).project(name)
    except EnvsmithError:
        return None
    return next_with_wheel(project, version, minor_of(cell.components["python"]), cell.platform)


def later_wheels(
    packages: Iterable[Resolved], fixed: Collection[str], cell: Cell, later: Later = later_wheel
) -> tuple[tuple[str, str], ...]:
    """Return what would be compiled only because its release is older than the cell's Python, with the next release."""
    sources = (p for p in packages if p.sdist and p.name not in fixed)
    named = ((p.name, later(p.name, p.version, cell)) for p in sources)
    return tuple((name, release) for name, release in named if release)
