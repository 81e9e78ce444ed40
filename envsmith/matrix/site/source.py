"""What the page is made from: the knowledge, its records, today."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from envsmith.matrix.expiry import load_expiry
from envsmith.matrix.records import Stored, read_records
from envsmith.matrix.site.build import Page, write_site
from envsmith.matrix.site.choices import make_choices
from envsmith.solve.known_bad import known_bad
from envsmith.solve.solver import Solver

__all__ = ["read_page", "write_all"]


def read_page(root: Path, *, solver: Solver | None = None) -> Page:
    """Read everything. ``DataError`` when a record or the table of expiry is broken. The day is ``SOURCE_DATE_EPOCH``'s when that is set."""
    from envsmith import __version__
    from envsmith.matrix.export.document import now
    from envsmith.solve.api import default_solver

    solver = solver or default_solver()
    stored = read_records(root / "records")
    keep: dict[str, set[str]] = {}
    for record in stored:
        for name, version in record.components.items():
            keep.setdefault(name, set()).add(version.split("+", maxsplit=1)[0] if name == "torch" else version)
    knowledge = solver.knowledge()
    fixes = {rule.id: next((row.fix for row in rule.rows if row.fix), rule.fix) or "" for rule in knowledge.rules}
    bad: list[Mapping[str, str]] = [
        {
            "components": " with ".join(f"{n} {v}" for n, v in entry.components.items()),
            "rule": entry.rule,
            "symptom": entry.symptom,
            "fix": fixes.get(entry.rule, ""),
        }
        for entry in known_bad(knowledge)
    ]
    bad += _failures(stored)
    return Page(
        choices=make_choices(solver, keep=keep),
        records=stored,
        expiry=load_expiry(root),
        bad=bad,
        today=now().date(),
        version=__version__,
    )


def _failures(stored: tuple[Stored, ...]) -> list[Mapping[str, str]]:
    """Runs that failed, by their symptom."""
    found: list[Mapping[str, str]] = []
    for record in stored:
        failure = record.failure
        if failure and not record.passed and not record.of_host:
            rules = record.data.get("rules") or ["record"]
            found.append(
                {"components": record.cell, "rule": str(rules[0]), "symptom": str(failure["symptom"]), "fix": ""}
            )
    return found


def write_all(
    page: Page,
    folder: Path,
    root: Path,
    *,
    solver: Solver | None = None,
    base_url: str = "",
    progress: Callable[[str], None] = lambda _line: None,
) -> int:
    """The page's files and, beside them, the data that it links to (``matrix.json``, a file a cell, badges, feed); how many."""
    from envsmith.matrix.export.document import document, now
    from envsmith.matrix.export.write import write_export
    from envsmith.solve.api import default_solver

    made = document(root, solver or default_solver(), moment=now(), progress=progress)
    return len(write_site(page, folder)) + write_export(folder, made, root, base_url)
