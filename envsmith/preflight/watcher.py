"""Watching a job from inside: a thread per rank that publishes four numbers every few seconds through the store, never a collective.

The training script calls ``step()`` once a step, which costs less than a microsecond; everything else happens in the thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from envsmith.agent.processes import process_state, read_text
from envsmith.agent.protocol import one_line
from envsmith.agent.world import stored
from envsmith.base.schema import UNWRITTEN, AsJson, parse_json
from envsmith.launch.ranks import witness
from envsmith.launch.ranks.causes import Blame
from envsmith.launch.ranks.decide import decide
from envsmith.launch.ranks.evidence import LaunchEvidence, ProcessState, RankEvidence
from envsmith.launch.ranks.recorder import calls_of, stacks_of, stated_groups
from envsmith.preflight.group import JobPlace, find_place

if TYPE_CHECKING:
    from typing_extensions import Self


# What a rank sends of its recorder when it stands still. Ranks are rarely further apart.
_MOST_CALLS = 100


@dataclass(frozen=True)
class Alert:
    """Something that a person should know; ``kind`` is ``skew``, ``stall``, ``silent``, ``memory`` or ``nccl``."""

    kind: str
    rank: int
    message: str


@dataclass(frozen=True)
class Limits:
    """``skew``: times the median of the others; ``stall`` and ``silent`` in seconds; ``growth`` in bytes and as a part of the start."""

    skew: float = 1.5
    stall: float = 60.0
    silent: float = 60.0
    growth_bytes: int = 1 << 30
    growth_part: float = 0.2


@dataclass(frozen=True)
class Sample(AsJson):
    """One rank at one moment. ``mean`` is seconds per step since the last sample (of the rank's own work where ``computed`` is called)."""

    rank: int
    step: int = 0
    computed: int = 0
    steps: int = 0
    mean: float = 0.0
    age: float = 0.0
    rss: int = 0
    gpu: int = 0
    error: str = ""
    heard: float = field(default=0.0, compare=False, metadata=UNWRITTEN)

    @classmethod
    def parse(cls, text: bytes | str, heard: float) -> Sample | None:
        """Parse a sample of another rank. ``None`` for what is not one."""
        try:
            row = json.loads(text)
            names = [each.name for each in fields(cls) if each.name != "heard"]
            return cls(**{name: row[name] for name in names if name in row}, heard=heard)
        except (ValueError, TypeError, KeyError):
            return None


def alerts_of(
    before: Sequence[Mapping[int, Sample]],
    now: Mapping[int, Sample],
    clock: float,
    limits: Limits,
    judge: Callable[[], Blame | None] = lambda: None,
) -> list[Alert]:
    """Return what rank 0 sees in all samples: ranks that are slow (in two samples running), stand still or are silent.

    ``judge`` is asked where no rank moves: it returns what the ranks' own stacks and collectives say.
    """
    alerts = []
    for rank, sample in now.items():
        if clock - sample.heard > limits.silent:
            text = f"rank {rank} has not been heard of for {clock - sample.heard:.0f} s (it was in step {sample.step})"
            alerts.append(Alert(kind="silent", rank=rank, message=text))
    alerts += _stalled(now, limits, judge)
    for rank in now:
        factor = _slower(now, rank)
        if before and factor >= limits.skew and _slower(before[-1], rank) >= limits.skew:
            median = statistics.median(s.mean for r, s in now.items() if r != rank and s.steps)
            text = f"rank {rank} is slow: {now[rank].mean * 1e3:.0f} ms a step, the others {median * 1e3:.0f} ms ({factor:.1f} times)"
            alerts.append(Alert(kind="skew", rank=rank, message=text))
    return alerts


def _slower(samples: Mapping[int, Sample], rank: int) -> float:
    """Return how many times the median of the others, or 0 when it cannot be said."""
    mine = samples.get(rank)
    means = [s.mean for r, s in samples.items() if r != rank and s.steps and s.mean > 0]
    if mine is None or not mine.steps or not means:
        return 0.0
    return mine.mean / statistics.median(means)


def _stalled(now: Mapping[int, Sample], limits: Limits, judge: Callable[[], Blame | None]) -> list[Alert]:
    """Return the ranks that the others wait for while no rank moves: by their steps, and by where they stand."""
    if len(now) < 2 or any(sample.age < limits.stall for sample in now.values()):
        return []
    blame = judge()
    at = {rank: (sample.step, sample.computed) for rank, sample in now.items()}
    behind = min(at.values())
    late = tuple(rank for rank, place in at.items() if place == behind)
    if behind == max(at.values()):
        return [Alert(kind="stall", rank=rank, message=blame.message) for rank in blame.ranks] if blame else []
    why = f". {blame.message}" if blame and blame.ranks == late else ""
    part = f"has not done its part of step {behind[0] + 1} for"
    return [
        Alert(
            kind="stall", rank=rank, message=f"rank {rank} {part} {now[rank].age:.0f} s; the others have and wait{why}"
        )
        for rank in late
    ]


def _standing(rank: int, text: bytes) -> RankEvidence | None:
    """Parse what a rank says of where it stands. ``None`` for what is not that."""
    try:
        answer = parse_json(text)
        process = ProcessState(pid=0, state=answer["state"], waits_in=answer["waits_in"], answers=True)
        return RankEvidence(
            rank=rank,
            calls=calls_of(answer["calls"]),
            groups=stated_groups(answer["groups"]),
            stacks=stacks_of(answer),
            process=process,
            still=int(answer["still"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


class Watch:
    """A context manager; ``step()`` at the end of every training step.

    ``computed()`` (optional) just before the step waits for other ranks makes the step time the rank's own: without it a synchronous
    job's ranks all take as long as the slowest one. Every ``interval`` seconds each rank publishes a :class:`Sample`; rank 0 compares. Alerts are
    kept in ``alerts`` and given to ``on_alert`` (by default a line on stderr), each kind once per rank until it has been quiet.
    ``cost`` is the processor time of the thread, in seconds.

    Once it is made, it never raises into training: what goes wrong is one line on stderr, and the watch ends.
    """

    def __init__(
        self,
        *,
        interval: float = 5.0,
        limits: Limits | None = None,
        on_alert: Callable[[Alert], None] | None = None,
        timeout: float = 30.0,
        find: Callable[[float], JobPlace] = find_place,
    ) -> None:
        self.interval, self.limits, self.cost = interval, limits or Limits(), 0.0
        self.alerts: list[Alert] = []
        self._tell = on_alert or (lambda alert: _write(alert.message))
        self._timeout, self._find = timeout, find
        self._steps = self._computed = 0
        self._total = self._own = 0.0
        self._last = self._started_step = time.perf_counter()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._active: set[tuple[str, int]] = set()
        self._place: object = None
        self._still = 0

    # -- the training script's side ------------------------------------------------------------------------------------

    def step(self) -> None:
        """Note that a step has ended."""
        now = time.perf_counter()
        self._total += now - self._started_step
        self._started_step = self._last = now
        self._steps += 1

    def computed(self) -> None:
        """Note that the rank's own work of the step has ended. What follows waits for others."""
        now = time.perf_counter()
        self._own += now - self._started_step
        self._last = now
        self._computed += 1

    def start(self) -> Self:
        """Find the others and start the thread."""
        with _harmless():
            place = self._find(self._timeout)
            self._started_step = self._last = time.perf_counter()
            thread = threading.Thread(target=self._run, args=(place,), name="envsmith-watch", daemon=True)
            thread.start()
            self._thread = thread
        return self

    def stop(self) -> None:
        """End the thread. A rank that stopped is not called silent."""
        self._stop.set()
        thread, self._thread = self._thread, None
        with _harmless():
            if thread is not None and thread is not threading.current_thread():
                thread.join(timeout=10.0)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- the thread's side ---------------------------------------------------------------------------------------------

    def _run(self, place: JobPlace) -> None:
        with _harmless():
            self._watch(place)

    def _watch(self, place: JobPlace) -> None:
        store = place.store
        history: list[dict[int, Sample]] = []
        latest: dict[int, tuple[bytes, Sample]] = {}
        first: Sample | None = None
        before = (0, 0.0, 0, 0.0)
        while True:
            ended = self._stop.wait(self.interval)
            before, mine = self._sample(place.rank, before)
            first = first or (mine if mine.steps else None)
            alerts = _own_alerts(first, mine, self.limits)
            if store is not None:
                try:
                    if mine.age >= self.limits.stall / 2:
                        store.set(f"watch/{place.rank}/stands", self._stands())
                    store.set(f"watch/{place.rank}", b"" if ended else json.dumps(mine.to_json()).encode())
                    if place.rank == 0 and not ended:
                        heard = _hear(store, place.world, latest)
                        judge = partial(_judge, store, place.world, mine.age)
                        alerts += alerts_of(history, heard, time.monotonic(), self.limits, judge)
                        history = [heard]
                except Exception:  # noqa: BLE001 - the store went with rank 0: the job ends, and so do we
                    store = None
            self._raise(alerts)
            self.cost = time.thread_time()
            if ended:
                return

    def _sample(self, rank: int, before: tuple[int, float, int, float]) -> tuple[tuple[int, float, int, float], Sample]:
        """Return differences since the last sample. Nothing is locked: a sample that is torn by one step is as good."""
        now = (self._steps, self._total, self._computed, self._own)
        steps = now[0] - before[0]
        own, computed = now[3] - before[3], now[2] - before[2]
        mean = own / computed if computed else (now[1] - before[1]) / steps if steps else 0.0
        sample = Sample(
            rank=rank,
            step=now[0],
            computed=now[2],
            steps=steps,
            mean=round(mean, 6),
            age=round(time.perf_counter() - self._last, 1),
            rss=_rss(),
            gpu=witness.gpu_bytes(),
            error=_nccl_error(),
        )
        return now, sample

    def _stands(self) -> bytes:
        """Return where this rank stands: its stacks, its last collectives, and at how many looks it stood there before."""
        stacks = witness.all_stacks()
        place = [row["frames"] for row in stacks if row["is_main"]]
        self._still = self._still + 1 if place == self._place else 1
        self._place = place
        dump = json.loads(witness.recorder() or b"{}")
        dump["entries"] = dump.get("entries", [])[-_MOST_CALLS:]
        return json.dumps(
            {
                "stacks": stacks,
                "groups": witness.groups(),
                "calls": dump,
                "still": self._still,
                "state": process_state(os.getpid())[0],
                "waits_in": read_text("/proc/self/wchan", 64).strip("\0\n0"),
            }
        ).encode()

    def _raise(self, alerts: Sequence[Alert]) -> None:
        """Report what is new. What has gone may be reported again when it comes back."""
        active = {(alert.kind, alert.rank) for alert in alerts}
        for alert in alerts:
            if (alert.kind, alert.rank) not in self._active:
                self.alerts.append(alert)
                with contextlib.suppress(Exception):
                    self._tell(alert)
        self._active = active


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """Turn whatever fails into a line on stderr: training does not end because it is watched."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - any failure: a variable, the store, a thread that cannot start
        with contextlib.suppress(Exception):  # stderr may be closed
            _write(f"it has ended and the training goes on: {one_line(error)}")


def _hear(store: Any, world: int, latest: dict[int, tuple[bytes, Sample]]) -> dict[int, Sample]:
    """Return everybody's last sample. ``heard`` is when it last changed, by this rank's clock. An empty one: it has stopped."""
    clock = time.monotonic()
    for rank in range(world):
        if not stored(store, f"watch/{rank}"):
            continue
        text = store.get(f"watch/{rank}")
        if not text:
            latest.pop(rank, None)
        elif rank not in latest or latest[rank][0] != text:
            sample = Sample.parse(text, clock)
            if sample is not None:
                latest[rank] = (text, sample)
    return {rank: sample for rank, (_, sample) in latest.items()}


def _judge(store: Any, world: int, seconds: float) -> Blame | None:
    """Return the verdict on a job that stands still, from what each rank says of where it stands."""
    texts = {rank: store.get(f"watch/{rank}/stands") for rank in range(world) if stored(store, f"watch/{rank}/stands")}
    ranks = [one for rank, text in texts.items() if (one := _standing(rank, text))]
    return decide(LaunchEvidence(ranks=tuple(ranks), world=world, stalled=seconds)) if len(ranks) == world else None


def _own_alerts(first: Sample | None, now: Sample, limits: Limits) -> list[Alert]:
    """Return what a rank reports of itself: memory that grows, and NCCL's error."""
    alerts = []
    for what, start, here in (("host", first.rss, now.rss), ("GPU", first.gpu, now.gpu)) if first else ():
        growth = here - start
        if start and growth > limits.growth_bytes and growth > limits.growth_part * start:
            each = growth / max(now.step - (first.step if first else 0), 1)
            text = f"rank {now.rank}: {what} memory grew from {start / 2**30:.2f} to {here / 2**30:.2f} GiB ({each / 2**20:.2f} MiB a step)"
            alerts.append(Alert(kind="memory", rank=now.rank, message=text))
    if now.error:
        alerts.append(Alert(kind="nccl", rank=now.rank, message=f"rank {now.rank}: NCCL reports {now.error}"))
    return alerts


def _rss() -> int:
    import mmap

    fields = read_text("/proc/self/statm", 256).split()
    return int(fields[1]) * mmap.PAGESIZE if len(fields) > 1 else 0


def _nccl_error() -> str:
    """Return the default group's error state where torch has ``ProcessGroupNCCL.get_error``. Nothing is waited for."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    try:
        group = torch.distributed.group.WORLD
        state = group._get_backend(torch.device("cuda")).get_error()  # noqa: SLF001 - there is no public name
    except Exception:  # noqa: BLE001 - gloo, an older torch, no group
        return ""
    name = str(getattr(state, "name", state)).rpartition(".")[2]
    return "" if name == "SUCCESS" else name


def _write(message: str) -> None:
    sys.stderr.write(f"preflight: watch: {message}\n")
    sys.stderr.flush()
