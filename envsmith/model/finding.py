"""One thing that is wrong, and the whole judgement. The same shape wherever something is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envsmith.model.cell import Cell
from envsmith.model.rule import Evidence, Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """``components`` maps each component of the finding to the release (or spec) it is about.

    ``where`` is ``file:line``, or the file alone, of what it was read from, where that is known.
    """

    rule: str
    severity: Severity
    components: Mapping[str, str]
    message: str
    evidence: tuple[Evidence, ...] = ()
    fix: str | None = None
    symptom: str | None = None
    stage: str | None = None
    inferred: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the shape of DESIGN.md. ``symptom``, ``stage``, ``inferred`` and ``where`` only when known."""
        document: dict[str, object] = {
            "rule": self.rule,
            "severity": self.severity.value,
            "components": dict(self.components),
            "message": self.message,
            "evidence": [e.to_json() for e in self.evidence],
            "fix": self.fix,
        }
        optional = {"symptom": self.symptom, "stage": self.stage, "inferred": dict(self.inferred), "where": self.where}
        return document | {k: v for k, v in optional.items() if v}


@dataclass(frozen=True, kw_only=True, slots=True)
class Conflict:
    """One member of a refusal: a rule, or a wish of the request (``rule`` is then ``request:<component>``)."""

    rule: str
    components: Mapping[str, str]
    message: str
    evidence: tuple[Evidence, ...] = ()

    @property
    def is_wish(self) -> bool:
        """Whether the request asks for it, not a rule."""
        return self.rule.startswith("request:")

    def to_json(self) -> dict[str, object]:
        """Return the shape of DESIGN.md."""
        evidence = [e.to_json() for e in self.evidence]
        return {"rule": self.rule, "components": dict(self.components), "evidence": evidence, "message": self.message}


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One step of a repair: ``old`` is the release or wish that goes, ``new`` what comes."""

    component: str
    old: str | None
    new: str | None

    def to_json(self) -> dict[str, str | None]:
        """``{"component", "from", "to"}``."""
        return {"component": self.component, "from": self.old, "to": self.new}


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """The nearest valid cell: fewest components changed. ``cell`` was solved."""

    changes: tuple[Change, ...]
    cell: Cell
    message: str = ""

    def to_json(self) -> dict[str, object]:
        """Changes and the solved cell."""
        return {"message": self.message, "changes": [c.to_json() for c in self.changes], "cell": self.cell.to_json()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """A solved request: the cell, why each release, and other valid choices that a user may prefer."""

    cell: Cell
    why: tuple[str, ...] = ()
    warnings: tuple[Finding, ...] = ()
    alternatives: tuple[Cell, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Why no cell exists: a minimal conflict (without any one member a cell exists), and repairs, best first."""

    conflict: tuple[Conflict, ...]
    repairs: tuple[Repair, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """What ``check`` and ``doctor`` say: ``unknown`` when the graph knows too little, never a guess."""

    status: str  # ok | bad | unknown
    findings: tuple[Finding, ...] = ()
    inferred: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    repair: Repair | None = None

    def to_json(self) -> dict[str, object]:
        """Return the shape of DESIGN.md plus what was inferred and what is not known."""
        return {
            "status": self.status,
            "findings": [f.to_json() for f in self.findings],
            "repair": self.repair.to_json() if self.repair else None,
            "inferred": dict(self.inferred),
            "unknown": list(self.unknown),
        }
