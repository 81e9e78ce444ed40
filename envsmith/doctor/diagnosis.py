"""What the doctor says: findings with confidence and taxonomy, the root cause apart from what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envsmith.doctor.facts import Facts
from envsmith.model.finding import Finding, Repair
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.model.version import version_key


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


# Failure classes of rules over facts: what the study's taxonomy says of each cause.


_COMM = "comm-or-launch-setup"
_SETUP = "environment-or-toolchain-setup"
_TUNING = "distributed-feature-api-communication-tuning"
_PAIRING = "version-and-dependency-management"
_CODE = "framework-code-fix"
# Cause -> stage at which it shows, group of causes, pattern of the fix.
_CLASSES = {
    "apex-missing": ("import", "missing-optional-package", _SETUP),
    "apex-without-cuda-ext": ("import", "missing-optional-package", _SETUP),
    "broken-installation": ("import", "stale-or-foreign-binary", _PAIRING),
    "container-shm-too-small": ("comm-setup", _COMM, _SETUP),
    "cpu-only-torch": ("setup", "cuda-torch-mismatch", _PAIRING),
    "cuda-device-max-connections": ("setup", _COMM, _TUNING),
    "cuda-home-malformed": ("install", "toolchain-missing", _SETUP),
    "cuda-toolkit-missing": ("build", "toolchain-missing", _SETUP),
    "cuda-visible-devices-vs-launcher": ("launch", _COMM, _CODE),
    "driver-too-old": ("setup", "driver", _PAIRING),
    "extension-built-for-other-torch": ("import", "stale-or-foreign-binary", _PAIRING),
    "geforce-no-p2p": ("comm-setup", _COMM, _TUNING),
    "hostname-resolution-or-nccl-version": ("comm-setup", _COMM, _SETUP),
    "launcher-env-not-set-mpi4py": ("comm-setup", _COMM, _SETUP),
    "libcurand-not-on-link-path": ("build", "toolchain-missing", _SETUP),
    "libstdcxx-too-old": ("load", "stale-or-foreign-binary", _SETUP),
    "memlock-limit": ("comm-setup", _COMM, _SETUP),
    "missing-system-tool": ("build", "toolchain-missing", _SETUP),
    "more-ranks-than-gpus": ("launch", _COMM, _SETUP),
    "nccl-wrong-interface": ("comm-setup", _COMM, _TUNING),
    "ninja-not-usable": ("build", "toolchain-missing", _SETUP),
    "nvcc-too-old-for-arch": ("build", "gpu-arch", _PAIRING),
    "nvls-fabric-manager": ("comm-setup", _COMM, _SETUP),
    "open-files-limit": ("comm-setup", _COMM, _SETUP),
    "package-missing": ("setup", "missing-optional-package", _SETUP),
    "pdsh-or-ssh-not-usable": ("launch", _COMM, _SETUP),
    "stale-torch-extensions-cache": ("load", "stale-or-foreign-binary", _SETUP),
    "torch-not-installed-at-build": ("install", "toolchain-missing", _SETUP),
    "torch-too-old": ("import", "python-version-pair", _PAIRING),
    "triton-version-mismatch": ("train", "python-version-pair", _PAIRING),
    "variable-not-read": ("comm-setup", _COMM, _TUNING),
    "wrong-headers-nvhpc": ("build", "compiler", _SETUP),
    "wrong-nccl-loaded": ("import", "stale-or-foreign-binary", _PAIRING),
}


def failure(cause: str, stage: str | None = None) -> Taxonomy:
    """The class of a cause; ``stage`` where it shows at another stage than usual. ``KeyError`` for a cause that is not in the table."""
    usual, group, pattern = _CLASSES[cause]
    return Taxonomy(stage=stage or usual, group=group, cause=cause, pattern=pattern)


# How a rule over facts makes its finding: evidence, taxonomy and order in one call.


_DATE = "2026-11-21"


def make(
    rule: str,
    severity: Severity,
    message: str,
    fix: str,
    *,
    source: str,
    kind: EvidenceKind = EvidenceKind.DOCUMENTED,
    components: dict[str, str] | None = None,
    taxonomy: Taxonomy,
    confidence: str = "high",
    lines: tuple[str, ...] = (),
    score: int | None = None,
) -> Diagnosed:
    """A finding over facts, with its evidence."""
    evidence = (Evidence(kind=kind, source=source, date=_DATE),)
    finding = Finding(
        rule=rule,
        severity=severity,
        components=components or {},
        message=message,
        evidence=evidence,
        fix=fix,
        stage=taxonomy.stage,
    )
    default = {Severity.ERROR: 80, Severity.WARNING: 45, Severity.NOTE: 12}[severity]
    return Diagnosed(
        finding=finding,
        confidence=confidence,
        score=default if score is None else score,
        taxonomy=taxonomy,
        lines=lines,
    )


def below(version: str, bound: str) -> bool:
    """True when both are versions and ``version`` is the smaller."""
    try:
        mine, other = version_key(version), version_key(bound)
    except ValueError:
        return False
    return mine is not None and other is not None and mine < other


def there(facts: Facts, name: str) -> bool:
    """Whether a component is in use, its version told or not."""
    return name in facts.components or name in facts.host.get("present", "").split(",")


def some(facts: Facts, *names: str) -> dict[str, str]:
    """Those of the components that are in use, with their version or ``*``."""
    return {name: facts.version(name) or "*" for name in names if there(facts, name)}
