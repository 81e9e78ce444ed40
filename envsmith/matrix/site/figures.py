"""The figures of the page, read without a script: a grid of each framework by torch as HTML, small plots as SVG."""

from __future__ import annotations

import datetime as dt
import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from packaging.version import Version

from envsmith.frameworks import CORE, beside_core, frameworks_of
from envsmith.knowledge.graph.expiry import Expiry
from envsmith.knowledge.graph.stacks import Stack, stacks_of
from envsmith.matrix.cells import CellState, Status
from envsmith.model.cell import CellId
from envsmith.model.record import Expected, Record, Rung
from envsmith.model.version import public, version_key
from envsmith.solver.words import join_words

_ROW, _LEFT, _WIDTH = 18, 56, 420
_KINDS = ("fresh", "stale", "failed", "unshown")  # classes of style.css
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
                letter = _pair_kind(framework, r, t, run)
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


def _pair_kind(framework: Mapping[str, Any], release: int, torch: int, run: Record | None) -> str:
    """Return the letter of a pair. A rule says more than a run that the host could not finish."""
    if run and (letter := kind_of(run)) != "p":
        return letter
    if framework["why"][release].split(".")[torch]:
        return "x"
    return "p" if run else "i" if torch in framework["tested"].get(str(release), ()) else "o"


def unproved_words(states: Sequence[CellState]) -> str:
    """Return how many did not pass, and why they were run."""
    counts = Counter(state.status for state in states if state.status is not Status.PROVED)
    foretold = sum(state.status is Status.FAILED and state.best.expected is Expected.BAD for state in states)
    return (
        f"{foretold} failed on purpose: a rule had foretold it. {counts[Status.FAILED] - foretold} failed otherwise, "
        f"{counts[Status.NOT_SHOWN]} need what the test machine lacks."
    )


def stacks_table(stacks: Sequence[Stack], states: Sequence[CellState]) -> str:
    """Return a table of the stacks: what belongs to each, how many cells of it passed, the one with the newest torch."""
    members_of = [stacks_of((name for name, _ in CellId.parse(state.id).components), stacks) for state in states]
    rows = []
    for stack in stacks:
        own = [state for state, complete in zip(states, members_of, strict=True) if stack in complete]
        passed = [state for state in own if state.status is Status.PROVED]
        newest = max(passed, key=lambda s: (Version(s.best.components[CORE]), s.best.started, s.id), default=None)
        link = f'<a href="cell/{html.escape(newest.id)}.html">{html.escape(newest.id)}</a>' if newest else ""
        members = html.escape(join_words(list(stack.requires)))
        rows.append(
            f"<tr><th scope='row'>{html.escape(stack.title)}</th><td>{members}</td>"
            f"<td>{f'{len(passed)} of {len(own)}' if own else 'not run'}</td><td class='id'>{link}</td></tr>"
        )
    head = "".join(f"<th scope='col'>{name}</th>" for name in ("Stack", "Packages", "Passed", "Newest that passed"))
    return f"<div class='scroll' tabindex='0'><table class='stacks'><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
