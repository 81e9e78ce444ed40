"""``matrix.json``: one document with everything, of a stable, versioned shape (``matrix/matrix.schema.json``, docs/reference/matrix-json.md)."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from envsmith.matrix.expiry import Expiry, load_expiry
from envsmith.matrix.export.cells import CellState, cell_states
from envsmith.matrix.export.grid import FRAMEWORKS, grid_json, stable
from envsmith.matrix.export.torch import gpus_json, torch_json
from envsmith.matrix.records import read_records
from envsmith.model.evidence import Evidence
from envsmith.model.record import Rung
from envsmith.model.rule import Knowledge, Row, Rule, Severity
from envsmith.solve.known_bad import stated_by_metadata
from envsmith.solve.solver import Solver

__all__ = ["SCHEMA", "document", "now", "states"]

# The first number changes when a reader of the old shape would fail; new keys do not change it.
SCHEMA = 1


def now() -> dt.datetime:
    """The present in UTC; ``SOURCE_DATE_EPOCH`` sets another."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    return (
        dt.datetime.fromtimestamp(int(epoch), tz=dt.timezone.utc)
        if epoch.isdigit()
        else dt.datetime.now(dt.timezone.utc)
    )


def states(root: Path, known: Knowledge, today: dt.date) -> tuple[list[CellState], Expiry]:
    """Every cell that has a record, and the table of expiry."""
    expiry = load_expiry(root, [r.version for r in known.releases.get("torch", ())])
    return cell_states(read_records(root / "records"), expiry, today), expiry


def document(
    root: Path, solver: Solver, *, moment: dt.datetime, progress: Callable[[str], None] = lambda _line: None
) -> dict[str, Any]:
    """The whole document. The same knowledge, records and moment give the same bytes."""
    from envsmith import __version__

    known = solver.knowledge()
    found, expiry = states(root, known, moment.date())
    return {
        "schema": SCHEMA,
        "generated": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "envsmith": __version__,
        "knowledge": f"sha256:{known.digest}",
        "ladder": [rung.value for rung in Rung],
        "expiry": [{"torch": x.torch.value, "passed": x.passed, "days": x.days} for x in expiry.lines],
        "summary": _summary(found),
        "frameworks": [_framework(known, name) for name in FRAMEWORKS],
        "torch": torch_json(root, known),
        "gpus": gpus_json(known),
        "cells": [state.to_json() for state in found],
        "grid": grid_json(solver, progress=progress),
        "rules": {rule.id: _rule(rule) for rule in known.rules},
    }


def _summary(found: Sequence[CellState]) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for state in found:
        counts[state.status.value] = counts.get(state.status.value, 0) + 1
    per = {
        name: {
            "cells": len(own := [s for s in found if name in s.best.components]),
            "proved": sum(s.status.value == "proved" for s in own),
            "failed": sum(s.status.value == "failed" for s in own),
            "stale": sum(s.stale for s in own),
            "newest": max((s.best.day for s in own), default=None),
        }
        for name in FRAMEWORKS
    }
    return {"cells": len(found), **{k.replace(" ", "_"): v for k, v in sorted(counts.items())}, "frameworks": per}


def _framework(known: Knowledge, name: str) -> dict[str, Any]:
    component = known.components.by_name[name]
    return {
        "name": name,
        "title": component.title,
        "short": component.short,
        "releases": [{"version": r.version, "date": r.date} for r in stable(known.releases.get(name, ()))],
    }


def _rule(rule: Rule) -> dict[str, Any]:
    """A rule in words; rows only of those that metadata does not state (the grid holds what follows from the others)."""
    told = {
        "kind": rule.kind.value,
        "stage": rule.stage,
        "symptom": rule.symptom,
        "signature": rule.signature,
        "cause": rule.cause,
        "fix": rule.fix,
        "by_metadata": stated_by_metadata(rule),
        "severity": "error" if any(r.severity is Severity.ERROR for r in rule.rows) else rule.rows[0].severity.value,
    }
    if told["by_metadata"]:
        return told | {"rows": [], "evidence": [_evidence(e) for e in rule.rows[-1].evidence[:1]]}
    seen = {e: None for row in rule.rows for e in row.evidence}
    return told | {"rows": [_row(row, rule) for row in rule.rows], "evidence": [_evidence(e) for e in seen]}


def _row(row: Row, rule: Rule) -> dict[str, Any]:
    own = {"symptom": row.symptom, "cause": row.cause, "fix": row.fix}
    return {
        "when": {n: s.text for n, s in row.when.items()},
        "needs": {n: s.text for n, s in row.needs.items()},
        "severity": row.severity.value,
        **{k: v for k, v in own.items() if v and v != getattr(rule, k)},
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {"kind": evidence.kind.value, "source": evidence.source, "date": evidence.date}
