"""Measurements of bandwidth to look at: a table for a terminal, and an SVG with logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from envsmith.smoke.bandwidth import Measurement, size_text

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
