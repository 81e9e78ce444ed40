"""Draw how things grow: time and memory with the knowledge, the evidence of a launch with its ranks.

    python tools/growth_plot.py

`bench/growth.py` and `bench/evidence.py` measure, with `--json`. Both axes are logarithmic, so a straight line is a power of the size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Growth:
    """A plot of ``bench/NAME.json``: its panels as title and key, by what it grows, and what it says to who cannot see it."""

    name: str
    size: str
    panels: tuple[tuple[str, str], ...]
    label: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return what was measured."""
        rows: list[dict[str, Any]] = json.loads((ROOT / "bench" / f"{self.name}.json").read_text(encoding="utf-8"))
        return rows

    @property
    def file(self) -> Path:
        """Return where the plot stands."""
        return ROOT / "docs" / "page" / f"{self.name}.svg"


KNOWLEDGE = Growth(
    name="growth",
    size="releases",
    panels=(("best answer, ms of processor time", "best_ms"), ("peak memory, MB", "peak_mb")),
    label="Time of the best answer and peak memory of envsmith, python-sat and uv, by number of releases",
)
EVIDENCE = Growth(
    name="evidence",
    size="ranks",
    panels=(("MB on the disk", "mb"), ("s of processor time to judge it", "seconds"), ("peak memory, MB", "peak_mb")),
    label="Size of the evidence of a launch, time and memory to judge it, by number of ranks",
)

# Colour, and where the name stands beside the last point.
_COLOURS = {"envsmith": ("#2f7d32", 4), "python-sat": ("#b35900", 11), "uv": ("#5b5bd6", -1)}
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 290, 210, 62, 46, 150

_Row = Mapping[str, Any]


def plot(growth: Growth, rows: Sequence[_Row]) -> str:
    """Return the SVG of all rows, a panel for each thing that grows."""
    parts = [_panel(growth, rows, number, _LEFT + number * (_WIDTH + _GAP)) for number, _ in enumerate(growth.panels)]
    width, height = len(growth.panels) * (_WIDTH + _GAP) + _LEFT - 60, _HEIGHT + _TOP + 66
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(growth.label)}">'
        '<style>text{font:12px Verdana,"DejaVu Sans",sans-serif;fill:#777}</style>' + "".join(parts) + "</svg>\n"
    )


def _panel(growth: Growth, rows: Sequence[_Row], number: int, left: float) -> str:
    title, key = growth.panels[number]
    measured = [row for row in rows if row[key] is not None]
    lowest, highest = _decades(row[key] for row in measured)
    sizes = sorted({row[growth.size] for row in rows})

    def x(size: int) -> float:
        return left + _WIDTH * math.log(size / sizes[0]) / math.log(sizes[-1] / sizes[0])

    def y(value: float) -> float:
        return _TOP + _HEIGHT * (highest - math.log10(value)) / (highest - lowest)

    parts = [f'<text x="{left}" y="{_TOP - 18}" font-weight="bold">{escape(title)}</text>']
    for decade in range(lowest, highest + 1):
        height = y(10.0**decade)
        parts.append(f'<path d="M{left} {height:.1f}h{_WIDTH}" stroke="#777" stroke-opacity=".3"/>')
        parts.append(f'<text x="{left - 8}" y="{height + 4:.1f}" text-anchor="end">{10.0**decade:g}</text>')
    labels = [(x(size), 20, f"{size:,}") for size in sizes] + [(left + _WIDTH / 2, 42, growth.size)]
    parts += [
        f'<text x="{px:.1f}" y="{_TOP + _HEIGHT + py}" text-anchor="middle">{text}</text>' for px, py, text in labels
    ]
    for program, (colour, beside) in _COLOURS.items():
        parts.append(
            _line(
                program, colour, beside, [(x(r[growth.size]), y(r[key])) for r in measured if r["program"] == program]
            )
        )
    return "".join(parts)


def _line(program: str, colour: str, beside: int, points: Sequence[tuple[float, float]]) -> str:
    if not points:
        return ""
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
    dots = "".join(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points)
    x, y = points[-1]
    name = f'<text x="{x + 10:.1f}" y="{y + beside:.1f}" style="fill:{colour}">{escape(program)}</text>'
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}{name}'


def _decades(values: Iterable[float]) -> tuple[int, int]:
    """Return the powers of ten that hold all values."""
    logarithms = [math.log10(value) for value in values]
    lowest, highest = math.floor(min(logarithms)), math.ceil(max(logarithms))
    return lowest, max(highest, lowest + 1)


def main() -> None:
    """Write the plots."""
    for growth in (KNOWLEDGE, EVIDENCE):
        growth.file.write_text(plot(growth, growth.rows), encoding="utf-8")


if __name__ == "__main__":
    main()
