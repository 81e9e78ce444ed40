"""What the agent said of a run, as values: rows of ranks, halts, ends, what is loaded, how the machine is.

:mod:`envsmith.smoke.parse_events` reads them, once. Nothing in them is a judgement. A field that an event does not have
has its default, and a key that is not known is passed over.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Annotated, Any

from envsmith.agent.protocol import Phase
from envsmith.base.schema import Checked, Otherwise, Parsed, spelt, whole_number, written
from envsmith.model.record import Facts, Unmet
from envsmith.smoke.fields import (
    ByRank,
    CaseIndex,
    Code,
    Fraction,
    IsSet,
    Loss,
    Number,
    Rank,
    RankKey,
    Seconds,
    Whole,
    Words,
)
from envsmith.smoke.health import HealthReport, LimitFinding, RdmaCards

# A line of events is never longer than a few hundred kilobytes. A stream of nonsense must not fill the memory.
MAX_LINE = 8 << 20


class RowStatus(str, Enum):
    """What a rank says of a case or a step."""

    OK = "ok"
    WRONG = "wrong"
    ERROR = "error"
    REFUSED = "refused"
    SKIPPED = "skipped"


class HaltReason(str, Enum):
    """Why a run had to be ended."""

    LIMITS = "limits"  # the machine has no room for it
    IMPORT = "import"  # torch cannot be imported
    CONFIGURATION = "configuration"  # the plan asks for what this torch or machine does not have
    INTERRUPTED = "interrupted"
    EXIT = "exit"  # a rank ended
    NURSERY = "nursery"  # the process that starts ranks ended
    LAUNCHER = "launcher"  # the framework's launcher ended
    RAISED = "raised"
    STORE = "store"  # the owner of the store does not answer
    DEADLINE = "deadline"  # of a case
    TOTAL = "total"  # the deadline of the run
    OTHER = ""


# How fields are read. A broken cell may write anything.


def _phase(value: object, _context: object) -> Phase:
    if not isinstance(value, str) or value not in _PHASES:
        raise ValueError("the word of a phase belongs here")
    return _PHASES[value]


def _times(value: object, _context: object) -> tuple[float, ...]:
    """Read the measured times, without those that are no times."""
    times = value.get("us") if isinstance(value, Mapping) else None
    numbers = [float(t) for t in (times if isinstance(times, list) else ()) if isinstance(t, (int, float))]
    return tuple(number for number in numbers if abs(number) <= sys.float_info.max)


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a list belongs here")  # noqa: TRY004 - of an event, like the others
    return value


def _calls(counts: Mapping[str, int], _context: object) -> Mapping[str, int]:
    if not {"count", "bytes"} <= set(counts):
        raise ValueError("count and bytes belong here")
    return counts


_PHASES = {phase.word: phase for phase in Phase}
Lacking = Annotated[Unmet | None, Otherwise(None)]


@spelt
@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """Where a rank was: in which case or stage (``case``), how far in it, for how long (``age``), in which call.

    ``state`` is the kernel's letter for its process.
    """

    rank: Rank
    case: CaseIndex
    phase: Annotated[Phase, Parsed(_phase)] = field(metadata=written("step"))
    age: Number = 0.0
    signature: str = ""
    state: str = ""
    pid: Fraction = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessEnd:
    """How the process of a rank ended, and when. ``code`` is negative for a signal, ``None`` where it had not ended."""

    rank: Rank
    code: Code | None = None
    at: Number = 0.0


# Rows: what one rank wrote.


@spelt
@dataclass(frozen=True, kw_only=True, slots=True)
class CaseRow:
    """One case on one rank. ``call`` is the collective as it was called, ``micros`` the times that were measured.

    ``detail`` quotes torch where the case raised. Elsewhere it is the agent's sentence.
    """

    run: str
    rank: Rank
    case: CaseIndex
    status: RowStatus
    detail: Words = ""
    seconds: Seconds = field(default=0.0, metadata=written("ms"))
    call: str = field(default="", metadata=written("sig"))
    micros: Annotated[tuple[float, ...], Parsed(_times)] = field(default=(), metadata=written("measured"))
    unmet: Lacking = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRow:
    """One framework's step on one rank. ``stage`` is where it was when it raised, ``in_import`` says of which kind.

    ``detail`` quotes the error. ``collectives`` are count and bytes by name, ``None`` where they were not counted.
    ``recorded`` are the counts of torch's flight recorder.
    """

    run: str
    rank: Rank
    status: RowStatus = RowStatus.OK
    detail: Words = ""
    stage: Words = ""
    in_import: IsSet = False
    trace: Words = ""
    seconds: Number = 0.0
    losses: tuple[Loss, ...] = ()
    reference: tuple[Loss, ...] = ()
    facts: Facts = field(default_factory=dict)
    collectives: Mapping[str, Annotated[Mapping[str, Whole], Checked(_calls)]] | None = None
    recorded: Mapping[str, Whole] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestRow:
    """How manifests compare: keys on which ranks differ, each with those in the minority, and all ranks' ``values``."""

    run: str
    rank: Rank
    mismatch: Mapping[str, tuple[Rank, ...]] = field(default_factory=dict)
    values: Mapping[str, Mapping[RankKey, Words]] = field(default_factory=dict)
    warnings: Mapping[str, tuple[Rank, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedRow:
    """A rank that raised before its first case. ``detail`` quotes the error."""

    run: str
    rank: Rank
    stage: Annotated[str, Parsed(lambda value, _: str(value or "start"))] = "start"
    detail: Words = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteRow:
    """Something that is worth a word although nothing failed."""

    run: str
    rank: Rank
    detail: Words = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedRow:
    """A rank that its launcher ended, with the name of the signal, and where it was then."""

    run: str
    place: RankPlace
    signal: Words = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlightRow:
    """How many collectives torch's flight recorder counted on a rank."""

    run: str
    rank: Rank
    count: Annotated[int, whole_number(0, 1 << 40)] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRow:
    """Which implementation of the backend made the process group."""

    run: str
    implementation: Annotated[str | None, Parsed(lambda value, _: str(value) if value else None)] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRow:
    """The node on which a rank is."""

    run: str
    rank: Rank
    node: Words = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """All ranks' rows by their kind, each in the order in which they came."""

    cases: tuple[CaseRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    manifests: tuple[ManifestRow, ...] = ()
    failed: tuple[FailedRow, ...] = ()
    notes: tuple[NoteRow, ...] = ()
    ended: tuple[EndedRow, ...] = ()
    flights: tuple[FlightRow, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    nodes: tuple[NodeRow, ...] = ()

    def of_run(self, run: str) -> Rows:
        """Return the rows of one run: ``collectives`` or a step's name."""
        return Rows(**{kind.name: tuple(r for r in getattr(self, kind.name) if r.run == run) for kind in fields(self)})

    @property
    def raised(self) -> Mapping[int, CaseRow]:
        """Return the case that each rank raised in."""
        return {row.rank: row for row in self.cases if row.status is RowStatus.ERROR}


# Events of the supervisor, or of a rank that has none.


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreOwner:
    """The process of rank 0: its number, and the kernel's letter for it."""

    pid: Fraction = 0
    state: str = ""


def _last_words(launcher: object, _context: object) -> str:
    words = launcher.get("words", "") if isinstance(launcher, Mapping) else None
    if not isinstance(words, str):
        raise ValueError("the last words of a launcher belong here")  # noqa: TRY004 - of an event, like the others
    return words


def _stack(frames: tuple[str, ...], _context: object) -> tuple[str, ...]:
    if not frames:
        raise ValueError("a frame belongs here")
    return frames


@dataclass(frozen=True, kw_only=True, slots=True)
class HaltEvent:
    """A run that had to be ended: why, where each rank was, and the evidence.

    ``code`` is the agent's exit code for it where the reason alone does not say it, ``status`` how the process ended
    that is meant. ``lacks_gpu`` tells that CUDA is not usable. ``quote`` is what another program says of it. ``owner``
    is rank 0 where its store is silent. ``launcher`` holds the last words of the program that started the ranks.
    """

    reason: Annotated[HaltReason, Otherwise(HaltReason.OTHER)]
    run: str = ""
    detail: Words = ""
    quote: Words = ""
    code: Code | None = None
    status: Code | None = None
    lacks_gpu: IsSet = False
    where: tuple[RankPlace, ...] = ()
    exits: tuple[ProcessEnd, ...] = ()
    output: ByRank = field(default_factory=dict)
    stacks: Mapping[RankKey, Annotated[tuple[Words, ...], Checked(_stack)]] = field(default_factory=dict)
    limit: Number = 0.0
    silent: Number = 0.0
    owner: StoreOwner = field(default_factory=StoreOwner)
    launcher: Annotated[str, Parsed(_last_words)] = ""
    unkillable: tuple[Rank, ...] = ()
    oom_kills: Fraction = 0
    shm_bytes: Fraction = 0
    shm_free_bytes: Fraction = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnd:
    """A run that came to its end: the exit codes, and what NCCL wrote."""

    run: str = ""
    exits: tuple[ProcessEnd, ...] = ()
    output: ByRank = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBegin:
    """A framework step is run next."""

    run: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SkippedStep:
    """A step that was not run, and why."""

    step: str
    detail: Words = ""
    unmet: Lacking = None


@spelt
@dataclass(frozen=True, kw_only=True, slots=True)
class HealthEvent:
    """A machine before and after a run of ``seconds``. ``used`` are the GPUs of the run, ``None`` where unknown.

    ``variables`` are the user's own of NCCL. ``facts`` is all of it as the agent wrote it.
    """

    before: HealthReport
    after: HealthReport
    seconds: Number
    node: str = "node"
    used: tuple[Rank, ...] | None = None
    cards: RdmaCards = field(default_factory=RdmaCards, metadata=written("network"))
    variables: tuple[str, ...] = ()
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """What rank 0 said of the plan, so that it can be made again."""

    ranks: Whole
    nodes: Whole
    tier: Words = ""
    backend: Annotated[str, Parsed(lambda value, _: str(value or "auto"))] = "auto"
    engine: Annotated[str | None, Parsed(lambda value, _: str(value) if value else None)] = None
    digest: Words = ""


@spelt
@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """The first word. ``is_launched`` tells that torchrun, Slurm or MPI started the ranks."""

    is_launched: Annotated[bool, Parsed(lambda _value, _: True)] = field(default=False, metadata=written("launcher"))
    plan: Annotated[RunSummary | None, Otherwise(None)] = None


@spelt
@dataclass(frozen=True, kw_only=True, slots=True)
class HostEvent:
    """The machine. ``facts`` is all of it as the agent wrote it."""

    processors: Annotated[Whole | None, Otherwise(None)] = field(default=None, metadata=written("cpus"))
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedEvent:
    """What was imported: versions, empty where there is none. ``facts`` is all of it as the agent wrote it.

    ``nccl`` is the one that torch was compiled with, ``nccl_runtime`` the one in use. ``installed`` are distributions.
    """

    torch: Words = ""
    python: Words = ""
    cuda: Words = ""
    nccl: Words = ""
    nccl_runtime: Words = ""
    installed: Annotated[Mapping[str, Words], Otherwise({})] = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaAnswer:
    """What CUDA said when it was started: how many GPUs it can use, and the free bytes of each."""

    count: Fraction = 0
    free: tuple[Whole, ...] = ()


@spelt
@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementEvent:
    """Where the ranks are. ``place`` says it in few words, ``sentence`` with what it does not prove.

    ``is_shared`` tells that ranks share a GPU. ``variables`` are those that the placement set.
    """

    backend: str | None = None
    ranks: Rank | None = None
    sentence: str = ""
    place: str = ""
    is_shared: IsSet = False
    variables: Annotated[tuple[str, ...], Parsed(lambda value, _: tuple(value) if isinstance(value, dict) else ())] = (
        field(default=(), metadata=written("env"))
    )
    cuda: Annotated[CudaAnswer, Otherwise(CudaAnswer())] = field(default_factory=CudaAnswer)


@spelt
@dataclass(frozen=True, kw_only=True, slots=True)
class Bye:
    """The last word: seconds of each part, and how many helpers had outlived their rank."""

    seconds: Mapping[str, Number] = field(default_factory=dict)
    orphans: Annotated[int, Parsed(lambda value, _: len(_list(value)))] = field(default=0, metadata=written("leftover"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Events:
    """What was heard of a run. Of the words that are said once the first counts. ``dropped`` counts what is no event."""

    hello: Hello | None = None
    host: HostEvent = field(default_factory=HostEvent)
    loaded: LoadedEvent = field(default_factory=LoadedEvent)
    placement: PlacementEvent = field(default_factory=PlacementEvent)
    limits: tuple[LimitFinding, ...] = ()
    bye: Bye | None = None
    rows: Rows = field(default_factory=Rows)
    halts: tuple[HaltEvent, ...] = ()
    ends: tuple[RunEnd, ...] = ()
    skipped: tuple[SkippedStep, ...] = ()
    healths: tuple[HealthEvent, ...] = ()
    dropped: int = 0

    @property
    def unsupervised(self) -> bool:
        """Return whether torchrun or Slurm started the ranks: there is no supervisor, and no last word."""
        return self.hello is not None and self.hello.is_launched

    @property
    def output(self) -> Mapping[str, str]:
        """Return what ranks, and NCCL in them, wrote last, by run and rank."""
        outputs = [(event.run, event.output) for event in self.halts]
        outputs += [(event.run, event.output) for event in self.ends]
        return {f"{run} rank {rank}": text for run, output in outputs for rank, text in output.items()}
