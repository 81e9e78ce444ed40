"""Where a fact comes from. Nothing is known without it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Evidence", "EvidenceKind"]


class EvidenceKind(str, Enum):
    """How a fact was learned; a larger ``strength`` wins where two facts disagree."""

    VALIDATED = "validated"
    MEASURED = "measured"
    DECLARED = "declared"
    DOCUMENTED = "documented"
    REPORTED = "reported"

    @property
    def strength(self) -> int:
        """5 for our own run down to 1 for an issue thread."""
        return {"validated": 5, "measured": 4, "declared": 3, "documented": 2, "reported": 1}[self.value]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One source. ``date`` is the ISO day on which it was read; ``sha256`` names the artifact that was read."""

    kind: EvidenceKind
    source: str
    date: str
    sha256: str | None = None
    note: str | None = None

    def to_json(self) -> dict[str, str]:
        """The shape used in findings and records."""
        optional = {"sha256": self.sha256, "note": self.note}
        return {"kind": self.kind.value, "source": self.source, "date": self.date} | {
            k: v for k, v in optional.items() if v
        }

    def __str__(self) -> str:
        return f"{self.kind.value} {self.date}: {self.source}"
