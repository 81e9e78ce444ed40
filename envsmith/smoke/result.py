"""What became of a smoke test: what the verb prints, a record keeps and other modules ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from envsmith.base.json_types import JsonDict
from envsmith.model.record import CaseOutcome, Facts, Fault, StepOutcome, Unmet, Verdict
from envsmith.smoke.bandwidth import Measurement
from envsmith.smoke.events import CudaAnswer
from envsmith.smoke.fault import CELL, Attribution
from envsmith.smoke.health import LimitFinding


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeResult:
    """What became of a smoke test.

    ``exit_code`` is a :class:`~envsmith.agent.protocol.Exit`; ``summary`` one sentence; ``placement`` where the
    ranks were, ``place`` the same in few words; ``loaded`` versions as loaded in the cell; ``host`` the machine;
    ``seconds`` durations by phase; ``blame`` every problem; ``blamed`` the ranks of the first one; ``output`` the last
    words of ranks; ``limits`` what of the machine is too small, looked at before a rank was started; ``enough`` is
    false when so much was skipped that the run says nothing about the cell
    (:func:`~envsmith.smoke.coverage.too_little`): it has not passed then. ``cuda`` is what CUDA said when it was
    started. ``cause`` says whose fault it is
    where the run did not pass.
    """

    passed: bool
    exit_code: int
    summary: str
    backend: str = ""
    ranks: int = 0
    placement: str = ""
    place: str = ""
    cases: tuple[CaseOutcome, ...] = ()
    steps: tuple[StepOutcome, ...] = ()
    loaded: Facts = field(default_factory=dict)
    host: Facts = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    blame: tuple[str, ...] = ()
    blamed: tuple[int, ...] = ()
    output: Mapping[str, str] = field(default_factory=dict)
    tier: str = ""
    digest: str = ""
    bandwidth: tuple[Measurement, ...] = ()
    limits: tuple[LimitFinding, ...] = ()
    nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    narrowed: Facts = field(default_factory=dict)
    enough: bool = True
    cuda: CudaAnswer = field(default_factory=CudaAnswer)
    cause: Attribution = CELL

    @property
    def host_fault(self) -> str:
        """Return what of the machine is to blame that the run did not pass, or an empty text."""
        return self.cause.sentence if self.cause.fault is Fault.HOST else ""

    @property
    def known_defects(self) -> tuple[str, ...]:
        """Return the cases that are wrong as ``matrix/collectives.yaml`` says: they do not speak against the cell."""
        return tuple(case.case for case in self.cases if case.verdict is Verdict.WRONG and case.is_known)

    @property
    def collectives_good(self) -> bool:
        """Return whether enough cases ran and none but the known defects is bad."""
        defects = set(self.known_defects)
        return (
            bool(self.cases) and self.enough and all(case.verdict.good or case.case in defects for case in self.cases)
        )

    @property
    def late(self) -> tuple[str, ...]:
        """Return the cases for which the run had no time."""
        return tuple(case.case for case in self.cases if case.unmet is Unmet.TIME)

    def counts(self) -> dict[str, int]:
        """Count the cases of each verdict."""
        return dict(Counter(case.verdict.value for case in self.cases))

    def to_json(self) -> JsonDict:
        """Return everything, for ``envsmith smoke --json``."""
        return {
            "passed": self.passed,
            "exit_code": self.exit_code,
            "summary": self.summary,
            "tier": self.tier,
            "digest": self.digest,
            "backend": self.backend,
            "ranks": self.ranks,
            "placement": self.placement,
            "counts": self.counts(),
            "cases": [
                {"case": c.case, "verdict": c.verdict.value, "seconds": c.seconds, "blame": c.blame} for c in self.cases
            ],
            "steps": [
                {"name": s.name, "verdict": s.verdict.value, "seconds": s.seconds, "detail": s.detail}
                | {"facts": dict(s.facts)}
                for s in self.steps
            ],
            "loaded": dict(self.loaded),
            "host": dict(self.host),
            "seconds": dict(self.seconds),
            "notes": list(self.notes),
            "limits": [asdict(finding) for finding in self.limits],
            "host_fault": self.host_fault,
            "fault": None if self.passed else self.cause.fault.value,
            "blame": list(self.blame),
            "output": dict(self.output),
            **({"bandwidth": [m.to_json() for m in self.bandwidth]} if self.bandwidth else {}),
            **({"nodes": {node: list(ranks) for node, ranks in self.nodes.items()}} if self.nodes else {}),
            **({"narrowed": dict(self.narrowed)} if self.narrowed else {}),
        }
