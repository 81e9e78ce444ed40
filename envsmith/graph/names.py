"""The names people use, without reading the whole knowledge: components by every spelling, GPUs by name.

The command line parses its flags with these before it solves, so they come from two small files and are kept in the cache.
"""

from __future__ import annotations

import re
from typing import Any

from envsmith.errors import DataError
from envsmith.graph.cache import read_cache, write_cache
from envsmith.graph.data import DataFiles, find_matrix
from envsmith.model.component import Component, ComponentTable, Role

__all__ = ["components", "gpu_names", "newest_day"]

_FILES = ("components.yaml", "releases/gpu.yaml")
_LOADED: dict[str, tuple[ComponentTable, dict[str, str]]] = {}


def components() -> ComponentTable:
    """Every component of the installed knowledge; :class:`DataError` when components.yaml is broken."""
    return _names()[0]


def gpu_names() -> dict[str, str]:
    """``{"h100": "sm_90", …}`` of the installed knowledge."""
    return _names()[1]


def newest_day() -> str | None:
    """The newest day on which a fact of the installed knowledge was read (``2026-11-21``); ``None`` without one.

    The files are searched, not parsed: ``--version`` must not wait for the graph.
    """
    root = find_matrix()
    days = (
        day.decode()
        for folder in ("releases", "rules", "tested")
        for path in sorted((root / folder).glob("*.yaml"))
        for day in re.findall(rb"\bkind: [a-z]+,.{0,2000}?\bdate: (\d{4}-\d\d-\d\d)", path.read_bytes())
    )
    return max(days, default=None)


def _names() -> tuple[ComponentTable, dict[str, str]]:
    files = DataFiles(find_matrix(), _FILES)
    stamp = files.stamp()
    if stamp not in _LOADED:
        kept = read_cache("names", stamp)
        try:
            _LOADED[stamp] = _from_json(kept) if kept is not None else _read(files, stamp)
        except (KeyError, TypeError, ValueError, AttributeError):
            _LOADED[stamp] = _read(files, stamp)
    return _LOADED[stamp]


def _from_json(kept: Any) -> tuple[ComponentTable, dict[str, str]]:
    table = ComponentTable.of(
        Component(name=n, role=Role(r), short=s, title=t, distributions=tuple(d), aliases=tuple(a))
        for n, r, s, t, d, a in kept["components"]
    )
    return table, {str(name): str(sm) for name, sm in kept["gpus"].items()}


def _read(files: DataFiles, stamp: str) -> tuple[ComponentTable, dict[str, str]]:
    from envsmith.graph.parse import Problems, parse_yaml
    from envsmith.graph.read import read_components, read_gpus

    problems = Problems()
    table = read_components(parse_yaml(_FILES[0], files.read(_FILES[0]), problems), problems)
    _, gpus = read_gpus(parse_yaml(_FILES[1], files.read(_FILES[1]), problems))
    if problems.lines:
        raise DataError(
            f"{files.root}: {len(problems.lines)} problems in the names",
            details=problems.lines,
            hint="the schema is described in matrix/README.md",
        )
    rows = [
        [c.name, c.role.value, c.short, c.title, list(c.distributions), list(c.aliases)] for c in table.by_name.values()
    ]
    write_cache("names", stamp, {"components": rows, "gpus": gpus})
    return table, gpus
