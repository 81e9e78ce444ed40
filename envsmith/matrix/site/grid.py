"""The grid of the page: each framework by torch as an HTML table, which needs no script to be read."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Mapping, Sequence
from typing import Any

from envsmith.frameworks import CORE, beside_core, frameworks_of
from envsmith.graph.expiry import Expiry
from envsmith.model.record import Record, Rung
from envsmith.model.version import public

_LADDER = list(Rung)
# How far a pair was proved: the class in style.css, the word inside its cell, the words beside it.
KINDS = {
    "g": ("GPU", "Proved on GPU"),
    "c": ("CPU", "Proved on CPU"),
    "p": ("part", "Partly proved"),
    "i": ("CI", "Run by the framework's CI"),
    "x": ("bad", "Known not to work"),
    "o": ("-", "Not run yet"),
}
STEPS = {
    Rung.SOLVED: "Solved",
    Rung.LOCKED: "Locked",
    Rung.INSTALLED: "Installed",
    Rung.IMPORTED: "Imported",
    Rung.COLLECTIVES_CPU: "Collectives on CPU",
    Rung.FRAMEWORK_CPU: "Training step on CPU",
    Rung.COLLECTIVES_GPU: "Collectives on GPU",
    Rung.FRAMEWORK_GPU: "Training step on GPU",
}


def best_run(records: Sequence[Record]) -> Record | None:
    """Return the run that speaks for a pair: one that passed, else the one that came furthest."""
    return max(records, key=lambda r: (r.passed, _LADDER.index(r.rung)), default=None)


def kind_of(record: Record) -> str:
    """Return the letter for how far a run came: GPU, CPU, part of the way, or failed."""
    if not record.passed:
        return "p" if record.of_host else "x"
    reached = _LADDER.index(record.rung)
    return "g" if reached > _LADDER.index(Rung.FRAMEWORK_CPU) else "c" if record.rung is Rung.FRAMEWORK_CPU else "p"


def grids(choices: Mapping[str, Any], records: Sequence[Record], expiry: Expiry, today: dt.date) -> dict[str, str]:
    """Return a table for each framework, by name. End tags that HTML does not ask for are left out: there are many cells."""
    pairs: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        for name in frameworks_of(record.components):
            version, torch = (record.components[n] for n in (beside_core(name), CORE))
            pairs.setdefault((name, version, public(torch)), []).append(record)
    head = "".join(f"<th scope=col>{html.escape(torch)}" for torch in choices["torches"])
    tables = {}
    for framework in choices["frameworks"]:
        name, title = html.escape(framework["name"]), html.escape(framework["title"])
        side = title if framework["axis"] == "release" else framework["axis"].title()
        rows = []
        for r, release in enumerate(framework["releases"]):
            cells = ""
            for t, torch in enumerate(choices["torches"]):
                run = best_run(pairs.get((framework["name"], release, torch), ()))
                letter = _kind(framework, r, t, run)
                stale = run is not None and letter != "x" and expiry.is_stale(run, today)
                cells += _tag(letter, stale=stale) + KINDS[letter][0]
            rows.append(f"<tr><th scope=row>{html.escape(release)}{cells}")
        tables[framework["name"]] = (
            f'<div class="framework" id="grid-{name}"><h3 id="name-{name}">{side} by PyTorch</h3>'
            f'<div class="scroll" tabindex="0" role="region" aria-labelledby="name-{name}"><table class="grid">'
            f"<thead><tr><th scope=col>{side}{head}<tbody>{''.join(rows)}</table></div></div>"
        )
    return tables


def _tag(letter: str, *, stale: bool) -> str:
    """Return the tag of a cell. Most pairs were not run, so those have no class."""
    return f'<td class="{letter} s">' if stale else "<td>" if letter == "o" else f"<td class={letter}>"


def _kind(framework: Mapping[str, Any], release: int, torch: int, run: Record | None) -> str:
    """Return the letter of a pair. A rule says more than a run that the host could not finish."""
    if run and (letter := kind_of(run)) != "p":
        return letter
    if framework["why"][release].split(".")[torch]:
        return "x"
    return "p" if run else "i" if torch in framework["tested"].get(str(release), ()) else "o"
