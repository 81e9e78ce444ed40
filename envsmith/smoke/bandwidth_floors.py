"""The bus bandwidth below which a node of a machine type is bad, as its operator publishes it: ``matrix/bandwidth.yaml``."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated

from envsmith.base.schema import Parsed, Text, WrongValueError, strict, whole_number, written
from envsmith.errors import UsageError
from envsmith.knowledge.graph.fields import Sources, load_table
from envsmith.model.rule import Evidence
from envsmith.smoke.bandwidth import FACTORS, Measurement, size_text

_Count = Annotated[int, whole_number(1, 1 << 50)]


def _operation(value: object, _context: object) -> str:
    if value not in FACTORS:
        raise WrongValueError(f"not one of {', '.join(FACTORS)}")
    return str(value)


def _positive(value: object, _context: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise WrongValueError("a positive number belongs here")
    return float(value)


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """The bus bandwidth below which the operator of ``machine`` calls a node bad, for a range of sizes."""

    machine: Text = field(metadata=written("name"))
    title: Text
    gpu: Text
    gpus: _Count
    nodes: _Count
    op: Annotated[str, Parsed(_operation)]
    min_bytes: _Count
    max_bytes: _Count
    busbw: Annotated[float, Parsed(_positive)]
    evidence: Sources

    @property
    def source(self) -> str:
        """Return where its operator says so."""
        return self.evidence[0].source

    @property
    def ranks(self) -> int:
        """Return how many ranks it was set for."""
        return self.gpus * self.nodes


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _Floors:
    """``matrix/bandwidth.yaml`` as values."""

    machines: tuple[Floor, ...]
    evidence: Mapping[str, Evidence] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortfall:
    """A floor that was missed, or could not be asked: ``reason`` is empty when it was missed."""

    floor: Floor
    sentence: str
    missed: bool


@cache
def load_floors(folder: Path | None = None) -> tuple[Floor, ...]:
    """Read and check the file. Raises :class:`DataError` that lists every problem with its key path."""
    return load_table(_Floors, "bandwidth.yaml", folder).machines


def floors_of(machine: str) -> tuple[Floor, ...]:
    """Return the floors of a machine type. Raises :class:`UsageError`, which lists the known ones."""
    every = load_floors()
    chosen = tuple(floor for floor in every if floor.machine == machine)
    if not chosen:
        raise UsageError(
            f"Cannot compare with a floor: none is published for the machine type {machine!r}.",
            hint="Use one of: " + ", ".join(dict.fromkeys(floor.machine for floor in every)) + ".",
        )
    return chosen


def below(floors: Iterable[Floor], measured: Sequence[Measurement], *, nodes: int) -> tuple[Shortfall, ...]:
    """Return the floors that were missed, and those that could not be asked here.

    Another number of ranks or nodes was asked for, or their sizes were not measured.
    """
    misses = []
    for floor in floors:
        name = f"{floor.title}: {floor.op} of {size_text(floor.min_bytes)}"
        name += f" to {size_text(floor.max_bytes)}" if floor.max_bytes != floor.min_bytes else ""
        rows = [m for m in measured if m.op == floor.op and 0.99 * floor.min_bytes <= m.bytes <= floor.max_bytes]
        here = {m.ranks for m in rows}
        if nodes != floor.nodes or (rows and here != {floor.ranks}):
            text = f"{name}: set for {floor.nodes} node(s) of {floor.gpus} GPUs, not asked here"
            misses.append(Shortfall(floor=floor, sentence=text, missed=False))
        elif not rows:
            misses.append(Shortfall(floor=floor, sentence=f"{name}: not measured here", missed=False))
        else:
            mean = statistics.fmean(m.busbw for m in rows)
            if mean < floor.busbw:
                text = (
                    f"{name}: bus bandwidth {mean:.1f} GB/s, below the floor of {floor.busbw:g} GB/s ({floor.source})"
                )
                misses.append(Shortfall(floor=floor, sentence=text, missed=True))
    return tuple(misses)
