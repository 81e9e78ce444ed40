"""Draw small plots as SVG: how recent the proofs are, and the bandwidth where a run measured it."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Iterable

from envsmith.graph.expiry import Expiry
from envsmith.model.record import Record
from envsmith.model.version import public, version_key

_ROW, _LEFT, _WIDTH = 18, 56, 420
_KINDS = ("fresh", "stale", "failed", "unshown")  # classes of style.css


def freshness_plot(records: Iterable[Record], expiry: Expiry, today: dt.date) -> str:
    """Draw a bar for each torch series: cells that passed, are stale, failed, that the host could not show."""
    series: dict[str, list[int]] = {}
    for record in records:
        key = version_key(public(record.components.get("torch", "0")))
        if key is not None:
            counts = series.setdefault(f"{key.major}.{key.minor}", [0] * len(_KINDS))
            counts[_KINDS.index(_kind(record, expiry, today))] += 1
    if not series:
        return "<p>No cell was run yet.</p>"
    names = sorted(series, key=lambda s: tuple(map(int, s.split("."))), reverse=True)
    unit = (_WIDTH - _LEFT - 40) / max(sum(c) for c in series.values())
    parts = []
    for row, name in enumerate(names):
        x, y = float(_LEFT), row * _ROW
        parts.append(f"<text x='{_LEFT - 6}' y='{y + 13}' text-anchor='end'>{html.escape(name)}</text>")
        for count, kind in zip(series[name], _KINDS, strict=True):
            if count:
                title = f"<title>torch {name}: {count} {kind}</title>"
                parts.append(_bar(kind, f"{x:.1f}", y, count * unit, title))
                x += count * unit
        parts.append(f"<text x='{x + 5:.1f}' y='{y + 13}'>{sum(series[name])}</text>")
    words = ", ".join("torch {}: {} passed, {} stale, {} failed, {} not shown".format(n, *series[n]) for n in names)
    return _svg(f"Cells by torch series: {words}", _WIDTH, len(names), parts)


def _kind(record: Record, expiry: Expiry, today: dt.date) -> str:
    if record.passed:
        return "stale" if expiry.is_stale(record, today) else "fresh"
    return "unshown" if record.of_host else "failed"


def bandwidth_plot(records: Iterable[Record]) -> str:
    """Draw the peak bus bandwidth of each operation, for the records that measured it."""
    rows = [
        (f"{record.cell}, {record.backend}: {op}", peak)
        for record in records
        for op, figures in (record.bandwidth or {}).items()
        if (peak := figures.get("peak_busbw", 0.0)) > 0
    ][:40]
    if not rows:
        return "<p>No bandwidth is recorded yet. Measuring it needs GPUs.</p>"
    most = max(value for _, value in rows)
    parts = []
    for row, (name, value) in enumerate(rows):
        y, width = row * _ROW, value / most * 200
        parts.append(_bar("fresh", "0", y, width))
        parts.append(f"<text x='{width + 6:.1f}' y='{y + 13}'>{value:.1f} GB/s {html.escape(name)}</text>")
    return _svg("Peak bus bandwidth", 700, len(rows), parts)


def _bar(kind: str, x: str, y: int, width: float, inside: str = "") -> str:
    return f"<rect class='{kind}' x='{x}' y='{y + 2}' width='{width:.1f}' height='{_ROW - 4}'>{inside}</rect>"


def _svg(label: str, width: int, rows: int, parts: Iterable[str]) -> str:
    size = f"viewBox='0 0 {width} {rows * _ROW}' width='{width}' height='{rows * _ROW}'"
    return f"<svg role='img' aria-label='{html.escape(label, quote=True)}' {size}>{''.join(parts)}</svg>"
