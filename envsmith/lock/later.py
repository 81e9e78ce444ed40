"""What a date or a glibc is too early for: the next release with a wheel, the glibc of its wheels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from packaging.version import Version

from envsmith.errors import EnvsmithError
from envsmith.lock.cell_query import DEFAULT_GLIBC
from envsmith.lock.index.index import IndexProject, PackageIndex, find_index
from envsmith.lock.index.index_wheels import glibc_of_wheels, next_with_wheel
from envsmith.lock.uv_output import Resolved
from envsmith.model.cell import Cell, Platform
from envsmith.model.version import minor_of
from envsmith.net.http import HttpClient

# Name and version of what would be compiled, and the cell: the later release, or the glibc of its wheels.
Later = Callable[[str, str, Cell], "str | None"]


def later_wheel(name: str, version: str, cell: Cell) -> str | None:
    """Return the next release with a wheel for the cell. ``None`` where the release has one, or none is known."""
    return _asked(next_with_wheel, name, version, cell)


def wheel_glibc(name: str, version: str, cell: Cell) -> str | None:
    """Return the oldest glibc for which a release has a wheel for the cell. ``None`` where it has none, or none is known."""
    return _asked(glibc_of_wheels, name, version, cell)


def _asked(
    question: Callable[[IndexProject, str, str, Platform], str | None], name: str, version: str, cell: Cell
) -> str | None:
    try:
        project = PackageIndex(HttpClient(), find_index()).project(name)
    except EnvsmithError:
        return None
    return question(project, version, minor_of(cell.components["python"]), cell.platform)


def later_wheels(
    packages: Iterable[Resolved], fixed: Collection[str], cell: Cell, later: Later = later_wheel
) -> tuple[tuple[str, str], ...]:
    """Return what would be compiled only because its release is older than the cell's Python, with the next release."""
    sources = (p for p in packages if p.sdist and p.name not in fixed)
    named = ((p.name, later(p.name, p.version, cell)) for p in sources)
    return tuple((name, release) for name, release in named if release)


def newer_glibc(
    packages: Iterable[Resolved], archives: Collection[str], cell: Cell, limit: str, glibc: Later = wheel_glibc
) -> str | None:
    """Return the glibc up to a limit for which all have wheels that would be compiled only for want of it, if any."""
    floors = (Version(glibc(p.name, p.version, cell) or "0") for p in packages if p.sdist and p.name not in archives)
    newest = max((floor for floor in floors if floor <= Version(limit)), default=Version("0"))
    return str(newest) if newest > Version(DEFAULT_GLIBC) else None
