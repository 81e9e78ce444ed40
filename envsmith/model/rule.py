"""Rules, releases and what was tested: the version graph as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from envsmith.base.schema import AsJson, Day, Sha256, Text, strict, written
from envsmith.model.cell import Platform, WheelPolicy
from envsmith.model.component import ComponentTable
from envsmith.model.version import Spec

# The stage of the rules that only concern what is to be locked.
LOCK_STAGE = "lock"
# The cause of a row that needs one of some Pythons, where there is no source distribution for the others.
WHEELS_ONLY = "there are wheels for these only"
# The same of a release that has a source archive too.
WHEELS_OR_SOURCE = "For any other Python, pip compiles it from its source"


class RuleKind(str, Enum):
    """``bundles``: a wheel carries it. ``requires``: it needs it. ``conflicts``: known bad together."""

    BUNDLES = "bundles"
    REQUIRES = "requires"
    CONFLICTS = "conflicts"


class Severity(str, Enum):
    """``error``: does not work. ``warning``: works with trouble, the solver avoids it. ``note``: worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """One version of a component.

    ``index`` is ``default`` or ``pytorch`` for torch builds (``pip install torch`` gives the default one of a
    platform). ``platforms`` is empty when the release is the same everywhere. ``facts`` holds further fields of its
    line (``sdist_only``, ``build_imports``, ``cuda_majors``).
    """

    component: str
    version: str
    date: str | None = None
    yanked: str | None = None
    index: str | None = None
    platforms: tuple[Platform, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One statement. All of ``when`` hold => all of ``needs`` hold. With empty ``needs`` the combination itself is bad.

    ``platforms`` empty means everywhere. A note with a ``feature`` is an error where that feature is in use.
    """

    when: Mapping[str, Spec]
    needs: Mapping[str, Spec] = field(default_factory=dict)
    platforms: tuple[Platform, ...] = ()
    severity: Severity = Severity.ERROR
    feature: str | None = None
    symptom: str | None = None
    cause: str | None = None
    fix: str | None = None
    evidence: tuple[Evidence, ...] = ()

    @property
    def scope(self) -> tuple[str, ...]:
        """Return the components this row speaks of, ``when`` first."""
        return (*self.when, *(c for c in self.needs if c not in self.when))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A named statement over releases: its rows share id, kind and stage. No rule is without evidence.

    ``policies`` are those of ready wheels under which it holds. Empty means under every one. A row without a symptom,
    cause or fix of its own has that of the rule.
    """

    id: str
    kind: RuleKind
    rows: tuple[Row, ...]
    stage: str | None = None
    signature: str | None = None
    cause: str | None = None
    fix: str | None = None
    symptom: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)
    policies: tuple[WheelPolicy, ...] = ()

    def __post_init__(self) -> None:
        """Fill what the rows leave to the rule."""
        if self.symptom or self.cause or self.fix:
            rows = (
                replace(r, symptom=r.symptom or self.symptom, cause=r.cause or self.cause, fix=r.fix or self.fix)
                for r in self.rows
            )
            object.__setattr__(self, "rows", tuple(rows))

    @property
    def is_declared(self) -> bool:
        """Tell whether it is what releases require in their METADATA."""
        return "-declares-" in self.id

    @property
    def is_extra(self) -> bool:
        """Tell whether it is what an extra of releases requires."""
        return "-extra-" in self.id

    @property
    def foretells_installation(self) -> bool:
        """Tell whether it says that an installation fails, as it did in a run.

        An import that failed in a run is not among them: it ran without a GPU, and some fail for want of one.
        """
        return self.id.endswith("-run-failed-install")

    @property
    def locking(self) -> bool:
        """Return whether it says what can be locked. What somebody has may work all the same."""
        return self.stage == LOCK_STAGE

    @property
    def components(self) -> tuple[str, ...]:
        """Return every component any row speaks of, in order of first mention."""
        return tuple(dict.fromkeys(c for row in self.rows for c in row.scope))

    @property
    def needed(self) -> frozenset[str]:
        """Return the components of which a row says what is needed."""
        return frozenset(name for row in self.rows for name in row.needs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tested:
    """Somebody ran or ships ``framework`` ``version`` with these. It orders the answers and forbids nothing."""

    framework: str
    version: Spec
    torch: Spec
    cuda: Spec | None = None
    python: Spec | None = None
    kind: str = "ci"
    evidence: tuple[Evidence, ...] = ()

    @property
    def trains(self) -> bool:
        """Tell whether it trained: what was only compiled, or only asked for an answer, is no proof of that."""
        return self.kind not in {"build", "inference"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PassedRun:
    """A run that passed, with every release that its record names. It proves this very set.

    Where it ran in the environment at hand, ``stages`` are those of rules that it went through, and ``unused`` the
    components of the machine that it did without.
    """

    components: Mapping[str, str]
    evidence: Evidence
    platform: Platform = Platform.LINUX_64
    stages: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Knowledge:
    """All of ``matrix/``: releases oldest first, rules in file order.

    ``digest`` is the sha256 of the files it was read from. ``left_aside`` has a line for each record that is not one.
    """

    components: ComponentTable
    releases: Mapping[str, tuple[Release, ...]]
    rules: tuple[Rule, ...]
    tested: tuple[Tested, ...] = ()
    runs: tuple[PassedRun, ...] = ()
    gpus: Mapping[str, str] = field(default_factory=dict)
    gpus_on_arm: tuple[str, ...] = ()
    digest: str = ""
    left_aside: tuple[str, ...] = ()


# Where a fact comes from. Nothing is known without it.


class EvidenceKind(str, Enum):
    """How a fact was learned. A larger ``strength`` wins where two facts disagree."""

    VALIDATED = "validated"
    MEASURED = "measured"
    DECLARED = "declared"
    DOCUMENTED = "documented"
    REPORTED = "reported"

    @property
    def strength(self) -> int:
        """Return 5 for our own run down to 1 for an issue thread."""
        return {"validated": 5, "measured": 4, "declared": 3, "documented": 2, "reported": 1}[self.value]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence(AsJson):
    """One source. ``date`` is the ISO day on which it was read. ``sha256`` names the artifact that was read."""

    kind: EvidenceKind
    source: Text
    date: Day
    sha256: Sha256 | None = field(default=None, metadata=written(when_set=True))
    note: Text | None = field(default=None, metadata=written(when_set=True))

    def __str__(self) -> str:
        return f"{self.kind.value} {self.date}: {self.source}"
