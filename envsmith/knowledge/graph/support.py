"""Until when a series of Python or of the driver gets fixes: ``matrix/support.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from envsmith.base.schema import Text, strict, text_of
from envsmith.knowledge.graph.fields import Sources, load_table
from envsmith.model.rule import Evidence

_Month = Annotated[str, text_of(7, re.compile(r"20\d\d-(?:0[1-9]|1[0-2])"), "a month: 2027-10")]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class SupportedSeries:
    """A ``series`` of a component (``3.12``, ``580``), and the last month with fixes."""

    component: Text
    series: Text
    until: _Month
    evidence: Sources


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _SupportFile:
    series: tuple[SupportedSeries, ...]
    evidence: Mapping[str, Evidence] = field(default_factory=dict)


def support_ends(folder: Path | None = None) -> dict[str, dict[str, str]]:
    """Return the last month with fixes by component and series. ``DataError`` lists every problem of the file."""
    ends: dict[str, dict[str, str]] = {}
    for line in load_table(_SupportFile, "support.yaml", folder).series:
        ends.setdefault(line.component, {})[line.series] = line.until
    return ends
