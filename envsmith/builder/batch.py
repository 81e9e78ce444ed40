"""Many cells in one go, in parallel within the machine's limits.

Each is solved and locked; cells of one torch are built after the one that makes their torch layer; what an earlier run finished is kept.
Where the engine takes part in a step that another build has under way, the next cells are locked, and their source distributions built, while
the first ones are still being built. A cell that fails takes no other with it: its error is its result.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import read_bounded, write_together
from envsmith.base.programs import end_all
from envsmith.base.progress import EventKind, Progress, ProgressEvent, silent
from envsmith.base.schema import parse_json
from envsmith.builder.arrow import build, lock_for
from envsmith.builder.engines import choose_engine
from envsmith.builder.engines.base import Built, Engine
from envsmith.builder.engines.rebuild import LAYOUT
from envsmith.builder.image.companions import BAKE_FILE, bake
from envsmith.builder.options import BuildOutcome, Options
from envsmith.errors import DataError, EnvsmithError, InterruptedRunError
from envsmith.model.lock import Lock
from envsmith.model.record import RECORD_FILE

# What one build takes while it compiles and its smoke test runs four ranks.
_CORES, _BYTES = 4, 8 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchResult:
    """One cell of a batch: what came of it, or the error; ``is_kept`` when an earlier run had finished it."""

    options: Options
    outcome: BuildOutcome | None = None
    error: EnvsmithError | None = None
    is_kept: bool = False

    @property
    def good(self) -> bool:
        """Return whether it was built, and not proved to be bad."""
        return self.is_kept or (
            self.outcome is not None and (self.outcome.record is None or self.outcome.record.passed)
        )


def default_jobs() -> int:
    """Return how many cells this machine builds at a time: one for every four cores and eight gigabytes of memory."""
    cores = os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        memory = _BYTES
    return max(1, min(cores // _CORES, memory // _BYTES))


def build_many(
    cells: Sequence[Options],
    *,
    jobs: int = 0,
    again: bool = False,
    engine: Engine | None = None,
    progress: Progress = silent,
) -> tuple[BatchResult, ...]:
    """Build every cell, ``jobs`` at a time (0: :func:`default_jobs`), and return the results in the order of ``cells``.

    A cell whose image exists and whose record of the same lock passed is kept, unless ``again``. Raises ``EngineError`` when the requested engine
    cannot be used and ``InterruptedRunError`` on Ctrl-C. Nothing else stops the batch.
    """
    builder = engine or choose_engine(cells[0].engine if cells else None).engine
    tell = _serial(progress)
    results: dict[int, BatchResult] = {}
    locked: list[tuple[int, str]] = []
    builds: list[Future[None]] = []
    first_of_layer: dict[str, Future[None]] = {}

    def run(number: int, first: Future[None] | None) -> None:
        if first is not None:
            wait([first])  # it makes the torch layer that this cell shares
        options = cells[number]
        try:
            outcome = build(options, engine=builder, progress=_named(tell, options.request_text))
            results[number] = BatchResult(options=options, outcome=outcome)
        except EnvsmithError as error:
            results[number] = BatchResult(options=options, error=error)

    def start_builds() -> None:
        layers = [layer for _, layer in locked]
        # The first cell of every layer starts before its neighbours, which wait for it.
        for index in sorted(range(len(locked)), key=lambda i: layers.index(layers[i]) != i):
            number, layer = locked[index]
            builds.append(pool.submit(run, number, first_of_layer.get(layer)))
            first_of_layer.setdefault(layer, builds[-1])
        locked.clear()

    with ThreadPoolExecutor(max_workers=jobs or default_jobs(), thread_name_prefix="cell") as pool:
        try:
            for number, options in enumerate(cells):
                try:
                    lock, finished = _locked(options, builder, _named(tell, options.request_text), again=again)
                except InterruptedRunError:
                    raise
                except EnvsmithError as error:
                    results[number] = BatchResult(options=options, error=error)
                    continue
                if finished is not None:
                    results[number] = BatchResult(options=options, outcome=finished, is_kept=True)
                    continue
                locked.append((number, _torch_layer(lock)))
                if builder.shares_steps:  # the next cells are locked while this one is built
                    start_builds()
            start_builds()
            for future in builds:
                future.result()
        except BaseException:
            # Ctrl-C reaches this thread only; the others wait for their builds, which this ends.
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise
    return tuple(results[number] for number in range(len(cells)))


def write_bake(output: Path, results: Sequence[BatchResult]) -> None:
    """Write one bake file over all cells that have a Dockerfile, beside their folders."""
    outcomes = [result.outcome for result in results if result.outcome]
    if locks := {each.directory.name: each.lock for each in outcomes if each.lock.base is not None}:
        write_together(output, {BAKE_FILE: bake(locks)})


def _torch_layer(lock: Lock) -> str:
    pins = [(p.name, p.version, sorted(a.sha256 for a in p.artifacts)) for p in lock.pins if p.layer == "torch"]
    text = json.dumps([lock.base.digest if lock.base else lock.python_version, sorted(pins)])
    return hashlib.sha256(text.encode()).hexdigest()


def _locked(options: Options, engine: Engine, progress: Progress, *, again: bool) -> tuple[Lock, BuildOutcome | None]:
    """Write the cell's lock and return it, with what an earlier run made of it where that is proved."""
    outcome = lock_for(options, engine=engine, progress=progress)
    lock, record_file = outcome.lock, outcome.directory / RECORD_FILE
    if again or engine.images is None:
        return lock, None
    try:
        record = parse_json(read_bounded(record_file, 64 << 20))
        image = str(record["image"])
        proved = record["passed"] is True and record["lock"] == lock.digest
    except (DataError, ValueError, KeyError, TypeError):
        return lock, None
    exported = not options.oci or (outcome.directory / LAYOUT / "index.json").is_file()
    if not proved or not engine.images.has_image(image) or not exported:
        return lock, None
    progress(ProgressEvent(kind=EventKind.CACHED, step="build", text=f"{lock.name} is built and proved already"))
    built = Built(digest=image, kind="image", reference=f"envsmith/cell:{lock.name}", python="", cell=lock.cell.id)
    return lock, dataclasses.replace(outcome, built=built)


def _serial(progress: Progress) -> Progress:
    """Return a progress that passes on one event at a time, from any thread."""
    gate = threading.Lock()

    def tell(event: ProgressEvent) -> None:
        with gate:
            progress(event)

    return tell


def _named(progress: Progress, request: str) -> Progress:
    """Put the request in front of every step: several run at a time."""
    name = request.removeprefix("--framework ").split(" --platform")[0]

    def tell(event: ProgressEvent) -> None:
        progress(dataclasses.replace(event, step=f"[{name}] {event.step}".strip()))

    return tell
