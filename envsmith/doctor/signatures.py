"""Messages and what they mean: the signatures of ``matrix/signatures`` and of the rules, and where they stand in a text."""

from __future__ import annotations

import dataclasses
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal

from envsmith.doctor.read.logs import completed
from envsmith.doctor.read.text import unprefixed, unwrapped
from envsmith.doctor.rules import Conditions
from envsmith.doctor.tables import cached_table, read_table
from envsmith.errors import DataError
from envsmith.graph.fields import Context
from envsmith.graph.files import DataFiles, find_matrix, list_files
from envsmith.graph.load import knowledge
from envsmith.model.rule import Evidence, EvidenceKind, Rule, Severity
from envsmith.schema import Checked, Flag, Named, Parsed, Text, WrongValueError, strict

_FILE = "signatures.yaml"
_FOLDER = "signatures"


def _source(text: str, context: Context) -> Evidence | None:
    """Return what ``KEY``, ``KEY PATH`` or the address of an issue stands for."""
    if text.startswith("https://"):
        return Evidence(kind=EvidenceKind.REPORTED, source=text, date="2026-11-20")
    key, _, path = text.partition(" ")
    if context.sources is None:
        return None
    if key not in context.sources:
        raise WrongValueError("no such evidence in this file", "it names " + ", ".join(context.sources))
    source = context.sources[key]
    return dataclasses.replace(source, source=f"{source.source}: {path}") if path else source


def _pattern(value: Any, _context: object) -> str:
    if not isinstance(value, str):
        raise WrongValueError("a regular expression belongs here", "quote it")
    try:
        needle_of(value)
    except re.error as error:
        raise WrongValueError(f"not a regular expression: {error}") from None
    return value


def _some(value: Any, _context: object) -> Any:
    if not value:
        raise WrongValueError("an empty list")
    return value


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """What a signature says where ``when`` is met by the groups of its patterns and the facts."""

    when: Conditions
    message: Text | None = None
    fix: Text | None = None


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """One failure class. ``group``, ``cause`` and ``pattern`` are the study's taxonomy (group and key of the root cause, pattern of the fix).

    ``rule`` is set when this is the signature of a rule over versions: the rule then says cause and fix, and ``check`` judges it. ``tells``
    names the package whose release the message asks for: one, or ``need`` for the one in the group of that name. ``look_up`` makes words
    of groups by a table, the first variant that is met says more than ``message`` and ``fix``.
    """

    id: Text
    kind: Literal["cause", "symptom", "consequence", "other"]
    match: tuple[Annotated[str, Parsed(_pattern)], ...]
    message: Text
    fix: str
    severity: Severity = Severity.ERROR
    components: tuple[Text, ...] = ()
    stage: str
    group: str
    cause: str
    pattern: str
    also: tuple[Text, ...] = ()
    without: tuple[Text, ...] = ()
    last: Flag = False
    lines: tuple[Text, ...] = ()
    consequence_of: tuple[Text, ...] = ()
    tells: Text | None = None
    look_up: Mapping[Text, Mapping[Text, Mapping[Text, Text]]] = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()
    evidence: Annotated[tuple[Annotated[Evidence, Named(_source)], ...], Checked(_some)]
    rule: Flag = False


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All signatures, those of rules last. ``taxonomy`` classes rules over versions, ``owners`` says whose a name is."""

    signatures: tuple[Signature, ...]
    taxonomy: Mapping[str, Mapping[str, str]]
    owners: Mapping[str, tuple[str, ...]]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _File:
    evidence: Mapping[Text, Any] = field(default_factory=dict)
    signatures: tuple[Signature, ...]
    rules: Mapping[Text, Mapping[Text, Text]] = field(default_factory=dict)
    owners: Mapping[Text, tuple[Text, ...]] = field(default_factory=dict)


def catalogue() -> Catalogue:
    """Return the installed signatures and those of the rules. ``DataError`` lists every problem of a file."""
    files = list_files(find_matrix())
    return cached_table("signatures", (_FILE, *_own_files(), *files.names), read_catalogue)


def read_catalogue(files: DataFiles) -> Catalogue:
    """Return the signatures of those of ``files`` that have some, and of the rules."""
    names = [name for name in files.names if name == _FILE or name.startswith(f"{_FOLDER}/")]
    read = [read_signatures(files.read(name), name) for name in names]
    signatures = [signature for file in read for signature in file.signatures]
    twice = sorted(i for i, n in Counter(s.id for s in signatures).items() if n > 1)
    if twice:
        raise DataError(f"signatures of the same id: {', '.join(twice)}")
    return Catalogue(
        (*signatures, *(_of_rule(rule) for rule in knowledge().rules if rule.signature)),
        {rule: row for file in read for rule, row in file.rules.items()},
        {owner: patterns for file in read for owner, patterns in file.owners.items()},
    )


def read_signatures(content: bytes, name: str = _FILE) -> _File:
    """Return the signatures of a YAML text. ``DataError`` lists every problem with its key path."""
    return read_table(_File, name, content)


def _own_files() -> list[str]:
    """Return the files of ``matrix/signatures``, one for each maker of messages, in a stable order."""
    try:
        entries = sorted(entry.name for entry in os.scandir(find_matrix() / _FOLDER))
    except OSError:
        return []
    return [f"{_FOLDER}/{name}" for name in entries if name.endswith(".yaml") and not name.startswith(".")]


def rule_taxonomy() -> Mapping[str, Mapping[str, str]]:
    """Return the study's taxonomy of rules over versions by rule id; rules that are not named have none."""
    return catalogue().taxonomy


def _of_rule(rule: Rule) -> Signature:
    first = rule.rows[0]
    names = dict.fromkeys(name for row in rule.rows for part in (row.when, row.needs) for name in part)
    return Signature(
        id=rule.id,
        kind="cause",
        match=tuple(alternatives(rule.signature or "")),
        message=rule.cause or first.cause or rule.id,
        fix=rule.fix or first.fix or "",
        severity=first.severity,
        components=tuple(names),
        stage=rule.stage or "",
        group="",
        cause="",
        pattern="",
        evidence=first.evidence,
        rule=True,
    )


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
    numbered, line, at = [], 1, 0
    for hit in hits:
        line += text.count("\n", at, hit.position)
        at = hit.position
        numbered.append(dataclasses.replace(hit, line=line))
    return numbered


def _find(text: str, lower: str, source: str, signature: Signature) -> Hit | None:
    """The first hit of any pattern (the last for what must stand last), with the groups of all patterns that match near it."""
    hits = [hit for pattern in signature.match if (hit := _search(text, lower, source, signature, pattern))]
    if not hits:
        return None
    best = (max if signature.last else min)(hits, key=lambda hit: hit.position)
    if signature.last and not _is_last(text, best):
        return None
    if not all(_anywhere(text, lower, pattern) for pattern in signature.also):
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
