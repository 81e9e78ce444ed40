"""The bandwidth tier: its cases, what the times mean, floors per machine type, and measurements as a table and a plot.

The floors come from ``matrix/bandwidth.yaml``; everything else is pure.

Algorithm bandwidth is size over time; bus bandwidth multiplies it by a factor of the operation, so that it can be
compared with the hardware whatever the number of ranks (NVIDIA/nccl-tests, doc/PERFORMANCE.md). GB/s are 10^9 bytes per
second, as there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated
from xml.sax.saxutils import escape

from envsmith.base.schema import AsJson, Parsed, Text, WrongValueError, strict, whole_number, written
from envsmith.errors import UsageError
from envsmith.knowledge.graph.fields import Sources, load_table
from envsmith.model.rule import Evidence
from envsmith.smoke.cases import Case
from envsmith.smoke.events import CaseRow

# Bus bandwidth over algorithm bandwidth, for n ranks (nccl-tests, doc/PERFORMANCE.md, "Summary"; sendrecv and alltoall:
# src/sendrecv.cu, src/alltoall.cu).
FACTORS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter_single": lambda n: (n - 1) / n,
    "all_gather_single": lambda n: (n - 1) / n,
    "all_to_all_single": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
    "send_recv": lambda _: 1.0,
}
PREFIX = "bw_"
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (8 * _KIB, 64 * _KIB, 512 * _KIB, 4 * _MIB, 32 * _MIB)
GPU_SIZES = (64 * _MIB, 256 * _MIB, 2 * _GIB, 8 * _GIB, 16 * _GIB)
_DEADLINE = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement(AsJson):
    """One operation at one size.

    Times in microseconds, of the slowest rank in each round; bandwidths in GB/s from the median.
    """

    op: str
    bytes: int
    ranks: int
    rounds: int
    median_us: float
    p99_us: float
    algbw: float
    busbw: float


def _operation(value: object, _context: object) -> str:
    if value not in FACTORS:
        raise WrongValueError(f"not one of {', '.join(FACTORS)}")
    return str(value)


def _positive(value: object, _context: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise WrongValueError("a positive number belongs here")
    return float(value)


_Count = Annotated[int, whole_number(1, 1 << 50)]


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


def bandwidth_cases(ranks: int, *, gpu: bool = True) -> tuple[Case, ...]:
    """Return every operation at every size. The number of elements is a multiple of the number of ranks.

    Without ``gpu`` only small sizes.
    """
    sizes = (*SIZES, *GPU_SIZES) if gpu else SIZES
    return tuple(
        Case(op=PREFIX + op, n=size // 4 // ranks * ranks, deadline=_DEADLINE) for op in FACTORS for size in sizes
    )


def measurements(rows: Iterable[CaseRow], cases: Sequence[Case], ranks: int) -> tuple[Measurement, ...]:
    """Return what the ranks' rows say of each operation and size.

    A size that a rank did not report is left out: its time would be that of the others only.
    """
    times: dict[int, dict[int, Sequence[float]]] = {}
    for row in rows:
        if row.micros and 0 <= row.case < len(cases):
            times.setdefault(row.case, {})[row.rank] = row.micros
    measurements = []
    for index, by_rank in sorted(times.items()):
        case = cases[index]
        op = case.op.removeprefix(PREFIX)
        if len(by_rank) < ranks or op not in FACTORS:
            continue
        slowest = [max(round_) for round_ in zip(*by_rank.values(), strict=False)]
        measurements.append(_measurement(op, case.n * 4, ranks, slowest))
    return tuple(measurements)


def peaks(measured: Iterable[Measurement]) -> dict[str, dict[str, float]]:
    """Return what a record keeps of an operation.

    This is the highest bus bandwidth (GB/s) with its size in bytes, and the median time (us) of its smallest size.
    """
    by_op: dict[str, list[Measurement]] = {}
    for row in measured:
        by_op.setdefault(row.op, []).append(row)
    floors: dict[str, dict[str, float]] = {}
    for op, rows in by_op.items():
        best, least = max(rows, key=lambda row: row.busbw), min(rows, key=lambda row: row.bytes)
        floors[op] = {"peak_busbw": best.busbw, "bytes": best.bytes, "least_us": least.median_us}
    return floors


def _measurement(op: str, size: int, ranks: int, micros: Sequence[float]) -> Measurement:
    ordered = sorted(micros)
    median = max(statistics.median(ordered), 1e-3)
    algbw = size / median / 1e3
    return Measurement(
        op=op,
        bytes=size,
        ranks=ranks,
        rounds=len(ordered),
        median_us=round(median, 2),
        p99_us=round(ordered[max(0, math.ceil(0.99 * len(ordered)) - 1)], 2),
        algbw=float(f"{algbw:.4g}"),
        busbw=float(f"{algbw * FACTORS[op](ranks):.4g}"),
    )


# -- floors -----------------------------------------------------------------------------------------------------------


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


def size_text(value: int) -> str:
    """Return a size in the largest binary unit that it fills: `1.5 MiB`."""
    for unit, name in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if value >= unit:
            return f"{value / unit:g} {name}" if value % unit == 0 else f"{value / unit:.1f} {name}"
    return f"{value} B"


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


@cache
def load_floors(folder: Path | None = None) -> tuple[Floor, ...]:
    """Read and check the file. Raises :class:`DataError` that lists every problem with its key path."""
    return load_table(_Floors, "bandwidth.yaml", folder).machines


# -- a table for a terminal, and an SVG with logarithmic axes ----------------------------------------------------------

_WIDTH, _HEIGHT = 820, 460
_HEAD = (
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
    'font-family="sans-serif" font-size="12" role="img">'
)
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 210, 46, 56
# Okabe and Ito's colours, distinct with every kind of colour vision; the dashes make them distinct in print.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DASHES = ("", "8 3", "2 3", "8 3 2 3", "12 4", "4 4", "1 4")


def rows_of(measured: Sequence[Measurement]) -> list[tuple[str, ...]]:
    """Return the rows of a table, with its head."""
    head = ("operation", "size", "median", "p99", "algbw GB/s", "busbw GB/s")
    return [
        head,
        *(
            (m.op, size_text(m.bytes), _time(m.median_us), _time(m.p99_us), f"{m.algbw:.4g}", f"{m.busbw:.4g}")
            for m in measured
        ),
    ]


def _time(micros: float) -> str:
    return f"{micros / 1e3:.2f} ms" if micros >= 1e3 else f"{micros:.1f} us"


def svg(measured: Sequence[Measurement], *, title: str) -> str:
    """Draw bus bandwidth over size, one line an operation. An empty measurement is an empty plot that says so."""
    parts = [
        _HEAD,
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>',
    ]
    usable = [m for m in measured if m.bytes > 0 and m.busbw > 0]
    if not usable:
        parts.append(f'<text x="{_LEFT}" y="{_HEIGHT // 2}">nothing was measured</text></svg>')
        return "\n".join(parts) + "\n"
    x_range = _decades(min(m.bytes for m in usable), max(m.bytes for m in usable), 2)
    y_range = _decades(min(m.busbw for m in usable), max(m.busbw for m in usable), 10)
    parts += _axes(x_range, y_range)
    for number, op in enumerate(dict.fromkeys(m.op for m in usable)):
        points = [(_x(m.bytes, x_range), _y(m.busbw, y_range)) for m in usable if m.op == op]
        parts += _line(op, points, number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _decades(low: float, high: float, base: int) -> tuple[int, int]:
    first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
    return first, max(last, first + 1)


def _x(value: float, limits: tuple[int, int]) -> float:
    return _LEFT + (math.log2(value) - limits[0]) / (limits[1] - limits[0]) * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, limits: tuple[int, int]) -> float:
    return _HEIGHT - _BOTTOM - (math.log10(value) - limits[0]) / (limits[1] - limits[0]) * (_HEIGHT - _TOP - _BOTTOM)


def _axes(x_range: tuple[int, int], y_range: tuple[int, int]) -> list[str]:
    parts, right, bottom = [], _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    step = max(1, (x_range[1] - x_range[0]) // 6)
    for power in range(x_range[0], x_range[1] + 1, step):
        x = _x(2.0**power, x_range)
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{size_text(1 << power)}</text>')
    for power in range(y_range[0], y_range[1] + 1):
        y = _y(10.0**power, y_range)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    parts.append(f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" stroke="#000000" fill="none"/>')
    middle = (_TOP + bottom) / 2
    parts.append(f'<text x="{(_LEFT + right) / 2:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">size</text>')
    parts.append(
        f'<text x="18" y="{middle:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 18 {middle:.0f})">bus bandwidth, GB/s</text>'
    )
    return parts


def _line(op: str, points: Sequence[tuple[float, float]], number: int) -> list[str]:
    colour, dash = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
    style = f'stroke="{colour}" stroke-width="2" fill="none"' + (f' stroke-dasharray="{dash}"' if dash else "")
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    y = _TOP + 14 + 20 * number
    legend = _WIDTH - _RIGHT + 16
    return [
        f'<path d="{path}" {style}/>',
        *(f'<circle cx="{x:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for x, py in points),
        f'<path d="M{legend} {y - 4}h26" {style}/>',
        f'<text x="{legend + 34}" y="{y}">{escape(op)}</text>',
    ]
