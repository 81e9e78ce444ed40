"""Write the page: ``index.html`` with its data, a page for each cell that was run, the symptoms for the search.

Every text that comes from a record is escaped here or set as text by the script: a log must not become markup.
"""

from __future__ import annotations

import datetime as dt
import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from envsmith.base.about import VERSION
from envsmith.base.files import now, write_folder
from envsmith.frameworks import FRAMEWORKS, frameworks_of
from envsmith.knowledge.graph.expiry import Expiry, latest, load_expiry
from envsmith.knowledge.graph.stacks import Stack, load_stacks
from envsmith.matrix.cells import ASK, TOOLS, cell_states, commands_of
from envsmith.matrix.document import document
from envsmith.matrix.site.figures import (
    KINDS,
    STEPS,
    bandwidth_plot,
    freshness_plot,
    grids,
    kind_of,
    stacks_table,
    unproved_words,
)
from envsmith.matrix.site.script_data import Hosts, make_choices, search_data
from envsmith.matrix.tables import export_texts
from envsmith.matrix.vouchers import UNSIGNED, Voucher, vouchers
from envsmith.model.record import Expected, Failure, Record, Rung, read_records
from envsmith.model.version import public
from envsmith.solver import default_solver
from envsmith.solver.words import join_words

STATIC = Path(__file__).parent / "static"
_LADDER = list(Rung)
# The scripts of the page share one scope: each uses those before it. The data stands before them.
_SCRIPTS = ("elements.js", "choices.js", "selector.js", "answer.js", "app.js")
# What a browser loads before it shows the page: of the frameworks the first one. The others come after that.
FIRST = ("index.html", "style.css", "theme.js", "data.js", f"{next(iter(FRAMEWORKS))}.js", *_SCRIPTS)
_COPIED = ("style.css", "theme.js", *_SCRIPTS, "find.js", "grid.js")
# What the page shows of a framework whose own script was not loaded.
_NAMES = ("name", "short", "title", "axis", "compiled")
# The mark of a folder that ``matrix site`` may write again.
SITE = "a site of the matrix"


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """All that the page shows. ``today`` decides what is stale."""

    choices: Mapping[str, Any]
    search: Mapping[str, Any]
    records: Sequence[Record]
    expiry: Expiry
    today: dt.date
    version: str
    vouchers: Mapping[str, Voucher] = field(default_factory=dict)
    stacks: Sequence[Stack] = ()


def site_texts(page: Page) -> dict[str, str]:
    """Return every file of the page by its path."""
    newest = latest(page.records)
    cells = {r.cell: [record for record in newest if record.cell == r.cell] for r in newest}
    tables = grids(page.choices, newest, page.expiry, page.today)
    files = {
        **{name: (STATIC / name).read_text(encoding="utf-8") for name in _COPIED},
        "index.html": _index(page, newest, tables),
        "tables.html": _fill("tables.html", {"LEGEND": _legend(page), "GRIDS": "\n".join(tables.values())}),
        "figures.html": _figures(page, newest),
        "data.js": f"window.ENVSMITH={_script(_data(page, newest))};\n",
        **{
            f"{framework['name']}.js": f"window.ENVSMITH.parts[{number}]={_script(part)};\n"
            for number, (framework, part) in enumerate(_parts(page, newest, tables))
        },
        "search.js": f"window.ENVSMITH_SEARCH={_script(page.search)};\n",
        "arm.js": f"window.ENVSMITH_ARM={_script(page.choices['arm'])};\n",
    }
    for cell, records in cells.items():
        files[f"cell/{cell}.html"] = _cell_page(page, cell, records)
    return files


def _script(value: object) -> str:
    """Return JSON inside a script: ``</script>`` and line separators cannot end it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _data(page: Page, newest: Sequence[Record]) -> dict[str, object]:
    """Return what all frameworks share. What is a framework's own, its script puts into ``parts``."""
    return {
        **{key: value for key, value in page.choices.items() if key != "arm"},
        "frameworks": [{key: f[key] for key in _NAMES} for f in page.choices["frameworks"]],
        "parts": [],
        "tools": {"ask": ASK, **TOOLS},
        "ladder": [r.value for r in _LADDER],
        "steps": [STEPS[r] for r in _LADDER],
        "kinds": {letter: words for letter, (_, words) in KINDS.items()},
        "made": page.today.isoformat(),
        "days": _days(newest),
    }


def _days(newest: Sequence[Record]) -> list[str]:
    return sorted({r.day for r in newest})


def _parts(
    page: Page, newest: Sequence[Record], tables: Mapping[str, str]
) -> Iterator[tuple[Mapping[str, Any], dict[str, object]]]:
    """Yield each framework with what its script has: its tables, its runs, and its grid where index.html lacks it."""
    for framework in page.choices["frameworks"]:
        own = sorted((r for r in newest if framework["name"] in frameworks_of(r.components)), key=lambda r: r.cell)
        whys = sorted({why for r in own if (why := _why(r))})
        part = {key: value for key, value in framework.items() if key not in _NAMES}
        part |= {"whys": whys, "records": _rows(page, own, _days(newest), whys)}
        first = framework is page.choices["frameworks"][0]
        yield framework, part | ({} if first else {"grid": tables[framework["name"]]})


def _rows(page: Page, newest: Sequence[Record], days: Sequence[str], whys: Sequence[str]) -> list[list[object]]:
    """Return records as ``[shared, rest, rung, 1 passed + 2 of the host + 4 stale, day, why it ended]``, by numbers.

    The name of the cell is what it shares with the row before, and the rest.
    """
    rows: list[list[object]] = []
    before = ""
    for record in newest:
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, record.cell, strict=False)))
        before = record.cell
        bits = record.passed | record.of_host << 1 | page.expiry.is_stale(record, page.today) << 2
        why = _why(record)
        rows.append([shared, before[shared:], _LADDER.index(record.rung), bits, days.index(record.day)])
        rows[-1] += [whys.index(why)] if why else []
    return rows


def _why(record: Record) -> str:
    return (record.failure.symptom if record.failure else "")[:160]


def _fill(template: str, values: Mapping[str, str]) -> str:
    text = (STATIC / template).read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def _words(day: str) -> str:
    date = dt.date.fromisoformat(day)
    return f"{date.day} {date:%B %Y}"


def _mark(letter: str, words: str, *, stale: bool = False) -> str:
    return f'<span class="m {letter}{" s" if stale else ""}" aria-hidden="true"></span>{html.escape(words)}'


def _index(page: Page, newest: Sequence[Record], tables: Mapping[str, str]) -> str:
    states = cell_states(page.records, page.expiry, page.today)
    proved = sum(state.is_proved for state in states)
    last = f" Last run on {_words(max(r.day for r in newest))}." if newest else ""
    first = next(iter(tables))
    values = {
        "COUNTS": f"<b>{proved}</b> of {len(states)} combinations passed their smoke test. {unproved_words(states)}{last}",
        "STACKS": stacks_table(page.stacks, states),
        "LEGEND": _legend(page),
        "FIRST": html.escape(first),
        "TITLES": html.escape(join_words([f["title"] for f in page.choices["frameworks"]])),
        "GRID": tables[first],
    }
    return _fill("index.html", {**values, "VERSION": html.escape(page.version), "MADE": _words(page.today.isoformat())})


def _legend(page: Page) -> str:
    legend = [f"<li>{_mark(letter, words)}</li>" for letter, (_, words) in KINDS.items()]
    if any(state.stale for state in cell_states(page.records, page.expiry, page.today)):
        legend.append(f"<li>{_mark('c', 'Old proof', stale=True)}</li>")
    return "".join(legend)


def _figures(page: Page, newest: Sequence[Record]) -> str:
    plots = {"FRESHNESS": freshness_plot(newest, page.expiry, page.today), "BANDWIDTH": bandwidth_plot(newest)}
    return _fill("figures.html", plots)


def _cell_page(page: Page, cell: str, records: Sequence[Record]) -> str:
    commands = "".join(
        f"<h3>{tool}</h3><div class='command'><pre tabindex='0'><code>{_unbroken(command)}</code></pre>"
        f"<button type='button' class='copy js' data-copy='{html.escape(command, quote=True)}'>Copy"
        f"<span class='hidden'> the {tool} command</span></button></div>"
        for tool, command in commands_of(cell, TOOLS).items()
    )
    values = {
        "CELL": html.escape(cell),
        "COMPONENTS": _table(records[0].components.items()),
        "COMMANDS": commands,
        "RUNS": "".join(_run(page, record) for record in records),
    }
    return _fill("cell.html", values)


def _unbroken(command: str) -> str:
    """Return a command as HTML whose lines do not break inside an option."""
    return re.sub(r"--\S+ [^-\s]\S*|\S+", lambda match: f"<span>{html.escape(match[0])}</span>", command)


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"<tr><th scope='row'>{html.escape(n)}</th><td>{html.escape(v)}</td></tr>" for n, v in rows if v]
    return f"<table class='facts'>{''.join(lines)}</table>"


def _run(page: Page, record: Record) -> str:
    data = record.to_json()
    age = max(0, (page.today - dt.date.fromisoformat(record.day)).days)
    stale = page.expiry.is_stale(record, page.today)
    letter = kind_of(record)
    state = _mark(letter, KINDS[letter][1] if letter != "x" else "Failed", stale=stale)
    facts = [
        ("Run on", f"{_words(record.day)}, {age} day{'s' * (age != 1)} before this page was made" + _OLD * stale),
        ("Vouched for by", str(page.vouchers.get(record.name, UNSIGNED))),
        ("Lock", str(data.get("lock", ""))),
        ("Image", str(data.get("image") or "")),
        ("Backend", f"{data.get('backend', '')}, {data.get('ranks', '')} ranks"),
        ("Host", ", ".join(f"{k} {v}" for k, v in dict(data.get("host") or {}).items() if v not in ("", [], None))),
        ("Foretold", f"{_FORETOLD} {', '.join(record.rules)}" if record.expected is Expected.BAD else ""),
        ("Summary", str(data.get("summary", ""))),
        ("Notes", "\n".join(map(str, data.get("notes") or ()))),
    ]
    steps = "".join(
        "<li>" + html.escape(f"{s.get('name')}: {s.get('verdict')}. {s.get('detail') or ''}") + "</li>"
        for s in data.get("steps") or ()
    )
    log = ""
    if failure := record.failure:
        lines = html.escape("\n".join(failure.log))
        log = f"<p class='symptom'>{html.escape(failure.symptom)}</p><pre tabindex='0'>{lines}</pre>"
    names = [html.escape(name, quote=True) for name in record.rules]
    rules = "".join(f'<li><a href="../index.html#rule={name}">{name}</a></li>' for name in names)
    return (
        f"<section class='panel'><h2>Run with {html.escape(record.engine)}</h2><p class='badge {letter}'>{state}</p>"
        f"{_ladder(data.get('rungs', ()), record.failure)}{log}{_table(facts)}"
        + (f"<h3>Framework steps</h3><ul>{steps}</ul>" if steps else "")
        + (f"<h3>Rules about this combination</h3><ul>{rules}</ul>" if rules else "")
        + "</section>"
    )


_FORETOLD = "It was run to show that it fails, as the rules say:"
_OLD = ". The proof is stale: counts only as locked"


def _ladder(proved: Sequence[str], failure: Failure | None) -> str:
    """Return the steps of the smoke test as a list, each with whether it passed."""
    items = []
    for rung in _LADDER:
        stopped = failure is not None and failure.rung is rung and not failure.of_host
        state, words = (
            ("done", "passed") if rung.value in proved else ("failed", "failed") if stopped else ("open", "not run")
        )
        items.append(f"<li class='{state}'>{STEPS[rung]}<span class='hidden'>: {words}</span></li>")
    return f"<ol class='ladder'>{''.join(items)}</ol>"


# -- what the page is made from: the knowledge, its records, today -----------------------------------------------------


def read_page(root: Path, *, hosts: Hosts | None = None) -> Page:
    """Read everything, with answers for ``hosts``. ``DataError`` when a record or the table of expiry is broken."""
    solver = default_solver()
    stored = read_records(root / "records")
    keep: dict[str, set[str]] = {}
    for record in stored:
        for name, version in record.components.items():
            keep.setdefault(name, set()).add(public(version) if name == "torch" else version)
    choices = make_choices(solver, keep=keep, hosts=hosts)
    stacks = tuple(load_stacks(root).values())
    return Page(
        choices=choices,
        search=search_data(solver.knowledge(), stored, choices, stacks),
        records=stored,
        expiry=load_expiry(root),
        today=now().date(),
        version=VERSION,
        vouchers=vouchers(root),
        stacks=stacks,
    )


def write_all(
    page: Page, folder: Path, root: Path, *, base_url: str = "", progress: Callable[[str], None] = lambda _line: None
) -> int:
    """Write the page's files and the data that it links to (``matrix.json`` and more). Return how many files."""
    data = document(root, default_solver(), moment=now(), progress=progress)
    texts = {**site_texts(page), **export_texts(data, root, base_url)}
    write_folder(folder, SITE, texts)
    return len(texts)
