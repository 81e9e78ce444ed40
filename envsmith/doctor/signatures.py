"""``matrix/signatures.yaml``, ``matrix/signatures/*.yaml`` and the signatures of the rules -> values, read once and kept in the cache."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from envsmith.doctor.needles import alternatives, needle_of
from envsmith.errors import DataError
from envsmith.graph.cache import read_cache, write_cache
from envsmith.graph.data import DataFiles, find_matrix, list_files
from envsmith.model.evidence import Evidence, EvidenceKind
from envsmith.model.rule import Severity

__all__ = ["KINDS", "Catalogue", "Signature", "catalogue", "name_owners", "read_signatures", "rule_taxonomy"]

KINDS = ("cause", "symptom", "consequence", "other")
_FILE = "signatures.yaml"
_FOLDER = "signatures"
_FIELDS = frozenset(
    {
        "id",
        "kind",
        "severity",
        "components",
        "stage",
        "group",
        "cause",
        "pattern",
        "match",
        "with",
        "without",
        "last",
        "message",
        "fix",
        "lines",
        "consequence_of",
        "evidence",
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """One failure class. ``group``, ``cause`` and ``pattern`` are the study's taxonomy (group and key of the root cause, pattern of the fix).

    ``rule`` is set when this is the signature of a rule over versions: the rule then says cause and fix, and ``check`` judges it.
    """

    id: str
    kind: str
    match: tuple[str, ...]
    message: str
    fix: str
    severity: Severity = Severity.ERROR
    components: tuple[str, ...] = ()
    stage: str = ""
    group: str = ""
    cause: str = ""
    pattern: str = ""
    with_: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    last: bool = False
    lines: tuple[str, ...] = ()
    consequence_of: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    rule: bool = False


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All signatures; those of rules come last."""

    signatures: tuple[Signature, ...]


def catalogue() -> Catalogue:
    """The installed signatures and those of the rules, from the cache when no file changed. :class:`DataError` lists every problem."""
    files = list_files(find_matrix())
    names = (_FILE, *_own_files(files.root), *(n for n in files.names if n.startswith("rules/")))
    data = DataFiles(files.root, names)
    stamp = data.stamp()
    return _catalogue(data, stamp)


@lru_cache(maxsize=2)
def _catalogue(data: DataFiles, stamp: str) -> Catalogue:
    kept = read_cache("signatures", stamp)
    if isinstance(kept, list):
        try:
            return Catalogue(tuple(_from_json(row) for row in kept))
        except (KeyError, TypeError, ValueError):
            pass
    signatures: list[Signature] = []
    for name in data.names:
        text = data.read(name).decode()
        signatures += _of_rules(text) if name.startswith("rules/") else read_signatures(text, name)
    twice = sorted(i for i, n in Counter(s.id for s in signatures if not s.rule).items() if n > 1)
    if twice:
        raise DataError(f"signatures of the same id in different files: {', '.join(twice)}")
    write_cache("signatures", stamp, [_to_json(s) for s in signatures])
    return Catalogue(tuple(signatures))


def _own_files(root: Path) -> list[str]:
    """The files of ``matrix/signatures``, one for each maker of messages, in a stable order."""
    try:
        entries = sorted(entry.name for entry in os.scandir(root / _FOLDER))
    except OSError:
        return []
    return [f"{_FOLDER}/{name}" for name in entries if name.endswith(".yaml") and not name.startswith(".")]


def rule_taxonomy() -> Mapping[str, Mapping[str, str]]:
    """The study's taxonomy of rules over versions by rule id; rules that are not named have none."""
    data = DataFiles(find_matrix(), (_FILE,))
    return _tables(data, data.stamp())[0]


def name_owners() -> Mapping[str, list[str]]:
    """Package -> patterns of the names of its own classes and of attributes that it puts into the objects of others."""
    data = DataFiles(find_matrix(), (_FILE,))
    return _tables(data, data.stamp())[1]


@lru_cache(maxsize=2)
def _tables(data: DataFiles, stamp: str) -> tuple[dict[str, dict[str, str]], dict[str, list[str]]]:
    kept = read_cache("taxonomy", stamp)
    if not (isinstance(kept, list) and len(kept) == 2):
        import yaml

        loaded = yaml.load(data.read(_FILE).decode(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader
        rules = {str(k): {str(a): str(b) for a, b in v.items()} for k, v in (loaded.get("rules") or {}).items()}
        owners = {str(k): [str(name) for name in v] for k, v in (loaded.get("owners") or {}).items()}
        kept = [rules, owners]
        write_cache("taxonomy", stamp, kept)
    return kept[0], kept[1]


def read_signatures(text: str, name: str = _FILE) -> list[Signature]:
    """The signatures of a YAML text; :class:`DataError` with every problem: unknown field, no evidence, a pattern without a needle."""
    import yaml

    try:
        data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader in either case
    except yaml.YAMLError as error:
        raise DataError(f"{name}: not YAML: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("signatures"), list):
        raise DataError(f"{name}: no list `signatures`")
    named = data.get("evidence") or {}
    problems: list[str] = []
    found: list[Signature] = []
    seen: set[str] = set()
    for number, row in enumerate(data["signatures"]):
        where = f"{name}: signatures[{number}]"
        try:
            signature = _signature(row, named)
        except (KeyError, TypeError, ValueError, re.error) as error:
            problems.append(f"{where} ({row.get('id') if isinstance(row, dict) else '?'}): {error}")
            continue
        if signature.id in seen:
            problems.append(f"{where}: the id {signature.id} is used twice")
        seen.add(signature.id)
        found.append(signature)
    if problems:
        raise DataError(
            f"{len(problems)} problems in {name}", details=problems, hint="the head of the file describes its fields"
        )
    return found


def _signature(row: Any, named: Mapping[str, Any]) -> Signature:
    if not isinstance(row, dict):
        raise TypeError("not a mapping")
    unknown = set(row) - _FIELDS
    if unknown:
        raise ValueError(f"unknown field {', '.join(sorted(map(str, unknown)))}")
    if row.get("kind") not in KINDS:
        raise ValueError(f"kind is one of {', '.join(KINDS)}")
    patterns = tuple(row["match"])
    for pattern in patterns:
        needle_of(pattern)
    evidence = tuple(_evidence(item, named) for item in row.get("evidence") or ())
    if not evidence:
        raise ValueError("no evidence")
    return Signature(
        id=row["id"],
        kind=row["kind"],
        match=patterns,
        message=row["message"],
        fix=row["fix"],
        severity=Severity(row.get("severity", "error")),
        components=tuple(row.get("components") or ()),
        stage=row["stage"],
        group=row["group"],
        cause=row["cause"],
        pattern=row["pattern"],
        with_=tuple(row.get("with") or ()),
        without=tuple(row.get("without") or ()),
        last=bool(row.get("last", False)),
        lines=tuple(row.get("lines") or ()),
        consequence_of=tuple(row.get("consequence_of") or ()),
        evidence=evidence,
    )


def _evidence(item: Any, named: Mapping[str, Any]) -> Evidence:
    if isinstance(item, dict):
        return Evidence(
            kind=EvidenceKind(item["kind"]), source=item["source"], date=str(item["date"]), note=item.get("note")
        )
    if item.startswith("https://"):
        return Evidence(kind=EvidenceKind.REPORTED, source=item, date="2026-11-20")
    key, _, path = item.partition(" ")
    base = named[key]
    source = f"{base['source']}: {path}" if path else base["source"]
    return Evidence(kind=EvidenceKind(base["kind"]), source=source, date=str(base["date"]))


def _of_rules(text: str) -> list[Signature]:
    """The signatures that rules carry; the graph's loader has checked the file, so what is malformed is passed over here."""
    import yaml

    data = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - as above
    named = data.get("evidence") or {}
    return [_of_rule(rule, named) for rule in data.get("rules") or [] if isinstance(rule.get("signature"), str)]


def _of_rule(rule: dict[str, Any], named: dict[str, Any]) -> Signature:
    rows = rule.get("rows") or [rule]
    first = rows[0]
    names = dict.fromkeys(n for row in rows for part in ("when", "needs") for n in (row.get(part) or {}))
    items = rule.get("evidence") or first.get("evidence") or ()
    try:
        evidence = tuple(_evidence(e, named) for e in (items if isinstance(items, list) else [items]))
    except (KeyError, TypeError, ValueError, AttributeError):
        evidence = ()
    return Signature(
        id=rule["id"],
        kind="cause",
        match=tuple(alternatives(rule["signature"])),
        message=str(rule.get("cause") or first.get("cause") or rule["id"]),
        fix=str(rule.get("fix") or first.get("fix") or ""),
        severity=Severity(rule.get("severity") or first.get("severity") or "error"),
        components=tuple(n for n in names if n != "platform"),
        stage=str(rule.get("stage") or ""),
        evidence=evidence,
        rule=True,
    )


def _to_json(s: Signature) -> list[Any]:
    return [
        s.id, s.kind, list(s.match), s.message, s.fix, s.severity.value, list(s.components), s.stage, s.group, s.cause, s.pattern,
        list(s.with_), list(s.without), s.last, list(s.lines), list(s.consequence_of), [e.to_json() for e in s.evidence], s.rule,
    ]  # fmt: skip


def _from_json(row: list[Any]) -> Signature:
    evidence = tuple(
        Evidence(
            kind=EvidenceKind(e["kind"]), source=e["source"], date=e["date"], sha256=e.get("sha256"), note=e.get("note")
        )
        for e in row[16]
    )
    return Signature(
        id=row[0], kind=row[1], match=tuple(row[2]), message=row[3], fix=row[4], severity=Severity(row[5]), components=tuple(row[6]),
        stage=row[7], group=row[8], cause=row[9], pattern=row[10], with_=tuple(row[11]), without=tuple(row[12]), last=row[13],
        lines=tuple(row[14]), consequence_of=tuple(row[15]), evidence=evidence, rule=row[17],
    )  # fmt: skip
