"""The arrow: request → cell → lock → files → image or environment → smoke test → record.

:func:`build` is all of it, and below it stands one section for each step. Nothing here decides anything: the solver,
the engine and the verdict do.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from envsmith.base.files import now, read_text
from envsmith.base.progress import Clock, Event, EventKind, Progress, silent
from envsmith.builder.engines import choose_engine
from envsmith.builder.engines.base import Engine
from envsmith.builder.engines.bases import known_image, load_bases
from envsmith.builder.engines.rebuild import LAYOUT
from envsmith.builder.image.companions import companions
from envsmith.builder.image.conda_dockerfile import render_conda
from envsmith.builder.image.dockerfile import image_files, step_files
from envsmith.builder.options import Options, Outcome
from envsmith.builder.proof import prove
from envsmith.errors import ContradictionError, EnvsmithError, UsageError
from envsmith.knowledge.graph.load import version_graph
from envsmith.knowledge.graph.runtime import nvcc_cuda
from envsmith.knowledge.wheels.offers import best_wheel
from envsmith.lock import store
from envsmith.lock.conda import lock as conda_lock
from envsmith.lock.conda.channels import with_channels
from envsmith.lock.conda.model import CondaLock
from envsmith.lock.index.uv import Uv
from envsmith.lock.learn import Learned, learn_more
from envsmith.lock.pip_files import BUILD_FILE, layer_text, pylock_text, requirement_files
from envsmith.lock.resolve import Beside, Resolver, lock_pip
from envsmith.model.cell import Cell, Request
from envsmith.model.lock import LOCK_FILE, Lock, Pin, folder_name, parse_lock
from envsmith.model.record import RECORD_FILE
from envsmith.model.rule import Severity
from envsmith.model.version import Spec
from envsmith.solver import cells, constraints_for, solve

Locked = TypeVar("Locked")


def build(options: Options, *, engine: Engine | None = None, progress: Progress = silent) -> Outcome:
    """Run the whole arrow, with ``engine`` or the one that the options name.

    Raises the family of :mod:`envsmith.errors` (``UsageError`` for an OCI layout from an engine that makes no images).
    What was finished is kept for the next run.
    """
    clock = Clock(progress)
    if engine is None:
        channels = options.conda.channels if options.conda else ()
        choice = choose_engine(options.engine, offline=options.offline, channels=channels)
        clock.note(f"engine: {choice.why}")
        engine = choice.engine
    if options.oci and engine.images is None:
        raise UsageError(
            f"Cannot use --oci with the engine {engine.name}: it makes no images.",
            hint="Use --engine docker, podman or buildah.",
        )
    options = _for_engine(options, engine)
    if options.lock is not None:
        locked = given_lock(options.lock, options.output, clock)
    elif options.locked or options.frozen:
        locked = existing_lock(options, clock)
    else:
        locked = _lock(options, engine, clock)
    # A record speaks of what was built from this lock. There is none until that is proved again.
    (locked.directory / RECORD_FILE).unlink(missing_ok=True)
    outcome = _build(locked, options, engine, clock)
    if not options.smoke:
        return outcome
    record = prove(outcome, engine, options, clock)
    return replace(outcome, record=record, files=(*outcome.files, RECORD_FILE))


def lock_for(options: Options, *, engine: Engine, progress: Progress = silent) -> Outcome:
    """Solve and lock for an engine, its base and packages included, and write the files.

    Only the lock's wheels are built.
    """
    return _lock(_for_engine(options, engine), engine, Clock(progress))


def lock_only(options: Options, *, progress: Progress = silent) -> Outcome:
    """Solve, lock and write the files. Nothing is built and no engine is asked."""
    clock = Clock(progress)
    return existing_lock(options, clock) if options.locked or options.frozen else _lock(options, None, clock)


def python_lock(options: Options, *, progress: Progress = silent) -> Lock:
    """Solve, and return the Python part of the lock. Nothing is written."""
    return lock_cell(choose(options, Clock(progress)), options, progress=progress)


def _lock(options: Options, engine: Engine | None, clock: Clock) -> Outcome:
    return agreed(options, clock, lambda cell: lock_and_render(cell, options, engine=engine, clock=clock))


def agreed(options: Options, clock: Clock, lock: Callable[[Cell], Locked], *, first: Cell | None = None) -> Locked:
    """Return the lock of the best cell (or of ``first``) that the solver and the package resolver agree about.

    Where packages contradict a cell, the solver is asked again with what they declare. Raises ``UnsatisfiableError``
    where no cell can have them, and the resolver's own error where nothing new is learned.
    """
    learned = Learned()
    while True:
        cell, first = first or choose(options, clock, learned), None
        try:
            return lock(cell)
        except ContradictionError as error:
            clock.note(f"{cell.id} does not go together with {', '.join(error.names[:4])}: reading what these declare")
            newer = None if options.offline else learn_more(error, options.request, learned)
            if newer is None:
                raise _with_origins(error, options.request) from None
            learned = newer


def _with_origins(error: ContradictionError, request: Request) -> ContradictionError:
    """Return the error with the files and lines that ask for what it mentions."""
    lines = [f"{name}: {request.origins[name]}" for name in error.names if name in request.origins]
    return ContradictionError(error.message, details=[*error.details, *lines], hint=error.hint, names=error.names)


def _build(locked: Outcome, options: Options, engine: Engine, clock: Clock) -> Outcome:
    """Build the lock and compare the result with it. Write the OCI layout beside the lock where that is asked for."""
    lock, directory = locked.lock, locked.directory
    clock.start("build", f"with {engine.name}")
    if options.oci and engine.images is not None:
        layout = directory / LAYOUT
        built = engine.images.build(lock, directory, layout=layout, packing=options.packing, progress=clock.progress)
    else:
        built = engine.build(lock, directory, progress=clock.progress)
    comparison = engine.verify(lock, built)
    clock.done("build", f"{built.kind} {built.reference} {built.digest[:19]}; {comparison}")
    return replace(locked, built=built, seconds=clock.seconds)


# -- solve: from a request to a cell, narrowed to what the engine, or the Conda channels, can give at all -------------


def last_day() -> str:
    """Return the last complete UTC day, which ``exclude_newer`` defaults to.

    ``SOURCE_DATE_EPOCH`` sets another present. Today would not do: what is published in its course would change a lock
    that was made on the same date.
    """
    return (now().date() - dt.timedelta(days=1)).isoformat()


def _for_engine(options: Options, engine: Engine) -> Options:
    """Return the options of a build with ``engine``: its Pythons, and the Conda lock where it has a use for one.

    A frozen lock names its own base and Python, so that the engine is not asked for others. A virtual environment needs
    no channel, so none is asked unless the user spoke of Conda.
    """
    fixed = options.frozen or options.lock is not None
    request = options.request if fixed else narrow(options.request, engine, options.base)
    needed = options.conda_needed or engine.needs_conda_lock
    conda = options.conda
    named = conda is not None and bool(conda.channels or conda.platforms or conda.tolerate)
    useful = needed or named or engine.images is not None
    return replace(options, request=request, conda_needed=needed, conda=conda if useful else None)


def narrow(request: Request, engine: Engine, base: str | None = None) -> Request:
    """Keep to the Pythons that ``engine`` can provide here. The reason stands in ``why`` and in a refusal."""
    pythons = engine.pythons(base)
    if pythons is None:
        return request
    spec = Spec.parse(" || ".join(f"=={minor}.*" for minor in pythons))
    reason = f"engine {engine.name} can provide Python {', '.join(pythons)} here"
    return replace(request, narrowed={**request.narrowed, "python": (spec, reason)})


def choose(options: Options, clock: Clock, learned: Learned | None = None) -> Cell:
    """Return the best cell, or the best that the channels have where Conda is to install it.

    What was ``learned`` of packages beside the graph counts.

    Raises ``UnsatisfiableError`` with the refusal.
    """
    clock.start("solve")
    learned = learned or Learned()
    request = learned.request(of_channels(options.request, options, clock.progress))
    solution = solve(request, solver=learned.solver)
    clock.done("solve", str(solution.cell.id))
    for sentence in solution.why:
        clock.note(sentence)
    for finding in solution.warnings:
        clock.note(f"{finding.message} [{finding.rule}]", warning=finding.severity is Severity.WARNING)
    return learned.cell(solution.cell)


def of_channels(request: Request, options: Options, progress: Progress) -> Request:
    """Return the request, narrowed to what its flavour can have, and to the channels where Conda installs the cell."""
    if cuda := nvcc_cuda(request, options.flavour):
        request = replace(request, narrowed={**request.narrowed, "cuda": cuda})
    if options.conda is None or not options.needs_conda_lock:
        return request
    return conda_lock.narrow_to_channels(
        request,
        cells,
        with_channels(options.conda).until(request.exclude_newer or last_day()),
        progress=lambda line: progress(Event(kind=EventKind.LINE, step="solve", text=line)),
    )


# -- the lock of an earlier run: taken unchanged, or compared with what the request gives now -------------------------


def existing_lock(options: Options, clock: Clock) -> Outcome:
    """Return the existing lock: unchanged (``frozen``), or only when it is what the request gives now (``locked``).

    Raises ``EnvsmithError`` (exit code 1) with every difference, or when there is no lock.
    """
    clock.start("lock")
    directory, lock = store.need(options.output, options.request_text)
    if options.locked and (differences := lock_difference(options, progress=clock.progress)):
        raise EnvsmithError(
            f"Cannot use {directory}/lock.json: it is out of date for this request.",
            details=differences,
            hint="Leave --locked out to lock again, or use the lock unchanged with --frozen.",
        )
    files = tuple(sorted(p.name for p in directory.iterdir() if p.is_file() and not p.name.startswith(".")))
    clock.done("lock", f"{directory}: {len(lock.pins)} distributions", cached=True)
    return Outcome(cell=lock.cell, lock=lock, directory=directory, files=files, seconds=clock.seconds)


def given_lock(path: Path, output: Path, clock: Clock) -> Outcome:
    """Return the lock of a file, or of a cell's folder, with its files in a folder of its own below ``output``.

    No index is asked. ``DataError`` when it is not a lock.
    """
    clock.start("lock")
    file = path / LOCK_FILE if path.is_dir() else path
    beside = store.read(file.parent) if file.name == LOCK_FILE else None
    lock = beside or parse_lock(read_text(file), where=str(file))
    directory = output / lock.name
    files = _python_files(lock, pip=True) | _image_files(lock)
    store.prepare(directory)
    store.write(directory, files)
    clock.done("lock", f"{file}: {len(lock.pins)} distributions", cached=True)
    return Outcome(cell=lock.cell, lock=lock, directory=directory, files=tuple(sorted(files)), seconds=clock.seconds)


def _image_files(lock: Lock) -> dict[str, str]:
    return {**image_files(lock), **companions(lock)} if lock.base is not None else {}


def lock_difference(options: Options, *, progress: Progress = silent) -> tuple[str, ...]:
    """Return what differs between the existing lock and what the request gives now.

    Without ``exclude_newer`` the lock's own date counts, as in uv: what was published since does not make a lock old.
    """
    stored = store.find(options.output, options.request_text)
    if stored is None:
        return (f"{options.output}: no lock of this request is there",)
    directory, old = stored
    request = replace(options.request, exclude_newer=options.request.exclude_newer or old.exclude_newer)
    options = replace(options, request=request)
    cell = None if options.request.packages else _cell_now(old, directory, options, progress)
    if cell is not None and (changes := _changes(old.cell.components, cell.components)):
        return changes
    new = agreed(options, Clock(progress), lambda cell: lock_cell(cell, options, progress=progress), first=cell)
    if changes := _changes(old.cell.components, new.cell.components):
        return changes
    differences = list(_changes({p.name: p.version for p in old.pins}, {p.name: p.version for p in new.pins}))
    for pin in new.pins:
        before = old.pin(pin.name)
        if before and before.version == pin.version and _hashes(before) != _hashes(pin):
            differences.append(f"{pin.name}: other files")
    if old.compiled != new.compiled:
        differences.append("compiled from source: in another way")
    if options.conda is not None:
        differences += conda_lock.difference(old, directory, options.conda, required=options.needs_conda_lock)
    return tuple(differences)


def _cell_now(old: Lock, directory: Path, options: Options, progress: Progress) -> Cell:
    """Return the cell that the request gives now.

    A folder with a Conda lock may hold the best cell of the channels (``build --engine conda``), which differs from the
    best one. It is up to date while that is still the best cell of the channels.
    """
    cell = solve(of_channels(options.request, options, progress)).cell
    same = cell.components == old.cell.components
    if same or options.needs_conda_lock or not options.conda or not (directory / conda_lock.LOCK_FILE).exists():
        return cell
    try:
        narrowed = of_channels(options.request, replace(options, conda_needed=True), progress)
        best_of_channels = solve(narrowed).cell
    except EnvsmithError:
        return cell  # no channel answers, or none has it any more: a change of the cell
    return best_of_channels if best_of_channels.components == old.cell.components else cell


def _hashes(pin: Pin) -> list[tuple[str, str]]:
    """Return what is installed. Where it is fetched from may change."""
    return [(a.filename, a.sha256) for a in pin.artifacts]


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    names = sorted({*old, *new})
    return tuple(f"{n}: {old.get(n, 'absent')} -> {new.get(n, 'absent')}" for n in names if old.get(n) != new.get(n))


# -- lock: from a cell to its lock, and to every file of the cell's folder --------------------------------------------


def lock_cell(cell: Cell, options: Options, *, progress: Progress = silent) -> Lock:
    """Return the Python part of the lock: resolved by uv under the rules' constraints, judged again by every rule."""
    return lock_pip(
        cell,
        request=options.request_text,
        exclude_newer=options.request.exclude_newer or last_day(),
        beside=Beside(
            constraints=(*constraints_for(cell), *options.request.bounds), date=_as_of(cell, options.request.date)
        ),
        flavour=options.flavour,
        compile=options.compile,
        resolver=Resolver(uv=Uv(offline=options.offline), ready=partial(best_wheel, policy=options.request.wheels)),
        progress=progress,
    )


def _as_of(cell: Cell, date: str | None) -> str | None:
    """Return the date, or the day on which the youngest part of the cell came out where that is later."""
    graph = version_graph()
    return date and max(date, *(graph.released_on(name, cell.components[name]) for name in cell.chosen))


def lock_and_render(cell: Cell, options: Options, *, engine: Engine | None, clock: Clock) -> Outcome:
    """Lock the cell, add the image part and the Conda part, write every file of the cell's folder at once."""
    directory = options.output / folder_name(cell, options.flavour)
    store.prepare(directory)
    clock.start("lock")
    day = options.request.exclude_newer or last_day()
    stored = store.reusable(directory, cell=cell, request=options.request_text, exclude_newer=day)
    lock = _with_archives(stored, options) if stored else lock_cell(cell, options, progress=clock.progress)
    hashed = sum(len(p.artifacts) for p in lock.pins)
    clock.done("lock", f"{len(lock.pins)} distributions, {hashed} hashed files", cached=stored is not None)
    for sentence in (*_dated_sentences(lock), *_ready_sentences(lock), *_compiled_sentences(lock)):
        clock.note(sentence)
    lock = _with_image(lock, options, engine, clock)
    if engine is not None:
        lock = engine.pin_wheels(lock, progress=clock.progress)
    files = _python_files(lock, pip=not options.conda_only)
    note = _add_conda(lock, directory, options, files, clock)
    notes = [note] if note else []
    if lock.base is None:
        notes += [f"no Dockerfile: {lock.image_note}"] if _for_images(engine) else []
    elif not options.conda_only:
        files |= _image_files(lock)
    store.write(directory, files)
    return Outcome(
        cell=cell, lock=lock, directory=directory, files=tuple(sorted(files)), notes=tuple(notes), seconds=clock.seconds
    )


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
        ]
        sentences.append("".join(parts))
    return sentences


def _with_archives(lock: Lock, options: Options) -> Lock:
    """Return a lock of an earlier run with the archives where they are now: the same file may lie at another path."""
    archives = {archive.name: (archive.artifact,) for archive in options.compile.archives}
    return replace(lock, pins=tuple(replace(pin, artifacts=archives.get(pin.name, pin.artifacts)) for pin in lock.pins))


def _with_image(lock: Lock, options: Options, engine: Engine | None, clock: Clock) -> Lock:
    """Pin the base image and the OS packages. A lock without them still serves a virtual environment, and says why.

    Where an environment is built, nobody hears of it.
    """
    if not _for_images(engine):
        clock = Clock(silent)
    clock.start("base image")
    pin_image = known_image if engine is None else engine.pin_image
    pinned = pin_image(lock, options.base, progress=clock.progress)
    clock.done("base image", f"{pinned.base.name}@{pinned.base.digest[:19]}" if pinned.base else pinned.image_note)
    return pinned


def _for_images(engine: Engine | None) -> bool:
    """Return whether images are this run's business: an engine makes them, or a lock is to serve every engine."""
    return engine is None or engine.images is not None


def _python_files(lock: Lock, *, pip: bool) -> dict[str, str]:
    cell = json.dumps(lock.cell.to_json(), indent=1, sort_keys=True) + "\n"
    files = {"cell.json": cell, "lock.json": lock.text(), "pylock.toml": pylock_text(lock)}
    return {**files, **requirement_files(lock)} if pip else files


def _add_conda(lock: Lock, directory: Path, options: Options, files: dict[str, str], clock: Clock) -> str | None:
    """Add the Conda lock and its Dockerfile where a channel answers. Otherwise return one note, and the build goes on.

    Where nothing can be done without it, its error is raised.
    """
    if options.conda is None:
        return None
    clock.start("conda lock")
    try:
        if archives := [source.name for source in lock.compiled if source.archive]:
            raise UsageError(
                f"Cannot write a Conda lock: {', '.join(archives)} is built from a source archive, and only the "
                "pinned builder of an image does that.",
                hint="Use --engine docker, podman or buildah.",
            )
        part = conda_lock.conda_part(lock, directory, options.conda, progress=clock.progress)
    except EnvsmithError as error:
        if options.needs_conda_lock:
            raise
        note = f"no conda-lock.yml: {error.message}" + (f" ({error.hint})" if error.hint else "")
        clock.done("conda lock", note)
        return note
    files.update(part.texts)
    notes = [*part.notes, *_add_conda_image(lock, part.lock, files)]
    clock.done(
        "conda lock", f"{', '.join(sorted(part.texts))} from {', '.join(part.lock.channels)}", cached=part.reused
    )
    return "; ".join(notes) or None


def _add_conda_image(lock: Lock, conda: CondaLock, files: dict[str, str]) -> tuple[str, ...]:
    """Add ``Dockerfile.conda`` where its parts are known. A channel of this host's files is not inside a build."""
    micromamba = load_bases().tool("micromamba")
    if lock.base is None or micromamba is None:
        return ()
    if any(p.url.startswith("file:") for p in conda.on(lock.cell.platform).packages):
        return ("no Dockerfile.conda: the channel is a folder of this machine",)
    files |= {"Dockerfile.conda": render_conda(lock, conda, micromamba), **step_files(lock)}
    if lock.build_pins:
        files.setdefault(BUILD_FILE, layer_text(lock.build_pins))
    return ()
