"""``matrix/signatures.yaml``, ``matrix/signatures/*.yaml`` and the signatures of the rules -> values, read once and kept in the cache."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from envsmith.doctor.read.logs import completed
from envsmith.doctor.read.text import unprefixed, unwrapped
from envsmith.errors import DataError
from envsmith.files import read_cache, write_cache
from envsmith.graph.files import DataFiles, find_matrix, list_files
from envsmith.model.rule import Evidence, EvidenceKind, Severity

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


# Signatures and a text -> hits: which messages stand where, and the versions they name.
#
# A pattern has a *needle*, a literal that every match holds: the text is searched for needles (fast, linear), and only the lines around
# them meet the regular expression, cut to a bounded length. So a hostile text of any size costs at most a bounded time a line.


_LINE = 1600
_MOST_HITS = 40
# Longer texts are files, not what somebody copied from a terminal.
_WRAPPED = 400_000
# A log says the same few things over and over with other numbers: from this length on, needles are first looked for in its distinct lines.
_LONG, _CHUNK, _MOST_SHAPES = 300_000, 1 << 20, 4_000_000
_DIGITS = str.maketrans("123456789", "0" * 9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """Where a signature was found: the line (from 1), its text, and the named groups of the pattern."""

    signature: Signature
    source: str
    line: int
    text: str
    position: int
    groups: Mapping[str, str]


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def find_hits(text: str, source: str, signatures: Iterable[Signature]) -> list[Hit]:
    """The first hit of each signature in ``text``, in the order of the text."""
    lower = text.lower()
    if len(lower) != len(text):
        text = lower
    every = tuple(signatures)
    shapes = _shapes(lower)
    likely = every if shapes is None else [s for s in every if _may_stand(s, shapes)]
    hits = [hit for signature in likely if (hit := _find(text, lower, source, signature))]
    hits += _find_unwrapped(text, source, every, {hit.signature.id for hit in hits})
    hits += _find_completed(text, source, every, {hit.signature.id for hit in hits})
    order = {
        signature.id: number for number, signature in enumerate(every)
    }  # of the same place the more special one first
    hits.sort(key=lambda hit: (hit.position, order[hit.signature.id]))
    return _count_lines(text, hits)


def _shapes(lower: str) -> str | None:
    """The distinct lines of a long text with every digit as 0; ``None`` for a short one, and for one that does not repeat itself."""
    if len(lower) < _LONG:
        return None
    found: set[str] = set()
    size = at = 0
    while at < len(lower):
        end = lower.find("\n", at + _CHUNK)
        end = len(lower) if end < 0 else end
        new = set(lower[at:end].translate(_DIGITS).split("\n")) - found
        found |= new
        size += sum(map(len, new))
        if size > min(_MOST_SHAPES, len(lower) // 4):
            return None
        at = end
    return "\n".join(found)


def _may_stand(signature: Signature, shapes: str) -> bool:
    return any(needle.translate(_DIGITS) in shapes for pattern in signature.match for needle in needle_of(pattern))


def _find_unwrapped(text: str, source: str, signatures: Iterable[Signature], found: set[str]) -> list[Hit]:
    """Hits of messages that a terminal or a writer broke into lines; their place is that of the first part."""
    import dataclasses
    from bisect import bisect_right

    hits: list[Hit] = []
    for whole, breaks in unwrapped(text) if len(text) <= _WRAPPED else ():
        lower = whole.lower()
        whole = whole if len(lower) == len(whole) else lower  # noqa: PLW2901 - the same text
        seen = found | {hit.signature.id for hit in hits}
        rest = (s for s in signatures if s.id not in seen and not s.last)
        more = [hit for signature in rest if (hit := _find(whole, lower, source, signature))]
        hits += [dataclasses.replace(h, position=h.position + bisect_right(breaks, h.position)) for h in more]
    return hits


def _find_completed(text: str, source: str, signatures: Iterable[Signature], found: set[str]) -> list[Hit]:
    """Hits of import errors that do not name the module: the line of code above them does. Their place is the line's beginning."""
    import dataclasses

    whole = completed(text) if len(text) <= _WRAPPED else None
    if whole is None:
        return []
    lower = whole.lower()
    rest = (s for s in signatures if s.id not in found and not s.last)
    more = (
        [hit for signature in rest if (hit := _find(whole, lower, source, signature))]
        if len(lower) == len(whole)
        else []
    )
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return [dataclasses.replace(h, position=starts[whole.count("\n", 0, h.position)]) for h in more]


def _count_lines(text: str, hits: list[Hit]) -> list[Hit]:
    import dataclasses

    numbered, line, at = [], 1, 0
    for hit in hits:
        line += text.count("\n", at, hit.position)
        at = hit.position
        numbered.append(dataclasses.replace(hit, line=line))
    return numbered


def _find(text: str, lower: str, source: str, signature: Signature) -> Hit | None:
    """The first hit of any pattern (the last for what must stand last), with the groups of all patterns that match near it."""
    import dataclasses

    hits = [hit for pattern in signature.match if (hit := _search(text, lower, source, signature, pattern))]
    if not hits:
        return None
    best = (max if signature.last else min)(hits, key=lambda hit: hit.position)
    if signature.last and not _is_last(text, best):
        return None
    if not all(_anywhere(text, lower, pattern) for pattern in signature.with_):
        return None
    if any(_compiled(pattern).search(_around(text, best.position)) for pattern in signature.without):
        return None
    near = (hit for hit in hits if abs(hit.position - best.position) < _LINE)
    groups: dict[str, str] = {}
    for hit in near:
        groups = {**hit.groups, **groups}
    return dataclasses.replace(best, groups={**groups, **best.groups})


def _search(text: str, lower: str, source: str, signature: Signature, pattern: str) -> Hit | None:
    compiled = _compiled(pattern)
    chosen: Hit | None = None
    for needle in needle_of(pattern):
        for start, end in _lines_with(needle, text, lower, last=signature.last):
            match = compiled.search(text[start:end]) or _over_lines(compiled, text, start, end)
            if match is None:
                continue
            if chosen is None or start + match.start() < chosen.position:
                chosen = Hit(
                    signature=signature,
                    source=source,
                    line=0,
                    text=text[start:end].strip()[:400],
                    position=start + match.start(),
                    groups={k: v for k, v in match.groupdict().items() if v},
                )
            break
    return chosen


def _lines_with(needle: str, text: str, lower: str, *, last: bool) -> Iterator[tuple[int, int]]:
    """Where the first lines begin and end that hold ``needle``, or the ``last`` one; long lines are cut around it."""
    position = lower.rfind(needle) if last else lower.find(needle)
    for _ in range(1 if last else _MOST_HITS):
        if position < 0:
            return
        end = text.find("\n", position)
        end = min(end if end >= 0 else len(text), position + _LINE)
        yield max(text.rfind("\n", 0, position) + 1, position - _LINE), end
        position = lower.find(needle, end)


def _over_lines(compiled: re.Pattern[str], text: str, start: int, end: int) -> re.Match[str] | None:
    """A match that begins on this line and ends on one of the next two: messages of several lines, and lines that a writer broke at a blank."""
    stop = end
    for _ in range(2):
        following = text.find("\n", stop + 1)
        stop = following if following >= 0 else len(text)
    if end - start > _LINE or stop - end > _LINE:
        return None
    first, *more = unprefixed(text[start:stop]).split("\n")
    joined = " ".join([first.rstrip(), *(part.strip() for part in more)])
    match = compiled.search(joined)
    return match if match and match.start() < len(first) else None


def _anywhere(text: str, lower: str, pattern: str) -> bool:
    try:
        needles = needle_of(pattern)
    except ValueError:
        return _compiled(pattern).search(text[:400_000]) is not None
    return any(needle in lower for needle in needles) and _compiled(pattern).search(text[:4_000_000]) is not None


def _is_last(text: str, hit: Hit) -> bool:
    """Nothing but empty lines and NCCL's own talk follows."""
    end = text.find("\n", hit.position)
    rest = "" if end < 0 else text[end : end + 4000]
    return len([line for line in rest.split("\n") if line.strip() and "NCCL INFO" not in line]) == 0


def _around(text: str, position: int) -> str:
    """Some lines before and after a hit, where its context stands."""
    return text[max(0, position - 700) : position + 700]


# The literal that every match of a pattern holds, so that a text is searched for literals and only their lines meet the expression.


# An escape, a class in brackets, or one character: a `|` that is a piece of its own, outside of groups, parts two branches.
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|.", re.DOTALL)


def alternatives(pattern: str) -> list[str]:
    """A pattern at its top-level ``|``, so that each part has a needle of its own; parts without one are left out."""
    parts, depth = [""], 0
    for piece in _PIECE.findall(pattern):
        depth += {"(": 1, ")": -1}.get(piece, 0)
        if piece == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part for part in parts if _has_needle(part)]


def _has_needle(pattern: str) -> bool:
    try:
        needle_of(pattern)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=4096)
def needle_of(pattern: str) -> tuple[str, ...]:
    """Literals (lower case), one of which is in every match of ``pattern``. ``ValueError`` when there are none of four characters."""
    try:
        from re import _parser as parser  # type: ignore[attr-defined,unused-ignore]
    except ImportError:  # Python 3.10
        import sre_parse as parser  # type: ignore[no-redef,unused-ignore]
    found = _literals(parser.parse(pattern, re.IGNORECASE))
    if not found or min(map(len, found)) < 4:
        raise ValueError(f"{pattern!r} has no literal of four characters that every match holds")
    return tuple(found)


def _literals(parsed: Any) -> list[str]:
    """The best set of alternatives of a sequence: longest shortest member wins; an optional part gives nothing."""
    best: list[str] = []
    run = ""
    for op, argument in parsed:
        name = str(op)
        if name == "LITERAL":
            run += chr(argument)
            continue
        candidates = [[run]] if run else []
        run = ""
        if name == "SUBPATTERN":
            candidates.append(_literals(argument[-1]))
        elif name == "BRANCH":
            branches = [_literals(branch) for branch in argument[1]]
            if all(branches):
                candidates.append([needle for branch in branches for needle in branch])
        elif name == "MAX_REPEAT" and argument[0] >= 1:
            candidates.append(_literals(argument[2]))
        best = max([best, *(c for c in candidates if c)], key=_worth)
    if run:
        best = max([best, [run]], key=_worth)
    return [needle.lower() for needle in best]


def _worth(needles: list[str]) -> tuple[int, int]:
    return (min(map(len, needles)), -len(needles)) if needles else (0, 0)
