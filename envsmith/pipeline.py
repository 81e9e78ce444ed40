"""The arrow of the design in one place: request -> cell -> lock -> files -> environment or image -> smoke test -> record.

Each stage is a function that takes the value before it; :func:`build` runs them all. Nothing here decides anything: deciding is the
solver's, the engine's, the verdict's.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from envsmith.engine.base import Built, Engine, Event, EventKind, Progress, choose_engine, silent, verify_content
from envsmith.errors import EnvsmithError, SmokeError
from envsmith.model.cell import Cell, Request
from envsmith.model.lock import Lock
from envsmith.model.record import Record, Rung
from envsmith.model.version import Spec

if TYPE_CHECKING:
    from envsmith.model.finding import Solution
    from envsmith.smoke import Progress as SmokeProgress
    from envsmith.smoke import SmokeResult

__all__ = [
    "Options",
    "Outcome",
    "build",
    "lock_cell",
    "lock_difference",
    "lock_only",
    "narrow",
    "record_of",
    "last_day",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to build. ``output`` is the folder under which each cell gets its own; ``base`` a base image asked for by name."""

    request: Request
    request_text: str
    output: Path
    engine: str | None = None
    base: str | None = None
    tier: str = "quick"
    ranks: int = 4
    conda: bool = True
    conda_channels: tuple[str, ...] = ()
    conda_tolerate: tuple[str, ...] = ()
    smoke: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What ``build`` made: every path is below ``directory``; ``record`` is ``None`` when no smoke test was asked for."""

    cell: Cell
    lock: Lock
    directory: Path
    files: tuple[str, ...]
    built: Built | None = None
    record: Record | None = None
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)


class _Clock:
    """Announces steps and adds up their seconds."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.seconds: dict[str, float] = {}
        self._started = 0.0

    def start(self, step: str, text: str = "") -> None:
        self._started = time.monotonic()
        self.progress(Event(kind=EventKind.START, step=step, text=text))

    def done(self, step: str, text: str = "", *, cached: bool = False) -> None:
        self.seconds[step] = time.monotonic() - self._started
        kind = EventKind.CACHED if cached else EventKind.DONE
        self.progress(Event(kind=kind, step=step, text=text, seconds=self.seconds[step]))

    def line(self, step: str, text: str) -> None:
        self.progress(Event(kind=EventKind.LINE, step=step, text=text))

    def note(self, text: str, *, warning: bool = False) -> None:
        self.progress(Event(kind=EventKind.WARNING if warning else EventKind.NOTE, step="", text=text))


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
    from envsmith.solve.api import solve

    return solve(request)


def lock_cell(cell: Cell, options: Options, *, progress: Progress = silent) -> Lock:
    """The Python part of the lock: resolved by uv under the rules' constraints, judged again by every rule."""
    from envsmith.lock.pip import lock_pip
    from envsmith.solve.api import constraints_for
    from envsmith.sources.interpreters import find_interpreter

    newest = options.request.exclude_newer or last_day()
    constraints = constraints_for(cell)
    pinned = lock_pip(
        cell,
        constraints=constraints,
        exclude_newer=newest,
        interpreter=find_interpreter(cell.components["python"]),
        progress=progress,
    )
    return Lock(
        cell=cell,
        request=options.request_text,
        exclude_newer=newest,
        python_version=cell.components["python"],
        pins=pinned.pins,
        build_pins=pinned.build_pins,
        constraints=pinned.constraints,
        resolver=pinned.resolver,
        facts=pinned.facts,
    )


def build(options: Options, *, progress: Progress = silent) -> Outcome:
    """Run the whole arrow. Raises the family of :mod:`envsmith.errors`; what was finished is kept for the next run."""
    clock = _Clock(progress)
    choice = choose_engine(options.engine)
    clock.note(f"engine: {choice.why}")

    clock.start("solve")
    solution = solve_for(narrow(options.request, choice.engine))
    cell = solution.cell
    clock.done("solve", str(cell.id))
    for sentence in solution.why:
        clock.note(sentence)
    for finding in solution.warnings:
        clock.note(f"{finding.message} [{finding.rule}]", warning=True)

    lock, directory, files, notes = lock_and_render(cell, options, engine=choice.engine, clock=clock)
    # A record speaks of what was built from this lock; until that is proved again there is none.
    (directory / "record.json").unlink(missing_ok=True)
    clock.start("build", f"with {choice.engine.name}")
    built = choice.engine.build(lock, directory, progress=progress)
    installed = choice.engine.inspect(built)
    verify_content(lock, installed)
    clock.done(
        "build",
        f"{built.kind} {built.reference} {built.digest[:19]}; {len(lock.pins)} distributions are what the lock says",
    )
    outcome = Outcome(
        cell=cell, lock=lock, directory=directory, files=files, built=built, notes=notes, seconds=clock.seconds
    )
    if not options.smoke:
        return outcome
    record = _prove(outcome, choice.engine, options, clock)
    return dataclasses.replace(outcome, record=record, files=(*files, "record.json"))


def lock_only(options: Options, *, progress: Progress = silent) -> Outcome:
    """Solve, lock and write the files; nothing is built."""
    clock = _Clock(progress)
    clock.start("solve")
    solution = solve_for(options.request)
    clock.done("solve", str(solution.cell.id))
    for sentence in solution.why:
        clock.note(sentence)
    lock, directory, files, notes = lock_and_render(solution.cell, options, engine=None, clock=clock)
    return Outcome(cell=solution.cell, lock=lock, directory=directory, files=files, notes=notes, seconds=clock.seconds)


def lock_difference(options: Options, *, progress: Progress = silent) -> tuple[str, ...]:
    """What differs between the lock that is there and what the request gives now; empty when it is up to date."""
    from envsmith.lock import store

    cell = solve_for(options.request).cell
    directory = options.output / str(cell.id)
    there = store.read(directory)
    if there is None:
        return (f"{directory}: no lock is there",)
    now = lock_cell(cell, options, progress=progress)
    old, new = ({p.name: p.version for p in lock.pins} for lock in (there, now))
    changed = [
        f"{n}: {old.get(n, 'absent')} -> {new.get(n, 'absent')}"
        for n in sorted({*old, *new})
        if old.get(n) != new.get(n)
    ]
    hashes = [
        p.name for p in now.pins if (o := there.pin(p.name)) and o.version == p.version and o.artifacts != p.artifacts
    ]
    return (*changed, *(f"{name}: other files" for name in hashes))


def lock_and_render(
    cell: Cell, options: Options, *, engine: Engine | None, clock: _Clock
) -> tuple[Lock, Path, tuple[str, ...], tuple[str, ...]]:
    """Lock the cell, add the image part, write every file of the cell's folder at once."""
    from envsmith.lock import store

    directory = options.output / str(cell.id)
    clock.start("lock")
    kept = store.reusable(
        directory, cell=cell, request=options.request_text, exclude_newer=options.request.exclude_newer or last_day()
    )
    lock = kept or lock_cell(cell, options, progress=clock.progress)
    clock.done(
        "lock",
        f"{len(lock.pins)} distributions, {sum(len(p.artifacts) for p in lock.pins)} hashed files",
        cached=kept is not None,
    )
    lock = _with_image(lock, options, engine, clock)
    files = dict(_python_files(lock))
    notes = []
    if options.conda:
        note = _conda(lock, options, files, clock)
        notes += [note] if note else []
    if lock.base is not None:
        from envsmith.render.dockerfile import render

        files["Dockerfile"] = render(lock)
    else:
        notes.append(f"no Dockerfile: {lock.image_note}")
    store.write(directory, files)
    return lock, directory, tuple(sorted(files)), tuple(notes)


def _python_files(lock: Lock) -> Mapping[str, str]:
    from envsmith.lock.pylock import pylock_text
    from envsmith.lock.requirements import requirement_files

    cell = json.dumps(lock.cell.to_json(), indent=1, sort_keys=True) + "\n"
    return {"cell.json": cell, "lock.json": lock.text(), "pylock.toml": pylock_text(lock), **requirement_files(lock)}


def _with_image(lock: Lock, options: Options, engine: Engine | None, clock: _Clock) -> Lock:
    """Pin the base image and the OS packages; a lock without them still serves a virtual environment, and says why."""
    from envsmith.sources.images import pin_image

    clock.start("base image")
    pinned = pin_image(lock, base=options.base, engine=engine, progress=clock.progress)
    clock.done("base image", f"{pinned.base.name}@{pinned.base.digest[:19]}" if pinned.base else pinned.image_note)
    return pinned


def _conda(lock: Lock, options: Options, files: dict[str, str], clock: _Clock) -> str | None:
    """Add ``conda-lock.yml`` where a channel answers; otherwise one note, and the build goes on."""
    from envsmith.graph.cache import cache_folder
    from envsmith.lock import conda

    clock.start("conda lock")
    channels = options.conda_channels or ("conda-forge",)
    try:
        made = conda.lock_conda(
            lock.cell,
            lock.pins,
            channels=channels,
            cache_dir=cache_folder() / "conda",
            progress=clock.progress,
            exclude_newer=lock.exclude_newer,
            tolerate=options.conda_tolerate,
        )
        files.update(conda.files(made))
    except EnvsmithError as error:
        note = f"no conda-lock.yml: {error.message}" + (f" ({error.hint})" if error.hint else "")
        clock.done("conda lock", note)
        return note
    clock.done("conda lock", f"{', '.join(sorted(conda.files(made)))} from {', '.join(channels)}")
    return "; ".join(made.notes) or None


def _prove(outcome: Outcome, engine: Engine, options: Options, clock: _Clock) -> Record:
    from envsmith.lock import store
    from envsmith.smoke import Plan, run

    if outcome.built is None:
        raise SmokeError("nothing was built that could be tested")
    plan = Plan.build(outcome.cell, tier=options.tier, ranks=options.ranks, image=outcome.built.digest)
    started = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    clock.start("smoke test", f"{len(plan.cases)} cases and {len(plan.steps)} framework steps, {plan.ranks} ranks")
    result = run(plan, engine.target(outcome.built), progress=lambda p: clock.line("smoke test", progress_line(p)))
    clock.done("smoke test", result.summary)
    record = record_of(outcome, result, engine=engine.name, started=started, seconds=clock.seconds)
    store.write(outcome.directory, {"record.json": json.dumps(record.to_json(), indent=1) + "\n"})
    return record


def progress_line(progress: SmokeProgress) -> str:
    """One line of how far a smoke test is."""
    count = f" {progress.done}/{progress.total}" if progress.total else ""
    return f"{progress.phase}{count} {progress.text}".strip()


def record_of(
    outcome: Outcome, result: SmokeResult, *, engine: str, started: str, seconds: Mapping[str, float]
) -> Record:
    """The record of one run: what was loaded, not what was declared."""
    if outcome.built is None:
        raise SmokeError("nothing was built that could be tested")
    return Record(
        cell_id=str(outcome.cell.id),
        components=outcome.cell.components,
        lock_digest=outcome.lock.digest,
        engine=engine,
        environment_digest=outcome.built.digest,
        image=outcome.built.digest if outcome.built.kind == "image" else None,
        rungs=rungs_of(result),
        passed=result.passed,
        summary=result.summary,
        started=started,
        seconds={**seconds, **result.seconds},
        host=result.host,
        loaded=result.loaded,
        backend=result.backend,
        ranks=result.ranks,
        cases=result.cases,
        steps=result.steps,
        notes=tuple(filter(None, (*outcome.notes, result.placement, *result.notes))),
    )


def rungs_of(result: SmokeResult) -> tuple[Rung, ...]:
    """The rungs of the ladder that this run proved: collectives when every case is good, the framework step when one passed and none failed."""
    rungs = [Rung.SOLVED, Rung.LOCKED, Rung.INSTALLED]
    gpu = result.backend.startswith("nccl")
    if result.loaded:
        rungs.append(Rung.IMPORTED)
    if result.collectives_good:
        rungs.append(Rung.COLLECTIVES_GPU if gpu else Rung.COLLECTIVES_CPU)
    ran = [step for step in result.steps if step.verdict.value != "skipped"]
    if ran and all(step.verdict.good for step in ran):
        rungs.append(Rung.FRAMEWORK_GPU if gpu else Rung.FRAMEWORK_CPU)
    return tuple(rungs)
