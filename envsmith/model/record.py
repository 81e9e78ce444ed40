"""A record: the outcome of a run on a cell, never an opinion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["SCHEMA", "CaseOutcome", "Expected", "Failure", "Record", "Rung", "StepOutcome", "Verdict"]

# Schema 1 (until 2026-11-21) listed every case by name and every case's seconds: 10 kB a record.
SCHEMA = 2
# A record is at most 4 kB, so that ten thousand of them are read in a second: what is long is cut, and the number of what was left out is told.
_MAX_BAD = 6
_MAX_TEXT = 220
_MAX_LOG = 600
_HOST = ("cpus", "memory_bytes", "kernel", "machine", "os", "container", "driver", "gpus")
_LOADED = (
    "python", "glibc", "torch", "torch_git", "cuda", "cxx11_abi", "numpy", "nccl", "nccl_runtime", "cudnn", "installed", "backend_implementation",
    "nccl_transport",
)  # fmt: skip


class Rung(str, Enum):
    """The evidence ladder of DESIGN.md, lowest first."""

    SOLVED = "solved"
    LOCKED = "locked"
    INSTALLED = "installed"
    IMPORTED = "imported"
    COLLECTIVES_CPU = "collectives(cpu)"
    FRAMEWORK_CPU = "framework step(cpu)"
    COLLECTIVES_GPU = "collectives(gpu)"
    FRAMEWORK_GPU = "framework step(gpu)"


class Verdict(str, Enum):
    """What became of one case of a smoke test."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    WRONG = "wrong"
    ERROR = "error"
    HANG = "hang"
    CRASH = "crash"
    UNSUPPORTED = "unsupported-as-expected"
    UNEXPECTED = "unexpectedly-supported"
    REGRESSED = "regressed"
    SKIPPED = "skipped"
    NOT_RUN = "not-run"
    BELOW_FLOOR = "below-floor"

    @property
    def good(self) -> bool:
        """True when the case does not speak against the cell."""
        return self in {Verdict.PASS, Verdict.UNSUPPORTED, Verdict.SKIPPED, Verdict.UNEXPECTED}


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseOutcome:
    """``case`` is the case's name (``all_reduce[float32,sum,1027]``); ``seconds`` the slowest rank's time; ``blame`` one sentence."""

    case: str
    verdict: Verdict
    seconds: float | None = None
    blame: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """One framework step: ``name`` (``deepspeed zero-2 fp32``), verdict, what was observed, the reason when it was not run."""

    name: str
    verdict: Verdict
    seconds: float | None = None
    detail: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


class Expected(str, Enum):
    """What the version graph said of a cell before it was run."""

    GOOD = "good"
    WARNED = "warned"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why the climb ended: the ``rung`` that was not reached, ``symptom`` in one line as a user sees it, the ``log``'s last lines.

    ``of_host``: this host lacks what the rung needs (a GPU, a CPU extension); it says nothing against the cell.
    """

    rung: Rung
    symptom: str
    log: tuple[str, ...] = ()
    of_host: bool = False

    def to_json(self) -> dict[str, object]:
        """Cut to what a record may hold."""
        symptom = _cut(self.symptom, _MAX_TEXT)
        return {"rung": self.rung.value, "symptom": symptom, "of_host": self.of_host, "log": list(_last(self.log))}


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Written once per run; ``loaded`` are versions as loaded in the cell, not as declared. Times are UTC ISO 8601, durations seconds."""

    cell_id: str
    components: Mapping[str, str]
    lock_digest: str
    engine: str
    environment_digest: str
    rungs: tuple[Rung, ...]
    passed: bool
    summary: str
    started: str
    seconds: Mapping[str, float]
    host: Mapping[str, object]
    loaded: Mapping[str, object]
    backend: str
    ranks: int
    cases: tuple[CaseOutcome, ...] = ()
    steps: tuple[StepOutcome, ...] = ()
    image: str | None = None
    notes: tuple[str, ...] = ()
    case_list: str = ""
    failure: Failure | None = None
    expected: Expected | None = None
    rules: tuple[str, ...] = ()
    campaign: str | None = None
    earlier: tuple[Failure, ...] = ()
    bandwidth: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Schema 2, about 4 kB at most; the framework tier, with a dozen steps, 10 kB. Passing cases are counted, the others named; ``case_list`` is the hash of all that were to run.

        ``bandwidth`` stands there when that tier was run: per operation the peak. ``expected`` and ``rules`` are what the graph said before; ``earlier`` are attempts of the same run that failed before this one.
        """
        counts: dict[str, int] = {}
        for case in self.cases:
            counts[case.verdict.value] = counts.get(case.verdict.value, 0) + 1
        bad = [c for c in self.cases if not c.verdict.good or c.verdict is Verdict.UNEXPECTED]
        return {
            "schema": SCHEMA,
            "cell": self.cell_id,
            "components": dict(self.components),
            "campaign": self.campaign,
            "expected": self.expected.value if self.expected else None,
            "rules": list(self.rules),
            "lock": self.lock_digest,
            "engine": self.engine,
            "environment": self.environment_digest,
            "image": self.image,
            "rungs": [r.value for r in self.rungs],
            "passed": self.passed,
            "summary": _cut(self.summary, _MAX_TEXT),
            "failure": self.failure.to_json() if self.failure else None,
            "earlier": [e.to_json() for e in self.earlier],
            "started": self.started,
            "seconds": {k: round(v, 1) for k, v in self.seconds.items()},
            "host": {k: self.host[k] for k in _HOST if k in self.host},
            "loaded": {k: self.loaded[k] for k in _LOADED if self.loaded.get(k) is not None},
            "backend": self.backend,
            "ranks": self.ranks,
            "cases": {
                "list": self.case_list,
                "counts": dict(sorted(counts.items())),
                "bad": [
                    {"case": c.case, "verdict": c.verdict.value, "blame": _cut(c.blame or "", _MAX_TEXT)}
                    for c in bad[:_MAX_BAD]
                ],
            },
            "steps": [_step(step) for step in self.steps],
            **({"bandwidth": {op: dict(row) for op, row in self.bandwidth.items()}} if self.bandwidth else {}),
            "notes": [_cut(note, _MAX_TEXT) for note in self.notes[:_MAX_BAD]],
        }


def _step(step: StepOutcome) -> dict[str, object]:
    """A step with the facts that say what it proved; a trace stands in the failure's log."""
    facts = {k: v for k, v in step.facts.items() if k != "trace" and not k.startswith("losses")}
    seconds = None if step.seconds is None else round(step.seconds, 1)
    return {
        "name": step.name,
        "verdict": step.verdict.value,
        "seconds": seconds,
        "detail": _cut(step.detail, _MAX_TEXT),
        "facts": facts,
    }


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _last(lines: Sequence[str]) -> Sequence[str]:
    """The last lines that fit."""
    kept: list[str] = []
    room = _MAX_LOG
    for line in reversed(lines):
        room -= min(len(line), 200) + 4
        if room < 0:
            break
        kept.append(_cut(line, 200))
    return kept[::-1]
