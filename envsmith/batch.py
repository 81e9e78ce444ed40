"""Many cells in one go, in parallel within the machine's limits.

Each is solved and locked; cells of one torch are built after the one that makes their torch layer; what an earlier run finished is kept.
A cell that fails takes no other with it: its error is its result.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from envsmith.engine import buildkit
from envsmith.engine.base import Built, Engine, Event, EventKind, Progress, choose_engine, silent
from envsmith.engine.rebuild import LAYOUT
from envsmith.errors import EnvsmithError
from envsmith.model.lock import Lock
from envsmith.pipeline import Options, Outcome, build, lock_for

__all__ = ["Result", "build_many", "default_jobs"]

# What one build takes while it compiles and its smoke test runs four ranks.
_CORES, _BYTES = 4, 8 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One cell of a batch: what came of it, or the error; ``kept`` when an earlier run had finished it."""

    options: Options
    outcome: Outcome | None = None
    error: EnvsmithError | None = None
    kept: bool = False

    @property
    def good(self) -> bool:
        """Built, and not proved to be bad."""
        return self.kept or (self.outcome is not None and (self.outcome.record is None or self.outcome.record.passed))


def default_jobs() -> int:
    """How many cells this machine builds at a time: one for every four cores and eight gigabytes of memory."""
    cores = os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        memory = _BYTES
    return max(1, min(cores // _CORES, memory // _BYTES))


def build_many(
    cells: Sequence[Options], *, jobs: int = 0, again: bool = False, progress: Progress = silent
) -> tuple[Result, ...]:
    """Build every cell, ``jobs`` at a time (0: :func:`default_jobs`); results in the order asked for.

    A cell whose image is there and whose record of the same lock passed is kept, unless ``again``. ``EngineError`` when the engine that was
    asked for cannot be used: nothing else stops the batch but Ctrl-C.
    """
    engine = choose_engine(cells[0].engine if cells else None).engine
    tell = _serial(progress)
    results: dict[int, Result] = {}
    locks: dict[int, Lock] = {}
    for number, options in enumerate(cells):
        try:
            locks[number], kept = _locked(options, engine, _named(tell, options), again=again)
        except EnvsmithError as error:
            results[number] = Result(options=options, error=error)
            continue
        if kept is not None:
            results[number] = Result(options=options, outcome=kept, kept=True)

    def run(number: int) -> None:
        try:
            outcome = build(cells[number], progress=_named(tell, cells[number]))
            results[number] = Result(options=cells[number], outcome=outcome)
        except EnvsmithError as error:
            results[number] = Result(options=cells[number], error=error)

    waiting = {number: lock for number, lock in locks.items() if number not in results}
    first = _leaders(waiting)
    for turn in (first, [number for number in waiting if number not in first]):
        _in_parallel(run, turn, jobs or default_jobs())
    return tuple(results[number] for number in range(len(cells)))


def _in_parallel(run: Callable[[int], None], numbers: Iterable[int], jobs: int) -> None:
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="cell") as pool:
        try:
            list(pool.map(run, numbers))
        except BaseException:
            # Ctrl-C reaches this thread only; the others wait for their builds, which have to be told.
            pool.shutdown(wait=False, cancel_futures=True)
            buildkit.end_all()
            raise


def _leaders(locks: dict[int, Lock]) -> list[int]:
    """The first cell of every torch layer: its neighbours find that layer ready, or would each make it."""
    seen: dict[str, int] = {}
    for number, lock in locks.items():
        seen.setdefault(_torch_layer(lock), number)
    return list(seen.values())


def _torch_layer(lock: Lock) -> str:
    pins = [(p.name, p.version, sorted(a.sha256 for a in p.artifacts)) for p in lock.pins if p.layer == "torch"]
    text = json.dumps([lock.base.digest if lock.base else lock.python_version, sorted(pins)])
    return hashlib.sha256(text.encode()).hexdigest()


def _locked(options: Options, engine: Engine, progress: Progress, *, again: bool) -> tuple[Lock, Outcome | None]:
    """The cell's lock, written; and what an earlier run made of it, when that is there and proved."""
    outcome = lock_for(options, engine=engine, progress=progress)
    lock, record = outcome.lock, outcome.directory / "record.json"
    has: Callable[[str], bool] | None = getattr(engine, "has_image", None)
    if again or has is None:
        return lock, None
    try:
        told = json.loads(record.read_bytes())
        image = str(told["image"])
        proved = told["passed"] is True and told["lock"] == lock.digest
    except (OSError, ValueError, KeyError, TypeError):
        return lock, None
    exported = not options.oci or (outcome.directory / LAYOUT / "index.json").is_file()
    if not proved or not has(image) or not exported:
        return lock, None
    progress(Event(kind=EventKind.CACHED, step="build", text=f"{lock.name} is built and proved already"))
    built = Built(digest=image, kind="image", reference=f"envsmith/cell:{lock.name}", python="", cell=lock.cell.id)
    return lock, dataclasses.replace(outcome, built=built)


def _serial(progress: Progress) -> Progress:
    """One event at a time, whoever sends it."""
    gate = threading.Lock()

    def tell(event: Event) -> None:
        with gate:
            progress(event)

    return tell


def _named(progress: Progress, options: Options) -> Progress:
    """Put the request in front of every step: several run at a time."""
    name = options.request_text.removeprefix("--framework ").split(" --platform")[0]

    def tell(event: Event) -> None:
        progress(dataclasses.replace(event, step=f"[{name}] {event.step}".strip()))

    return tell
