"""``matrix.json``: one document of a stable shape (``matrix/matrix.schema.json``), and what differs between two."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.base.about import VERSION
from envsmith.base.files import read_bounded
from envsmith.base.schema import AsJson, UnreadableError, parse_json
from envsmith.errors import DataError
from envsmith.frameworks import FRAMEWORKS, beside_core, frameworks_of
from envsmith.knowledge.graph.expiry import Expiry, load_expiry
from envsmith.knowledge.graph.read import read_wheels
from envsmith.knowledge.graph.stacks import Stack, load_stacks, stacks_of
from envsmith.knowledge.graph.torch_builds import Build, Device
from envsmith.matrix.cells import CellState, cell_states
from envsmith.model.cell import CellId, Platform, Request
from envsmith.model.record import Rung, read_records
from envsmith.model.rule import Evidence, Knowledge, Release, Row, Rule, Severity
from envsmith.model.version import Spec, version_key
from envsmith.solver.known_bad import stated_by_metadata
from envsmith.solver.solver import Solver

# The first number changes when a reader of the old shape would fail; new keys do not change it.
SCHEMA = 1


def states(root: Path, knowledge: Knowledge, today: dt.date) -> tuple[list[CellState], Expiry]:
    """Return every cell that has a record, and the table of expiry."""
    expiry = load_expiry(root, [r.version for r in knowledge.releases.get("torch", ())])
    return cell_states(read_records(root / "records"), expiry, today), expiry


def document(
    root: Path, solver: Solver, *, moment: dt.datetime, progress: Callable[[str], None] = lambda _line: None
) -> dict[str, Any]:
    """Return the document. The same knowledge, records and moment give the same bytes."""
    knowledge = solver.knowledge()
    cells, expiry = states(root, knowledge, moment.date())
    return {
        "schema": SCHEMA,
        "generated": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "envsmith": VERSION,
        "knowledge": f"sha256:{knowledge.digest}",
        "ladder": [rung.value for rung in Rung],
        "expiry": [{"torch": x.torch.value, "passed": x.passed, "days": x.days} for x in expiry.lines],
        "summary": _summary(cells),
        "frameworks": [_framework(knowledge, name) for name in FRAMEWORKS],
        "stacks": _stacks(load_stacks(root).values(), cells),
        "torch": torch_json(root, knowledge),
        "gpus": gpus_json(knowledge),
        "cells": [state.to_json() for state in cells],
        "grid": grid_json(solver, progress=progress),
        "rules": {rule.id: _rule(rule) for rule in knowledge.rules},
    }


def _summary(cells: Sequence[CellState]) -> dict[str, Any]:
    counts = Counter(state.status.value for state in cells)
    per = {
        name: {
            "cells": len(own := [s for s in cells if name in frameworks_of(s.best.components)]),
            "proved": sum(s.status.value == "proved" for s in own),
            "failed": sum(s.status.value == "failed" for s in own),
            "stale": sum(s.stale for s in own),
            "newest": max((s.best.day for s in own), default=None),
        }
        for name in FRAMEWORKS
    }
    return {"cells": len(cells), **{k.replace(" ", "_"): v for k, v in sorted(counts.items())}, "frameworks": per}


def _framework(knowledge: Knowledge, name: str) -> dict[str, Any]:
    component = knowledge.components.by_name[name]
    return {
        "name": name,
        "title": component.title,
        "short": component.short,
        "releases": [{"version": r.version, "date": r.date} for r in stable(knowledge.releases.get(name, ()))],
    }


def _stacks(stacks: Collection[Stack], cells: Sequence[CellState]) -> list[dict[str, Any]]:
    """Return each stack with the cells that were run of it."""
    runs = {state.id: stacks_of((name for name, _ in CellId.parse(state.id).components), stacks) for state in cells}
    return [
        {
            "name": stack.name,
            "title": stack.title,
            "requires": {name: spec.text for name, spec in stack.requires.items()},
            "cells": [cell for cell, those in runs.items() if stack in those],
        }
        for stack in stacks
    ]


def _rule(rule: Rule) -> dict[str, Any]:
    """Return a rule in words, with rows where metadata does not state it (the grid has what follows from it)."""
    words = {
        "kind": rule.kind.value,
        "stage": rule.stage,
        "symptom": rule.symptom,
        "signature": rule.signature,
        "cause": rule.cause,
        "fix": rule.fix,
        "by_metadata": stated_by_metadata(rule),
        "severity": "error" if any(r.severity is Severity.ERROR for r in rule.rows) else rule.rows[0].severity.value,
    }
    if words["by_metadata"]:
        return words | {"rows": [], "evidence": [_evidence(e) for e in rule.rows[-1].evidence[:1]]}
    sources = dict.fromkeys(e for row in rule.rows for e in row.evidence)
    return words | {"rows": [_row(row, rule) for row in rule.rows], "evidence": [_evidence(e) for e in sources]}


def _row(row: Row, rule: Rule) -> dict[str, Any]:
    own = {"symptom": row.symptom, "cause": row.cause, "fix": row.fix}
    return {
        "when": {n: s.text for n, s in row.when.items()},
        "needs": {n: s.text for n, s in row.needs.items()},
        "severity": row.severity.value,
        **{k: v for k, v in own.items() if v and v != getattr(rule, k)},
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {"kind": evidence.kind.value, "source": evidence.source, "date": evidence.date}


# -- what the solver says of every framework release with every torch release: possible, or forbidden by which rules ---


def stable(releases: Sequence[Release]) -> list[Release]:
    """Return the releases that are neither withdrawn nor pre-releases, newest first."""
    finals = [r for r in releases if not r.yanked and (k := version_key(r.version)) and not k.is_prerelease]
    return sorted(finals, key=lambda r: version_key(r.version), reverse=True)  # type: ignore[arg-type,return-value]


def default_builds(knowledge: Knowledge, platform: Platform = Platform.LINUX_64) -> list[str]:
    """Return the build that the default index gives of each torch release, newest first."""
    builds: dict[str, str] = {}
    for release in stable(knowledge.releases.get("torch", ())):
        public, _, local = release.version.partition("+")
        if release.index == "default" and platform in release.platforms and (local != "cpu" or public not in builds):
            builds[public] = release.version if local != "cpu" else builds.get(public, release.version)
    return list(builds.values())


def grid_json(
    solver: Solver, *, progress: Callable[[str], None] = lambda _line: None
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return ``{framework: {version: {torch build: entry}}}``. An entry is ``{"status", "rules", "cell"}``.

    The versions of torch itself are those of Python.
    ``status`` is possible, warned (possible, a rule warns) or forbidden. ``rules`` say why. ``cell`` is the best cell.
    """
    knowledge = solver.knowledge()
    builds = default_builds(knowledge)
    grid: dict[str, dict[str, dict[str, Any]]] = {}
    for framework in FRAMEWORKS:
        rows = grid[framework] = {}
        component = beside_core(framework)
        for release in stable(knowledge.releases.get(component, ())):
            progress(f"{framework} {release.version}")
            rows[release.version] = {build: _entry(solver, component, release.version, build) for build in builds}
    return grid


def _entry(solver: Solver, component: str, version: str, build: str) -> dict[str, Any]:
    request = Request(constraints={component: Spec.exactly(version), "torch": Spec.exactly(build)})
    posed = solver.pose(request)
    answer = solver.best(posed)
    if answer is None:
        stuck = solver.stuck(posed.problem)
        rules = sorted({group.rule for group in stuck.groups}) if stuck else []
        return {"status": "forbidden", "rules": rules, "cell": None}
    warned = "warning" not in answer.avoided
    return {"status": "warned" if warned else "possible", "rules": [], "cell": str(answer.cell.id)}


# -- the torch builds for a selector: what each carries, on which GPUs it runs, which driver it needs at least ---------

_DRIVER_RULE = "cuda-driver-floor"
_GPU_RULE = "gpu-driver-floor"


def torch_json(root: Path, knowledge: Knowledge) -> list[dict[str, Any]]:
    """Return one entry a build, newest first. A field that is not known is ``null``, never a guess."""
    builds, devices = read_wheels(root)
    gpus = [release.version for release in knowledge.releases.get("gpu", ())]
    entries = []
    for build in sorted(builds, key=lambda b: (version_key(b.version) or 0, b.platform.value), reverse=True):
        release, _, local = build.version.partition("+")
        pythons = build.facts.get("python")
        cuda = build.cuda
        entries.append(
            {
                "version": build.version,
                "release": release,
                "build": local or None,
                "platform": build.platform.value,
                "default": build.index == "default" and (cuda != "cpu" or build.platform.machine != "x86_64"),
                "index": build.index,
                "date": build.date,
                "python": list(pythons) if isinstance(pythons, list) else _pythons(build, knowledge),
                **{name: getattr(build, name) for name in ("cuda", "nccl", "cudnn", "triton")},
                "glibc": build.glibc,
                "driver": _floor(knowledge, _DRIVER_RULE, "cuda", cuda) if cuda and cuda != "cpu" else None,
                "archs": list(build.gpu or ()) or None,
                "gpus": _runs_on(build, devices, gpus),
            }
        )
    return entries


def gpus_json(knowledge: Knowledge) -> list[dict[str, Any]]:
    """Return architectures with their names and the oldest driver that knows them (``null``: any)."""
    names: dict[str, list[str]] = {}
    for name, arch in knowledge.gpus.items():
        names.setdefault(arch, []).append(name)
    return [
        {
            "gpu": release.version,
            "names": sorted(names.get(release.version, [])),
            "driver": _floor(knowledge, _GPU_RULE, "gpu", release.version),
        }
        for release in knowledge.releases.get("gpu", ())
    ]


def _pythons(build: Build, knowledge: Knowledge) -> list[str] | None:
    if build.python is None:
        return None
    spec = build.python
    return [r.version for r in knowledge.releases.get("python", ()) if spec.contains(r.version)]


def _runs_on(build: Build, devices: Iterable[Device], gpus: Iterable[str]) -> list[str] | None:
    """Return the architectures that the machine code of a build (or its PTX, for later ones) runs on."""
    if not build.gpu:
        return None
    cuda = build.cuda
    specs = [
        device.runs_on
        for device in devices
        if device.gpu in build.gpu and (device.cuda is None or (cuda and device.cuda.contains(cuda)))
    ]
    later = [version_key(arch) for arch in build.ptx_archs]
    runnable = []
    for gpu in gpus:
        key = version_key(gpu)
        by_ptx = key is not None and any(ptx is not None and key >= ptx for ptx in later)
        if by_ptx or any(spec.contains(gpu) for spec in specs):
            runnable.append(gpu)
    return runnable


def _floor(knowledge: Knowledge, rule_id: str, component: str, version: str | None) -> str | None:
    """Return the driver that a row of a floor rule needs for a version, as the row says it (``>=580``)."""
    rule = next((r for r in knowledge.rules if r.id == rule_id), None)
    for row in rule.rows if rule and version else ():
        when: Mapping[str, Any] = row.when
        if component in when and when[component].contains(version) and "driver" in row.needs:
            return str(row.needs["driver"].text)
    return None


# -- the difference between two documents: cells that are new, gone, or of another status; releases that appeared ------

_MAX_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Change(AsJson):
    """``what`` is cell, torch or a framework's name. ``before`` and ``after`` are ``None`` where it is missing."""

    what: str
    name: str
    before: str | None
    after: str | None


def read_document(path: Path) -> dict[str, Any]:
    """Read a ``matrix.json`` that another program may have written. ``DataError``."""
    hint = "Write one with envsmith matrix export."
    try:
        value = parse_json(read_bounded(path, _MAX_BYTES))
    except DataError as error:
        raise DataError(error.message, hint=hint) from None
    except UnreadableError as error:
        raise DataError(f"Cannot read {path}: it is not a matrix.json ({error}).", hint=hint) from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise DataError(f"Cannot read {path}: it is not a matrix.json of schema {SCHEMA}.", hint=hint)
    for key, kind in (("cells", list), ("torch", list), ("frameworks", list)):
        if not isinstance(value.get(key), kind) or not all(isinstance(x, dict) for x in value[key]):
            raise DataError(f"Cannot read {key} of {path}: it is not a list of objects.")
    for number, framework in enumerate(value["frameworks"]):
        releases = framework.get("releases", [])
        if not isinstance(releases, list) or not all(isinstance(x, dict) for x in releases):
            raise DataError(f"Cannot read frameworks[{number}].releases of {path}: it is not a list of objects.")
    return value


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return what differs: cells first, by id, then releases."""
    old, new = _facts(before), _facts(after)
    return [change for what in new for change in _compare(what, old.get(what, {}), new[what])]


def _facts(document: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return what is compared, by kind: the state of each cell, the index of each torch, the day of each release."""
    facts = {
        "cell": {str(cell.get("id")): _state_words(cell) for cell in document["cells"]},
        "torch": {f"{t.get('version')} {t.get('platform')}": str(t.get("index")) for t in document["torch"]},
    }
    for framework in document["frameworks"]:
        releases = framework.get("releases", [])
        facts[str(framework.get("name"))] = {str(r.get("version")): str(r.get("date") or "") for r in releases}
    return facts


def _state_words(cell: Mapping[str, Any]) -> str:
    marks = [word for word in ("stale", "flaky") if cell.get(word)]
    rung = f" up to {cell.get('counts_as')}" if cell.get("status") != "failed" else f" at {cell.get('failed_at')}"
    return f"{cell.get('status')}{rung}" + (f" ({', '.join(marks)})" if marks else "")


def _compare(what: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[Change]:
    names = sorted({*old, *new})
    return [Change(what=what, name=n, before=old.get(n), after=new.get(n)) for n in names if old.get(n) != new.get(n)]
