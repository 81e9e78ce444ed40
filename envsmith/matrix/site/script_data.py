"""What the page's scripts read: outcomes of the rules as small tables, and what the search box looks through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from envsmith.frameworks import FRAMEWORKS, beside_core
from envsmith.knowledge.graph.runtime import is_compiled
from envsmith.knowledge.graph.stacks import Stack
from envsmith.knowledge.graph.support import support_ends
from envsmith.model.cell import Cell, Platform, Request
from envsmith.model.record import Failure, Record
from envsmith.model.rule import Knowledge, Row, Rule, RuleKind, Severity
from envsmith.model.version import Spec, public, version_key
from envsmith.solver.kernel import Domains
from envsmith.solver.known_bad import known_bad, stated_by_metadata
from envsmith.solver.refusal import conflicts
from envsmith.solver.request import Posed
from envsmith.solver.solver import Solver
from envsmith.solver.words import join_words


@dataclass(frozen=True, kw_only=True, slots=True)
class Hosts:
    """The GPUs and drivers that the page offers, of the many that are known."""

    gpus: tuple[str, ...] = (
        "b300", "gb200", "b200", "gh200", "h200", "h100", "a100", "l40s", "l4", "rtx5090", "rtx4090", "rtx3090", "t4", "v100",
    )  # fmt: skip
    drivers: tuple[str, ...] = ("580.65.06", "570.86.15", "550.54.14", "535.54.03", "525.60.13", "470.82.01")


def make_choices(
    solver: Solver, *, keep: Mapping[str, Iterable[str]] | None = None, hosts: Hosts | None = None
) -> dict[str, Any]:
    """Return the tables with short keys, for the page only. ``matrix.json`` is the documented form.

    They are of linux-64. ``arm`` has those of Arm hosts, ``armGpus`` the GPUs that come with one, ``ends`` the last
    month with fixes of series of Python and of the driver.

    The page has the newest release of each minor series, what ``keep`` (versions by component) names, and what answers
    have.
    Everything is newest first. ``builds`` are (number of the torch, CUDA, tag of the build or empty for the default
    index). For each build there are the GPUs that it ``runs`` on and the oldest driver that it needs, for each GPU the
    oldest driver that knows it (``gpuDrivers``). A framework's ``rows`` have the Pythons for each build as bits, its ``row`` the number of the row for each release. Its ``why``
    has the number of the one of its ``reasons`` for each release and torch that do not work together, its ``tested``
    the torches that the framework's CI ran with a release. Its ``answers`` are the solver's: for each GPU, driver and
    Python (none first) the number of one of its ``cells``, which are ``[row, build, Python]``. It is -1 where there is
    no answer.
    """
    versions_to_keep = {name: set(versions) for name, versions in (keep or {}).items()}
    hosts = hosts or Hosts()
    compiled, knowledge = solver.compiled, solver.knowledge()
    index = compiled.torch_index[Platform.LINUX_64.value]
    pythons = [p for p in compiled.versions["python"] if p >= "3.8" or p.startswith("3.1")]
    pythons.sort(key=lambda p: [int(n) for n in p.split(".")], reverse=True)
    gpus = {name: knowledge.gpus[name] for name in hosts.gpus if name in knowledge.gpus}
    requests = list(product((None, *gpus.values()), (None, *hosts.drivers), (None, *pythons)))
    answers = {name: _answers(solver, name, requests) for name in FRAMEWORKS}
    on_arm = {name: _answers(solver, name, requests, Platform.LINUX_AARCH64) for name in FRAMEWORKS}
    for cell in (cell for cells in (*answers.values(), *on_arm.values()) for cell in cells if cell):
        for name, version in cell.components.items():
            versions_to_keep.setdefault(name, set()).add(public(version) if name == "torch" else version)
    publics = dict.fromkeys(public(v) for v in compiled.versions["torch"] if v in index)
    torches = _newest(publics, versions_to_keep.get("torch", ()))
    arm_index = compiled.torch_index[Platform.LINUX_AARCH64.value]
    builds = _builds(compiled.versions["torch"], {**arm_index, **index}, torches)
    versions = [version for _, _, version in builds]
    frameworks, arm = [], []
    for name, cells in answers.items():
        tables = _framework(solver, name, versions_to_keep.get(name, ()), torches, builds=builds, pythons=pythons)
        frameworks.append(tables | _numbered(cells, tables, versions, pythons))
        own = beside_core(name)
        rows = _rows(solver, own, tables["releases"], versions, pythons, platform=Platform.LINUX_AARCH64)
        arm.append(_once(rows) | _numbered(on_arm[name], tables, versions, pythons))
    return {
        "pythons": pythons,
        "torches": torches,
        "builds": [(t, cuda, _tag(v, index)) for t, cuda, v in builds],
        "gpus": gpus,
        "armGpus": [name for name in gpus if name in compiled.gpus_on_arm],
        "arm": {"frameworks": arm},
        "ends": support_ends(),
        "hostDrivers": list(hosts.drivers),
        "archs": list(compiled.versions["gpu"]),
        "runs": [_gpus(solver, version) for _, _, version in builds],
        "drivers": [_driver(solver, "torch", version) for _, _, version in builds],
        "gpuDrivers": {name: _driver(solver, "gpu", architecture) for name, architecture in gpus.items()},
        "frameworks": frameworks,
    }


def _tag(build: str, index: Mapping[str, str]) -> str:
    """Return what names a build on PyTorch's own index, nothing for one of the default index or of none."""
    return "" if index.get(build, "default") == "default" else build.partition("+")[2]


def _once(rows: Sequence[Sequence[int]]) -> dict[str, list[str] | list[int]]:
    """Return the different rows as text, and the number of the row of each release."""
    lines = [".".join(f"{mask:x}" if mask else "" for mask in row) for row in rows]
    different = list(dict.fromkeys(lines))
    return {"rows": different, "row": [different.index(line) for line in lines]}


def _framework(
    solver: Solver,
    name: str,
    keep: Iterable[str],
    torches: Sequence[str],
    *,
    builds: Sequence[tuple[int, str, str]],
    pythons: Sequence[str],
) -> dict[str, Any]:
    """Return the tables of one framework. The rows of torch itself are Pythons: its ``axis``."""
    component = beside_core(name)
    releases = list(pythons) if component == "python" else _newest({*_stable(solver, name), *keep}, keep)
    rows = _rows(solver, component, releases, [version for _, _, version in builds], pythons)
    why = []
    for release, row in zip(releases, rows, strict=True):
        possible = {number for (number, _, _), mask in zip(builds, row, strict=True) if mask}
        why.append([_reason(solver, component, release, v) if t not in possible else "" for t, v in enumerate(torches)])
    reasons = list(dict.fromkeys(reason for line in why for reason in line if reason))
    return {
        "name": name,
        "short": FRAMEWORKS[name].short,
        "title": FRAMEWORKS[name].title,
        "axis": "release" if component == name else component,
        "compiled": is_compiled(name),
        "releases": releases,
        **_once(rows),
        "reasons": reasons,
        "why": [".".join(str(reasons.index(reason)) if reason else "" for reason in line) for line in why],
        "tested": _tested(solver, torches, name, releases),
    }


def _answers(
    solver: Solver,
    name: str,
    requests: Iterable[tuple[str | None, str | None, str | None]],
    platform: Platform = Platform.LINUX_64,
) -> list[Cell | None]:
    """Return the solver's best cells of a framework for GPU, driver and Python, in the order in which they are asked."""
    cells: dict[tuple[object, ...], Cell | None] = {}
    answers = []
    for gpu, driver, python in requests:
        posed = solver.pose(
            Request(
                frameworks={name: Spec.parse("*")},
                constraints={"python": Spec.parse(python)} if python else {},
                driver=driver,
                gpus=(gpu,) if gpu else (),
                platform=platform,
            )
        )
        key = (gpu, python, _left_by(posed))
        if key not in cells:
            answer = solver.best(posed)
            cells[key] = answer.cell if answer else None
        answers.append(cells[key])
    return answers


def _numbered(
    answers: Sequence[Cell | None], framework: Mapping[str, Any], builds: Sequence[str], pythons: Sequence[str]
) -> dict[str, Any]:
    """Return the different answers as ``[row, build, Python]`` of the page's tables, and the number of each."""
    own = framework["name"] if framework["axis"] == "release" else framework["axis"]
    places = [
        None
        if cell is None
        else (
            framework["releases"].index(cell.components[own]),
            builds.index(cell.components["torch"]),
            pythons.index(cell.components["python"]),
        )
        for cell in answers
    ]
    different = [place for place in dict.fromkeys(places) if place]
    return {"cells": different, "answers": [different.index(place) if place else -1 for place in places]}


def _left_by(posed: Posed) -> tuple[int, ...]:
    """Return what a request leaves of each part but the driver: two drivers that leave the same have one answer."""
    problem = posed.problem
    domains = problem.rules_net(Severity.ERROR).begin([mask for wish in problem.wishes for mask in wish.masks])
    return tuple(domain for name, domain in zip(problem.names, domains or (), strict=False) if name != "driver")


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


def _possible(solver: Solver, component: str, beside: str, version: str) -> tuple[int, Sequence[str | None]]:
    """Return the releases of a component, and which of them can be beside a version of another, as bits."""
    problem = solver.pose(Request(constraints={c: Spec.parse("*") for c in (component, beside)})).problem
    place, second = problem.names.index(component), problem.names.index(beside)
    domains = problem.rules_net(Severity.ERROR).begin([(second, problem.bit(second, version))])
    return (domains[place] if domains is not None else 0), problem.values[place]


def _gpus(solver: Solver, build: str) -> list[int]:
    """Return the numbers of the architectures on which a build runs, none for one without CUDA."""
    if build.endswith("+cpu"):
        return []
    mask, values = _possible(solver, "gpu", "torch", build)
    return [i for i, arch in enumerate(solver.compiled.versions["gpu"]) if mask >> values.index(arch) & 1]


def _driver(solver: Solver, component: str, version: str) -> str:
    """Return the oldest driver that a build or a GPU needs, or an empty text when it needs none or none is known."""
    if version.endswith("+cpu"):
        return ""
    mask, values = _possible(solver, "driver", component, version)
    lowest = (mask & -mask).bit_length() - 1
    return str(values[lowest]) if mask and mask != (1 << len(values)) - 1 else ""


def _rows(
    solver: Solver,
    name: str,
    releases: Sequence[str],
    builds: Sequence[str],
    pythons: Sequence[str],
    *,
    platform: Platform = Platform.LINUX_64,
) -> list[list[int]]:
    """Return, for each release and build, the Pythons for which there is a cell, as bits."""
    problem = solver.pose(Request(constraints={name: Spec.parse("*")}, platform=platform)).problem
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
    request = Request(constraints={name: Spec.exactly(release), "torch": Spec.parse(f"=={torch}")})
    members = [m for m in next(conflicts(solver, solver.pose(request)), ()) if not m.is_wish]
    return "; ".join(f"{m.message} [{m.rule}]" for m in members) or "not possible"


def _tested(solver: Solver, torches: Sequence[str], name: str, releases: Sequence[str]) -> dict[str, list[int]]:
    tested: dict[str, set[int]] = {}
    for entry in solver.knowledge().tested:
        numbers = {t for t, version in enumerate(torches) if entry.torch.contains(version)}
        for i, release in enumerate(releases):
            if entry.framework == name and numbers and entry.version.contains(release):
                tested.setdefault(str(i), set()).update(numbers)
    return {release: sorted(numbers) for release, numbers in tested.items()}


def search_data(
    knowledge: Knowledge, records: Iterable[Record], choices: Mapping[str, Any], stacks: Iterable[Stack]
) -> dict[str, Any]:
    """Return the rules, the errors, the warnings and the stacks that the script reads from ``search.js``.

    A rule is ``[id, cause, fix, sources]``. An error is ``[components, rule number, symptom]``, the number -1 for a
    run that failed: its components are then the cell. A warning is ``[rule number, note, cause, fix, where]``.
    A stack is ``[name, title, members]``.
    """
    rules = [r for r in knowledge.rules if not stated_by_metadata(r) and "-run-failed-" not in r.id]
    numbers = {rule.id: number for number, rule in enumerate(rules)}
    errors = [
        [" with ".join(f"{n} {v}" for n, v in bad.components.items()), numbers[bad.rule], bad.symptom]
        for bad in known_bad(knowledge)
        if bad.rule in numbers
    ]
    errors += [
        [
            r.cell,
            next((numbers[rule.id] for rule in rules if rule.id in r.rules and _shows(rule, r.failure)), -1),
            r.failure.symptom,
        ]
        for r in records
        if r.failure and not r.passed and not r.of_host
    ]
    warnings = [
        [number, row.severity is Severity.NOTE, _sentence(row.cause), row.fix or "", where]
        for number, rule in enumerate(rules)
        for row in rule.rows
        if row.severity is not Severity.ERROR and (where := _where(rule, row, choices)) is not None
    ]
    return {
        "rules": [_rule(rule) for rule in rules],
        "errors": errors,
        "warnings": warnings,
        "stacks": [[stack.name, stack.title, join_words(list(stack.requires))] for stack in stacks],
    }


def _shows(rule: Rule, failure: Failure) -> bool:
    return any(text and failure.symptom.startswith(text) for text in (rule.symptom, *(r.symptom for r in rule.rows)))


def _sentence(cause: str | None) -> str:
    """Return a cause as a sentence: that of a table is a clause."""
    return f"{cause[:1].upper()}{cause[1:].removesuffix('.')}." if cause else ""


def _rule(rule: Rule) -> list[object]:
    cause = rule.cause or next((row.cause for row in rule.rows if row.cause), "")
    fix = next((row.fix for row in rule.rows if row.fix), rule.fix) or ""
    evidence = [*rule.rows[0].evidence, *(e for row in rule.rows[1:] for e in row.evidence)]
    return [
        rule.id,
        _sentence(cause),
        fix,
        list(dict.fromkeys(e.source for e in evidence if e.source.startswith("https://")))[:3],
    ]


def _where(rule: Rule, row: Row, choices: Mapping[str, Any]) -> dict[str, list[int]] | None:
    """Return the numbers of the choices that a warning is about, or ``None`` where it is about none of them.

    A component that is absent may be any. ``f`` is the framework, ``r`` its releases, ``t`` the torches, ``c`` the
    builds, ``p`` the Pythons, ``g`` the GPUs.
    """
    frameworks = {f["name"]: number for number, f in enumerate(choices["frameworks"]) if f["axis"] == "release"}
    tables: dict[str, tuple[str, Sequence[str]]] = {
        "torch": ("t", choices["torches"]),
        "cuda": ("c", [cuda for _, cuda, _ in choices["builds"]]),
        "python": ("p", choices["pythons"]),
        "gpu": ("g", choices["archs"]),
        **{name: ("r", choices["frameworks"][number]["releases"]) for name, number in frameworks.items()},
    }
    named = [name for name in row.scope if name in frameworks]
    if len(named) > 1 or not set(row.scope) <= tables.keys() or (rule.kind is RuleKind.REQUIRES) != bool(row.needs):
        return None
    where = {"f": [frameworks[name] for name in named] or [*range(len(choices["frameworks"]))]}
    for holds, specs in ((True, row.when), (False, row.needs)):
        for name, spec in specs.items():
            letter, values = tables[name]
            where[letter] = [number for number, value in enumerate(values) if spec.contains(value) == holds]
    return where if all(where.values()) else None
