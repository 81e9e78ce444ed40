"""The arrow: request → cell → lock → built → evidence → verdict.

Nothing here decides anything: the solver, the engine and the verdict do.
"""

from __future__ import annotations

from dataclasses import replace

from envsmith.base.progress import Clock, Progress, silent
from envsmith.builder import locking
from envsmith.builder.choice import choose, for_engine, of_channels
from envsmith.builder.engines import choose_engine
from envsmith.builder.engines.base import Engine
from envsmith.builder.engines.rebuild import LAYOUT
from envsmith.builder.existing import existing_lock, given_lock
from envsmith.builder.options import BuildOutcome, Options
from envsmith.builder.proof import prove
from envsmith.errors import StorageError, UsageError, os_errors
from envsmith.model.lock import Lock
from envsmith.model.record import RECORD_FILE


def build(options: Options, *, engine: Engine | None = None, progress: Progress = silent) -> BuildOutcome:
    """Run the whole arrow, with ``engine`` or the one that the options name.

    Raises the family of :mod:`envsmith.errors` (``UsageError`` for an OCI layout from an engine that makes no images).
    What was finished is kept for the next run.
    """
    clock = Clock(progress)
    engine = engine or _engine(options, clock)
    if options.oci and engine.images is None:
        raise UsageError(
            f"Cannot use --oci with the engine {engine.name}: it makes no images.",
            hint="Use --engine docker, podman or buildah.",
        )
    options = for_engine(options, engine)
    locked = _lock(options, engine, clock)
    # A record speaks of what was built from this lock. There is none until that is proved again.
    elsewhere = f"Build in another place: envsmith build --lock {locked.directory} --output DIR."
    with os_errors(f"build in {locked.directory}", StorageError, hint=elsewhere):
        (locked.directory / RECORD_FILE).unlink(missing_ok=True)
    built = _build(locked, options, engine, clock)
    if not options.smoke:
        return built
    record = prove(built, engine, clock, tier=options.tier, ranks=options.ranks)
    return replace(built, record=record, files=(*built.files, RECORD_FILE))


def lock_for(options: Options, *, engine: Engine, progress: Progress = silent) -> BuildOutcome:
    """Solve and lock for an engine, its base and packages included, and write the files.

    Only the lock's wheels are built.
    """
    return locking.lock_request(for_engine(options, engine), engine, Clock(progress))


def lock_only(options: Options, *, progress: Progress = silent) -> BuildOutcome:
    """Solve, lock and write the files. Nothing is built and no engine is asked."""
    return _lock(options, None, Clock(progress))


def python_lock(options: Options, *, progress: Progress = silent) -> Lock:
    """Solve, and return the Python part of the lock. Nothing is written."""
    cell = choose(of_channels(options, progress), Clock(progress))
    return locking.lock_cell(cell, options, progress=progress)


def _engine(options: Options, clock: Clock) -> Engine:
    channels = options.conda.channels if options.conda else ()
    choice = choose_engine(options.engine, offline=options.offline, channels=channels)
    clock.note(f"engine: {choice.why}")
    return choice.engine


def _lock(options: Options, engine: Engine | None, clock: Clock) -> BuildOutcome:
    """Return the lock that is given, the one that is there where the options keep to it, or a new one."""
    if options.lock is not None:
        return given_lock(options.lock, options.output, clock)
    if options.locked or options.frozen:
        return existing_lock(options, clock)
    return locking.lock_request(options, engine, clock)


def _build(locked: BuildOutcome, options: Options, engine: Engine, clock: Clock) -> BuildOutcome:
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
