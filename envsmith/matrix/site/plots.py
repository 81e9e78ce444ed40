"""Small plots as SVG: how fresh the proofs are, and the bandwidth where any was measured. Pure text, no library."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Iterable, Sequence
from typing import Any

from envsmith.graph.expiry import Expiry
from envsmith.model.record import Record
from envsmith.model.version import version_key

_ROW, _LEFT, _WIDTH = 18, 56, 420
_KINDS = ("fresh", "stale", "failed", "unshown")  # classes of style.css


def freshness_plot(records: Iterable[Record], expiry: Expiry, today: dt.date) -> str:
    """A bar for each torch series: cells that passed and count, that passed and are stale, that failed, that a host without a GPU could not show."""
    series: dict[str, list[int]] = {}
    for record in records:
        key = version_key(record.components.get("torch", "0").split("+", maxsplit=1)[0])
        if key is None:
            continue
        counts = series.setdefault(f"{key.major}.{key.minor}", [0] * len(_KINDS))
        counts[_KINDS.index(_kind(record, expiry, today))] += 1
    if not series:
        return "<p>No cell was run yet.</p>"
    names = sorted(series, key=lambda s: tuple(map(int, s.split("."))), reverse=True)
    most = max(sum(c) for c in series.values())
    unit = (_WIDTH - _LEFT - 40) / most
    parts = []
    for row, name in enumerate(names):
        x, y = float(_LEFT), row * _ROW
        parts.append(f"<text x='{_LEFT - 6}' y='{y + 13}' text-anchor='end'>{html.escape(name)}</text>")
        for count, kind in zip(series[name], _KINDS, strict=True):
            if count:
                parts.append(
                    f"<rect class='{kind}' x='{x:.1f}' y='{y + 2}' width='{count * unit:.1f}' height='{_ROW - 4}'><title>torch {name}: {count} {kind}</title></rect>"
                )
                x += count * unit
        parts.append(f"<text x='{x + 5:.1f}' y='{y + 13}'>{sum(series[name])}</text>")
    told = ", ".join(
        f"torch {n}: {c[0]} passed, {c[1]} stale, {c[2]} failed, {c[3]} not shown"
        for n, c in ((n, series[n]) for n in names)
    )
    height = len(names) * _ROW
    return f"<svg role='img' aria-label='Cells by torch series: {html.escape(told, quote=True)}' viewBox='0 0 {_WIDTH} {height}' width='{_WIDTH}' height='{height}'>{''.join(parts)}</svg>"


def _kind(record: Record, expiry: Expiry, today: dt.date) -> str:
    if record.passed:
        return "stale" if expiry.is_stale(record, today) else "fresh"
    return "unshown" if record.of_host else "failed"


def bandwidth_plot(records: Iterable[Record]) -> str:
    """The peak bus bandwidth of each operation, for the records that measured it; a sentence when none did."""
    rows = [(f"{r.cell}, {r.backend}: {op}", value) for r in records for op, value in _bandwidths(r.bandwidth)]
    if not rows:
        return "<p>No bandwidth is recorded yet: that tier needs GPUs to say anything.</p>"
    most = max(value for _, value in rows)
    parts = []
    for row, (name, value) in enumerate(rows[:40]):
        y = row * _ROW
        parts.append(f"<rect class='fresh' x='0' y='{y + 2}' width='{value / most * 200:.1f}' height='{_ROW - 4}'/>")
        parts.append(f"<text x='{value / most * 200 + 6:.1f}' y='{y + 13}'>{value:.1f} GB/s {html.escape(name)}</text>")
    height = len(rows[:40]) * _ROW
    return f"<svg role='img' aria-label='Peak bus bandwidth' viewBox='0 0 700 {height}' width='700' height='{height}'>{''.join(parts)}</svg>"


def _bandwidths(data: Any) -> Sequence[tuple[str, float]]:
    """``(operation, GB/s)`` of a record's ``bandwidth``; what is something else is passed over."""
    found = []
    if isinstance(data, dict):
        for op, value in data.items():
            peak = value.get("peak_busbw") if isinstance(value, dict) else value
            if isinstance(op, str) and isinstance(peak, int | float) and peak > 0:
                found.append((op, float(peak)))
    return found
