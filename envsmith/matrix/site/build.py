"""Write the page: ``index.html`` with its data beside it, a page and a JSON file for each cell that was run, the known-bad symptoms for the search.

Every text that comes from a record is escaped here or set as text by the script: a log must not become markup.
"""

from __future__ import annotations

import datetime as dt
import html
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.errors import StorageError
from envsmith.matrix.expiry import Expiry, latest
from envsmith.matrix.records import Stored
from envsmith.matrix.site.choices import Choices
from envsmith.matrix.site.plots import bandwidth_plot, freshness_plot
from envsmith.model.cell import CellId
from envsmith.model.record import Rung

__all__ = ["Page", "write_site"]

_STATIC = Path(__file__).parent / "static"
_LADDER = list(Rung)
_COPIED = ("style.css", "app.js", "theme.js")


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """All that the page shows. ``bad`` are ``{"components", "rule", "symptom", "fix"}``; ``today`` decides what is stale."""

    choices: Choices
    records: Sequence[Stored]
    expiry: Expiry
    bad: Sequence[Mapping[str, Any]]
    today: dt.date
    version: str


def write_site(page: Page, folder: Path) -> list[Path]:
    """Write every file below ``folder`` (made when missing) and say which. ``StorageError``."""
    newest = latest(page.records)
    cells = {r.cell: [other for other in newest if other.cell == r.cell] for r in newest}
    files: dict[str, str] = {
        "index.html": _index(page, newest),
        "data.js": f"window.ENVSMITH={_script(_data(page, newest))};\n",
        "bad.js": f"window.ENVSMITH_BAD={_script(list(page.bad))};\n",
    }
    for cell, records in cells.items():
        files[f"cell/{cell}.html"] = _cell_page(page, cell, records)
    written = []
    try:
        (folder / "cell").mkdir(parents=True, exist_ok=True)
        for name in _COPIED:
            shutil.copyfile(_STATIC / name, folder / name)
            written.append(folder / name)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
            written.append(folder / name)
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return written


def _script(value: object) -> str:
    """JSON inside a script: ``</script>`` and line separators cannot end it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _data(page: Page, newest: Sequence[Stored]) -> dict[str, object]:
    days = sorted({r.day for r in newest})
    whys = sorted({why for r in newest if (why := _why(r))})
    return {
        **page.choices.to_json(),
        "ladder": [r.value for r in _LADDER],
        "made": page.today.isoformat(),
        "days": days,
        "whys": whys,
        "records": [_row(page, r, days, whys) for r in newest],
    }


def _row(page: Page, record: Stored, days: Sequence[str], whys: Sequence[str]) -> list[object]:
    """A record for the grid, small because the first page holds them all: cell, rung, 1 passed + 2 of the host + 4 stale, day, and why it ended."""
    stale = page.expiry.is_stale(record, page.today)
    told = record.passed | record.of_host << 1 | stale << 2
    row: list[object] = [record.cell, _LADDER.index(record.rung), told, days.index(record.day)]
    why = _why(record)
    return [*row, whys.index(why)] if why else row


def _why(record: Stored) -> str:
    return str((record.failure or {}).get("symptom", ""))[:160]


def _index(page: Page, newest: Sequence[Stored]) -> str:
    text = (_STATIC / "index.html").read_text(encoding="utf-8")
    passed = sum(r.passed for r in newest)
    counts = f"{len({r.cell for r in newest})} cells were run, {passed} passed; newest run {max((r.day for r in newest), default='never')}"
    for name, value in {
        "{{COUNTS}}": html.escape(counts),
        "{{FRESHNESS}}": freshness_plot(newest, page.expiry, page.today),
        "{{BANDWIDTH}}": bandwidth_plot(newest),
        "{{VERSION}}": html.escape(page.version),
        "{{MADE}}": page.today.isoformat(),
    }.items():
        text = text.replace(name, value)
    return text


def _commands(cell: str, components: Mapping[str, str]) -> list[tuple[str, str]]:
    """``(tool, command)`` that give this cell. Everything in them was parsed as a cell id."""
    parsed = CellId.parse(cell)
    chosen = dict(parsed.components)
    torch, python = chosen.get("torch", "").partition("+")[0], chosen.get("python", "")
    frameworks = [(n, v) for n, v in chosen.items() if n not in ("torch", "python", "cuda")]
    pins = " ".join([f"torch=={torch}", *(f"{n}=={v}" for n, v in frameworks)])
    cuda = chosen.get("cuda", "")
    asked = " ".join(
        [*(f"--framework '{n}=={v}'" if n in components else f"--with '{n}=={v}'" for n, v in frameworks[:1])]
        + [f"--with '{n}=={v}'" for n, v in frameworks[1:]]
        + [f"--torch {torch}", f"--cuda {cuda}", f"--python {python}"]
    )
    installers = [
        ("uv", f"uv venv --python {python} && uv pip install {pins}"),
        ("pip", f"python{python} -m venv env && env/bin/pip install {pins}"),
    ]
    if not frameworks:  # torch alone: envsmith builds no such cell
        return installers
    return [
        ("envsmith", f"envsmith build {asked}"),
        *installers,
        ("conda", f"envsmith lock {asked} --format conda"),
        ("docker", f"envsmith build {asked} --engine docker"),
    ]


def _cell_page(page: Page, cell: str, records: Sequence[Stored]) -> str:
    text = (_STATIC / "cell.html").read_text(encoding="utf-8")
    components = records[0].components
    rows = "".join(
        f"<tr><th scope='row'>{html.escape(n)}</th><td>{html.escape(v)}</td></tr>" for n, v in components.items()
    )
    commands = "".join(
        f"<h3>{tool}</h3><div class='command'><pre tabindex='0'><code>{html.escape(command)}</code></pre>"
        f"<button type='button' class='copy' data-copy='{html.escape(command, quote=True)}'>copy<span class='hidden'> the {tool} command</span></button></div>"
        for tool, command in _commands(cell, components)
    )
    runs = "".join(_run(page, record) for record in records)
    for name, value in {
        "{{CELL}}": html.escape(cell),
        "{{COMPONENTS}}": rows,
        "{{COMMANDS}}": commands,
        "{{RUNS}}": runs,
    }.items():
        text = text.replace(name, value)
    return text


def _run(page: Page, record: Stored) -> str:
    data = record.data
    age = max(0, (page.today - dt.date.fromisoformat(record.day)).days)
    stale = page.expiry.is_stale(record, page.today)
    state = "passed" if record.passed else "not decided by this host" if record.of_host else "failed"
    ladder = "".join(
        f"<li class='{'done' if rung.value in data.get('rungs', ()) else 'open'}'>{html.escape(rung.value)}"
        f"<span class='hidden'>: {'proved' if rung.value in data.get('rungs', ()) else 'not proved'}</span></li>"
        for rung in _LADDER
    )
    facts = [
        ("engine", record.engine),
        ("day", f"{record.day}, {age} days before this page" + (", stale: counts only as locked" if stale else "")),
        ("lock", str(data.get("lock", ""))),
        ("image", str(data.get("image") or "")),
        ("backend", f"{data.get('backend', '')}, {data.get('ranks', '')} ranks"),
        ("host", ", ".join(f"{k} {v}" for k, v in dict(data.get("host") or {}).items() if v not in ("", [], None))),
        ("summary", str(data.get("summary", ""))),
        ("notes", "; ".join(map(str, data.get("notes") or ()))),
    ]
    table = "".join(f"<tr><th scope='row'>{n}</th><td>{html.escape(v)}</td></tr>" for n, v in facts if v)
    steps = "".join(
        f"<li>{html.escape(str(s.get('name')))}: {html.escape(str(s.get('verdict')))}. {html.escape(str(s.get('detail') or ''))}</li>"
        for s in data.get("steps") or ()
    )
    failure = record.failure
    log = ""
    if failure:
        lines = "\n".join(map(str, failure.get("log") or ()))
        log = f"<p class='symptom'>{html.escape(str(failure.get('symptom', '')))}</p><pre tabindex='0'>{html.escape(lines)}</pre>"
    rules = "".join(f"<li><code>envsmith explain {html.escape(str(r))}</code></li>" for r in data.get("rules") or ())
    return (
        f"<section><h2>{html.escape(record.engine)}: <span class='state {'ok' if record.passed else 'bad'}'>{state}</span></h2>"
        f"<ol class='ladder'>{ladder}</ol>{log}<table>{table}</table>"
        + (f"<h3>Framework steps</h3><ul>{steps}</ul>" if steps else "")
        + (f"<h3>Rules that speak of it</h3><ul>{rules}</ul>" if rules else "")
        + "</section>"
    )
