"""How a rule over facts makes its finding: evidence, taxonomy and order in one call."""

from __future__ import annotations

from envsmith.doctor.diagnosis import Diagnosed, Taxonomy
from envsmith.model.evidence import Evidence, EvidenceKind
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity
from envsmith.model.version import version_key
from envsmith.sources.reports.facts import Facts

__all__ = ["below", "make", "some", "there"]

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
