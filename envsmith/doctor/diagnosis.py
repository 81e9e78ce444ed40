"""What the doctor says: findings with confidence and taxonomy, the root cause apart from what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from envsmith.base.schema import AsJson, to_json, written
from envsmith.doctor.facts import Facts
from envsmith.model.finding import Finding, Repair
from envsmith.model.rule import Severity


class Weight(IntEnum):
    """What orders findings, the heaviest first: what the log proves, says and suggests, versions, what follows.

    The numbers say an order and nothing more. Between two of them is room for what is a little heavier or lighter.
    """

    PROVED = 100  # a rule over versions, and the log shows its failure
    NAMED = 95  # a message that the text itself calls the cause
    NAMED_SYMPTOM = 94  # the same, where several causes give the message
    SAID = 90  # a message that names its cause
    OF_RULE = 85  # the message of a rule, where no version confirms the rule
    FACT_ERROR = 80  # a rule over facts that says error
    ALONE = 75  # versions that cannot work, where the log shows nothing else
    BESIDE_SYMPTOM = 73  # the same beside a symptom that may have another cause
    SYMPTOM = 70  # a message that several causes give, and this is the usual one
    SUGGESTED = 65  # a message that the program itself calls a warning
    OF_STAGE = 64  # a warning over versions at the stage at which the log fails
    FOLLOWS = 60  # a message that an earlier failure gives
    BESIDE_CAUSE = 50  # versions that cannot work beside a message that names another cause
    FACT_WARNING = 45  # a rule over facts that warns
    OTHER = 44  # a message that is not a fault of the environment
    WARNED = 42  # a warning over versions that nothing in the log points to
    EXPLAINED = 40  # a message that another finding explains
    REMARK = 30  # a message that only says something worth knowing
    POSSIBLE = 22  # a known-bad pair of which one version is not known
    SHOWN = 20  # a note below this weight is shown on demand only
    FACT_NOTE = 12  # a rule over facts that notes
    NOTED = 10  # a note over versions

    @classmethod
    def of(cls, severity: Severity) -> Weight:
        """Return the usual weight of a rule over facts."""
        usual = {Severity.ERROR: cls.FACT_ERROR, Severity.WARNING: cls.FACT_WARNING, Severity.NOTE: cls.FACT_NOTE}
        return usual[severity]


@dataclass(frozen=True, kw_only=True, slots=True)
class Taxonomy(AsJson):
    """As the study counts: ``stage``, ``group`` and key of the root ``cause``, ``pattern`` of the fix."""

    stage: str = ""
    group: str = field(default="", metadata=written("cause_group"))
    cause: str = field(default="", metadata=written("cause_key"))
    pattern: str = field(default="", metadata=written("fix_pattern"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosed:
    """One finding. ``role``: root, also (another cause), consequence, note.

    ``confidence``: high, medium, low. ``score`` orders them.

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
        """Return the shape of a finding with the doctor's own fields."""
        own = {"role": self.role, "confidence": self.confidence, "taxonomy": self.taxonomy.to_json()}
        optional = {"where": self.where, "quote": self.quote, "lines": list(self.lines)}
        return self.finding.to_json() | own | {name: value for name, value in optional.items() if value}


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """``status`` as ``check`` has it.

    ``checked`` and ``not_checked`` are sentences: what was looked at, what could not be.
    """

    status: str
    diagnosed: tuple[Diagnosed, ...] = ()
    facts: Facts = field(default_factory=Facts)
    inferred: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    repair: Repair | None = None
    commands: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Diagnosed | None:
        """Return the finding that comes first and is more than a note."""
        return next((d for d in self.diagnosed if d.role == "root"), None)

    def worst(self) -> Severity | None:
        """Return the gravest severity among the findings."""
        return next((s for s in Severity if any(d.finding.severity is s for d in self.diagnosed)), None)

    def to_json(self) -> dict[str, object]:
        """Return the shape of ``check`` with what was understood, checked and not checked."""
        return {
            "status": self.status,
            "findings": [d.to_json() for d in self.diagnosed],
            "repair": None if self.repair is None else self.repair.to_json() | {"commands": dict(self.commands)},
            "inferred": dict(self.inferred),
            "unknown": list(self.unknown),
            "checked": list(self.checked),
            "not_checked": list(self.not_checked),
            "understood": to_json(self.facts.read),
            "facts": self.facts.to_json(),
        }
