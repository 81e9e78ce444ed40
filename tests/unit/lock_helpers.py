"""What the tests of the lock share besides fixtures."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from envsmith.lock.index.uv import Uv
from envsmith.model.cell import Cell
from envsmith.model.component import Component, Role
from envsmith.model.finding import Change, Finding, Judgement, Repair
from envsmith.model.rule import Severity


def fine(_cell: Cell, _components: Mapping[str, str]) -> Judgement:
    """A judge that finds nothing."""
    return Judgement(status="ok")


def bad(cell: Cell, components: Mapping[str, str], *, repair: tuple[Change, ...] = ()) -> Judgement:
    """A judge that minds numpy 2; ``repair`` is what it proposes."""
    if components.get("numpy", "1").startswith("1"):
        return fine(cell, components)
    finding = Finding(
        rule="numpy-2-abi", severity=Severity.ERROR, components={"numpy": "2.3.0"}, message="numpy 2 breaks it"
    )
    return Judgement(
        status="bad",
        findings=(finding,),
        repair=Repair(changes=repair, cell=Cell(components=components, chosen=())) if repair else None,
    )


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
    return Uv(environ=given, cache=cache)


def pinned_in(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Name to version and sha256 hashes of a requirements file."""
    lines = [line for line in text.replace(" \\\n", "").splitlines() if not line.startswith("#")]
    pins = (re.fullmatch(r"([a-z0-9.-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})+)", line) for line in lines)
    return {pin[1]: (pin[2], frozenset(re.findall("[0-9a-f]{64}", pin[3]))) for pin in pins if pin}
