#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.10"
# dependencies = ["envsmith"]
# [tool.uv.sources]
# envsmith = { path = "..", editable = true }
# ///
"""Brings records of schema 1 to schema 2 and its names: the list of cases becomes counts, what a host has not become a fact of the cell.

Shows what it would do; ``--write`` does it. A second run finds nothing.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from envsmith.base.files import write_whole
from envsmith.model.record import (
    CaseOutcome,
    Cases,
    Failure,
    Record,
    Rung,
    StepOutcome,
    Verdict,
    record_name,
    record_text,
)


def migrated(old: dict[str, Any]) -> Record:
    """A record of schema 1 as a value of today. ``KeyError`` or ``ValueError`` when it is none."""
    blamed = {f["case"]: f["blame"] for f in old["findings"]}
    cases = tuple(
        CaseOutcome(case=case, verdict=Verdict(verdict), blame=blamed.get(case))
        for verdict, names in old["cases"].items()
        for case in names
    )
    steps = tuple(
        StepOutcome(
            name=s["name"], verdict=Verdict(s["verdict"]), seconds=s["seconds"], detail=s["detail"], facts=s["facts"]
        )
        for s in old["steps"]
    )
    rungs = tuple(Rung(r) for r in old["rungs"])
    return Record(
        cell=old["cell"],
        components=old["components"],
        lock=old["lock"],
        engine=old["engine"],
        environment=old["environment"],
        image=old["image"],
        rungs=rungs,
        passed=old["passed"],
        summary=old["summary"],
        started=old["started"],
        seconds=old["seconds"],
        host=old["host"],
        loaded=old["loaded"],
        backend=old["backend"],
        ranks=old["ranks"],
        cases=Cases.of(cases, ""),
        steps=steps,
        notes=tuple(old["notes"]),
        failure=None if old["passed"] else _failure(old["summary"], steps),
    )


def _failure(summary: str, steps: tuple[StepOutcome, ...]) -> Failure:
    bad = next((s for s in steps if not s.verdict.good), None)
    if bad is None:
        return Failure(rung=Rung.COLLECTIVES_CPU, symptom=summary)
    match = re.match(r"rank \d+ in ([^:]*): (.*?)(?:; rank \d+ in .*)?$", bad.detail, re.DOTALL)
    rung = Rung.IMPORTED if match and match[1].startswith("import ") else Rung.FRAMEWORK_CPU
    log = tuple(str(bad.facts.get("trace", "")).splitlines())
    return Failure(rung=rung, symptom=match[2] if match else bad.detail, log=log)


def main(argv: list[str]) -> int:
    """Migrate every record of the folder."""
    words = [a for a in argv if a != "--write"]
    folder = Path(words[0]) if words else Path(__file__).resolve().parent.parent / "matrix" / "records"
    count = 0
    for path in sorted(folder.glob("*.json")):
        old = json.loads(path.read_text(encoding="utf-8"))
        if old.get("schema") != 1:
            continue
        record = migrated(old)
        text = record_text(record)
        name = record_name(record.cell, record.engine, text)
        print(f"{path.name} ({path.stat().st_size} bytes) -> {name} ({len(text.encode())} bytes)")
        count += 1
        if "--write" in argv:
            write_whole(folder / name, text)
            path.unlink()
    print(f"{count} records of schema 1" + ("" if "--write" in argv or not count else "; bring them over with --write"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
