"""The Conda lock of a cell: fetch the channel's index, ask the solver, prove the answer equal to the pip lock."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from envsmith.engine.base import Event, EventKind, Progress, silent
from envsmith.errors import LockError, UsageError
from envsmith.lock.conda.attempts import MOVABLE, nearest_to_pip
from envsmith.lock.conda.channels import Index, base_url, fetch_indexes
from envsmith.lock.conda.comparison import compare
from envsmith.lock.conda.model import CondaLock, PlatformLock, RepoLimits
from envsmith.lock.conda.names import fold, public_url
from envsmith.lock.conda.pipfiles import More, pip_section
from envsmith.lock.conda.plan import Plan, make_plan, virtual_packages
from envsmith.lock.conda.solver import Ask, Unsolvable, solve
from envsmith.lock.conda.view import Offers, opened
from envsmith.model.cell import Cell
from envsmith.model.lock import Pin
from envsmith.model.platform import Platform
from envsmith.model.rule import Severity

__all__ = ["asked_of", "cutoff", "lock_conda", "request_hash", "up_to_date"]

_FORMAT = 1  # raised when equal requests must be locked again because the meaning of a lock changed
_STALE_DAYS = 14


def lock_conda(
    cell: Cell,
    pip_pins: Sequence[Pin],
    *,
    channels: Sequence[str] = ("conda-forge",),
    platforms: Sequence[Platform] | None = None,
    cache_dir: Path,
    offline: bool = False,
    progress: Progress = silent,
    exclude_newer: str | None = None,
    tolerate: Sequence[str] = (),
    limits: RepoLimits | None = None,
    more: More | None = None,
) -> CondaLock:
    """Pin ``cell`` in Conda's terms, for its own platform or those given; what no channel has comes from ``pip_pins``.

    ``tolerate`` names components (``nccl``, ``cudnn``, ``triton``) that may be another release than in the pip lock: conda-forge builds
    PyTorch against a newer NCCL than the wheels carry. Each such difference is in the lock's ``notes``, and :func:`compare` finds it.

    ``more`` finds the files of a pin for platforms that the pip lock has none for.

    Raises ``NetworkError`` when a channel cannot be reached or answers nonsense, ``LockError`` when it has no build of the cell
    (saying what it has), ``UsageError`` for a channel that is none or when py-rattler is missing. Nothing is written but the
    cache below ``cache_dir``.
    """
    if not channels:
        raise UsageError("no channel is given", hint="give --channel conda-forge, a URL or file:///path")
    wanted = tuple(platforms or (cell.platform,))
    bounds = limits or RepoLimits()
    newest = cutoff(exclude_newer)
    asked_of(cell, tolerate)  # a name that cannot be tolerated is told before any channel is asked

    def tell(line: str) -> None:
        progress(Event(kind=EventKind.LINE, step="conda", text=line))

    parts: list[PlatformLock] = []
    notes: list[str] = []
    for platform in sorted(wanted, key=lambda p: p.value):
        indexes = fetch_indexes(
            channels, [platform.value], cache_dir=cache_dir, offline=offline, progress=tell, limits=bounds
        )
        notes += _stale(indexes)
        tell(f"solving for {platform.value}")
        part, told = _lock_platform(cell, tolerate, pip_pins, indexes, platform, newest, bounds, more)
        parts.append(part)
        notes += told
    lock = CondaLock(
        cell_id=str(cell.id),
        channels=tuple(_shown(c) for c in channels),
        platforms=tuple(parts),
        request=request_hash(
            cell, pip_pins, channels=channels, platforms=wanted, exclude_newer=exclude_newer, tolerate=tolerate
        ),
    )
    notes += _prove(cell, pip_pins, lock, tolerate)
    return dataclasses.replace(lock, notes=tuple(dict.fromkeys(notes)))


def asked_of(cell: Cell, tolerate: Sequence[str]) -> Cell:
    """What is asked of the channel: the cell without the components whose release may differ. ``UsageError`` for one that may not."""
    if wrong := sorted(set(tolerate) - set(MOVABLE)):
        raise UsageError(
            f"{', '.join(wrong)}: only {', '.join(MOVABLE)} may differ between the pip lock and the Conda lock"
        )
    kept = {name: version for name, version in cell.components.items() if name not in tolerate}
    return dataclasses.replace(cell, components=kept, chosen=tuple(n for n in cell.chosen if n in kept))


def _shown(channel: str) -> str:
    """A channel as a lock may name it: a name stays a name, an address loses its credentials."""
    return channel.strip() if "://" not in channel and "/" not in channel[:2] else public_url(base_url(channel))


def cutoff(day: str | None) -> dt.datetime | None:
    """The first moment that is too late: a day counts in full, in UTC. ``UsageError`` for what is no date."""
    if day is None:
        return None
    try:
        parsed = dt.datetime.fromisoformat(day)
    except ValueError as error:
        raise UsageError(f"{day!r} is not a date (example: 2026-11-21)") from error
    end = parsed + dt.timedelta(days=1) if len(day) == len("2026-11-21") else parsed
    return end.replace(tzinfo=end.tzinfo or dt.timezone.utc)


def _stale(indexes: Sequence[Index]) -> list[str]:
    return [
        f"channel {i.channel}: the copy of its {i.subdir} index is {i.age / 86400:.0f} days old"
        for i in indexes
        if i.age > _STALE_DAYS * 86400
    ]


def _lock_platform(  # noqa: PLR0917 - the circumstances of one solve
    cell: Cell,
    tolerate: Sequence[str],
    pip_pins: Sequence[Pin],
    indexes: Sequence[Index],
    platform: Platform,
    newest: dt.datetime | None,
    bounds: RepoLimits,
    more: More | None,
) -> tuple[PlatformLock, list[str]]:
    virtual = virtual_packages(cell, platform)
    with opened(indexes) as sparse:
        ask = Ask(sparse=sparse, virtual=virtual, exclude_newer=newest, bounds=bounds)
        plan = _plan(cell, tolerate, pip_pins, Offers(sparse, newest), platform, ask)
        specs, packages, given_up = nearest_to_pip(plan, ask, f"the cell {cell.id} on {platform.value}")
    pip, notes = pip_section(
        plan.pip_closure,
        plan.pip_roots,
        {fold(p.name): p for p in pip_pins},
        packages,
        platform=platform,
        python=cell.components["python"],
        glibc=virtual["__glibc"],
        more=more,
    )
    part = PlatformLock(platform=platform, specs=specs, virtual_packages=virtual, packages=packages, pip=pip)
    return part, [*plan.notes, *given_up, *notes]


def _plan(  # noqa: PLR0917 - as above
    cell: Cell, tolerate: Sequence[str], pins: Sequence[Pin], offers: Offers, platform: Platform, ask: Ask
) -> Plan:
    """As near to the cell as the channel allows: nothing given up, else one of what is tolerated, else all of it."""
    alone = [(name,) for name in tolerate] if len(tolerate) > 1 else []
    for dropped in [(), *alone] if tolerate else []:
        try:
            plan = make_plan(asked_of(cell, dropped), pins, offers, platform)
            solve(plan.specs, plan.limits, ask)
        except (LockError, Unsolvable):
            continue
        return plan
    return make_plan(asked_of(cell, tolerate), pins, offers, platform)


def _prove(cell: Cell, pip_pins: Sequence[Pin], lock: CondaLock, tolerate: Sequence[str]) -> list[str]:
    """Refuse a lock that differs from the pip lock; the differences that are tolerated are returned."""
    errors = [f for f in compare(cell, pip_pins, lock) if f.severity is Severity.ERROR]
    wrong = [f.message for f in errors if not set(f.components) <= set(tolerate)]
    if wrong:
        raise LockError(f"the Conda solution is not the cell {cell.id}", details=wrong, hint="give another --channel")
    return [f.message for f in errors]


def request_hash(
    cell: Cell,
    pip_pins: Sequence[Pin],
    *,
    channels: Sequence[str] = ("conda-forge",),
    platforms: Sequence[Platform] | None = None,
    exclude_newer: str | None = None,
    tolerate: Sequence[str] = (),
) -> str:
    """64 hex digits over everything that is asked. The state of the channel is not asked, so it does not count."""
    pins = [[fold(p.name), p.version, sorted(a.sha256 for a in p.artifacts)] for p in pip_pins]
    asked = {
        "format": _FORMAT,
        "cell": cell.to_json(),
        "pins": sorted(pins, key=lambda p: str(p[0])),
        "channels": [_shown(c) for c in channels],
        "platforms": sorted(p.value for p in platforms or (cell.platform,)),
        "exclude_newer": exclude_newer,
        "tolerate": sorted(tolerate),
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def up_to_date(
    text: str,
    cell: Cell,
    pip_pins: Sequence[Pin],
    *,
    channels: Sequence[str] = ("conda-forge",),
    platforms: Sequence[Platform] | None = None,
    exclude_newer: str | None = None,
    tolerate: Sequence[str] = (),
) -> bool:
    """True when ``text`` is a Conda lock made for this very request, still whole and equal to the pip lock.

    No channel is asked. ``DataError`` when ``text`` is not a ``conda-lock.yml``.
    """
    from envsmith.lock.conda.load import load_lock

    lock = load_lock(text)
    asked = request_hash(
        cell, pip_pins, channels=channels, platforms=platforms, exclude_newer=exclude_newer, tolerate=tolerate
    )
    whole = lock.facts.get("packages") == lock.facts.get("entries")
    if not whole or lock.request != asked:
        return False
    errors = (f for f in compare(cell, pip_pins, lock) if f.severity is Severity.ERROR)
    return all(set(f.components) <= set(tolerate) for f in errors)
