"""A record: the outcome of a run on a cell, never an opinion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["CaseOutcome", "Record", "Rung", "StepOutcome", "Verdict"]


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

    def to_json(self) -> dict[str, object]:
        """Schema 1. ``cases`` are grouped by verdict so that a record stays small; a bad one keeps its sentence."""
        good: dict[str, list[str]] = {}
        for case in self.cases:
            good.setdefault(case.verdict.value, []).append(case.case)
        bad = [
            {"case": c.case, "verdict": c.verdict.value, "blame": c.blame}
            for c in self.cases
            if not c.verdict.good or c.blame
        ]
        steps = [
            {
                "name": s.name,
                "verdict": s.verdict.value,
                "seconds": s.seconds,
                "detail": s.detail,
                "facts": dict(s.facts),
            }
            for s in self.steps
        ]
        return {
            "schema": 1,
            "cell": self.cell_id,
            "components": dict(self.components),
            "lock": self.lock_digest,
            "engine": self.engine,
            "environment": self.environment_digest,
            "image": self.image,
            "rungs": [r.value for r in self.rungs],
            "passed": self.passed,
            "summary": self.summary,
            "started": self.started,
            "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
            "host": dict(self.host),
            "loaded": dict(self.loaded),
            "backend": self.backend,
            "ranks": self.ranks,
            "cases": {k: sorted(v) for k, v in sorted(good.items())},
            "case_seconds": {c.case: round(c.seconds, 4) for c in self.cases if c.seconds is not None},
            "findings": bad,
            "steps": steps,
            "notes": list(self.notes),
        }
