"""The bandwidth tier: its cases, and what the times of the ranks mean.

Algorithm bandwidth is size over time; bus bandwidth multiplies it by a factor of the operation, so that it can be
compared with the hardware whatever the number of ranks (NVIDIA/nccl-tests, doc/PERFORMANCE.md). GB/s are 10^9 bytes per
second, as there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from envsmith.base.schema import AsJson
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
        floors[op] = {"peak_busbw": best.busbw, "bytes": float(best.bytes), "least_us": least.median_us}
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


def size_text(value: int) -> str:
    """Return a size in the largest binary unit that it fills: `1.5 MiB`."""
    for unit, name in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if value >= unit:
            return f"{value / unit:g} {name}" if value % unit == 0 else f"{value / unit:.1f} {name}"
    return f"{value} B"
