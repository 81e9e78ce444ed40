"""Make the Conda lock of a cell: ask the channels' solver, and prove the answer equal to the pip lock."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

from envsmith.base.progress import Progress, lines_of, silent
from envsmith.errors import LockError
from envsmith.lock.conda.channels import Channels, base_url, open_channels, with_channels
from envsmith.lock.conda.lock_files import load_lock
from envsmith.lock.conda.model import CondaLock, CondaRequest, PlatformLock
from envsmith.lock.conda.names import candidates, fold, public_url
from envsmith.lock.conda.pip_section import FilesOf, pip_section
from envsmith.lock.conda.solve import Ask, Unsolvable, compare, nearest_to_pip, solve
from envsmith.lock.conda.specs import CondaPlan, make_plan, virtual_packages, without
from envsmith.model.cell import Cell, Platform
from envsmith.model.lock import Pin
from envsmith.model.rule import Severity

_FORMAT = 1  # raised when equal requests must be locked again because the meaning of a lock changed


def lock_conda(
    cell: Cell,
    pip_pins: Sequence[Pin],
    conda: CondaRequest,
    *,
    progress: Progress = silent,
    files_of: FilesOf | None = None,
) -> CondaLock:
    """Pin ``cell`` in Conda's terms, for its own platform and those asked for.

    What no channel has comes from ``pip_pins``. Each difference that is tolerated is in the lock's ``notes``, and
    :func:`compare` finds it. ``files_of`` finds the files of a pin for platforms that the pip lock has none for.

    Raises ``NetworkError`` when a channel cannot be reached or answers nonsense, ``LockError`` when it has no build of
    the cell (saying what it has), ``UsageError`` for a channel that is none or when py-rattler is missing. Nothing is
    written but the cache below ``cache_dir``.
    """
    conda = with_channels(conda)
    without(cell, conda.tolerate)  # refuse a name that cannot be tolerated before any channel is asked
    tell = lines_of(progress, "conda")
    parts: list[PlatformLock] = []
    notes: list[str] = []
    for platform in conda.platforms_of(cell):
        channels = open_channels(conda, platform.value, tell)
        tell(f"solving for {platform.value}")
        parts.append(_lock_platform(cell, conda.tolerate, pip_pins, channels, platform, files_of, notes))
    lock = CondaLock(
        cell_id=str(cell.id),
        channels=tuple(_public_name(c) for c in conda.channels),
        platforms=tuple(parts),
        request=request_hash(cell, pip_pins, conda),
    )
    errors, wrong = differences(lock, cell, pip_pins, conda.tolerate)
    if wrong:
        raise LockError(
            f"Cannot lock {cell.id} for Conda: the solution is not the cell.",
            details=wrong,
            hint="Give another --channel.",
        )
    return replace(lock, notes=tuple(dict.fromkeys([*notes, *errors])))


def differences(
    lock: CondaLock, cell: Cell, pins: Sequence[Pin], tolerate: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return every error of the comparison with the pip lock, and those that are not tolerated."""
    errors = [f for f in compare(cell, pins, lock) if f.severity is Severity.ERROR]
    return [f.message for f in errors], [f.message for f in errors if not set(f.components) <= set(tolerate)]


def _public_name(channel: str) -> str:
    """Return a channel as a lock may name it: a name stays a name, an address loses its credentials."""
    return channel.strip() if "://" not in channel and "/" not in channel[:2] else public_url(base_url(channel))


def _lock_platform(  # noqa: PLR0917 - the circumstances of one solve
    cell: Cell,
    tolerate: Sequence[str],
    pip_pins: Sequence[Pin],
    channels: Channels,
    platform: Platform,
    files_of: FilesOf | None,
    notes: list[str],
) -> PlatformLock:
    virtual = virtual_packages(cell, platform)
    ask = Ask(channels=channels, virtual=virtual)
    channels.fetch(name for part in (*cell.components, *(p.name for p in pip_pins)) for name in candidates(part))
    plan = _plan(cell, tolerate, pip_pins, platform, ask)
    specs, packages, relaxed = nearest_to_pip(plan, ask, f"the cell {cell.id} on {platform.value}")
    pip, brought = pip_section(
        plan.pip_closure,
        plan.pip_roots,
        {fold(p.name): p for p in pip_pins},
        packages,
        platform=platform,
        python=cell.components["python"],
        glibc=virtual["__glibc"],
        files_of=files_of,
    )
    notes += [*plan.notes, *relaxed, *brought]
    return PlatformLock(platform=platform, specs=specs, virtual_packages=virtual, packages=packages, pip=pip)


def _plan(cell: Cell, tolerate: Sequence[str], pins: Sequence[Pin], platform: Platform, ask: Ask) -> CondaPlan:
    """Plan as near to the cell as the channel allows: give up nothing, else one of what is tolerated, else all."""
    alone = [(name,) for name in tolerate] if len(tolerate) > 1 else []
    for dropped in [(), *alone] if tolerate else []:
        try:
            plan = make_plan(without(cell, dropped), pins, ask.channels, platform)
            solve(plan.specs, plan.limits, ask)
        except (LockError, Unsolvable):
            continue
        return plan
    return make_plan(without(cell, tolerate), pins, ask.channels, platform)


def request_hash(cell: Cell, pip_pins: Sequence[Pin], conda: CondaRequest) -> str:
    """Hash everything that is asked. The state of the channel is not asked, so it does not count."""
    pins = [[fold(p.name), p.version, sorted(a.sha256 for a in p.artifacts)] for p in pip_pins]
    question = {
        "format": _FORMAT,
        "cell": cell.to_json(),
        "pins": sorted(pins, key=lambda p: str(p[0])),
        "channels": [_public_name(c) for c in conda.channels],
        "platforms": [p.value for p in conda.platforms_of(cell)],
        "exclude_newer": conda.exclude_newer,
        "tolerate": sorted(conda.tolerate),
    }
    return hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()


def up_to_date(text: str, cell: Cell, pip_pins: Sequence[Pin], conda: CondaRequest) -> bool:
    """Return whether ``text`` is a Conda lock for this very request, whole and equal to the pip lock."""
    lock = load_lock(text)
    if lock.facts.get("packages") != lock.facts.get("entries") or lock.request != request_hash(cell, pip_pins, conda):
        return False
    return not differences(lock, cell, pip_pins, conda.tolerate)[1]
