"""The installed knowledge, read once per state of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envsmith.errors import DataError
from envsmith.files import read_cache, write_cache
from envsmith.graph.fields import Problems, parse_yaml
from envsmith.graph.files import DataFiles, find_matrix, list_files
from envsmith.graph.read import read_components, read_gpus
from envsmith.model.cell import Platform
from envsmith.model.component import Component, ComponentTable, Role
from envsmith.model.rule import Evidence, EvidenceKind, Knowledge, Release, Row, Rule, RuleKind, Severity, Tested
from envsmith.model.version import Spec

_READ: dict[str, Knowledge] = {}


def knowledge() -> Knowledge:
    """All that envsmith knows. :class:`envsmith.errors.DataError` lists every problem of its files."""
    return knowledge_of(list_files(find_matrix()))


def knowledge_of(files: DataFiles) -> Knowledge:
    """The knowledge in ``files``, from the cache when they did not change."""
    stamp = files.stamp()
    if stamp in _READ:
        return _READ[stamp]
    kept = read_cache("knowledge", stamp)
    if kept is not None:
        try:
            _READ[stamp] = knowledge_from_json(kept)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            kept = None
    if kept is None:
        from envsmith.graph.read import read_knowledge

        _READ[stamp] = read_knowledge(files.root)
        write_cache("knowledge", stamp, knowledge_to_json(_READ[stamp]))
    return _READ[stamp]


# The names people use, without reading the whole knowledge: components by every spelling, GPUs by name.
#
# The command line parses its flags with these before it solves, so they come from two small files and are kept in the cache.


_FILES = ("components.yaml", "releases/gpu.yaml")
_LOADED: dict[str, tuple[ComponentTable, dict[str, str]]] = {}


def components() -> ComponentTable:
    """Every component of the installed knowledge; :class:`DataError` when components.yaml is broken."""
    return _names()[0]


def gpu_names() -> dict[str, str]:
    """``{"h100": "sm_90", …}`` of the installed knowledge."""
    return _names()[1]


def newest_day() -> str | None:
    """The newest day on which a fact of the installed knowledge was read (``2026-11-21``); ``None`` without one.

    The files are searched, not parsed: ``--version`` must not wait for the graph.
    """
    root = find_matrix()
    days = (
        day.decode()
        for folder in ("releases", "rules", "tested")
        for path in sorted((root / folder).glob("*.yaml"))
        for day in re.findall(rb"\bkind: [a-z]+,.{0,2000}?\bdate: (\d{4}-\d\d-\d\d)", path.read_bytes())
    )
    return max(days, default=None)


def _names() -> tuple[ComponentTable, dict[str, str]]:
    files = DataFiles(find_matrix(), _FILES)
    stamp = files.stamp()
    if stamp not in _LOADED:
        kept = read_cache("names", stamp)
        try:
            _LOADED[stamp] = _from_json(kept) if kept is not None else _read(files, stamp)
        except (KeyError, TypeError, ValueError, AttributeError):
            _LOADED[stamp] = _read(files, stamp)
    return _LOADED[stamp]


def _from_json(kept: Any) -> tuple[ComponentTable, dict[str, str]]:
    table = ComponentTable.of(
        Component(name=n, role=Role(r), short=s, title=t, distributions=tuple(d), aliases=tuple(a))
        for n, r, s, t, d, a in kept["components"]
    )
    return table, {str(name): str(sm) for name, sm in kept["gpus"].items()}


def _read(files: DataFiles, stamp: str) -> tuple[ComponentTable, dict[str, str]]:

    problems = Problems()
    table = read_components(parse_yaml(_FILES[0], files.read(_FILES[0]), problems), problems)
    _, gpus = read_gpus(parse_yaml(_FILES[1], files.read(_FILES[1]), problems))
    if problems.lines:
        raise DataError(
            f"{files.root}: {len(problems.lines)} problems in the names",
            details=problems.lines,
            hint="the schema is described in matrix/README.md",
        )
    rows = [
        [c.name, c.role.value, c.short, c.title, list(c.distributions), list(c.aliases)] for c in table.by_name.values()
    ]
    write_cache("names", stamp, {"components": rows, "gpus": gpus})
    return table, gpus


# A :class:`Knowledge` as JSON and back, for the cache. Evidence is written once and referred to by number.


def knowledge_to_json(knowledge: Knowledge) -> dict[str, Any]:
    """JSON without loss."""
    numbers: dict[Evidence, int] = {}

    def refer(evidence: tuple[Evidence, ...]) -> list[int]:
        return [numbers.setdefault(e, len(numbers)) for e in evidence]

    data = {
        "components": [
            [c.name, c.role.value, c.short, c.title, c.distributions, c.aliases]
            for c in knowledge.components.by_name.values()
        ],
        "releases": {
            name: [
                [r.version, r.date, r.yanked, r.index, [p.value for p in r.platforms], dict(r.facts), refer(r.evidence)]
                for r in releases
            ]
            for name, releases in knowledge.releases.items()
        },
        "rules": [
            [
                [r.id, r.kind.value, r.stage, r.signature, r.cause, r.fix, r.symptom, dict(r.facts)],
                [_row(row, refer(row.evidence)) for row in r.rows],
            ]
            for r in knowledge.rules
        ],
        "tested": [
            [t.framework, t.version.text, t.torch.text, _text(t.cuda), _text(t.python), t.kind, refer(t.evidence)]
            for t in knowledge.tested
        ],
        "gpus": dict(knowledge.gpus),
        "digest": knowledge.digest,
    }
    data["evidence"] = [[e.kind.value, e.source, e.date, e.sha256, e.note] for e in numbers]
    return data


def _text(spec: Spec | None) -> str | None:
    return spec.text if spec else None


def _row(row: Row, evidence: list[int]) -> list[Any]:
    when, needs = ({n: s.text for n, s in specs.items()} for specs in (row.when, row.needs))
    platforms = [p.value for p in row.platforms]
    return [when, needs, platforms, row.severity.value, row.symptom, row.cause, row.fix, evidence]


def knowledge_from_json(data: Any) -> Knowledge:
    """The inverse of :func:`knowledge_to_json`. The cache is ours: specs are taken as they were written, not parsed again.

    ``KeyError``, ``TypeError``, ``ValueError`` or ``IndexError`` when the data is something else.
    """
    reader = _Reader(
        [Evidence(kind=_KINDS[k], source=s, date=d, sha256=h, note=n) for k, s, d, h, n in data["evidence"]]
    )
    components = [
        Component(name=n, role=Role(r), short=s, title=t, distributions=tuple(d), aliases=tuple(a))
        for n, r, s, t, d, a in data["components"]
    ]
    return Knowledge(
        components=ComponentTable.of(components),
        releases={n: tuple([reader.release(n, line) for line in lines]) for n, lines in data["releases"].items()},
        rules=tuple([reader.rule(head, rows) for head, rows in data["rules"]]),
        tested=tuple([reader.tested(line) for line in data["tested"]]),
        gpus=data["gpus"],
        digest=data["digest"],
    )


_KINDS = {k.value: k for k in EvidenceKind}
_PLATFORMS = {p.value: p for p in Platform}
_SEVERITIES = {s.value: s for s in Severity}


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns lists back into values; evidence is referred to by number."""

    known: Sequence[Evidence]

    def evidence(self, numbers: list[int]) -> tuple[Evidence, ...]:
        return tuple([self.known[n] for n in numbers])

    def release(self, name: str, line: list[Any]) -> Release:
        version, date, yanked, index, where, facts, evidence = line
        return Release(
            component=name,
            version=version,
            date=date,
            yanked=yanked,
            index=index,
            platforms=tuple([_PLATFORMS[p] for p in where]),
            facts=facts,
            evidence=self.evidence(evidence),
        )

    def rule(self, head: list[Any], rows: list[Any]) -> Rule:
        rule_id, kind, stage, signature, cause, fix, symptom, facts = head
        return Rule(
            id=rule_id,
            kind=RuleKind(kind),
            rows=tuple([self.row(row) for row in rows]),
            stage=stage,
            signature=signature,
            cause=cause,
            fix=fix,
            symptom=symptom,
            facts=facts,
        )

    def row(self, line: list[Any]) -> Row:
        when, needs, where, severity, symptom, cause, fix, evidence = line
        return Row(
            when=_specs(when),
            needs=_specs(needs),
            platforms=tuple([_PLATFORMS[p] for p in where]),
            severity=_SEVERITIES[severity],
            symptom=symptom,
            cause=cause,
            fix=fix,
            evidence=self.evidence(evidence),
        )

    def tested(self, line: list[Any]) -> Tested:
        framework, version, torch, cuda, python, kind, evidence = line
        return Tested(
            framework=framework,
            version=Spec(version),
            torch=Spec(torch),
            cuda=Spec(cuda) if cuda else None,
            python=Spec(python) if python else None,
            kind=kind,
            evidence=self.evidence(evidence),
        )


def _specs(texts: Mapping[str, str]) -> dict[str, Spec]:
    return {name: Spec(text) for name, text in texts.items()}
