"""The arrow from end to end; what is decided, is decided by the stages."""

from __future__ import annotations

import dataclasses

from envsmith.engine.base import Engine, Progress, choose_engine, silent, verify_content
from envsmith.errors import UsageError
from envsmith.pipeline.choosing import choose, narrow
from envsmith.pipeline.current import found
from envsmith.pipeline.locking import lock_and_render
from envsmith.pipeline.proving import prove
from envsmith.pipeline.values import Clock, Options, Outcome

__all__ = ["build", "lock_for", "lock_only"]


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
    from envsmith.engine.conda import CondaEngine
    from envsmith.engine.venv import VenvEngine
    from envsmith.sources.uv import Uv

    if isinstance(engine, CondaEngine):
        return dataclasses.replace(engine, channels=options.conda_channels, offline=options.offline)
    if isinstance(engine, VenvEngine) and options.offline:
        return dataclasses.replace(engine, uv=Uv(offline=True))
    return engine


def _export(outcome: Outcome, engine: Engine, clock: Clock) -> None:
    """Write the image as an OCI layout beside its lock; the digest there is the one that a registry will know it by."""
    from envsmith.engine.rebuild import LAYOUT, ImageEngine

    if outcome.built is None or not isinstance(engine, ImageEngine):
        return
    clock.start("oci")
    image = engine.export(outcome.built, outcome.directory / LAYOUT, progress=clock.progress)
    clock.done("oci", f"{outcome.directory / LAYOUT}: {image.manifest_digest}")
