"""One thing that is wrong, and the whole judgement. The same shape wherever something is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from envsmith.base.schema import AsJson, written
from envsmith.errors import EnvsmithError
from envsmith.model.cell import Cell
from envsmith.model.rule import Evidence, Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding(AsJson):
    """``components`` maps each component of the finding to the release (or spec) it is about.

    ``needs`` maps components to the PEP 440 spec of the releases that do not have this fault, where that is known.
    ``where`` is ``file:line``, or the file alone, of what it was read from, where that is known.
    """

    rule: str
    severity: Severity
    components: Mapping[str, str]
    needs: Mapping[str, str] = field(default_factory=dict, metadata=written(when_set=True))
    message: str
    evidence: tuple[Evidence, ...] = ()
    fix: str | None = None
    symptom: str | None = field(default=None, metadata=written(when_set=True))
    stage: str | None = field(default=None, metadata=written(when_set=True))
    inferred: Mapping[str, str] = field(default_factory=dict, metadata=written(when_set=True))
    where: str | None = field(default=None, metadata=written(when_set=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Conflict(AsJson):
    """One member of a refusal: a rule, or a wish of the request (``rule`` is then ``request:<component>``)."""

    rule: str
    components: Mapping[str, str]
    evidence: tuple[Evidence, ...] = ()
    message: str

    @property
    def is_wish(self) -> bool:
        """Return whether the request asks for it, not a rule."""
        return self.rule.startswith("request:")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change(AsJson):
    """One step of a repair: ``old`` is the release or wish that goes, ``new`` what comes."""

    component: str
    old: str | None = field(metadata=written("from"))
    new: str | None = field(metadata=written("to"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair(AsJson):
    """The nearest valid cell: fewest components changed. ``cell`` was solved."""

    message: str = ""
    changes: tuple[Change, ...]
    cell: Cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution(AsJson):
    """A solved request: the cell, why each release, and other valid choices that a user may prefer."""

    cell: Cell
    why: tuple[str, ...] = ()
    alternatives: tuple[Cell, ...] = ()
    warnings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal(AsJson):
    """Why no cell exists: a conflict of which no member can be left out, and repairs, best first.

    ``further`` are conflicts that stay where the wishes of those before them are given up. ``stopped`` says that the search ended at its limit: a shorter conflict or a nearer repair may exist.
    """

    conflict: tuple[Conflict, ...]
    repairs: tuple[Repair, ...] = ()
    further: tuple[tuple[Conflict, ...], ...] = field(default=(), metadata=written(when_set=True))
    stopped: bool = field(default=False, metadata=written(when_set=True))


class UnsatisfiableError(EnvsmithError):
    """No cell satisfies the request. ``refusal`` carries the conflict and the repairs."""

    def __init__(
        self, message: str, *, refusal: Refusal | None = None, hint: str | None = None, details: Sequence[str] = ()
    ) -> None:
        super().__init__(message, hint=hint, details=details)
        self.refusal = refusal


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement(AsJson):
    """What ``check`` and ``doctor`` say: ``unknown`` when the graph knows too little, never a guess.

    ``proof`` is the run of this very set, where there was one.
    """

    status: str  # ok | bad | unknown
    findings: tuple[Finding, ...] = ()
    repair: Repair | None = None
    inferred: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    proof: Evidence | None = field(default=None, metadata=written(when_set=True))

    def settled(self) -> Judgement:
        """Return it with the status that its findings allow: an error is ``bad``, a warning is ``ok`` after a run."""
        severities = {finding.severity for finding in self.findings}
        if Severity.ERROR in severities:
            return replace(self, status="bad")
        is_doubtful = Severity.WARNING in severities and self.proof is None
        return replace(self, status="unknown") if is_doubtful and self.status == "ok" else self
