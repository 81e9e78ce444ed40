"""What the agent said of a run, as values: rows of ranks, halts, ends, what is loaded, how the machine is.

:mod:`envsmith.smoke.parse_events` fills them in, once. Nothing in them is a judgement. A field that an event does not
have has its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum

from envsmith.agent.protocol import Phase
from envsmith.model.record import Facts, Unmet

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


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """Where a rank was: in which case or stage (``case``), how far in it, for how long (``age``), in which call.

    ``state`` is the kernel's letter for its process.
    """

    rank: int
    case: int
    phase: Phase
    age: float = 0.0
    signature: str = ""
    state: str = ""
    pid: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessEnd:
    """How the process of a rank ended, and when. ``code`` is negative for a signal, ``None`` where it had not ended."""

    rank: int
    code: int | None = None
    at: float = 0.0


# Rows: what one rank wrote.


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseRow:
    """One case on one rank. ``call`` is the collective as it was called, ``micros`` the times that were measured.

    ``detail`` quotes torch where the case raised. Elsewhere it is the agent's sentence.
    """

    run: str
    rank: int
    case: int
    status: RowStatus
    detail: str = ""
    seconds: float = 0.0
    call: str = ""
    micros: tuple[float, ...] = ()
    unmet: Unmet | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRow:
    """One framework's step on one rank. ``stage`` is where it was when it raised, ``in_import`` says of which kind.

    ``detail`` quotes the error. ``collectives`` are count and bytes by name, ``None`` where they were not counted.
    ``recorded`` are the counts of torch's flight recorder.
    """

    run: str
    rank: int
    status: RowStatus = RowStatus.OK
    detail: str = ""
    stage: str = ""
    in_import: bool = False
    trace: str = ""
    seconds: float = 0.0
    losses: tuple[float, ...] = ()
    reference: tuple[float, ...] = ()
    facts: Facts = field(default_factory=dict)
    collectives: Mapping[str, Mapping[str, int]] | None = None
    recorded: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestRow:
    """How manifests compare: keys on which ranks differ, each with those in the minority, and all ranks' ``values``."""

    run: str
    rank: int
    mismatch: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    warnings: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedRow:
    """A rank that raised before its first case. ``detail`` quotes the error."""

    run: str
    rank: int
    stage: str = "start"
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteRow:
    """Something that is worth a word although nothing failed."""

    run: str
    rank: int
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedRow:
    """A rank that its launcher ended, with the name of the signal, and where it was then."""

    run: str
    place: RankPlace
    signal: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlightRow:
    """How many collectives torch's flight recorder counted on a rank."""

    run: str
    rank: int
    count: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRow:
    """Which implementation of the backend made the process group."""

    run: str
    implementation: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRow:
    """The node on which a rank is."""

    run: str
    rank: int
    node: str


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
class HaltEvent:
    """A run that had to be ended: why, where each rank was, and the evidence.

    ``code`` is the agent's exit code for it where the reason alone does not say it, ``status`` how the process ended
    that is meant. ``lacks_gpu`` tells that CUDA is not usable. ``quote`` is what another program says of it. ``owner``
    is rank 0 where its store is silent. ``launcher`` holds the last words of the program that started the ranks.
    """

    run: str
    reason: HaltReason
    detail: str = ""
    quote: str = ""
    code: int | None = None
    status: int | None = None
    lacks_gpu: bool = False
    where: tuple[RankPlace, ...] = ()
    exits: tuple[ProcessEnd, ...] = ()
    output: Mapping[int, str] = field(default_factory=dict)
    stacks: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    limit: float = 0.0
    silent: float = 0.0
    owner_pid: int = 0
    owner_state: str = ""
    launcher: str = ""
    unkillable: tuple[int, ...] = ()
    oom_kills: int = 0
    shm_bytes: int = 0
    shm_free_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnd:
    """A run that came to its end: the exit codes, and what NCCL wrote."""

    run: str
    exits: tuple[ProcessEnd, ...] = ()
    output: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBegin:
    """A framework step is run next."""

    run: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SkippedStep:
    """A step that was not run, and why."""

    step: str
    detail: str = ""
    unmet: Unmet | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuHealth:
    """A GPU as NVML sees it. ``counters`` are its states and counters by our names of them."""

    index: int
    name: str = ""
    uuid: str = ""
    arch: str = ""
    is_lost: bool = False
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthReport:
    """What NVML says of a machine. ``pairs`` are pairs of GPUs by the way on which they reach each other.

    ``xids`` are GPU and number of what the driver reported. ``silent`` is for how many seconds NVML did not answer.
    ``cuda_level`` is the newest CUDA of the driver, as NVML counts.
    """

    driver: str = ""
    cuda_level: int | None = None
    gpus: tuple[GpuHealth, ...] = ()
    pairs: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    xids: tuple[tuple[int, int], ...] = ()
    silent: float = 0.0

    @property
    def counters(self) -> Mapping[int, Mapping[str, int]]:
        """Return each GPU's states and counters."""
        return {gpu.index: gpu.counters for gpu in self.gpus}


@dataclass(frozen=True, kw_only=True, slots=True)
class RdmaCards:
    """Cards with an active port by their link layer, and what lets NCCL use them."""

    active: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    has_devices: bool = False
    has_peer_memory: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthEvent:
    """A machine before and after a run of ``seconds``. ``used`` are the GPUs of the run, ``None`` where unknown.

    ``variables`` are the user's own of NCCL. ``facts`` is all of it as the agent wrote it.
    """

    before: HealthReport
    after: HealthReport
    seconds: float
    node: str = "node"
    used: tuple[int, ...] | None = None
    cards: RdmaCards = field(default_factory=RdmaCards)
    variables: tuple[str, ...] = ()
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitFinding:
    """What of the machine is too small: ``error`` when the run cannot work, ``warning`` or ``note``."""

    limit: str
    severity: str
    message: str
    fix: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """What rank 0 said of the plan, so that it can be made again."""

    ranks: int
    nodes: int
    tier: str = ""
    backend: str = "auto"
    engine: str | None = None
    digest: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """The first word. ``is_launched`` tells that torchrun, Slurm or MPI started the ranks."""

    is_launched: bool = False
    plan: RunSummary | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostEvent:
    """The machine."""

    processors: int | None = None
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedEvent:
    """What was imported: versions, empty where there is none. ``facts`` is all of it as the agent wrote it.

    ``nccl`` is the one that torch was compiled with, ``nccl_runtime`` the one in use. ``installed`` are distributions.
    """

    torch: str = ""
    python: str = ""
    cuda: str = ""
    nccl: str = ""
    nccl_runtime: str = ""
    installed: Mapping[str, str] = field(default_factory=dict)
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaAnswer:
    """What CUDA said when it was started: how many GPUs it can use, and the free bytes of each."""

    count: int = 0
    free: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementEvent:
    """Where the ranks are. ``place`` says it in few words, ``sentence`` with what it does not prove.

    ``is_shared`` tells that ranks share a GPU. ``variables`` are those that the placement set.
    """

    backend: str | None = None
    ranks: int | None = None
    sentence: str = ""
    place: str = ""
    is_shared: bool = False
    variables: tuple[str, ...] = ()
    cuda: CudaAnswer = field(default_factory=CudaAnswer)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bye:
    """The last word: seconds of each part, and how many helpers had outlived their rank."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    orphans: int = 0


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
