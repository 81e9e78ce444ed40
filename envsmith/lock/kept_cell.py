"""Is what uv resolved still the cell? Versions against the cell, then every pin against every rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from envsmith.base.text import counted
from envsmith.errors import LockError
from envsmith.lock.cell_query import exact_version
from envsmith.model.cell import Cell
from envsmith.model.component import ComponentTable
from envsmith.model.finding import Judgement
from envsmith.model.lock import Pin
from envsmith.model.rule import Severity
from envsmith.model.version import is_same_version, public
from envsmith.solver import check

# Judges a cell with every pin that is a component.
Judge = Callable[[Cell, Mapping[str, str]], Judgement]


def judge_cell(cell: Cell, components: Mapping[str, str]) -> Judgement:
    """Judge by every rule. A repair may change what is pinned beside the cell, never the cell."""
    return check(components, cell.platform, keep=tuple(cell.components))


_HOST_FACTS = ("python", "cuda", "driver", "gpu", "toolkit", "gcc", "clang", "glibc", "cmake", "openmpi")


def differences(cell: Cell, pins: Iterable[Pin], table: ComponentTable) -> tuple[str, ...]:
    """Return a sentence for each component that is pinned in another version than the cell's, or not at all."""
    versions = {pin.name: pin.version for pin in pins}
    lines = []
    for name, version in cell.components.items():
        component = table.by_name.get(name)
        if component is None or name in _HOST_FACTS or not component.distributions:
            continue
        pinned = {d: versions[d] for d in component.distributions if d in versions}
        exact = exact_version(name, version, cell)
        if exact == "none":
            lines += [f"{name}: the cell says none, the resolver pinned {d} {v}" for d, v in pinned.items()]
        elif not pinned and name in {*cell.frameworks, "torch"}:
            lines.append(f"{name}: the cell says {version}, the resolver pinned none")
        else:
            # A torch that ships its own NCCL or cuDNN inside the wheel has no pin to compare.
            lines += [
                f"{name}: the cell says {version}, the resolver pinned {d} {v}"
                for d, v in pinned.items()
                if not is_same_version(v, exact) and (name == "torch" or not is_same_version(public(v), exact))
            ]
    return tuple(lines)


def as_components(cell: Cell, pins: Iterable[Pin], table: ComponentTable) -> dict[str, str]:
    """Return the cell with every pin that is a component: what the rules are asked about."""
    versions = dict(cell.components)
    for pin in pins:
        component = table.find(pin.name)
        if component is not None and pin.name in component.distributions:
            versions.setdefault(component.name, pin.version)
    return versions


def broken_rules(cell: Cell, pins: tuple[Pin, ...], table: ComponentTable, judge: Judge) -> Judgement | None:
    """Return the judgement of cell and pins together when a rule is broken, else ``None``."""
    judged = judge(cell, as_components(cell, pins, table))
    return judged if any(f.severity is Severity.ERROR for f in judged.findings) else None


def repairs(cell: Cell, judged: Judgement, table: ComponentTable) -> tuple[tuple[str, str], ...]:
    """Return the solved repair as constraints with their rule, or nothing where it would change the cell."""
    rules = ", ".join(sorted({f.rule for f in judged.findings if f.severity is Severity.ERROR}))
    changes = judged.repair.changes if judged.repair else ()
    lines = []
    for change in changes:
        component = table.by_name.get(change.component)
        if change.component in cell.components or component is None or not component.distributions or not change.new:
            return ()
        lines.append((f"{component.distributions[0]}=={change.new}", rules))
    return tuple(lines)


def refusal(cell: Cell, judged: Judgement) -> LockError:
    """Return the failure of a lock whose packages break rules that no repair beside the cell mends."""
    errors = [f for f in judged.findings if f.severity is Severity.ERROR]
    return LockError(
        f"Cannot lock {cell.id}: its pinned packages break {counted(len(errors), 'rule')}.",
        details=[f"{f.message} [{f.rule}]" for f in errors],
        hint=errors[0].fix or "Choose another release of one of the packages with --with.",
        names=[name for finding in errors for name in finding.components],
    )
