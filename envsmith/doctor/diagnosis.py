"""What the doctor says: findings with confidence and taxonomy, the root cause apart from what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envsmith.model.finding import Finding, Repair
from envsmith.model.rule import Severity
from envsmith.sources.reports.facts import Facts

__all__ = ["Diagnosed", "Diagnosis", "Taxonomy"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Taxonomy:
    """As the study counts: ``stage``, ``group`` and key of the root ``cause``, ``pattern`` of the fix."""

    stage: str = ""
    group: str = ""
    cause: str = ""
    pattern: str = ""

    def to_json(self) -> dict[str, str]:
        """Field names of the study."""
        return {"stage": self.stage, "cause_group": self.group, "cause_key": self.cause, "fix_pattern": self.pattern}


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosed:
    """One finding. ``role``: root, also (another cause), consequence, note. ``confidence``: high, medium, low. ``score`` orders them.

    ``where`` is ``source:line`` of the message, ``quote`` that line; ``lines`` are exact lines to type.
    """

    finding: Finding
    confidence: str
    score: int
    role: str = "also"
    taxonomy: Taxonomy = Taxonomy()
    where: str | None = None
    quote: str | None = None
    lines: tuple[str, ...] = ()
    confirmed: bool = False
    position: int = 1 << 40

    def to_json(self) -> dict[str, object]:
        """The finding's shape of DESIGN.md with the doctor's own fields beside it."""
        more: dict[str, object] = {
            "role": self.role,
            "confidence": self.confidence,
            "taxonomy": self.taxonomy.to_json(),
        }
        for name in ("where", "quote"):
            if getattr(self, name):
                more[name] = getattr(self, name)
        if self.lines:
            more["lines"] = list(self.lines)
        return self.finding.to_json() | more


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """``status`` as ``check`` has it. ``checked`` and ``not_checked`` are sentences: what was looked at, what could not be."""

    status: str
    found: tuple[Diagnosed, ...] = ()
    facts: Facts = field(default_factory=Facts)
    inferred: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    repair: Repair | None = None
    commands: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Diagnosed | None:
        """The finding that comes first and is more than a note, or ``None``."""
        return next((d for d in self.found if d.role == "root"), None)

    def worst(self) -> Severity | None:
        """The gravest severity among the findings."""
        order = (Severity.ERROR, Severity.WARNING, Severity.NOTE)
        return next((s for s in order if any(d.finding.severity is s for d in self.found)), None)

    def to_json(self) -> dict[str, object]:
        """DESIGN.md's ``check`` plus what was understood, checked and not checked."""
        return {
            "status": self.status,
            "findings": [d.to_json() for d in self.found],
            "repair": None if self.repair is None else self.repair.to_json() | {"commands": dict(self.commands)},
            "inferred": dict(self.inferred),
            "unknown": list(self.unknown),
            "checked": list(self.checked),
            "not_checked": list(self.not_checked),
            "understood": [read.to_json() for read in self.facts.read],
            "facts": self.facts.to_json(),
        }
