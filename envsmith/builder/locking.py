"""From a cell to its lock, in agreement with the packages: the Python part, the image part, the Conda part, the folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from envsmith.base.files import prepare_folder
from envsmith.base.progress import Clock, Progress, silent
from envsmith.builder.choice import choose, of_channels
from envsmith.builder.engines.base import Engine
from envsmith.builder.engines.bases import known_image
from envsmith.builder.options import BuildOutcome, Options
from envsmith.builder.rendering import add_conda, image_files, python_files
from envsmith.errors import ContradictionError
from envsmith.knowledge.wheels.offers import best_wheel
from envsmith.lock import store
from envsmith.lock.cell_query import IMAGE_GLIBC, newer_glibc_of
from envsmith.lock.days import as_of, day_of
from envsmith.lock.index.uv import Uv
from envsmith.lock.learn import Learned, learn_more
from envsmith.lock.resolve import Beside, Resolver, lock_pip
from envsmith.model.cell import Cell, Request
from envsmith.model.lock import Compile, Lock, folder_name
from envsmith.solver import constraints_for

Locked = TypeVar("Locked")


def lock_request(options: Options, engine: Engine | None, clock: Clock) -> BuildOutcome:
    """Lock the best cell whose packages agree with it, and write every file of its folder."""
    request = of_channels(options, clock.progress)
    lock = partial(lock_and_render, options=options, engine=engine, clock=clock)
    return agreed(request, clock, lock, offline=options.offline)


def agreed(
    request: Request, clock: Clock, lock: Callable[[Cell], Locked], *, offline: bool = False, first: Cell | None = None
) -> Locked:
    """Return the lock of the best cell (or of ``first``) that the solver and the package resolver agree about.

    Where packages contradict a cell, the solver is asked again with what they declare. Raises ``UnsatisfiableError``
    where no cell can have them, and the resolver's own error where nothing new is learned.
    """
    learned, refused, refusal = Learned(), None, None
    while True:
        cell, first = first or choose(request, clock, learned), None
        if refusal is not None and cell == refused:
            raise refusal
        try:
            return lock(cell)
        except ContradictionError as error:
            clock.note(f"{cell.id} does not go together with {', '.join(error.names[:4])}: reading what these declare")
            newer = None if offline else learn_more(error, request, learned)
            refusal = _with_origins(error, request)
            if newer is None:
                raise refusal from None
            learned, refused = newer, cell


def _with_origins(error: ContradictionError, request: Request) -> ContradictionError:
    """Return the error with the files and lines that ask for what it mentions."""
    lines = [f"{name}: {request.origins[name]}" for name in error.names if name in request.origins]
    details = [*error.details, *lines]
    return ContradictionError(
        error.message, details=details, hint=error.hint, names=error.names, required=error.required
    )


def lock_and_render(cell: Cell, options: Options, *, engine: Engine | None, clock: Clock) -> BuildOutcome:
    """Lock the cell, add the image part and the Conda part, write every file of the cell's folder at once."""
    if engine is not None:
        engine.refuse(cell)
    directory = options.output / folder_name(cell, options.flavour)
    prepare_folder(directory)
    clock.start("lock")
    day = day_of(cell, options.request.exclude_newer)
    stored = None
    if not options.renewed:
        stored = store.reusable(directory, cell=cell, request=options.request_text, exclude_newer=day)
    lock = _with_archives(stored, options.compile) if stored else lock_cell(cell, options, progress=clock.progress)
    hashed = sum(len(p.artifacts) for p in lock.pins)
    clock.done("lock", f"{len(lock.pins)} distributions, {hashed} hashed files", cached=stored is not None)
    for sentence in _sentences(lock):
        clock.note(sentence)
    lock = _with_image(lock, options.base, engine, clock)
    if engine is not None:
        lock = engine.pin_wheels(lock, progress=clock.progress)
    files = python_files(lock, pip=not options.conda_only)
    conda, required = options.conda, options.needs_conda_lock
    note = add_conda(lock, directory, conda, files, clock, required=required) if conda else None
    notes = [note] if note else []
    if lock.base is None:
        notes += [f"no Dockerfile: {lock.image_note}"] if _for_images(engine) else []
    elif not options.conda_only:
        files |= image_files(lock)
    store.write(directory, files)
    return BuildOutcome(
        cell=cell, lock=lock, directory=directory, files=tuple(sorted(files)), notes=tuple(notes), seconds=clock.seconds
    )


def lock_cell(cell: Cell, options: Options, *, progress: Progress = silent) -> Lock:
    """Return the Python part of the lock: resolved by uv under the rules' constraints, judged again by every rule."""
    old, machine = options.earlier, options.request.machine
    lock = lock_pip(
        cell,
        request=options.request_text,
        exclude_newer=day_of(cell, options.request.exclude_newer),
        beside=Beside(
            constraints=(*constraints_for(cell), *options.request.bounds),
            date=as_of(cell, options.request.date),
            preferred=tuple((p.name, p.version) for p in old.pins if p.name not in options.moving) if old else (),
        ),
        flavour=options.flavour,
        compile=options.compile,
        resolver=Resolver(
            uv=Uv(offline=options.offline),
            ready=partial(best_wheel, policy=options.request.wheels),
            newest_glibc=(machine.glibc if machine else None) or IMAGE_GLIBC,
        ),
        progress=progress,
    )
    return replace(lock, upgraded=options.moving or old.upgraded) if old else lock


def _with_archives(lock: Lock, compiling: Compile) -> Lock:
    """Return a lock of an earlier run with the archives where they are now: the same file may lie at another path."""
    archives = {archive.name: (archive.artifact,) for archive in compiling.archives}
    return replace(lock, pins=tuple(replace(pin, artifacts=archives.get(pin.name, pin.artifacts)) for pin in lock.pins))


def _with_image(lock: Lock, base: str | None, engine: Engine | None, clock: Clock) -> Lock:
    """Pin the base image and the OS packages. A lock without them still serves a virtual environment, and says why.

    Where an environment is built, nobody hears of it.
    """
    if not _for_images(engine):
        clock = Clock(silent)
    clock.start("base image")
    pin_image = known_image if engine is None else engine.pin_image
    pinned = pin_image(lock, base, progress=clock.progress)
    clock.done("base image", f"{pinned.base.name}@{pinned.base.digest[:19]}" if pinned.base else pinned.image_note)
    return pinned


def _for_images(engine: Engine | None) -> bool:
    """Return whether images are this run's business: an engine makes them, or a lock is to serve every engine."""
    return engine is None or engine.images is not None


def _sentences(lock: Lock) -> list[str]:
    """Return what a person should hear of the lock: its date, its glibc, ready wheels from elsewhere, what is compiled."""
    newer = (f"{name} has wheels for glibc {glibc} or later only" for name, glibc in newer_glibc_of(lock).items())
    return [*_dated_sentences(lock), *newer, *_ready_sentences(lock), *_compiled_sentences(lock)]


def _dated_sentences(lock: Lock) -> list[str]:
    return [lock.facts["date"]] if "date" in lock.facts else []


def _ready_sentences(lock: Lock) -> list[str]:
    """Return what is installed as a ready wheel from outside the package index, and where it lies."""
    return [
        f"{pin.name} {pin.version} is a ready wheel, so nothing is compiled: {pin.address} "
        f"(sha256 {pin.artifacts[0].sha256[:16]}…)"
        for pin in lock.pins
        if pin.address
    ]


def _compiled_sentences(lock: Lock) -> list[str]:
    """Return what will be compiled, from what and how: minutes or hours of the builder."""
    sentences = []
    for source in lock.compiled:
        pin = lock.pin(source.name)
        variables = " ".join(f"{name}={value}" for name, value in source.variables.items())
        every = source.toolkit and not lock.cell.components.get("gpu")
        parts = [
            f"{source.name} is compiled",
            f" from the archive with sha256 {pin.artifacts[0].sha256[:16]}…" if source.archive and pin else "",
            " with nvcc" if source.toolkit else "",
            f" ({variables})" if variables else "",
            "; no --gpu: for all of its architectures" if every else "",
            "" if source.archive else ". Install it with envsmith build: pip and uv compile it without torch and stop",
        ]
        sentences.append("".join(parts))
    return sentences
