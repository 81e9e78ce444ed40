"""The arrow from end to end; what is decided, is decided by the stages."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from envsmith.conda import lock as conda_lock
from envsmith.conda.access import with_channels
from envsmith.conda.lock import LOCK_FILE, narrow_to_channels
from envsmith.engines.base import Engine, verify_content
from envsmith.engines.bases import load_bases, pin_image
from envsmith.engines.choose import choose_engine
from envsmith.engines.conda import CondaEngine
from envsmith.engines.rebuild import LAYOUT, ImageEngine
from envsmith.engines.venv import VenvEngine
from envsmith.engines.wheels import with_wheels
from envsmith.errors import EnvsmithError, UsageError
from envsmith.image.companions import companions
from envsmith.image.conda_dockerfile import render_conda
from envsmith.image.dockerfile import render
from envsmith.lock import store
from envsmith.lock.files import layer_text, pylock_text, requirement_files
from envsmith.model.cell import Cell, Request
from envsmith.model.lock import Lock, Pin, folder_name
from envsmith.model.version import Spec
from envsmith.options import Options, Outcome
from envsmith.progress import Clock, Event, EventKind, Progress, silent
from envsmith.proof import prove
from envsmith.python.uv import Uv
from envsmith.solve import cells, constraints_for, solve

if TYPE_CHECKING:
    from envsmith.conda.model import CondaLock
    from envsmith.model.finding import Solution


# The arrow of the design in one place: request -> cell -> lock -> files -> environment or image -> smoke test -> record.
#
# Each stage is a function that takes the value before it, in a module of its own: ``choosing``, ``locking`` (``current`` for a lock that is
# there), ``proving``; ``run`` is all of them. Nothing here decides anything: deciding is the solver's, the engine's, the verdict's.


def build(options: Options, *, engine: Engine | None = None, progress: Progress = silent) -> Outcome:
    """Run the whole arrow, with ``engine`` or the one that the options name.

    Raises the family of :mod:`envsmith.errors` (``UsageError`` for an OCI layout from an engine that makes no images); what was finished is
    kept for the next run.
    """
    clock = Clock(progress)
    if engine is None:
        choice = choose_engine(options.engine)
        clock.note(f"engine: {choice.why}")
        engine = choice.engine
    engine = _fitted(engine, options)
    if options.oci and not hasattr(engine, "export"):
        raise UsageError(f"engine {engine.name} makes no images", hint="--oci needs a container engine")
    request = narrow(options.request, engine)
    if options.locked or options.frozen:
        kept = found(dataclasses.replace(options, request=request), clock)
        lock, directory, files, notes = kept.lock, kept.directory, kept.files, kept.notes
    else:
        cell = choose(request, options, clock)
        lock, directory, files, notes = lock_and_render(cell, options, engine=engine, clock=clock)
    cell = lock.cell
    # A record speaks of what was built from this lock; until that is proved again there is none.
    (directory / "record.json").unlink(missing_ok=True)
    clock.start("build", f"with {engine.name}")
    built = engine.build(lock, directory, progress=progress)
    if built.kind != "conda":  # that engine has compared the prefix with the Conda lock, which names other packages
        verify_content(lock, engine.inspect(built))
    counted = "what is installed is" if built.kind == "conda" else f"{len(lock.pins)} distributions are"
    clock.done("build", f"{built.kind} {built.reference} {built.digest[:19]}; {counted} what the lock says")
    outcome = Outcome(
        cell=cell, lock=lock, directory=directory, files=files, built=built, notes=notes, seconds=clock.seconds
    )
    if options.oci:
        _export(outcome, engine, clock)
    if not options.smoke:
        return outcome
    record = prove(outcome, engine, options, clock)
    return dataclasses.replace(outcome, record=record, files=(*files, "record.json"))


def lock_for(options: Options, *, engine: Engine, progress: Progress = silent) -> Outcome:
    """Solve and lock for an engine, its base and packages included, and write the files; nothing is built but the lock's wheels."""
    clock = Clock(progress)
    cell = choose(narrow(options.request, engine), options, clock)
    lock, directory, files, notes = lock_and_render(cell, options, engine=engine, clock=clock)
    return Outcome(cell=lock.cell, lock=lock, directory=directory, files=files, notes=notes, seconds=clock.seconds)


def lock_only(options: Options, *, progress: Progress = silent) -> Outcome:
    """Solve, lock and write the files; nothing is built."""
    clock = Clock(progress)
    if options.locked or options.frozen:
        return found(options, clock)
    cell = choose(options.request, options, clock)
    lock, directory, files, notes = lock_and_render(cell, options, engine=None, clock=clock)
    return Outcome(cell=cell, lock=lock, directory=directory, files=files, notes=notes, seconds=clock.seconds)


def _fitted(engine: Engine, options: Options) -> Engine:
    """The engine told what the user asked for: no network; and the channels with their credentials, which a Conda lock does not hold."""
    if isinstance(engine, CondaEngine):
        return dataclasses.replace(
            engine, channels=options.conda.channels if options.conda else (), offline=options.offline
        )
    if isinstance(engine, VenvEngine) and options.offline:
        return dataclasses.replace(engine, uv=Uv(offline=True))
    return engine


def _export(outcome: Outcome, engine: Engine, clock: Clock) -> None:
    """Write the image as an OCI layout beside its lock; the digest there is the one that a registry will know it by."""
    if outcome.built is None or not isinstance(engine, ImageEngine):
        return
    clock.start("oci")
    image = engine.export(outcome.built, outcome.directory / LAYOUT, progress=clock.progress)
    clock.done("oci", f"{outcome.directory / LAYOUT}: {image.manifest_digest}")


# From a request to a cell: narrowed to what the engine, or the Conda channels, can give at all.


def last_day() -> str:
    """The last complete UTC day, which ``exclude_newer`` defaults to; ``SOURCE_DATE_EPOCH`` sets another present.

    The day that is not over yet would not do: what is published in its course would change a lock that was made on the same date.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = (
        dt.datetime.fromtimestamp(int(epoch), tz=dt.timezone.utc)
        if epoch.isdigit()
        else dt.datetime.now(dt.timezone.utc)
    )
    return (now.date() - dt.timedelta(days=1)).isoformat()


def narrow(request: Request, engine: Engine) -> Request:
    """Keep to the Pythons that ``engine`` can provide here; the reason is told in ``why`` and in a refusal."""
    pythons = engine.pythons()
    if pythons is None:
        return request
    spec = Spec.parse(" || ".join(f"=={minor}.*" for minor in pythons))
    reason = f"engine {engine.name} can provide Python {', '.join(pythons)} here"
    return dataclasses.replace(request, narrowed={**request.narrowed, "python": (spec, reason)})


def solve_for(request: Request) -> Solution:
    """The solver's answer; ``UnsatisfiableError`` carries the refusal."""
    return solve(request)


def choose(request: Request, options: Options, clock: Clock) -> Cell:
    """The best cell; one that the channels have, where Conda is to install it."""
    clock.start("solve")
    solution = solve_for(of_channels(request, options, clock.progress))
    clock.done("solve", str(solution.cell.id))
    for sentence in solution.why:
        clock.note(sentence)
    for finding in solution.warnings:
        clock.note(f"{finding.message} [{finding.rule}]", warning=True)
    return solution.cell


def of_channels(request: Request, options: Options, progress: Progress) -> Request:
    """The request narrowed to what the Conda channels have, where Conda is to install the cell; as it is elsewhere."""
    if options.conda is None or not options.conda_needed:
        return request
    return narrow_to_channels(
        request,
        cells,
        with_channels(options.conda).until(request.exclude_newer or last_day()),
        progress=lambda line: progress(Event(kind=EventKind.LINE, step="solve", text=line)),
    )


# The lock that is there already: taken as it is, or held against what the request gives now.


def found(options: Options, clock: Clock) -> Outcome:
    """The lock that is there: as it is (``frozen``), or only when it is what the request gives now (``locked``, exit code 1 else).

    ``EnvsmithError`` with every difference where it is not, or the one that says that no lock is there.
    """
    clock.start("lock")
    directory, lock = store.need(options.output, options.request_text)
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
    existing_lock = store.find(options.output, options.request_text)
    if existing_lock is None:
        return (f"{options.output}: no lock of this request is there",)
    directory, there = existing_lock
    request = dataclasses.replace(options.request, exclude_newer=options.request.exclude_newer or there.exclude_newer)
    cell = _as_it_was_made(there, directory, dataclasses.replace(options, request=request), progress)
    if told := _changes(there.cell.components, cell.components):
        return told
    now = lock_cell(cell, dataclasses.replace(options, request=request), progress=progress)
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
    if options.conda is None:
        return ()
    from envsmith.conda import lock

    return lock.difference(there, directory, options.conda, required=options.conda_needed)


# From a cell to its lock, and to every file of the cell's folder.


def lock_cell(cell: Cell, options: Options, *, progress: Progress = silent) -> Lock:
    """The Python part of the lock: resolved by uv under the rules' constraints, judged again by every rule."""
    from envsmith.lock.resolve import Resolver, lock_pip

    return lock_pip(
        cell,
        request=options.request_text,
        exclude_newer=options.request.exclude_newer or last_day(),
        constraints=constraints_for(cell),
        flavour=options.flavour,
        compile=options.compile,
        resolver=Resolver(uv=Uv(offline=options.offline)),
        progress=progress,
    )


def lock_and_render(
    cell: Cell, options: Options, *, engine: Engine | None, clock: Clock
) -> tuple[Lock, Path, tuple[str, ...], tuple[str, ...]]:
    """Lock the cell, add the image part, write every file of the cell's folder at once."""
    directory = options.output / folder_name(cell, options.flavour)
    store.prepare(directory)
    clock.start("lock")
    kept = store.reusable(
        directory, cell=cell, request=options.request_text, exclude_newer=options.request.exclude_newer or last_day()
    )
    lock = _placed(kept, options) if kept else lock_cell(cell, options, progress=clock.progress)
    clock.done(
        "lock",
        f"{len(lock.pins)} distributions, {sum(len(p.artifacts) for p in lock.pins)} hashed files",
        cached=kept is not None,
    )
    for sentence in _told_of_sources(lock):
        clock.note(sentence)
    lock = _with_image(lock, options, engine, clock)
    lock = with_wheels(lock, engine, progress=clock.progress)
    files = dict(_python_files(lock))
    if options.conda_only:
        files = {name: text for name, text in files.items() if not name.startswith("requirements")}
    note = _conda(lock, directory, options, files, clock)
    notes = [note] if note else []
    if lock.base is None:
        notes.append(f"no Dockerfile: {lock.image_note}")
    elif not options.conda_only:
        files |= {"Dockerfile": render(lock), **companions(lock)}
    store.write(directory, files)
    return lock, directory, tuple(sorted(files)), tuple(notes)


def _told_of_sources(lock: Lock) -> list[str]:
    """What will be compiled, from what and how: minutes or hours of the builder."""
    told = []
    for source in lock.compiled:
        pin = lock.pin(source.name)
        words = " ".join(f"{name}={value}" for name, value in source.variables)
        archive = f" from the archive with sha256 {pin.artifacts[0].sha256[:16]}…" if source.archive and pin else ""
        every = (
            "" if lock.cell.components.get("gpu") or not source.toolkit else "; no --gpu: for all of its architectures"
        )
        told.append(
            f"{source.name} is compiled{archive}{' with nvcc' if source.toolkit else ''}{f' ({words})' if words else ''}{every}"
        )
    return told


def _placed(lock: Lock, options: Options) -> Lock:
    """A lock that is kept, with the archives where they are now: the same file may have been given by another path."""
    given = {archive.name: (archive.artifact,) for archive in options.compile.archives}
    pins = tuple(replace(pin, artifacts=given.get(pin.name, pin.artifacts)) for pin in lock.pins)
    return replace(lock, pins=pins)


def _python_files(lock: Lock) -> Mapping[str, str]:

    cell = json.dumps(lock.cell.to_json(), indent=1, sort_keys=True) + "\n"
    return {"cell.json": cell, "lock.json": lock.text(), "pylock.toml": pylock_text(lock), **requirement_files(lock)}


def _with_image(lock: Lock, options: Options, engine: Engine | None, clock: Clock) -> Lock:
    """Pin the base image and the OS packages; a lock without them still serves a virtual environment, and says why."""
    clock.start("base image")
    pinned = pin_image(lock, base=options.base, engine=engine, progress=clock.progress)
    clock.done("base image", f"{pinned.base.name}@{pinned.base.digest[:19]}" if pinned.base else pinned.image_note)
    return pinned


def _conda(lock: Lock, directory: Path, options: Options, files: dict[str, str], clock: Clock) -> str | None:
    """Add the Conda lock and its Dockerfile where a channel answers; otherwise one note, and the build goes on.

    Where nothing can be done without it, its error is the error.
    """
    if options.conda is None:
        return None
    clock.start("conda lock")
    try:
        _refuse_archives(lock)
        part = conda_lock.conda_part(lock, directory, options.conda, progress=clock.progress)
    except EnvsmithError as error:
        if options.conda_needed:
            raise
        note = f"no conda-lock.yml: {error.message}" + (f" ({error.hint})" if error.hint else "")
        clock.done("conda lock", note)
        return note
    files.update(part.texts)
    more = _conda_image(lock, part.lock, files)
    clock.done("conda lock", f"{', '.join(sorted(part.texts))} from {', '.join(part.lock.channels)}", cached=part.kept)
    return "; ".join([*part.notes, *more]) or None


def _refuse_archives(lock: Lock) -> None:
    """No tool that installs a Conda lock compiles an archive that no index has."""
    if given := [source.name for source in lock.compiled if source.archive]:
        raise UsageError(
            f"{', '.join(given)}: built from a source archive, which only the pinned builder of an image does",
            hint="use --engine docker, podman or buildah",
        )


def _conda_image(lock: Lock, conda: CondaLock, files: dict[str, str]) -> tuple[str, ...]:
    """Add ``Dockerfile.conda`` where its parts are known; a channel of this host's files is not inside a build."""
    micromamba = load_bases().tool("micromamba")
    if lock.base is None or micromamba is None:
        return ()
    if any(p.url.startswith("file:") for p in conda.on(lock.cell.platform).packages):
        return ("no Dockerfile.conda: the channel is a folder of this machine",)
    files["Dockerfile.conda"] = render_conda(lock, conda, micromamba)
    if lock.build_pins:
        files.setdefault("requirements-build.txt", layer_text(lock.build_pins))
    return ()
