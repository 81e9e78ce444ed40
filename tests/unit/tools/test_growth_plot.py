"""The plot of growth: what was measured, and nothing else."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOOL = runpy.run_path(str(ROOT / "tools" / "growth_plot.py"))


def row(program, releases, best, peak):
    return {"program": program, "releases": releases, "best_ms": best, "peak_mb": peak}


def points(svg, colour):
    return [
        tuple(map(float, p)) for p in re.findall(rf'<circle cx="([\d.]+)" cy="([\d.]+)" r="3" fill="{colour}"', svg)
    ]


@pytest.mark.parametrize("name", ["KNOWLEDGE", "EVIDENCE"])
def test_the_plot_in_the_docs_is_that_of_the_measured_figures(name):
    growth = TOOL[name]
    assert growth.file.read_text(encoding="utf-8") == TOOL["plot"](growth, growth.rows)


def test_ten_times_the_value_is_one_decade_higher_and_equal_values_are_level():
    svg = TOOL["plot"](
        TOOL["KNOWLEDGE"],
        [row("envsmith", 1000, 1.0, 50.0), row("envsmith", 2000, 10.0, 50.0), row("uv", 2000, 100.0, 500.0)],
    )

    (_, first), (_, second), (_, third), (_, fourth) = points(svg, "#2f7d32")
    assert first - second == pytest.approx(105, abs=0.2)  # of two decades over 210
    assert third == fourth


def test_what_was_not_answered_has_no_point():
    svg = TOOL["plot"](
        TOOL["KNOWLEDGE"],
        [row("envsmith", 1000, 1.0, 50.0), row("envsmith", 2000, 1.0, 50.0), row("uv", 2000, None, None)],
    )
    assert points(svg, "#5b5bd6") == []
