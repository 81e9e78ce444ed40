"""What is said of a cell beside why it was chosen: what nobody has heard of, what is ready, what a lock compiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from envsmith.knowledge.wheels.offers import best_wheel
from envsmith.model.cell import Cell, WheelPolicy
from envsmith.model.component import Role
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity
from envsmith.model.version import Spec
from envsmith.solver.solver import Solver
from envsmith.solver.words import finding_of_row, join_words, rule_sentence

# Packages that one sentence names.
_MAX_NAMES = 4


def unheard(solver: Solver, cell: Cell) -> Iterator[str]:
    """Yield what the cell has on the request's word alone: releases, a driver and packages that envsmith does not know."""
    for name, version in cell.components.items():
        newest = next(reversed(solver.compiled.versions.get(name, ())), None)
        role = solver.compiled.roles[name]
        if newest and role is Role.COMPANION and version not in solver.compiled.versions[name]:
            yield (
                f"{name} {version}: envsmith knows no such release (the newest known is {newest}). "
                "A lock asks the index for it."
            )
        elif newest and name == "driver" and version != "none" and _branch(version) > _branch(newest):
            yield f"driver {version}: newer than all that envsmith knows (the newest known is {newest})."
    if names := [name for name in cell.further_names if solver.graph.components.find(name) is None]:
        remainder = [f"{len(names) - _MAX_NAMES} more"] * (len(names) > _MAX_NAMES)
        yield f"{join_words([*names[:_MAX_NAMES], *remainder])}: a lock asks whether the index has {'it' if len(names) == 1 else 'them'}."


def _branch(driver: str) -> int:
    return int(driver.partition(".")[0])


def ready(solver: Solver, cell: Cell, policy: WheelPolicy) -> Iterator[str]:
    """Yield which parts of the cell a lock takes as ready wheels, and whose they are."""
    table = solver.graph.components.by_name
    for name, version in cell.components.items():
        for distribution in table[name].distributions if name in table else ():
            if wheel := best_wheel(distribution, version, cell, policy=policy):
                origin = "its own project" if wheel.official else "another publisher"
                yield f"{name} {version}: a lock takes a ready wheel of {wheel.publisher} ({origin}): nothing is compiled."


def lock_notes(solver: Solver, cell: Cell, policy: WheelPolicy) -> Iterable[Finding]:
    """Return what is worth knowing before the cell is locked: what will be compiled, and how long that takes."""
    parts = cell.components
    for compiled in solver.compiled.rules_of(parts):
        if not compiled.locking or (compiled.policies and policy not in compiled.policies):
            continue
        notes = (row for row in compiled.rows if row.severity is Severity.NOTE)
        for note in (row for row in notes if not row.platforms or cell.platform.value in row.platforms):
            if solver.compiled.speaks_of(parts, note):
                rule = solver.graph.rule(compiled.id)
                row = rule.rows[note.number]
                first = next(iter(row.when))
                message = rule_sentence(rule, [replace(row, when={first: Spec("*")})], {})
                yield finding_of_row(rule, row, row.severity, {c: parts[c] for c in row.when}, message)
                break
