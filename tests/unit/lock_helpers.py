"""What the tests of the lock share besides fixtures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from envsmith.lock.resolve import Pinned
from envsmith.model.cell import Cell, Platform
from envsmith.model.component import Component, Role
from envsmith.model.finding import Change, Finding, Judgement, Repair
from envsmith.model.lock import Lock
from envsmith.model.rule import Severity
from envsmith.python.uv import Uv, uv_environment


def fine(_components: Mapping[str, str], _platform: Platform) -> Judgement:
    """A judge that finds nothing."""
    return Judgement(status="ok")


def bad(components: Mapping[str, str], platform: Platform, *, repair: tuple[Change, ...] = ()) -> Judgement:
    """A judge that minds numpy 2; ``repair`` is what it proposes."""
    if components.get("numpy", "1").startswith("1"):
        return fine(components, platform)
    finding = Finding(
        rule="numpy-2-abi", severity=Severity.ERROR, components={"numpy": "2.3.0"}, message="numpy 2 breaks it"
    )
    cell = Cell(components=components, chosen=())
    return Judgement(status="bad", findings=(finding,), repair=Repair(changes=repair, cell=cell) if repair else None)


def component(name: str, role: Role, *distributions: str) -> Component:
    """A component whose every name is the same."""
    return Component(name=name, role=role, short=name, title=name, distributions=distributions)


def uv_for(index_url: str, cache: Path) -> Uv:
    """A uv that knows one index and a cache of its own."""
    base = {k: v for k, v in os.environ.items() if not k.startswith(("UV_", "PIP_"))}
    given = {
        **base,
        "UV_DEFAULT_INDEX": index_url,
        "UV_HTTP_RETRIES": "0",
        "XDG_CONFIG_HOME": str(cache / "none"),
        "PIP_CONFIG_FILE": os.devnull,
    }
    return Uv(environment=uv_environment(given), cache=cache)


def lock_of(cell: Cell, pinned: Pinned) -> Lock:
    """The lock that the pipeline would make of it."""
    return Lock(
        cell=cell,
        request="--framework deepspeed",
        exclude_newer="2026-11-20",
        python_version=cell.components["python"],
        pins=pinned.pins,
        build_pins=pinned.build_pins,
        resolver=pinned.resolver,
    )
