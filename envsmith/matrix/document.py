"""``matrix.json``: one document of a stable shape (``matrix/matrix.schema.json``)."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from envsmith.base.about import VERSION
from envsmith.base.json_types import JsonDict
from envsmith.frameworks import FRAMEWORKS, frameworks_of
from envsmith.knowledge.graph.expiry import Expiry, load_expiry
from envsmith.knowledge.graph.stacks import Stack, load_stacks, stacks_of
from envsmith.matrix.builds import gpus_json, torch_json
from envsmith.matrix.cells import CellState, cell_states
from envsmith.matrix.grid import grid_json, stable
from envsmith.matrix.vouchers import vouchers
from envsmith.model.cell import CellId
from envsmith.model.record import Rung, read_records
from envsmith.model.rule import Evidence, Knowledge, Row, Rule, Severity
from envsmith.solver.known_bad import stated_by_metadata
from envsmith.solver.solver import Solver

# The first number changes when a reader of the old shape would fail; new keys do not change it.
SCHEMA = 1


def states(root: Path, knowledge: Knowledge, today: dt.date) -> tuple[list[CellState], Expiry]:
    """Return every cell that has a record, and the table of expiry."""
    expiry = load_expiry(root, [r.version for r in knowledge.releases.get("torch", ())])
    return cell_states(read_records(root / "records"), expiry, today, vouchers(root)), expiry


def document(
    root: Path, solver: Solver, *, moment: dt.datetime, progress: Callable[[str], None] = lambda _line: None
) -> JsonDict:
    """Return the document. The same knowledge, records and moment give the same bytes."""
    knowledge = solver.knowledge()
    cells, expiry = states(root, knowledge, moment.date())
    return {
        "schema": SCHEMA,
        "generated": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "envsmith": VERSION,
        "knowledge": f"sha256:{knowledge.digest}",
        "ladder": [rung.value for rung in Rung],
        "expiry": [{"torch": x.torch.value, "passed": x.passed, "days": x.days} for x in expiry.lines],
        "summary": _summary(cells),
        "frameworks": [_framework(knowledge, name) for name in FRAMEWORKS],
        "stacks": _stacks(load_stacks(root).values(), cells),
        "torch": torch_json(root, knowledge),
        "gpus": gpus_json(knowledge),
        "cells": [state.to_json() for state in cells],
        "grid": grid_json(solver, progress=progress),
        "rules": {rule.id: _rule(rule) for rule in knowledge.rules},
    }


def _summary(cells: Sequence[CellState]) -> JsonDict:
    counts = Counter(state.status.value for state in cells)
    per = {
        name: {
            "cells": len(own := [s for s in cells if name in frameworks_of(s.best.components)]),
            "proved": sum(s.is_proved for s in own),
            "failed": sum(s.status.value == "failed" for s in own),
            "stale": sum(s.stale for s in own),
            "newest": max((s.best.day for s in own), default=None),
        }
        for name in FRAMEWORKS
    }
    return {"cells": len(cells), **{k.replace(" ", "_"): v for k, v in sorted(counts.items())}, "frameworks": per}


def _framework(knowledge: Knowledge, name: str) -> JsonDict:
    component = knowledge.components.by_name[name]
    return {
        "name": name,
        "title": component.title,
        "short": component.short,
        "releases": [{"version": r.version, "date": r.date} for r in stable(knowledge.releases.get(name, ()))],
    }


def _stacks(stacks: Collection[Stack], cells: Sequence[CellState]) -> list[JsonDict]:
    """Return each stack with the cells that were run of it."""
    runs = {state.id: stacks_of((name for name, _ in CellId.parse(state.id).components), stacks) for state in cells}
    return [
        {
            "name": stack.name,
            "title": stack.title,
            "requires": {name: spec.text for name, spec in stack.requires.items()},
            "cells": [cell for cell, those in runs.items() if stack in those],
        }
        for stack in stacks
    ]


def _rule(rule: Rule) -> JsonDict:
    """Return a rule in words, with rows where metadata does not state it (the grid has what follows from it)."""
    words: JsonDict = {
        "kind": rule.kind.value,
        "stage": rule.stage,
        "symptom": rule.symptom,
        "signature": rule.signature,
        "cause": rule.cause,
        "fix": rule.fix,
        "by_metadata": stated_by_metadata(rule),
        "severity": "error" if any(r.severity is Severity.ERROR for r in rule.rows) else rule.rows[0].severity.value,
    }
    if words["by_metadata"]:
        return words | {"rows": [], "evidence": [_evidence(e) for e in rule.rows[-1].evidence[:1]]}
    sources = dict.fromkeys(e for row in rule.rows for e in row.evidence)
    return words | {"rows": [_row(row, rule) for row in rule.rows], "evidence": [_evidence(e) for e in sources]}


def _row(row: Row, rule: Rule) -> JsonDict:
    own = {"symptom": row.symptom, "cause": row.cause, "fix": row.fix}
    return {
        "when": {n: s.text for n, s in row.when.items()},
        "needs": {n: s.text for n, s in row.needs.items()},
        "severity": row.severity.value,
        **{k: v for k, v in own.items() if v and v != getattr(rule, k)},
    }


def _evidence(evidence: Evidence) -> JsonDict:
    return {"kind": evidence.kind.value, "source": evidence.source, "date": evidence.date}
