"""Messages and what they mean: the signatures of ``matrix/signatures`` and of the rules, and where they stand."""

from __future__ import annotations

import dataclasses
import itertools
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal

from envsmith.base.schema import Checked, Flag, Named, Parsed, Text, WrongValueError, strict
from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, Weight
from envsmith.doctor.read.pasted import QUOTES, by_speaker, mended, unprefixed, unwrapped
from envsmith.doctor.read.tracebacks import completed
from envsmith.doctor.rules import Conditions
from envsmith.doctor.vocabulary import words
from envsmith.errors import DataError
from envsmith.knowledge.graph.data import read_table
from envsmith.knowledge.graph.fields import FileContext
from envsmith.knowledge.graph.load import knowledge
from envsmith.knowledge.graph.location import DataFiles, find_matrix, list_files
from envsmith.knowledge.graph.tables import Table
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence, EvidenceKind, Rule, Severity

_FILE = "signatures.yaml"
_FOLDER = "signatures"


def _source(text: str, context: FileContext) -> Evidence | None:
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


def _patterns(value: Any, _context: object) -> Mapping[str, tuple[str, ...]]:
    if not isinstance(value, list) or not all(isinstance(pattern, str) for pattern in value):
        raise WrongValueError("a list of regular expressions belongs here")
    return {pattern: _needles(pattern, number) for number, pattern in enumerate(value)}


def _needles(pattern: str, number: int) -> tuple[str, ...]:
    try:
        return needle_of(pattern)
    except (ValueError, re.error) as error:
        raise WrongValueError(str(error), path=f"[{number}]", part=pattern) from None


def _some(value: Any, _context: object) -> Any:
    if not value:
        raise WrongValueError("an empty list")
    return value


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class SignatureVariant:
    """What a signature says, and of which ``cause``, where ``when`` is met by the groups of its patterns and the facts."""

    when: Conditions
    message: Text | None = None
    fix: Text | None = None
    cause: Text | None = None


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """One failure class, as matrix/README.md describes it.

    ``match`` maps each pattern to literals of which one stands in every match. ``rule`` is set when this is the
    signature of a rule over versions: the rule then says cause and fix, and ``check`` judges it.
    """

    id: Text
    kind: Literal["cause", "symptom", "consequence", "other"]
    match: Annotated[Mapping[str, tuple[str, ...]], Parsed(_patterns)]
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
    common: Flag = False
    lines: tuple[Text, ...] = ()
    consequence_of: tuple[Text, ...] = ()
    tells: Text | None = None
    needs: Mapping[Text, Text] = field(default_factory=dict)
    variants: tuple[SignatureVariant, ...] = ()
    evidence: Annotated[tuple[Annotated[Evidence, Named(_source)], ...], Checked(_some)]
    rule: Flag = False

    @property
    def taxonomy(self) -> Taxonomy:
        """Return the failure class as the study counts it."""
        return Taxonomy(stage=self.stage, group=self.group, cause=self.cause, pattern=self.pattern)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All signatures, those of rules last, the ``taxonomy`` of rules over versions and the ``owners`` of names.

    Rules without a row of their own have no taxonomy.
    """

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
    return SIGNATURES.load()


def _files() -> DataFiles:
    files = list_files(find_matrix())
    return DataFiles(files.root, (_FILE, *_own_files(), *files.names))


def read_catalogue(files: DataFiles) -> Catalogue:
    """Return the signatures of those of ``files`` that have some, and of the rules."""
    names = [name for name in files.names if name == _FILE or name.startswith(f"{_FOLDER}/")]
    read = [read_signatures(files.read(name), name) for name in names]
    signatures = [signature for file in read for signature in file.signatures]
    twice = sorted(i for i, n in Counter(s.id for s in signatures).items() if n > 1)
    if twice:
        raise DataError(f"Cannot read the signatures: several have the same id ({', '.join(twice)}).")
    return Catalogue(
        (*signatures, *(signature for rule in knowledge().rules if (signature := _of_rule(rule)))),
        {rule: row for file in read for rule, row in file.rules.items()},
        {owner: patterns for file in read for owner, patterns in file.owners.items()},
    )


SIGNATURES = Table("signatures", _files, Catalogue, read_catalogue)


def read_signatures(content: bytes, name: str = _FILE) -> _File:
    """Return the signatures of a YAML text. ``DataError`` lists every problem with its key path."""
    return read_table(_File, name, content)


def _own_files() -> list[str]:
    """Return the files of ``matrix/signatures``, one for each maker of messages, in a stable order."""
    return [f"{_FOLDER}/{path.name}" for path in sorted((find_matrix() / _FOLDER).glob("[!.]*.yaml"))]


def _of_rule(rule: Rule) -> Signature | None:
    """Return the signature that a rule writes down, with its symptoms, or that of its symptoms alone.

    A symptom that names no component of its rule is kept as one: it confirms what the versions say and says nothing by
    itself.
    """
    first = rule.rows[0]
    names = dict.fromkeys(name for row in rule.rows for part in (row.when, row.needs) for name in part)
    symptoms = dict.fromkeys(row.symptom for row in rule.rows if row.symptom)
    patterns = [*alternatives(rule.signature or ""), *map(_pattern_of, filter(_is_distinct, symptoms))]
    if not patterns:
        return None
    texts = [text.lower().replace("-", "_") for text in symptoms]
    is_named = all(any(name.replace("-", "_") in text for name in names) for text in texts)
    return Signature(
        id=rule.id,
        kind="cause" if rule.signature or is_named else "symptom",
        match={pattern: needle_of(pattern) for pattern in patterns},
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


# A missing name is answered by the name index, and a shorter text stands in too many messages.
_LACK = re.compile(r"cannot import name|No module named|has no attribute|unexpected keyword|undefined symbol")
_SHORTEST = 18
# What differs from one print of a message to the next: numbers, what an ellipsis stands for, white space.
_VARYING = re.compile(r"((?<![\w'])\d+(?:\.\d+)*(?!\w)|…|\.{3}|\s+)")
_FORMS = {"…": ".*", "...": ".*"}


def _is_distinct(symptom: str) -> bool:
    return len(symptom) >= _SHORTEST and not _LACK.search(symptom) and _has_needle(_pattern_of(symptom))


def _pattern_of(symptom: str) -> str:
    """Return the pattern of a message: with other numbers, and by an exception of any module."""
    message = re.sub(r"^(?:\w+\.)+(?=\w+(?:Error|Exception): )", "", symptom)
    pieces = _VARYING.split(message)
    pieces[::2] = map(re.escape, pieces[::2])
    pieces[1::2] = (_FORMS.get(p, r"\s+" if p.isspace() else r"\d+(?:\.\d+)*") for p in pieces[1::2])
    return "".join(pieces)


# Signatures and a text -> hits: which messages stand where, and the versions they name.
#
# A pattern has a *needle*, a literal that every match holds: the text is searched for needles (fast, linear), and only
# the lines around them meet the regular expression, cut to a bounded length. So a hostile text of any size costs at
# most a bounded time a line.


_LINE = 1600
_MOST_HITS = 40
# How far before and after a hit its context reaches.
_CONTEXT = 700
# Longer texts are files, not what somebody copied from a terminal.
_WRAPPED = 400_000
# A log says the same few things over and over with other numbers: from this length on, needles are first looked for in
# its distinct lines.
_LONG, _CHUNK, _MOST_SHAPES = 4_000, 1 << 20, 4_000_000
_DIGITS = str.maketrans("123456789", "0" * 9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """Where a signature was found: the line (from 1), its text, and the named groups of the pattern.

    ``standing``: the text itself says that this is the ``cause`` of what fails, or that it ``follows`` from another.
    """

    signature: Signature
    source: str
    line: int
    text: str
    position: int
    groups: Mapping[str, str]
    standing: Literal["", "cause", "follows"] = ""

    @property
    def place(self) -> tuple[str, int]:
        """Return the text and the line."""
        return self.source, self.line

    def naming(self, **groups: str | None) -> Hit:
        """Return the hit with what else it names. What is empty is left out."""
        return dataclasses.replace(self, groups={**self.groups, **{n: value for n, value in groups.items() if value}})

    def weighed(self, weight: Weight) -> Weight:
        """Return a weight after what the text itself says of cause and consequence."""
        if self.standing == "follows":
            return min(weight, Weight.FOLLOWS)
        named = {Weight.SAID: Weight.NAMED, Weight.SYMPTOM: Weight.NAMED_SYMPTOM} if self.standing else {}
        return named.get(weight, weight)

    def shown_by(self, finding: Finding, *, confidence: str, weight: Weight, taxonomy: Taxonomy) -> Diagnosed:
        """Return what is said of the message, at its place."""
        return Diagnosed(
            finding=finding,
            confidence=confidence,
            score=weight,
            taxonomy=taxonomy,
            where=f"{self.source}:{self.line}",
            quote=self.text,
            position=self.position,
            confirmed=True,
        )


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern in which no word of English is the package that a message asks for."""
    package = f"(?P<need>(?!(?:{'|'.join(words().not_packages)})(?![\\w-]))"
    return re.compile(pattern.replace("(?P<need>", package).translate(QUOTES), re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Text:
    """A text as it was written, with quotes of one kind, and that in lower case, all of the same length."""

    written: str
    text: str
    lower: str
    source: str

    @classmethod
    def of(cls, written: str, source: str) -> _Text:
        text = written.translate(QUOTES)
        lower = text.lower()
        return cls(written, text if len(lower) == len(text) else lower, lower, source)


def find_hits(text: str, source: str, signatures: Iterable[Signature]) -> list[Hit]:
    """Return the first hit of each signature in ``text``, in the order of the text."""
    every = tuple(signatures)
    original = _Text.of(text, source)
    hits = [hit for signature in _likely(original, every) if (hit := _find(original, signature))]
    refused: set[str] = set()
    for changed, place, broken in _rewritten(original.text) if len(text) <= _WRAPPED else ():
        rewritten = _Text.of(changed, source)
        partial = {h.signature.id: h.signature for h in hits if not h.signature.last and broken(h.position)}
        ids = refused | {hit.signature.id for hit in hits} - partial.keys()
        later = _likely(rewritten, [s for s in every if s.id not in ids and not s.last])
        unbroken = {s.id: h for s in later if (h := _find(rewritten, s))}
        # What a part of a line says counts only as long as the whole line does not say otherwise.
        refused |= {i for i, signature in partial.items() if i not in unbroken and _is_said(rewritten, signature)}
        hits = [hit for hit in hits if hit.signature.id not in refused | unbroken.keys()]
        hits += [dataclasses.replace(hit, position=place(hit.position)) for hit in unbroken.values()]
    order = {signature.id: number for number, signature in enumerate(every)}  # of one place the more special one first
    hits.sort(key=lambda hit: (hit.position, order[hit.signature.id]))
    return _count_lines(original.text, _with_standing(original.text, hits))


# How far behind words that name a cause it stands, and around the words between two exceptions their messages.
_NEAR, _CHAIN = 200, 4000


def _with_standing(text: str, hits: list[Hit]) -> list[Hit]:
    """Return the hits with what the text itself says of cause and consequence."""
    named, chained = _compiled(words().named_cause), _compiled(words().chained)
    causes = [hit.position for hit in hits if hit.signature.kind in {"cause", "symptom"}]

    def standing(hit: Hit) -> Literal["", "cause", "follows"]:
        at = hit.position
        if named.search(text, max(0, at - _NEAR), at):
            return "cause"
        links = [match.start() for match in chained.finditer(text, max(0, at - _CHAIN), at)]
        return "follows" if links and any(links[-1] - _CHAIN < cause < links[-1] for cause in causes) else ""

    return [dataclasses.replace(hit, standing=standing(hit)) for hit in hits]


def _rewritten(text: str) -> Iterator[tuple[str, Callable[[int], int], Callable[[int], bool]]]:
    """Give the text without broken lines, then with each process's lines together and whole.

    With it, where its places lie in ``text``, and whether a terminal broke the line of a place there.
    """
    for joined, breaks in unwrapped(text):
        ends = {at + number for number, at in enumerate(breaks)}

        def place(at: int, breaks: list[int] = breaks) -> int:
            return at + bisect_right(breaks, at)

        def broken(at: int, ends: set[int] = ends) -> bool:
            return bool(ends) and (text.rfind("\n", 0, at) in ends or text.find("\n", at) in ends)

        yield joined, place, broken
    order, lines = by_speaker(text)
    rewritten = completed(mended("\n".join(lines)))
    if rewritten != text:
        starts = [0, *itertools.accumulate(len(line) + 1 for line in text.split("\n"))]
        yield rewritten, lambda at: starts[order[rewritten.count("\n", 0, at)]], lambda _at: False


def _likely(text: _Text, signatures: Sequence[Signature]) -> Sequence[Signature]:
    """Return the signatures of which a needle may stand in the text: most lines of a long one say what others say."""
    shapes = _shapes(text.lower)
    return signatures if shapes is None else [each for each in signatures if _may_stand(each, shapes)]


def _shapes(lower: str) -> str | None:
    """Return the distinct lines of a long text with every digit as 0, or ``None`` when that is not worth it."""
    if len(lower) < _LONG:
        return None
    distinct: set[str] = set()
    size = at = 0
    while at < len(lower):
        end = lower.find("\n", at + _CHUNK)
        end = len(lower) if end < 0 else end
        new = set(lower[at:end].translate(_DIGITS).split("\n")) - distinct
        distinct |= new
        size += sum(map(len, new))
        if size > min(_MOST_SHAPES, len(lower) // 4):
            return None
        at = end
    return "\n".join(distinct)


def _may_stand(signature: Signature, shapes: str) -> bool:
    return any(_shape(needle) in shapes for needles in signature.match.values() for needle in needles)


@lru_cache(maxsize=8192)
def _shape(needle: str) -> str:
    return needle.translate(_DIGITS)


def _count_lines(text: str, hits: list[Hit]) -> list[Hit]:
    numbered, line, at = [], 1, 0
    for hit in hits:
        line += text.count("\n", at, hit.position)
        at = hit.position
        numbered.append(dataclasses.replace(hit, line=line))
    return numbered


def _find(text: _Text, signature: Signature) -> Hit | None:
    """Return the first hit of any pattern (or the last), with the groups of all patterns that match near it."""
    hits = [hit for pattern, needles in signature.match.items() if (hit := _search(text, signature, pattern, needles))]
    if not hits:
        return None
    best = (max if signature.last else min)(hits, key=lambda hit: hit.position)
    if signature.last and not _is_last(text.text, best):
        return None
    if not all(_anywhere(text, pattern) for pattern in signature.also):
        return None
    if signature.common and not _compiled(words().training).search(text.text):
        return None
    around = text.text[max(0, best.position - _CONTEXT) : best.position + _CONTEXT]
    if any(_compiled(pattern).search(around) for pattern in signature.without):
        return None
    groups: dict[str, str] = {}
    for hit in hits:
        if abs(hit.position - best.position) < _LINE:
            groups = {**hit.groups, **groups}
    return dataclasses.replace(best, groups={**groups, **best.groups})


def _is_said(text: _Text, signature: Signature) -> bool:
    return any(_search(text, signature, pattern, needles) for pattern, needles in signature.match.items())


def _search(text: _Text, signature: Signature, pattern: str, needles: Iterable[str]) -> Hit | None:
    chosen: Hit | None = None
    for needle in needles:
        for start, end in _lines_with(needle, text, last=signature.last):
            compiled = _compiled(pattern)
            match = compiled.search(text.text[start:end]) or _over_lines(compiled, text.text, start, end)
            if match is None or _is_only_written(text.text, start, start + match.start()):
                continue
            position = start + match.start()
            if chosen is None or position < chosen.position:
                groups = {name: value for name, value in match.groupdict().items() if value}
                line = text.written[start:end].strip()[:400]
                chosen = Hit(
                    signature=signature, source=text.source, line=0, text=line, position=position, groups=groups
                )
            break
    return chosen


def _is_only_written(text: str, start: int, position: int) -> bool:
    """Return whether a program holds a message in its source, or somebody says what to do if it comes: nothing said it.

    The lines of source that a traceback quotes did run. A notice of what a library does without says no failure.
    """
    if _compiled(words().supposed).search(text, start, position) or _compiled(words().notices).match(text, start):
        return True
    before = text[text.rfind("\n", 0, max(0, start - 1)) + 1 : start]
    return bool(_compiled(words().source).match(text, start)) and not _compiled(words().quoted_by).match(before)


def _lines_with(needle: str, text: _Text, *, last: bool) -> Iterator[tuple[int, int]]:
    """Give where the first lines begin and end that hold ``needle``, or the ``last`` one.

    Long lines are cut around it.
    """
    position = text.lower.rfind(needle) if last else text.lower.find(needle)
    for _ in range(1 if last else _MOST_HITS):
        if position < 0:
            return
        end = text.text.find("\n", position)
        end = min(end if end >= 0 else len(text.text), position + _LINE)
        yield max(text.text.rfind("\n", 0, position) + 1, position - _LINE), end
        position = text.lower.find(needle, end)


def _over_lines(compiled: re.Pattern[str], text: str, start: int, end: int) -> re.Match[str] | None:
    """Return a match that begins on this line and ends on one of the next two, as messages of several lines have."""
    stop = end
    for _ in range(2):
        following = text.find("\n", stop + 1)
        stop = following if following >= 0 else len(text)
    if end - start > _LINE or stop - end > _LINE:
        return None
    first, *continued = unprefixed(text[start:stop]).split("\n")
    joined = " ".join([first.rstrip(), *(part.strip() for part in continued)])
    match = compiled.search(joined)
    return match if match and match.start() < len(first) else None


def _anywhere(text: _Text, pattern: str) -> bool:
    try:
        needles = needle_of(pattern)
    except ValueError:
        return _compiled(pattern).search(text.text[:400_000]) is not None
    return any(n in text.lower for n in needles) and _compiled(pattern).search(text.text[:4_000_000]) is not None


def _is_last(text: str, hit: Hit) -> bool:
    """Return whether nothing but empty lines and NCCL's own talk follows."""
    end = text.find("\n", hit.position)
    following = "" if end < 0 else text[end : end + 4000]
    return not any(line.strip() and "NCCL INFO" not in line for line in following.split("\n"))


# The literal that every match of a pattern holds, so that a text is searched for literals and only their lines meet
# the expression.


# An escape, a class in brackets, or one character: a `|` that is a piece of its own, outside of groups, parts two
# branches.
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|.", re.DOTALL)


def alternatives(pattern: str) -> list[str]:
    """Return a pattern parted at its top-level ``|``, without the parts that have no needle."""
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


def needle_of(pattern: str) -> tuple[str, ...]:
    """Return literals (lower case), one of which is in every match.

    ``ValueError`` when there are none of four characters.
    """
    try:
        from re import _parser as parser  # type: ignore[attr-defined,unused-ignore]
    except ImportError:  # Python 3.10
        import sre_parse as parser  # type: ignore[no-redef,unused-ignore]
    distinct = _literals(parser.parse(pattern.translate(QUOTES), re.IGNORECASE))
    if not distinct or min(map(len, distinct)) < 4:
        raise ValueError(f"{pattern!r} has no literal of four characters that every match holds")
    return tuple(distinct)


def _literals(parsed: Any) -> list[str]:
    """Return the best alternatives of a sequence: the longest shortest member wins, an optional part gives nothing."""
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


# Stages of rules in the words of the study.
_STAGE_OF_RULE = {"communication": "comm-setup", "init": "setup", "checkpoint": "load", "inference": "train"}
_GROUP_OF = (
    (frozenset({"driver"}), "driver"),
    (frozenset({"gcc", "clang", "glibc"}), "compiler"),
    (frozenset({"gpu"}), "gpu-arch"),
    (frozenset({"toolkit"}), "cuda-torch-mismatch"),
)


def taxonomy_of(finding: Finding) -> Taxonomy:
    """Return the study's taxonomy of a finding of a rule: as the table says, else by its components."""
    row = catalogue().taxonomy.get(finding.rule, {})
    names = set(finding.components)
    groups = (group for parts, group in _GROUP_OF if names & parts)
    return Taxonomy(
        stage=_STAGE_OF_RULE.get(finding.stage or "", finding.stage or ""),
        group=row.get("group") or next(groups, "python-version-pair"),
        cause=row.get("cause", finding.rule),
        pattern=row.get("pattern", "version-and-dependency-management"),
    )
