"""Make what the search box looks through, and the warnings of the answer. It is loaded after the page is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envsmith.model.record import Failure, Record
from envsmith.model.rule import Knowledge, Row, Rule, RuleKind, Severity
from envsmith.solve.known_bad import known_bad, stated_by_metadata


def search_data(knowledge: Knowledge, records: Iterable[Record], choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rules, the errors and the warnings that the script reads from ``search.js``.

    A rule is ``[id, cause, fix, sources]``. An error is ``[components, rule number, symptom]``, the number -1 for a
    run that failed: its components are then the cell. A warning is ``[rule number, note, cause, fix, where]``.
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
        [number, row.severity is Severity.NOTE, row.cause or rule.cause or "", row.fix or rule.fix or "", where]
        for number, rule in enumerate(rules)
        for row in rule.rows
        if row.severity is not Severity.ERROR and (where := _where(rule, row, choices)) is not None
    ]
    return {"rules": [_rule(rule) for rule in rules], "errors": errors, "warnings": warnings}


def _shows(rule: Rule, failure: Failure) -> bool:
    return any(text and failure.symptom.startswith(text) for text in (rule.symptom, *(r.symptom for r in rule.rows)))


def _rule(rule: Rule) -> list[object]:
    cause = rule.cause or next((row.cause for row in rule.rows if row.cause), "")
    fix = next((row.fix for row in rule.rows if row.fix), rule.fix) or ""
    evidence = [*rule.rows[0].evidence, *(e for row in rule.rows[1:] for e in row.evidence)]
    return [rule.id, cause, fix, list(dict.fromkeys(e.source for e in evidence if e.source.startswith("https://")))[:3]]


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
