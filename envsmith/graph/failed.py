"""Runs that failed -> known-bad cells: what failed here once is not chosen again, even before anybody knows why.

A warning, not an error: it speaks of one cell on one machine. Where the cause is known there is a rule beside it, which says more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envsmith.model.component import ComponentTable, Role
from envsmith.model.evidence import Evidence, EvidenceKind
from envsmith.model.rule import Row, Rule, RuleKind, Severity
from envsmith.model.version import Spec, parse_version

__all__ = ["failed_runs"]

# What follows from torch stands in no row: the cell is named by what was chosen.
_FOLLOWS = frozenset({"cuda", "nccl", "cudnn", "triton"})
_STAGES = {
    "locked": "install",
    "installed": "install",
    "imported": "import",
    "collectives(cpu)": "communication",
    "collectives(gpu)": "communication",
}
# Verdicts that a busy machine can cause.
_TRANSIENT = frozenset({"hang", "crash", "not-run"})


def failed_runs(records: Mapping[str, object], table: ComponentTable) -> list[Rule]:
    """One rule a framework and stage, a row for each cell whose newest run failed by its own fault. ``records`` maps file names to documents."""
    newest: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for name, value in records.items():
        if isinstance(value, dict) and isinstance(value.get("cell"), str):
            found = (str(value.get("started", "")), name, value)
            newest[value["cell"]] = max(newest.get(value["cell"], found), found, key=lambda f: f[:2])
    rows: dict[tuple[str, str], list[Row]] = {}
    for _, name, value in newest.values():
        row = _row(name, value, table)
        framework = next((c.name for c in table.with_role(Role.FRAMEWORK) if row and c.name in row.when), None)
        if row and framework:
            stage = _STAGES.get(str(value["failure"].get("rung")), "train")
            rows.setdefault((framework, stage), []).append(row)
    return [
        Rule(
            id=f"{framework}-run-failed-{stage}",
            kind=RuleKind.CONFLICTS,
            rows=tuple(rows[framework, stage]),
            stage=stage,
            cause="a run of this very cell failed",
            fix="Take another release of one of them; `envsmith matrix show CELL` tells what was seen.",
        )
        for framework, stage in sorted(rows)
    ]


def _row(name: str, record: Mapping[str, Any], table: ComponentTable) -> Row | None:
    failure, components = record.get("failure"), record.get("components")
    if record.get("passed") is not False or not isinstance(failure, dict) or not isinstance(components, dict):
        return None
    verdicts = {str(s.get("verdict")) for s in record.get("steps") or () if isinstance(s, dict)}
    if failure.get("of_host") is True or verdicts & _TRANSIENT:
        return None
    try:
        when = {
            str(n): Spec.exactly(parse_version(str(v)))
            for n, v in components.items()
            if n in table.by_name and n not in _FOLLOWS and table.by_name[n].role is not Role.HOST
        }
    except ValueError:
        return None  # the reader of records has told it
    day = str(record.get("started", ""))[:10]
    evidence = Evidence(kind=EvidenceKind.VALIDATED, source=f"record of {record['cell']}: {name}", date=day)
    return Row(
        when=when, severity=Severity.WARNING, symptom=str(failure.get("symptom", ""))[:300], evidence=(evidence,)
    )
