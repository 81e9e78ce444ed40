"""The lock of an earlier run: taken unchanged, or compared with what the request gives now."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from envsmith.base.files import holds, read_text
from envsmith.base.progress import Clock, Progress, silent
from envsmith.builder import locking
from envsmith.builder.choice import of_channels
from envsmith.builder.image.dockerfile import STEPS
from envsmith.builder.options import BuildOutcome, Options
from envsmith.builder.rendering import add_conda_image, lock_files
from envsmith.errors import EnvsmithError
from envsmith.lock import store
from envsmith.lock.conda import part as conda_part
from envsmith.model.cell import Cell, Machine
from envsmith.model.lock import LOCK_FILE, Lock, Pin, parse_lock
from envsmith.model.version import Spec
from envsmith.solver import solve


def existing_lock(options: Options, clock: Clock) -> BuildOutcome:
    """Return the existing lock: unchanged (``frozen``), or only when it is what the request gives now (``locked``).

    Raises ``EnvsmithError`` (exit code 1) with every difference, or when there is no lock.
    """
    clock.start("lock")
    directory, lock = store.need(options.output, options.request_text)
    if options.locked and (differences := _differences(lock, directory, options, clock.progress)):
        raise EnvsmithError(
            f"Cannot use {directory}/lock.json: it is out of date for this request.",
            details=differences,
            hint="Leave --locked out to lock again, or use the lock unchanged with --frozen.",
        )
    files = tuple(sorted(p.name for p in directory.iterdir() if p.is_file() and not p.name.startswith(".")))
    clock.done("lock", f"{directory}: {len(lock.pins)} distributions", cached=True)
    return BuildOutcome(cell=lock.cell, lock=lock, directory=directory, files=files, seconds=clock.seconds)


def given_lock(path: Path, output: Path, clock: Clock) -> BuildOutcome:
    """Return the lock of a file, or of a cell's folder, with its files in a folder of its own below ``output``.

    No index is asked. ``DataError`` when it is not a lock.
    """
    clock.start("lock")
    file = path / LOCK_FILE if path.is_dir() else path
    beside = store.read(file.parent) if file.name == LOCK_FILE else None
    lock = beside or parse_lock(read_text(file), where=str(file))
    directory = output / lock.name
    files = lock_files(lock)
    store.write(directory, files)
    clock.done("lock", f"{file}: {len(lock.pins)} distributions", cached=True)
    if sources := [pin.name for pin in lock.pins if pin.sdist]:
        # Whoever wrote the lock chose this code, which runs while it is built.
        clock.note(f"built from source, which runs their code: {', '.join(sources)}")
    return BuildOutcome(
        cell=lock.cell, lock=lock, directory=directory, files=tuple(sorted(files)), seconds=clock.seconds
    )


def lock_difference(options: Options, *, progress: Progress = silent) -> tuple[str, ...]:
    """Return what differs between the existing lock and what the request gives now.

    Without ``exclude_newer`` the lock's own date counts, as in uv: what was published since does not make a lock old.
    Nor does another machine: the lock is for the one that was read when it was made.
    """
    stored = store.find(options.output, options.request_text)
    if stored is None:
        return (f"{options.output}: no lock of this request is there",)
    directory, lock = stored
    return _differences(lock, directory, options, progress)


def _differences(old: Lock, directory: Path, options: Options, progress: Progress) -> tuple[str, ...]:
    request = replace(
        options.request,
        exclude_newer=options.request.exclude_newer or old.exclude_newer,
        machine=replace(_machine_of(old.cell), pythons=(old.cell.components["python"],)),
    )
    options = replace(options, request=request)
    if old.upgraded:
        options = keeping(options, old)
    request = of_channels(options, progress)
    cell = None if request.packages else solve(request).cell
    if cell is not None and (moved := changes(old.cell.components, cell.components)):
        cell = _still_of_channels(old.cell, directory, options, progress)
        if cell is None:
            return moved
    lock = partial(locking.lock_cell, options=options, progress=progress)
    new = locking.agreed(request, Clock(progress), lock, offline=options.offline, first=cell)
    if moved := changes(old.cell.components, new.cell.components):
        return moved
    differences = list(changes({p.name: p.version for p in old.pins}, {p.name: p.version for p in new.pins}))
    for pin in new.pins:
        before = old.pin(pin.name)
        if before and before.version == pin.version and _hashes(before) != _hashes(pin):
            differences.append(f"{pin.name}: other files")
    if old.compiled != new.compiled:
        differences.append("compiled from source: in another way")
    files = lock_files(old)
    if options.conda is not None:
        differences += conda_part.difference(old, directory, options.conda, required=options.needs_conda_lock)
        if part := conda_part.stored(old, directory, options.conda):
            add_conda_image(old, part.lock, files)
    return (*differences, *_edited(files, directory))


def _edited(files: Mapping[str, str], directory: Path) -> Iterator[str]:
    """Say which files no longer have these texts, and what else lies among the scripts that a build executes.

    What is not there is in nobody's way.
    """
    for name, text in files.items():
        if os.path.lexists(directory / name) and not holds(directory / name, text):
            yield f"{name}: it was edited, or written by another release of envsmith"
    scripts = {path.name for path in (directory / STEPS).glob("*")} if f"{STEPS}/cell.sh" in files else set()
    yield from (
        f"{STEPS}/{name}: envsmith did not write it, so delete it"
        for name in sorted(scripts)
        if f"{STEPS}/{name}" not in files
    )


def keeping(options: Options, lock: Lock, moving: Collection[str] = ()) -> Options:
    """Return options that keep to what a lock has, but for what is ``moving``: its cell, and where it can its packages."""
    free = {*moving, *(["cuda"] if "torch" in moving else [])}
    cell = lock.cell
    request = replace(options.request, machine=_machine_of(cell))
    for name in (name for name in cell.chosen if name not in free):
        request = request.narrow(name, Spec.parse(f"=={cell.components[name]}"), "the lock")
    return replace(options, request=request, earlier=lock, moving=tuple(moving), renewed=True)


def _machine_of(cell: Cell) -> Machine:
    gpus = cell.components.get("gpu", "")
    return Machine(
        driver=cell.components.get("driver"),
        architectures=tuple(gpus.split(",")) if gpus else (),
        platform=cell.platform,
    )


def _still_of_channels(old: Cell, directory: Path, options: Options, progress: Progress) -> Cell | None:
    """Return the best cell of the channels where it is that of a lock: up to date, although another cell is better.

    A folder with a Conda lock may hold it (``build --engine conda``).
    """
    if options.needs_conda_lock or not options.conda or not (directory / conda_part.LOCK_FILE).exists():
        return None
    try:
        cell = solve(of_channels(replace(options, conda_needed=True), progress)).cell
    except EnvsmithError:
        return None  # no channel answers, or none has it any more
    return cell if cell.components == old.components else None


def _hashes(pin: Pin) -> list[tuple[str, str]]:
    """Return what is installed. Where it is fetched from may change."""
    return [(a.filename, a.sha256) for a in pin.artifacts]


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    """Return what differs between two sets of versions: ``wandb: 0.22.0 -> 0.23.1``."""
    names = sorted({*old, *new})
    return tuple(f"{n}: {old.get(n, 'absent')} -> {new.get(n, 'absent')}" for n in names if old.get(n) != new.get(n))
