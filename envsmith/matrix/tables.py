"""What is published beside ``matrix.json``: a file a cell, a feed, CSV, tables between markers."""

from __future__ import annotations

import csv
import io
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from envsmith.base.text import clean
from envsmith.errors import UsageError
from envsmith.frameworks import EXAMPLE, beside_core
from envsmith.matrix.cells import LOCKED, commands_of
from envsmith.model.record import Record, read_records
from envsmith.model.version import minor_of, public, version_key

COLUMNS = (
    "id", "framework", "version", "torch", "cuda", "python", "platform", "status", "rung", "counts_as", "date", "expires", "stale", "flaky",
    "expected", "agrees", "failed_at", "symptom",
)  # fmt: skip
_FEED_LENGTH = 200
_ATOM = "http://www.w3.org/2005/Atom"
_NAMESPACE = uuid.UUID("6f1c9a52-1df0-5c6e-9a55-2f0c2b6f8a11")
_MARKERS = re.compile(r"(<!-- envsmith:matrix (?P<ask>[^>]*?) ?-->\n).*?(<!-- envsmith:end -->)", re.DOTALL)
_WORDS = {
    "proved": "proved",
    "failed": "**fails**",
    "not shown": "not shown",
    "possible": "possible",
    "warned": "warned",
}
_LEGEND = (
    "proved, fails: run by envsmith, by its newest record (in brackets the release that was run, if it is not the one of the row); "
    "not shown: run, but the machine lacked something; possible: no rule forbids it, not run; warned: the same, but a rule warns of it; "
    "empty: forbidden."
)
_STACK_LEGEND = (
    "proved: installed, every member imported, and a tiny model trained by two ranks with the losses of its reference (grpo has none: its reward grows); "
    "fails: with the rule that said so before, if one did; not shown: the machine lacked something."
)
# What a table of a README shows at most: the newest of each.
_ROWS, _TORCHES = 5, 8


def dumped(value: object) -> str:
    """Return JSON as it is published: compact, the same bytes for the same value."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def cell_texts(document: Mapping[str, Any], records: Mapping[str, Record]) -> dict[str, str]:
    """Return ``cells/<id>.json``: an entry of ``matrix.json`` with its records in full and its commands."""
    texts = {}
    head = {key: document[key] for key in ("schema", "generated")}
    for entry in document["cells"]:
        names = [r["name"] for r in entry["records"] if r["name"] in records]
        full = [{**records[name].to_json(), "name": name} for name in names]
        texts[f"cells/{entry['id']}.json"] = dumped({**head, **entry, "records": full, "commands": commands(entry)})
    return texts


def commands(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return what a user types for a cell: envsmith's commands, and what uv and pip do with the lock."""
    return commands_of(entry["id"], LOCKED)


def feed_text(document: Mapping[str, Any], records: Iterable[Record], base_url: str) -> str:
    """Return an Atom feed: a cell's first record, and every one that says something else than the one before."""
    ET.register_namespace("", _ATOM)
    feed = ET.Element(f"{{{_ATOM}}}feed")
    _add(feed, "title", "envsmith matrix: what changed")
    _add(feed, "id", f"urn:uuid:{uuid.uuid5(_NAMESPACE, base_url or 'matrix')}")
    _add(feed, "updated", str(document["generated"]))
    author = ET.SubElement(feed, f"{{{_ATOM}}}author")
    _add(author, "name", "envsmith")
    if base_url:
        ET.SubElement(feed, f"{{{_ATOM}}}link", rel="self", href=f"{base_url.rstrip('/')}/feed.xml")
    for record, what in _changes(records)[:_FEED_LENGTH]:
        entry = ET.SubElement(feed, f"{{{_ATOM}}}entry")
        _add(entry, "title", f"{record.cell}: {what}")
        _add(entry, "id", f"urn:uuid:{uuid.uuid5(_NAMESPACE, record.name)}")
        _add(entry, "updated", record.started)
        _add(entry, "summary", (record.failure and record.failure.symptom) or record.summary or what)
        if base_url:
            ET.SubElement(entry, f"{{{_ATOM}}}link", href=f"{base_url.rstrip('/')}/cells/{record.cell}.json")
    return ET.tostring(feed, encoding="unicode", xml_declaration=True) + "\n"


def _add(parent: ET.Element, name: str, text: str) -> None:
    # XML 1.0 has no place for most control characters, not even escaped.
    ET.SubElement(parent, f"{{{_ATOM}}}{name}").text = clean(text)


def _changes(records: Iterable[Record]) -> list[tuple[Record, str]]:
    """Return the records that say something new, and what, newest first."""
    last: dict[tuple[str, str], str] = {}
    news = []
    for record in sorted(records, key=lambda r: (r.started, r.name)):
        state = "proved" if record.passed else "not shown" if record.of_host else "failed"
        before = last.get((record.cell, record.engine))
        last[record.cell, record.engine] = state
        if before is None:
            news.append((record, f"{state} ({record.engine})"))
        elif before != state:
            news.append((record, f"{before} before, {state} now ({record.engine})"))
    return news[::-1]


def csv_text(cells: Iterable[Mapping[str, Any]]) -> str:
    """Return the cells as CSV with a head. A text that looks like a formula gets a quote before it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell in cells:
        writer.writerow([_plain(cell.get(name)) for name in COLUMNS])
    return out.getvalue()


def _plain(value: object) -> str:
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"'{text}" if text[:1] in {"=", "+", "-", "@"} else text


def markdown_table(document: Mapping[str, Any], framework: str) -> str:
    """Return a row for each of the newest series of a framework, against the newest torch releases that they can have.

    The row bears its series' newest release. Where another release of the series was run instead, its version stands
    beside the word. ``stacks`` asks for the cells of stacks. ``UsageError`` for a framework that the matrix does not
    have.
    """
    grid = document["grid"].get(framework)
    if not grid:
        raise UsageError(
            f"Cannot print the table of {framework!r}: the matrix has no such framework.",
            hint=f"Use one of: {', '.join(document['grid'])}.",
        )
    rows = _newest_of_series(grid)[:_ROWS]
    tested = _tested(document, framework)
    table = {(v, b): _words(grid, tested, v, b) for v in rows for b in _newest_of_series(grid[rows[0]])}
    builds = [b for b in _newest_of_series(grid[rows[0]]) if any(table[v, b] for v in rows)][:_TORCHES]
    lines = [
        f"| {beside_core(framework)} | " + " | ".join(f"torch {b.partition('+')[0]}" for b in builds) + " |",
        "|---|" + "---|" * len(builds),
        *(f"| {version} | " + " | ".join(table[version, b] for b in builds) + " |" for version in rows),
        "",
        f"{_LEGEND} {str(document['generated'])[:10]}.",
    ]
    return "\n".join(lines) + "\n"


def stack_table(document: Mapping[str, Any]) -> str:
    """Return a row for each cell of a stack that was run: its packages, and what came of it."""
    cells = {cell["id"]: cell for cell in document["cells"]}
    lines = ["| stack | torch | Python | packages | |", "|---|---|---|---|---|"]
    for stack in document["stacks"]:
        for cell in sorted((cells[name] for name in stack["cells"]), key=_newest_torch, reverse=True):
            versions = ", ".join(f"{name} {cell['components'][name]}" for name in stack["requires"])
            rules = f" ({', '.join(cell['rules'])})" if cell["status"] == "failed" and cell["expected"] == "bad" else ""
            word = f"{_WORDS[cell['status']]}{rules}"
            lines.append(f"| {stack['name']} | {public(cell['torch'])} | {cell['python']} | {versions} | {word} |")
    return "\n".join([*lines, "", f"{_STACK_LEGEND} {str(document['generated'])[:10]}."]) + "\n"


def _newest_torch(cell: Mapping[str, Any]) -> tuple[object, str]:
    return version_key(cell["torch"]), cell["id"]


def _newest_of_series(versions: Iterable[str]) -> list[str]:
    """Return the newest release of each minor series, newest first. ``versions`` are in that order."""
    series: dict[str, str] = {}
    for version in versions:
        series.setdefault(minor_of(version), version)
    return list(series.values())


def _tested(document: Mapping[str, Any], framework: str) -> dict[tuple[str, str], str]:
    """Return the best status of a release on a torch among its cells (Pythons, CUDA builds).

    A stack that does not work says nothing of the framework in it.
    """
    stacked = {name for stack in document["stacks"] for name in stack["cells"]}
    own = "version" if beside_core(framework) == framework else beside_core(framework)
    tested: dict[tuple[str, str], str] = {}
    for cell in document["cells"]:
        if cell["framework"] == framework and (cell["status"] == "proved" or cell["id"] not in stacked):
            key = (cell[own], cell["torch"])
            if tested.get(key) != "proved":
                tested[key] = cell["status"]
    return tested


def _words(
    grid: Mapping[str, Mapping[str, Any]], tested: Mapping[tuple[str, str], str], newest: str, build: str
) -> str:
    """Return the word for a series on one torch: its newest proved release's, the newest run's, or the solver's."""
    runs = [(tested[v, build], v) for v in grid if minor_of(v) == minor_of(newest) and (v, build) in tested]
    if runs:
        status, version = min(runs, key=lambda pair: pair[0] != "proved")
        word = _WORDS.get(status, "")
        return word if version == newest or not word else f"{word} ({version})"
    return _WORDS.get(grid[newest].get(build, {}).get("status") or "", "")


def with_table(text: str, document: Mapping[str, Any]) -> str:
    """Return ``text`` with every table between its markers made anew. ``UsageError`` without markers."""
    if not _MARKERS.search(text):
        raise UsageError(
            "Cannot write the table into that file: it has no markers.",
            hint=f"Put <!-- envsmith:matrix {EXAMPLE} --> and <!-- envsmith:end --> on two lines where the table "
            "belongs.",
        )

    def table(ask: str) -> str:
        return stack_table(document) if ask == "stacks" else markdown_table(document, ask)

    return _MARKERS.sub(lambda m: m[1] + table(m["ask"].strip()) + m[3], text)


# The mark of a folder that ``matrix export`` may write again.
EXPORT = "an export of the matrix"


def export_texts(document: Mapping[str, Any], root: Path, base_url: str = "") -> dict[str, str]:
    """Return every file of an export by its path, ``matrix.json`` last."""
    records = {record.name: record for record in read_records(root / "records")}
    schema = root / "matrix.schema.json"
    return {
        **cell_texts(document, records),
        "feed.xml": feed_text(document, records.values(), base_url),
        "matrix.csv": csv_text(document["cells"]),
        **({schema.name: schema.read_text(encoding="utf-8")} if schema.is_file() else {}),
        "matrix.json": dumped(document),
    }
