"""The lock that is there already: taken as it is, or held against what the request gives now."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from envsmith.engine.base import Progress, silent
from envsmith.errors import EnvsmithError
from envsmith.model.cell import Cell
from envsmith.model.lock import Lock, Pin
from envsmith.pipeline import locking
from envsmith.pipeline.choosing import of_channels, solve_for
from envsmith.pipeline.values import Clock, Options, Outcome

__all__ = ["found", "lock_difference"]


def found(options: Options, clock: Clock) -> Outcome:
    """The lock that is there: as it is (``frozen``), or only when it is what the request gives now (``locked``, exit code 1 else).

    ``EnvsmithError`` with every difference where it is not, or the one that says that no lock is there.
    """
    from envsmith.lock import existing

    clock.start("lock")
    directory, lock = existing.need(options.output, options.request_text)
    if options.locked and (told := lock_difference(options, progress=clock.progress)):
        raise EnvsmithError(
            f"{directory}: the lock is not what the request gives now",
            details=told,
            hint="lock again (leave --locked out), or take it as it is with --frozen",
        )
    files = tuple(sorted(p.name for p in directory.iterdir() if p.is_file() and not p.name.startswith(".")))
    clock.done("lock", f"{directory}: {len(lock.pins)} distributions", cached=True)
    return Outcome(cell=lock.cell, lock=lock, directory=directory, files=files, seconds=clock.seconds)


def lock_difference(options: Options, *, progress: Progress = silent) -> tuple[str, ...]:
    """What differs between the lock that is there and what the request gives now; empty when it is up to date.

    Without ``exclude_newer`` the lock's own date counts, as in uv: what was published since does not make a lock old.
    """
    from envsmith.lock import existing

    existing_lock = existing.find(options.output, options.request_text)
    if existing_lock is None:
        return (f"{options.output}: no lock of this request is there",)
    directory, there = existing_lock
    request = dataclasses.replace(options.request, exclude_newer=options.request.exclude_newer or there.exclude_newer)
    cell = _as_it_was_made(there, directory, dataclasses.replace(options, request=request), progress)
    if told := _changes(there.cell.components, cell.components):
        return told
    now = locking.lock_cell(cell, dataclasses.replace(options, request=request), progress=progress)
    changed = _changes({p.name: p.version for p in there.pins}, {p.name: p.version for p in now.pins})
    hashes = [
        p.name for p in now.pins if (o := there.pin(p.name)) and o.version == p.version and _files(o) != _files(p)
    ]
    others = [f"{name}: other files" for name in hashes]
    others += ["compiled from source: in another way"] if there.compiled != now.compiled else []
    return (*changed, *others, *_conda_difference(there, directory, options))


def _as_it_was_made(there: Lock, directory: Path, options: Options, progress: Progress) -> Cell:
    """The cell that the request gives now.

    A folder with a Conda lock may hold the best cell *of the channels* (``build --engine conda``), which is another than the best one:
    it is up to date when that is still it.
    """
    from envsmith.lock.conda.step import LOCK_FILE

    cell = solve_for(of_channels(options.request, options, progress)).cell
    same = cell.components == there.cell.components
    if same or options.conda_needed or not options.conda or not (directory / LOCK_FILE).exists():
        return cell
    try:
        narrowed = of_channels(options.request, dataclasses.replace(options, conda_only=True), progress)
        other = solve_for(narrowed).cell
    except EnvsmithError:
        return cell  # no channel answers, or none has it any more: told as a change of the cell
    return other if other.components == there.cell.components else cell


def _files(pin: Pin) -> list[tuple[str, str]]:
    """What is installed; where it is fetched from may change."""
    return [(a.filename, a.sha256) for a in pin.artifacts]


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    names = sorted({*old, *new})
    return tuple(f"{n}: {old.get(n, 'absent')} -> {new.get(n, 'absent')}" for n in names if old.get(n) != new.get(n))


def _conda_difference(there: Lock, directory: Path, options: Options) -> tuple[str, ...]:
    if not options.conda:
        return ()
    from envsmith.lock.conda import step

    return step.difference(there, directory, options.conda_ask(), required=options.conda_needed)
