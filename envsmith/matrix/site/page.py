"""Write the page: ``index.html`` with its data, a page for each cell that was run, the symptoms for the search.

Every text that comes from a record is escaped here or set as text by the script: a log must not become markup.
"""

from __future__ import annotations

import datetime as dt
import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith import __version__
from envsmith.files import now, write_folder
from envsmith.graph.expiry import Expiry, latest, load_expiry
from envsmith.matrix.cells import ASK, TOOLS, commands_of
from envsmith.matrix.document import document
from envsmith.matrix.tables import export_texts
from envsmith.model.cell import Platform, Request
from envsmith.model.component import Role
from envsmith.model.record import Record, Rung, read_records
from envsmith.model.rule import Severity
from envsmith.model.version import Spec, public, version_key
from envsmith.solve import default_solver
from envsmith.solve.explain import refuse
from envsmith.solve.judge import known_bad
from envsmith.solve.kernel import Domains
from envsmith.solve.solver import Solver

_STATIC = Path(__file__).parent / "static"
_LADDER = list(Rung)
_COPIED = ("style.css", "app.js", "theme.js")


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """All that the page shows. ``bad`` are ``{components, rule, symptom, fix}``. ``today`` decides what is stale."""

    choices: Mapping[str, Any]
    records: Sequence[Record]
    expiry: Expiry
    bad: Sequence[Mapping[str, Any]]
    today: dt.date
    version: str


# The mark of a folder that ``matrix site`` may write again.
SITE = "a site of the matrix"


def site_texts(page: Page) -> dict[str, str]:
    """Return every file of the page by its path."""
    newest = latest(page.records)
    cells = {r.cell: [record for record in newest if record.cell == r.cell] for r in newest}
    files = {
        **{name: (_STATIC / name).read_text(encoding="utf-8") for name in _COPIED},
        "index.html": _index(page, newest),
        "data.js": f"window.ENVSMITH={_script(_data(page, newest))};\n",
        "bad.js": f"window.ENVSMITH_BAD={_script(list(page.bad))};\n",
    }
    for cell, records in cells.items():
        files[f"cell/{cell}.html"] = _cell_page(page, cell, records)
    return files


def _script(value: object) -> str:
    """Return JSON inside a script: ``</script>`` and line separators cannot end it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _data(page: Page, newest: Sequence[Record]) -> dict[str, object]:
    days = sorted({r.day for r in newest})
    whys = sorted({why for r in newest if (why := _why(r))})
    return {
        **page.choices,
        "tools": {"ask": ASK, **TOOLS},
        "ladder": [r.value for r in _LADDER],
        "made": page.today.isoformat(),
        "days": days,
        "whys": whys,
        "records": [_row(page, r, days, whys) for r in newest],
    }


def _row(page: Page, record: Record, days: Sequence[str], whys: Sequence[str]) -> list[object]:
    """Return a record as ``[cell, rung, 1 passed + 2 of the host + 4 stale, day, why it ended]``, by numbers."""
    stale = page.expiry.is_stale(record, page.today)
    bits = record.passed | record.of_host << 1 | stale << 2
    row: list[object] = [record.cell, _LADDER.index(record.rung), bits, days.index(record.day)]
    why = _why(record)
    return [*row, whys.index(why)] if why else row


def _why(record: Record) -> str:
    return (record.failure.symptom if record.failure else "")[:160]


def _index(page: Page, newest: Sequence[Record]) -> str:
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


def _cell_page(page: Page, cell: str, records: Sequence[Record]) -> str:
    text = (_STATIC / "cell.html").read_text(encoding="utf-8")
    components = records[0].components
    rows = "".join(
        f"<tr><th scope='row'>{html.escape(n)}</th><td>{html.escape(v)}</td></tr>" for n, v in components.items()
    )
    commands = "".join(
        f"<h3>{tool}</h3><div class='command'><pre tabindex='0'><code>{html.escape(command)}</code></pre>"
        f"<button type='button' class='copy' data-copy='{html.escape(command, quote=True)}'>copy<span class='hidden'> the {tool} command</span></button></div>"
        for tool, command in commands_of(cell, TOOLS).items()
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


def _run(page: Page, record: Record) -> str:
    data = record.to_json()
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
        lines = "\n".join(failure.log)
        log = f"<p class='symptom'>{html.escape(failure.symptom)}</p><pre tabindex='0'>{html.escape(lines)}</pre>"
    rules = "".join(f"<li><code>envsmith explain {html.escape(str(r))}</code></li>" for r in data.get("rules") or ())
    return (
        f"<section><h2>{html.escape(record.engine)}: <span class='state {'ok' if record.passed else 'bad'}'>{state}</span></h2>"
        f"<ol class='ladder'>{ladder}</ol>{log}<table>{table}</table>"
        + (f"<h3>Framework steps</h3><ul>{steps}</ul>" if steps else "")
        + (f"<h3>Rules that speak of it</h3><ul>{rules}</ul>" if rules else "")
        + "</section>"
    )


# -- small plots as SVG: how fresh the proofs are, and the bandwidth where any was measured ----------------------------

_ROW, _LEFT, _WIDTH = 18, 56, 420
_KINDS = ("fresh", "stale", "failed", "unshown")  # classes of style.css


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
        return "<p>No bandwidth is recorded yet: that tier needs GPUs to say anything.</p>"
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


# -- what can be chosen together, as small tables: outcomes of the rules, so that no rule is in JavaScript --------------


def make_choices(solver: Solver, *, keep: Mapping[str, Iterable[str]] | None = None) -> dict[str, Any]:
    """Return the tables for linux-64, with short keys, for the page only. ``matrix.json`` is the documented form.

    The page has the newest release of each minor series, and what ``keep`` (versions by component) names besides.
    Everything is newest first. ``builds`` are (number of the torch, CUDA, tag of the build or empty for the default
    index). For each build there are the GPUs that it ``runs`` on and the oldest driver that it needs. A framework's
    ``rows`` have, for each release and build, the Pythons as bits, its ``why`` the number of the reason for each
    release and torch that cannot be, its ``tested`` the torches that somebody's CI ran with a release.
    """
    keep = keep or {}
    compiled, knowledge = solver.compiled, solver.knowledge()
    index = compiled.torch_index[Platform.LINUX_64.value]
    publics = dict.fromkeys(public(v) for v in compiled.versions["torch"] if v in index)
    torches = _newest(publics, keep.get("torch", ()))
    builds = _builds(compiled.versions["torch"], index, torches)
    pythons = [p for p in compiled.versions["python"] if p >= "3.8" or p.startswith("3.1")]
    pythons.sort(key=lambda p: [int(n) for n in p.split(".")], reverse=True)
    reasons: list[str] = []
    frameworks = []
    for component in knowledge.components.with_role(Role.FRAMEWORK):
        name = component.name
        releases = _newest(_stable(solver, name), keep.get(name, ()))
        rows = _rows(solver, name, releases, [version for _, _, version in builds], pythons)
        why = {}
        for i, release in enumerate(releases):
            for t, torch in enumerate(torches):
                if not any(rows[i][b] for b, (number, _, _) in enumerate(builds) if number == t):
                    reason = _reason(solver, name, release, torch)
                    if reason not in reasons:
                        reasons.append(reason)
                    why[f"{i},{t}"] = reasons.index(reason)
        frameworks.append(
            {
                "name": name,
                "short": component.short,
                "title": component.title,
                "releases": releases,
                "rows": [".".join(f"{mask:x}" if mask else "" for mask in row) for row in rows],
                "why": why,
                "tested": _tested(solver, torches, name, releases),
            }
        )
    return {
        "pythons": pythons,
        "torches": torches,
        "builds": [(t, cuda, "" if index[v] == "default" else v.partition("+")[2]) for t, cuda, v in builds],
        "gpus": dict(knowledge.gpus),
        "archs": list(compiled.versions["gpu"]),
        "runs": [_gpus(solver, version) for _, _, version in builds],
        "drivers": [_driver(solver, version) for _, _, version in builds],
        "reasons": reasons,
        "frameworks": frameworks,
    }


def _stable(solver: Solver, name: str) -> list[str]:
    versions = solver.compiled.versions[name]
    pre, yanked = solver.compiled.pre.get(name, 0), solver.compiled.yanked.get(name, 0)
    return [v for i, v in enumerate(versions) if not (pre | yanked) >> i & 1]


def _newest(versions: Iterable[str], keep: Iterable[str]) -> list[str]:
    """Return the newest of each minor series and what is to be kept, newest first."""
    series: dict[tuple[int, ...], str] = {}
    listed = sorted((v for v in versions if version_key(v)), key=lambda v: version_key(v) or v, reverse=True)
    for version in listed:
        key = version_key(version)
        if key is not None and not key.is_prerelease:
            series.setdefault(key.release[:2], version)
    chosen = {*series.values(), *keep}
    return [version for version in listed if version in chosen]


def _builds(versions: Sequence[str], index: Mapping[str, str], torches: Sequence[str]) -> list[tuple[int, str, str]]:
    """Return ``(torch number, CUDA, version)`` of every build: the default one first, then the newest CUDA."""
    builds = []
    for version in versions:
        public, _, tag = version.partition("+")
        if version in index and public in torches:
            cuda = f"{tag[2:-1]}.{tag[-1]}" if tag.startswith("cu") else "cpu"
            newest = [-int(n) for n in cuda.split(".") if n.isdigit()]
            number = torches.index(public)
            builds.append(((number, index[version] != "default", cuda == "cpu", newest), (number, cuda, version)))
    return [build for _, build in sorted(builds, key=lambda pair: pair[0])]


def _possible(solver: Solver, component: str, build: str) -> tuple[int, Sequence[str | None]]:
    """Return the releases of a component, and which of them a build of torch can run with, as bits."""
    problem = solver.pose(Request(constraints={c: Spec.parse("*") for c in (component, "torch")})).problem
    place, torch = problem.names.index(component), problem.names.index("torch")
    domains = problem.rules_net(Severity.ERROR).begin([(torch, problem.bit(torch, build))])
    return (domains[place] if domains is not None else 0), problem.values[place]


def _gpus(solver: Solver, build: str) -> list[int]:
    """Return the numbers of the architectures on which a build runs, none for one without CUDA."""
    if build.endswith("+cpu"):
        return []
    mask, values = _possible(solver, "gpu", build)
    return [i for i, arch in enumerate(solver.compiled.versions["gpu"]) if mask >> values.index(arch) & 1]


def _driver(solver: Solver, build: str) -> str:
    """Return the oldest driver that the build runs with, or an empty text when it needs none or none is known."""
    if build.endswith("+cpu"):
        return ""
    mask, values = _possible(solver, "driver", build)
    lowest = (mask & -mask).bit_length() - 1
    return str(values[lowest]) if mask and mask != (1 << len(values)) - 1 else ""


def _rows(
    solver: Solver, name: str, releases: Sequence[str], builds: Sequence[str], pythons: Sequence[str]
) -> list[list[int]]:
    """Return, for each release and build, the Pythons for which there is a cell, as bits."""
    problem = solver.pose(Request(frameworks={name: Spec.parse("*")})).problem
    net = problem.rules_net(Severity.ERROR)
    own, torch, python = (problem.names.index(n) for n in (name, "torch", "python"))

    def mask_of(domains: Domains | None) -> int:
        mask = 0
        for place, minor in enumerate(pythons):
            narrowed = net.narrow(domains, python, problem.bit(python, minor)) if domains else None
            if narrowed is not None and net.solvable(narrowed) is not None:
                mask |= 1 << place
        return mask

    rows = []
    for release in releases:
        first = net.begin([(own, problem.bit(own, release))])
        rows.append([mask_of(net.narrow(first, torch, problem.bit(torch, b)) if first else None) for b in builds])
    return rows


def _reason(solver: Solver, name: str, release: str, torch: str) -> str:
    """Return the solver's sentence for a pair that cannot be."""
    request = Request(frameworks={name: Spec.exactly(release)}, constraints={"torch": Spec.parse(f"=={torch}")})
    refusal = refuse(solver, solver.pose(request)).refusal
    members = [m for m in (refusal.conflict if refusal else ()) if not m.rule.startswith("request:")]
    return "; ".join(f"{m.message} [{m.rule}]" for m in members) or "not possible"


def _tested(solver: Solver, torches: Sequence[str], name: str, releases: Sequence[str]) -> dict[str, list[int]]:
    tested: dict[str, set[int]] = {}
    for entry in solver.knowledge().tested:
        numbers = {t for t, version in enumerate(torches) if entry.torch.contains(version)}
        for i, release in enumerate(releases):
            if entry.framework == name and numbers and entry.version.contains(release):
                tested.setdefault(str(i), set()).update(numbers)
    return {release: sorted(numbers) for release, numbers in tested.items()}


# -- what the page is made from: the knowledge, its records, today -----------------------------------------------------


def read_page(root: Path) -> Page:
    """Read everything. ``DataError`` when a record or the table of expiry is broken."""
    solver = default_solver()
    stored = read_records(root / "records")
    keep: dict[str, set[str]] = {}
    for record in stored:
        for name, version in record.components.items():
            keep.setdefault(name, set()).add(public(version) if name == "torch" else version)
    knowledge = solver.knowledge()
    fixes = {rule.id: next((row.fix for row in rule.rows if row.fix), rule.fix) or "" for rule in knowledge.rules}
    bad: list[Mapping[str, str]] = [
        {
            "components": " with ".join(f"{n} {v}" for n, v in entry.components.items()),
            "rule": entry.rule,
            "symptom": entry.symptom,
            "fix": fixes.get(entry.rule, ""),
        }
        for entry in known_bad(knowledge)
    ]
    # Runs that failed, by their symptom.
    bad += [
        {"components": r.cell, "rule": (r.rules or ("record",))[0], "symptom": r.failure.symptom, "fix": ""}
        for r in stored
        if r.failure and not r.passed and not r.of_host
    ]
    return Page(
        choices=make_choices(solver, keep=keep),
        records=stored,
        expiry=load_expiry(root),
        bad=bad,
        today=now().date(),
        version=__version__,
    )


def write_all(
    page: Page,
    folder: Path,
    root: Path,
    *,
    base_url: str = "",
    progress: Callable[[str], None] = lambda _line: None,
) -> int:
    """Write the page's files and the data that it links to (``matrix.json`` and more). Return how many files."""
    data = document(root, default_solver(), moment=now(), progress=progress)
    texts = {**site_texts(page), **export_texts(data, root, base_url)}
    write_folder(folder, SITE, texts)
    return len(texts)
