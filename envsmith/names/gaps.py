"""The join: names that the import of a package takes, and releases of another package that do not have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from envsmith.names.index import NameIndex
from envsmith.names.presence import Presence
from envsmith.names.store import Table
from envsmith.names.takes import Take, parse


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """A name that the import of ``entry`` takes in ``module``, and the releases of ``offering`` that lack it.

    ``users`` are the bits of the releases that take it. ``error`` is what Python says with the newest of ``lacking``.
    """

    entry: str
    module: str
    name: str
    error: str
    users: int
    offering: str
    releases: tuple[str, ...]
    lacking: frozenset[str]


def find_gaps(table: Table, own: str, index: NameIndex) -> Iterator[Gap]:
    """Yield the gaps of a package ``own`` from the table of what it takes, by entry and name."""
    for entry, lines in sorted(table.items()):
        for line, users in sorted(lines.items()):
            take = parse(line) if line else None
            offering = index.distribution_of(take.path) if take else None
            if take is None or offering in {None, own} or _needs_others(take, own, index):
                continue
            missing = list(_steps(take, index))
            lacking = frozenset().union(*(p.absent for p in missing)) & _reached(take, index)
            newest = max(lacking, key=missing[0].releases.index, default="") if lacking else ""
            first = next((p for p in missing if newest in p.absent), None)
            if first is not None:
                yield Gap(
                    entry=entry,
                    module=take.module,
                    name=f"{first.path}({first.argument}=)" if first.argument else first.path,
                    error=_error(take, first, index),
                    users=users,
                    offering=first.distribution,
                    releases=first.releases,
                    lacking=lacking,
                )


def _steps(take: Take, index: NameIndex) -> Iterator[Presence]:
    """Yield the answer for each step of a name, then for each argument.

    A step that no release has is made at run time or is nowhere: nothing is said of it, nor of what is compiled.
    """
    parts = take.path.split(".")
    for depth in range(2, len(parts) + 1):
        path = ".".join(parts[:depth])
        # What an import passes through is a module, whatever its package answers for.
        presence = index.ask_module(path) if take.imported and depth < len(parts) else index.ask(path)
        if presence is None or not presence.present or index.is_compiled(path):
            return
        yield presence
    for argument in take.arguments:
        presence = index.ask(take.path, argument)
        if presence is not None and presence.present:
            yield presence


def _needs_others(take: Take, own: str, index: NameIndex) -> bool:
    """Return whether it runs only where a third package is installed."""
    offering = index.distribution_of(take.path)
    return any(index.distribution_of(name) not in {offering, own} for name in take.available)


def _reached(take: Take, index: NameIndex) -> frozenset[str]:
    """Return the releases in which every ``hasattr`` on the way comes out as the use needs it."""
    offering = index.distribution_of(take.path)
    start = index.ask(take.path)
    reached = frozenset(start.releases) if start else frozenset()
    for paths, holds in ((take.holds, True), (take.lacks, False)):
        for path in paths:
            presence = index.ask(path)
            if presence is None or presence.distribution != offering:
                return frozenset()
            reached &= presence.present if holds else presence.absent
    return reached


def _error(take: Take, presence: Presence, index: NameIndex) -> str:
    """Return the last line of the traceback."""
    parent, _, name = presence.path.rpartition(".")
    if presence.argument:
        return f"TypeError: {name}() got an unexpected keyword argument '{presence.argument}'"
    if take.imported and (presence.path != take.path or _is_module(presence.path, index)):
        return f"ModuleNotFoundError: No module named '{presence.path}'"
    if take.imported:
        return f"ImportError: cannot import name '{name}' from '{parent}'"
    subject = f"module '{parent}'" if _is_module(parent, index) else f"type object '{parent.rpartition('.')[2]}'"
    return f"AttributeError: {subject} has no attribute '{name}'"


def _is_module(path: str, index: NameIndex) -> bool:
    presence = index.ask(f"{path}.__spec__")
    return presence is not None and bool(presence.present)
