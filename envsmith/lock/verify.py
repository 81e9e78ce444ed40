"""Is what uv resolved still the cell? Versions against the cell, then every pin against every rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from envsmith.errors import LockError
from envsmith.model.cell import Cell
from envsmith.model.component import ComponentTable
from envsmith.model.finding import Judgement
from envsmith.model.lock import Pin
from envsmith.model.platform import Platform

Judge = Callable[[Mapping[str, str], Platform], Judgement]

__all__ = ["Judge", "as_components", "broken_rules", "differences", "refuse_differences", "refuse_rules", "repairs"]

_HOST_FACTS = ("python", "cuda", "driver", "gpu", "toolkit", "gcc", "clang", "glibc", "cmake", "openmpi")


def differences(cell: Cell, pins: Iterable[Pin], table: ComponentTable) -> tuple[str, ...]:
    """One sentence for each component whose pin has another version than the cell, or that is not pinned at all."""
    found = {pin.name: pin.version for pin in pins}
    told = []
    for name, version in cell.components.items():
        component = table.by_name.get(name)
        if component is None or name in _HOST_FACTS or not component.distributions:
            continue
        pinned = {d: found[d] for d in component.distributions if d in found}
        wanted = version.partition("+")[0] if name == "torch" and cell.index == "default" else version
        if wanted == "none":
            told += [f"{name}: the cell says none, the resolver pinned {d} {v}" for d, v in pinned.items()]
        elif not pinned and name in {*cell.frameworks, "torch"}:
            told.append(f"{name}: the cell says {version}, the resolver pinned none")
        else:
            # A torch that ships its own NCCL or cuDNN inside the wheel has no pin to compare.
            told += [
                f"{name}: the cell says {version}, the resolver pinned {d} {v}"
                for d, v in pinned.items()
                if not _same(v, wanted)
            ]
    return tuple(told)


def _same(pinned: str, wanted: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(pinned) == Version(wanted)
    except InvalidVersion:
        return pinned == wanted


def as_components(cell: Cell, pins: Iterable[Pin], table: ComponentTable) -> dict[str, str]:
    """The cell with every pin that is a component: what the rules are asked about."""
    components = dict(cell.components)
    for pin in pins:
        known = table.find(pin.name)
        if known is not None and pin.name in known.distributions:
            components.setdefault(known.name, pin.version)
    return components


def _check(cell: Cell, components: Mapping[str, str]) -> Judgement:
    """What is pinned beside the cell may change; the cell itself is what was asked for."""
    from envsmith.solve.api import check

    return check(components, cell.platform, keep=tuple(cell.components))


def refuse_differences(cell: Cell, pins: tuple[Pin, ...], table: ComponentTable) -> None:
    """``LockError`` naming every difference between cell and pins."""
    told = differences(cell, pins, table)
    if told:
        raise LockError(
            f"cell {cell.id}: the package resolver gave other versions than the cell has",
            details=told,
            hint="the index serves other metadata than the version graph knows; report it with this output",
        )


def broken_rules(
    cell: Cell, pins: tuple[Pin, ...], table: ComponentTable, judge: Judge | None = None
) -> Judgement | None:
    """The judgement of cell and pins together when a rule is broken, else ``None``.

    ``judge`` is :func:`envsmith.solve.api.check` unless another one is given.
    """
    components = as_components(cell, pins, table)
    judged = judge(components, cell.platform) if judge else _check(cell, components)
    return judged if any(f.severity.value == "error" for f in judged.findings) else None


def repairs(cell: Cell, judged: Judgement, table: ComponentTable) -> tuple[tuple[str, str], ...]:
    """Constraints under which the resolver may choose again, with the rule: the repair that was solved, where it leaves the cell alone.

    Empty when there is no such repair: the cell itself would have to change.
    """
    rules = ", ".join(sorted({f.rule for f in judged.findings if f.severity.value == "error"}))
    changes = judged.repair.changes if judged.repair else ()
    lines = []
    for change in changes:
        component = table.by_name.get(change.component)
        if change.component in cell.components or component is None or not component.distributions or not change.new:
            return ()
        lines.append((f"{component.distributions[0]}=={change.new}", rules))
    return tuple(lines)


def refuse_rules(cell: Cell, judged: Judgement) -> LockError:
    """The error that tells every rule which the pinned packages break."""
    errors = [f for f in judged.findings if f.severity.value == "error"]
    return LockError(
        f"cell {cell.id}: the pinned packages break {len(errors)} rule{'s' if len(errors) > 1 else ''}",
        details=[f"{f.message} [{f.rule}]" for f in errors],
        hint=errors[0].fix or "choose another release of one of the packages with --with",
    )
