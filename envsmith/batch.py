"""Many cells in one go, in parallel within the machine's limits.

Each is solved and locked; cells of one torch are built after the one that makes their torch layer; what an earlier run finished is kept.
Where the engine takes part in a step that another build has under way, the next cells are locked, and their source distributions built, while
the first ones are still being built. A cell that fails takes no other with it: its error is its result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from envsmith.build import build, lock_for
from envsmith.engines import buildkit, choose_engine
from envsmith.engines.base import Built, Engine
from envsmith.engines.rebuild import LAYOUT
from envsmith.errors import EnvsmithError, InterruptedRunError
from envsmith.model.lock import Lock
from envsmith.options import Options, Outcome
from envsmith.progress import Event, EventKind, Progress, silent

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
    cells: Sequence[Options],
    *,
    jobs: int = 0,
    again: bool = False,
    engine: Engine | None = None,
    progress: Progress = silent,
) -> tuple[Result, ...]:
    """Build every cell, ``jobs`` at a time (0: :func:`default_jobs`); results in the order asked for.

    A cell whose image is there and whose record of the same lock passed is kept, unless ``again``. ``EngineError`` when the engine that was
    asked for cannot be used, ``InterruptedRunError`` on Ctrl-C: nothing else stops the batch.
    """
    builder = engine or choose_engine(cells[0].engine if cells else None).engine
    tell = _serial(progress)
    results: dict[int, Result] = {}

    def run(number: int) -> None:
        options = cells[number]
        try:
            outcome = build(options, engine=builder, progress=_named(tell, options))
            results[number] = Result(options=options, outcome=outcome)
        except EnvsmithError as error:
            results[number] = Result(options=options, error=error)

    with _crew(run, jobs or default_jobs(), ahead=builder.shares_steps) as crew:
        for number, options in enumerate(cells):
            try:
                lock, kept = _locked(options, builder, _named(tell, options), again=again)
            except InterruptedRunError:
                raise
            except EnvsmithError as error:
                results[number] = Result(options=options, error=error)
                continue
            if kept is None:
                crew.add(number, _torch_layer(lock))
            else:
                results[number] = Result(options=options, outcome=kept, kept=True)
    return tuple(results[number] for number in range(len(cells)))


@contextlib.contextmanager
def _crew(run: Callable[[int], None], jobs: int, *, ahead: bool) -> Iterator[_Crew]:
    """A crew to give cells to, at the end of which all are built; with ``ahead`` it begins with the first."""
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="cell") as pool:
        crew = _Crew(run, pool)
        if not ahead:
            crew.hold()
        try:
            yield crew
            crew.finish()
        except BaseException:
            # Ctrl-C reaches this thread only; the others wait for their builds, which have to be told.
            pool.shutdown(wait=False, cancel_futures=True)
            buildkit.end_all()
            raise


class _Crew:
    """Builds cells as they are given to it, the first of every torch layer before its neighbours: else each of them would make that layer."""

    def __init__(self, run: Callable[[int], None], pool: ThreadPoolExecutor) -> None:
        self._run, self._pool = run, pool
        self._gate = threading.Lock()
        self._held: list[tuple[int, str]] | None = None
        # Who waits for a layer while its first cell is built; None once that is done.
        self._waiting: dict[str, list[int] | None] = {}
        self._futures: list[Future[None]] = []

    def hold(self) -> None:
        """Build nothing before :meth:`finish`."""
        self._held = []

    def add(self, number: int, layer: str) -> None:
        """One more cell."""
        if self._held is not None:
            self._held.append((number, layer))
            return
        with self._gate:
            if layer not in self._waiting:
                self._waiting[layer] = []
                self._futures.append(self._pool.submit(self._lead, number, layer))
            elif (queue := self._waiting[layer]) is not None:
                queue.append(number)
            else:
                self._futures.append(self._pool.submit(self._run, number))

    def _lead(self, number: int, layer: str) -> None:
        try:
            self._run(number)
        finally:
            with self._gate:
                followers, self._waiting[layer] = self._waiting[layer] or [], None
                with contextlib.suppress(RuntimeError):  # the pool is being closed: Ctrl-C
                    self._futures += [self._pool.submit(self._run, follower) for follower in followers]

    def finish(self) -> None:
        """Wait until every cell is built; what a build raised is raised."""
        held, self._held = self._held, None
        for number, layer in held or ():
            self.add(number, layer)
        done = 0
        while done < len(self._futures):  # a first cell adds its neighbours before it is done
            self._futures[done].result()
            done += 1


def _torch_layer(lock: Lock) -> str:
    pins = [(p.name, p.version, sorted(a.sha256 for a in p.artifacts)) for p in lock.pins if p.layer == "torch"]
    text = json.dumps([lock.base.digest if lock.base else lock.python_version, sorted(pins)])
    return hashlib.sha256(text.encode()).hexdigest()


def _locked(options: Options, engine: Engine, progress: Progress, *, again: bool) -> tuple[Lock, Outcome | None]:
    """The cell's lock, written; and what an earlier run made of it, when that is there and proved."""
    outcome = lock_for(options, engine=engine, progress=progress)
    lock, record = outcome.lock, outcome.directory / "record.json"
    if again or engine.images is None:
        return lock, None
    try:
        told = json.loads(record.read_bytes())
        image = str(told["image"])
        proved = told["passed"] is True and told["lock"] == lock.digest
    except (OSError, ValueError, KeyError, TypeError):
        return lock, None
    exported = not options.oci or (outcome.directory / LAYOUT / "index.json").is_file()
    if not proved or not engine.images.has_image(image) or not exported:
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
