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
from envsmith.errors import EnvsmithError, SmokeError, UsageError
from envsmith.model.cell import Cell, Request
from envsmith.model.lock import RUNTIME, Lock, folder_name
from envsmith.model.platform import Platform
from envsmith.model.record import Record, Rung
from envsmith.model.version import Spec

if TYPE_CHECKING:
    from envsmith.lock.conda.model import CondaLock
    from envsmith.lock.conda.step import CondaAsk
    from envsmith.model.finding import Solution
    from envsmith.smoke import Progress as SmokeProgress
    from envsmith.smoke import SmokeResult

__all__ = [
    "Options",
    "Outcome",
    "build",
    "last_day",
    "lock_cell",
    "lock_difference",
    "lock_for",
    "lock_only",
    "narrow",
    "record_of",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to build. ``output`` is the folder under which each cell gets its own; ``base`` a base image asked for by name.

    ``conda_only`` makes a Conda part that cannot be made an error instead of a note, chooses a cell that the channels have, and leaves
    pip's own files out. ``locked`` takes the lock that is there and fails when the request gives another now; ``frozen`` takes it unasked.
    """

    request: Request
    request_text: str
    output: Path
    engine: str | None = None
    base: str | None = None
    tier: str = "quick"
    ranks: int = 4
    conda: bool = True
    conda_only: bool = False
    conda_channels: tuple[str, ...] = ()
    conda_platforms: tuple[Platform, ...] = ()
    conda_tolerate: tuple[str, ...] = ()
    locked: bool = False
    frozen: bool = False
    offline: bool = False
    smoke: bool = True
    flavour: str = RUNTIME
    oci: bool = False

    @property
    def conda_needed(self) -> bool:
        """Nothing can be done without the Conda lock: it was asked for, or is what the engine installs."""
        return self.conda_only or self.engine == "conda"

    def conda_ask(self) -> CondaAsk:
        """What is asked of Conda beside the cell; ``DataError`` when what this machine says about channels does not parse."""
        from envsmith.graph.cache import cache_folder
        from envsmith.lock.conda.settings import default_channels
        from envsmith.lock.conda.step import CondaAsk

        return CondaAsk(
            channels=self.conda_channels or default_channels(),
            platforms=self.conda_platforms,
            tolerate=self.conda_tolerate,
            offline=self.offline,
            dated=self.request.exclude_newer is not None,
            cache_dir=cache_folder() / "conda",
        )


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
    from envsmith.sources.runtime import toolkit_requirements
    from envsmith.sources.uv import Uv

    newest = options.request.exclude_newer or last_day()
    constraints = constraints_for(cell)
    pinned = lock_pip(
        cell,
        constraints=constraints,
        exclude_newer=newest,
        interpreter=find_interpreter(cell.components["python"]),
        progress=progress,
        uv=Uv(offline=True) if options.offline else None,
        also=toolkit_requirements(cell, options.flavour),
    )
    return Lock(
        cell=cell,
        request=options.request_text,
        exclude_newer=newest,
        python_version=cell.components["python"],
        pins=pinned.pins,
        build_pins=pinned.build_pins,
        compiled=pinned.compiled,
        constraints=pinned.constraints,
        resolver=pinned.resolver,
        facts=pinned.facts,
        flavour=options.flavour,
    )


def build(options: Options, *, progress: Progress = silent) -> Outcome:
    """Run the whole arrow. Raises the family of :mod:`envsmith.errors`; what was finished is kept for the next run."""
    clock = _Clock(progress)
    choice = choose_engine(options.engine)
    clock.note(f"engine: {choice.why}")

    engine = _fitted(choice.engine, options)
    if options.oci and not hasattr(engine, "export"):
        raise UsageError(f"engine {engine.name} makes no images", hint="--oci needs a container engine")
    request = narrow(options.request, engine)
    if options.locked or options.frozen:
        found = _found(dataclasses.replace(options, request=request), clock)
        lock, directory, files, notes = found.lock, found.directory, found.files, found.notes
    else:
        cell = _choose(request, options, clock)
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
    record = _prove(outcome, engine, options, clock)
    return dataclasses.replace(outcome, record=record, files=(*files, "record.json"))


def lock_for(options: Options, *, engine: Engine, progress: Progress = silent) -> Outcome:
    """Solve and lock for an engine, its base and packages included, and write the files; nothing is built but the lock's wheels."""
    clock = _Clock(progress)
    cell = _choose(narrow(options.request, engine), options, clock)
    lock, directory, files, notes = lock_and_render(cell, options, engine=engine, clock=clock)
    return Outcome(cell=lock.cell, lock=lock, directory=directory, files=files, notes=notes, seconds=clock.seconds)


def lock_only(options: Options, *, progress: Progress = silent) -> Outcome:
    """Solve, lock and write the files; nothing is built."""
    clock = _Clock(progress)
    if options.locked or options.frozen:
        return _found(options, clock)
    cell = _choose(options.request, options, clock)
    lock, directory, files, notes = lock_and_render(cell, options, engine=None, clock=clock)
    return Outcome(cell=cell, lock=lock, directory=directory, files=files, notes=notes, seconds=clock.seconds)


def _choose(request: Request, options: Options, clock: _Clock) -> Cell:
    """The best cell; one that the channels have, where Conda is to install it."""
    clock.start("solve")
    solution = solve_for(_of_channels(request, options, clock.progress))
    clock.done("solve", str(solution.cell.id))
    for sentence in solution.why:
        clock.note(sentence)
    for finding in solution.warnings:
        clock.note(f"{finding.message} [{finding.rule}]", warning=True)
    return solution.cell


def _of_channels(request: Request, options: Options, progress: Progress) -> Request:
    if not options.conda_needed:
        return request
    from envsmith.lock.conda import narrow_to_channels
    from envsmith.solve.api import cells

    ask = options.conda_ask()
    return narrow_to_channels(
        request,
        cells,
        channels=ask.channels,
        cache_dir=ask.cache_dir,
        offline=ask.offline,
        exclude_newer=ask.day(request.exclude_newer or last_day()),
        tolerate=ask.tolerate,
        progress=lambda line: progress(Event(kind=EventKind.LINE, step="solve", text=line)),
    )


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


def _found(options: Options, clock: _Clock) -> Outcome:
    """The lock that is there: as it is (``frozen``), or only when it is what the request gives now (``locked``, exit code 1 else)."""
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

    found = existing.find(options.output, options.request_text)
    if found is None:
        return (f"{options.output}: no lock of this request is there",)
    directory, there = found
    request = dataclasses.replace(options.request, exclude_newer=options.request.exclude_newer or there.exclude_newer)
    cell = _as_it_was_made(there, directory, dataclasses.replace(options, request=request), progress)
    if told := _changes(there.cell.components, cell.components):
        return told
    now = lock_cell(cell, dataclasses.replace(options, request=request), progress=progress)
    changed = _changes({p.name: p.version for p in there.pins}, {p.name: p.version for p in now.pins})
    hashes = [
        p.name for p in now.pins if (o := there.pin(p.name)) and o.version == p.version and o.artifacts != p.artifacts
    ]
    return (*changed, *(f"{name}: other files" for name in hashes), *_conda_difference(there, directory, options))


def _as_it_was_made(there: Lock, directory: Path, options: Options, progress: Progress) -> Cell:
    """The cell that the request gives now.

    A folder with a Conda lock may hold the best cell *of the channels* (``build --engine conda``), which is another than the best one:
    it is up to date when that is still it.
    """
    from envsmith.lock.conda.step import LOCK_FILE

    cell = solve_for(_of_channels(options.request, options, progress)).cell
    same = cell.components == there.cell.components
    if same or options.conda_needed or not options.conda or not (directory / LOCK_FILE).exists():
        return cell
    try:
        narrowed = _of_channels(options.request, dataclasses.replace(options, conda_only=True), progress)
        of_channels = solve_for(narrowed).cell
    except EnvsmithError:
        return cell  # no channel answers, or none has it any more: told as a change of the cell
    return of_channels if of_channels.components == there.cell.components else cell


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[str, ...]:
    names = sorted({*old, *new})
    return tuple(f"{n}: {old.get(n, 'absent')} -> {new.get(n, 'absent')}" for n in names if old.get(n) != new.get(n))


def _conda_difference(there: Lock, directory: Path, options: Options) -> tuple[str, ...]:
    if not options.conda:
        return ()
    from envsmith.lock.conda import step

    return step.difference(there, directory, options.conda_ask(), required=options.conda_needed)


def lock_and_render(
    cell: Cell, options: Options, *, engine: Engine | None, clock: _Clock
) -> tuple[Lock, Path, tuple[str, ...], tuple[str, ...]]:
    """Lock the cell, add the image part, write every file of the cell's folder at once."""
    from envsmith.engine.wheels import with_wheels
    from envsmith.lock import store

    directory = options.output / folder_name(cell, options.flavour)
    store.prepare(directory)
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
    lock = with_wheels(lock, engine, progress=clock.progress)
    files = dict(_python_files(lock))
    if options.conda_only:
        files = {name: text for name, text in files.items() if not name.startswith("requirements")}
    notes = []
    if options.conda or options.conda_needed:
        note = _conda(lock, directory, options, files, clock)
        notes += [note] if note else []
    if lock.base is None:
        notes.append(f"no Dockerfile: {lock.image_note}")
    elif not options.conda_only:
        from envsmith.render.companions import companions
        from envsmith.render.dockerfile import render

        files |= {"Dockerfile": render(lock), **companions(lock)}
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


def _conda(lock: Lock, directory: Path, options: Options, files: dict[str, str], clock: _Clock) -> str | None:
    """Add the Conda lock and its Dockerfile where a channel answers; otherwise one note, and the build goes on.

    Where nothing can be done without it, its error is the error.
    """
    from envsmith.lock.conda import step

    clock.start("conda lock")
    try:
        ask = options.conda_ask()
        part = step.conda_part(lock, directory, ask, progress=clock.progress)
    except EnvsmithError as error:
        if options.conda_needed:
            raise
        note = f"no conda-lock.yml: {error.message}" + (f" ({error.hint})" if error.hint else "")
        clock.done("conda lock", note)
        return note
    files.update(part.texts)
    more = _conda_image(lock, part.lock, files)
    clock.done("conda lock", f"{', '.join(sorted(part.texts))} from {', '.join(ask.channels)}", cached=part.kept)
    return "; ".join([*part.notes, *more]) or None


def _conda_image(lock: Lock, conda: CondaLock, files: dict[str, str]) -> tuple[str, ...]:
    """Add ``Dockerfile.conda`` where its parts are known; a channel of this host's files is not inside a build."""
    from envsmith.lock.requirements import layer_text
    from envsmith.render.conda_dockerfile import render_conda
    from envsmith.sources.images import load_bases

    micromamba = load_bases().tool("micromamba")
    if lock.base is None or micromamba is None:
        return ()
    if any(p.url.startswith("file:") for p in conda.on(lock.cell.platform).packages):
        return ("no Dockerfile.conda: the channel is a folder of this machine",)
    files["Dockerfile.conda"] = render_conda(lock, conda, micromamba)
    if lock.build_pins:
        files.setdefault("requirements-build.txt", layer_text(lock.build_pins))
    return ()


def _export(outcome: Outcome, engine: Engine, clock: _Clock) -> None:
    """Write the image as an OCI layout beside its lock; the digest there is the one that a registry will know it by."""
    from envsmith.engine.rebuild import LAYOUT, ImageEngine

    if outcome.built is None or not isinstance(engine, ImageEngine):
        return
    clock.start("oci")
    image = engine.export(outcome.built, outcome.directory / LAYOUT, progress=clock.progress)
    clock.done("oci", f"{outcome.directory / LAYOUT}: {image.manifest_digest}")


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
    store.write(outcome.directory, {"record.json": record_text(record, outcome.directory)})
    return record


def record_text(record: Record, directory: Path) -> str:
    """A record as it is written and published: where the cell stood on this machine is nobody's business, ``.`` stands for it."""
    text = json.dumps(record.to_json(), indent=1, ensure_ascii=False) + "\n"
    return text.replace(str(directory.resolve()), ".")


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
    from envsmith.smoke.bandwidth import peaks
    from envsmith.smoke.failure import failure_of

    rungs = rungs_of(result)
    return Record(
        cell_id=str(outcome.cell.id),
        components=outcome.cell.components,
        lock_digest=outcome.lock.digest,
        engine=engine,
        environment_digest=outcome.built.digest,
        image=outcome.built.digest if outcome.built.kind == "image" else None,
        rungs=rungs,
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
        case_list=result.digest,
        failure=failure_of(result, rungs),
        bandwidth=peaks(result.bandwidth),
    )


def rungs_of(result: SmokeResult) -> tuple[Rung, ...]:
    """The rungs of the ladder that this run proved: collectives when every case is good, the framework step when one passed and none failed."""
    rungs = [Rung.SOLVED, Rung.LOCKED, Rung.INSTALLED]
    gpu = result.backend.startswith("nccl")
    if result.loaded:
        rungs.append(Rung.IMPORTED)
    if result.collectives_good and not result.bandwidth:  # what is timed is not checked
        rungs.append(Rung.COLLECTIVES_GPU if gpu else Rung.COLLECTIVES_CPU)
    ran = [step for step in result.steps if step.verdict.value != "skipped"]
    if ran and all(step.verdict.good for step in ran):
        rungs.append(Rung.FRAMEWORK_GPU if gpu else Rung.FRAMEWORK_CPU)
    return tuple(rungs)
