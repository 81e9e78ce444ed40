"""A campaign file: which cells it chooses, and where they run. Every problem of it is reported at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from envsmith.base.files import read_bounded
from envsmith.base.schema import (
    Day,
    Parsed,
    Problems,
    Text,
    UnreadableError,
    WrongValueError,
    check,
    exactly,
    not_empty,
    one_or_many,
    parse_document,
    strict,
    text_of,
    whole_number,
)
from envsmith.errors import DataError, UsageError
from envsmith.knowledge.graph.fields import SpecText
from envsmith.knowledge.graph.stacks import find_stack
from envsmith.lock.index.archives import parse_wish
from envsmith.matrix.campaign.job import CampaignSettings
from envsmith.model.component import ComponentTable

_SCHEMA = 1
_MAX = 100_000
_MAX_BYTES = 1 << 20
_OF_STACKS = ("grid", "solved", "cover")
_KINDS = ("grid", "solved", "cover", "bad", "ids", "expired", "changed")


@dataclass(frozen=True, kw_only=True, slots=True)
class CellChoice:
    """One line of ``cells:``. ``kind`` is one of grid, solved, cover, bad, ids, expired, changed.

    ``where`` maps a component to specs (each alone for ``grid``, their union for the others). ``words`` are cell ids,
    stages or rule ids. ``since`` is an ISO day, ``take`` how many cells at most.
    """

    kind: str
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    since: str | None = None
    take: int | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Campaign:
    """A campaign file, parsed."""

    name: str
    choices: tuple[CellChoice, ...]
    ranks: int = 2
    tier: str = "quick"
    exclude_newer: str | None = None
    executor: CampaignSettings = field(default_factory=CampaignSettings)
    sources: tuple[str, ...] = ()


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """What stands under the key of a kind is checked by that kind."""

    grid: Any = None
    solved: Any = None
    cover: Any = None
    bad: Any = None
    ids: Any = None
    expired: Any = None
    changed: Any = None
    stack: Text | None = None
    take: Annotated[int, whole_number(1, _MAX, "a number")] | None = None
    why: Text = ""


def _source(value: object, _context: object) -> str:
    try:
        return str(value) if parse_wish(str(value)).sha256 else ""
    except UsageError as error:
        raise WrongValueError("not a source archive", error.hint or "") from None


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _CampaignFile:
    schema: Annotated[int, exactly(_SCHEMA, f"another schema — this envsmith reads schema: {_SCHEMA}")]
    name: Annotated[
        str,
        text_of(
            40,
            re.compile(r"[a-z0-9][a-z0-9.-]{0,39}"),
            "lower-case letters, digits, dots and hyphens",
            "no name of a campaign",
        ),
    ]
    cells: tuple[Any, ...]
    ranks: Annotated[int, whole_number(2, 64, "a number")] = 2
    tier: Literal["import", "quick", "full", "framework"] = "quick"
    exclude_newer: Day | None = None
    executor: CampaignSettings = field(default_factory=CampaignSettings)
    sources: tuple[Annotated[str, Parsed(_source)], ...] = ()


def _component(value: object, table: ComponentTable) -> str:
    component = table.find(str(value))
    if component is None:
        raise WrongValueError("unknown component", "see matrix/components.yaml")
    return component.name


# What the parts of a line are checked against.
_WORDS: Any = tuple[Annotated[str, text_of(200)], ...]
_SPECS = Annotated[tuple[SpecText, ...], not_empty("an empty list admits no version"), one_or_many()]
_WHERE: Any = Mapping[Annotated[str, Parsed(_component)], _SPECS]
_DAY: Any = Day


def read_campaign(path: Path, table: ComponentTable) -> Campaign:
    """Read a campaign file. ``DataError`` lists every problem."""
    problems = Problems()
    document, file = None, None
    try:
        document = parse_document(path.name, read_bounded(path, _MAX_BYTES))
        file = check(_CampaignFile, document, str(path), problems)
    except UnreadableError as error:
        problems.add(str(path), str(error))
    lines = document.get("cells") if isinstance(document, dict) else None
    choices = [
        _choice(line, f"cells[{number}]", str(path), table, problems)
        for number, line in enumerate(lines if isinstance(lines, list) else ())
    ]
    if file is None or problems.lines:
        raise DataError(
            f"Cannot read {path}: it is not a campaign file.",
            details=problems.lines,
            hint="See docs/how-to/prove.md for the fields.",
        )
    return Campaign(
        name=file.name,
        choices=tuple(choice for choice in choices if choice),
        ranks=file.ranks,
        tier=file.tier,
        exclude_newer=file.exclude_newer,
        executor=file.executor,
        sources=file.sources,
    )


def _choice(value: object, place: str, file: str, table: ComponentTable, problems: Problems) -> CellChoice | None:
    line = check(_Line, value, file, problems, root=place)
    if line is None:
        return None
    kinds = [kind for kind in _KINDS if getattr(line, kind) is not None]
    if len(kinds) != 1:
        expected = "one of " + ", ".join(_KINDS) + " belongs here"
        problems.add(f"{file}: {place}", expected, "each entry of `cells` is one way to choose")
        return None
    kind, content = kinds[0], getattr(line, kinds[0])
    place = f"{place}.{kind}"
    if kind == "ids":
        words = check(_WORDS, content, file, problems, root=place)
        return CellChoice(kind=kind, words=words or (), take=line.take, why=line.why)
    words, since = (), None
    if isinstance(content, dict) and kind == "bad" and "stages" in content:
        words = check(_WORDS, content.pop("stages"), file, problems, root=f"{place}.stages")
    if isinstance(content, dict) and kind == "changed" and "since" in content:
        since = check(_DAY, content.pop("since"), file, problems, root=f"{place}.since")
    specs = check(_WHERE, content, file, problems, root=place, context=table) or {}
    members = _members(line.stack, kind, place, file, problems)
    texts = {**members, **{name: tuple(spec.text for spec in several) for name, several in specs.items()}}
    return CellChoice(kind=kind, where=texts, words=words or (), since=since, take=line.take, why=line.why)


def _members(name: str | None, kind: str, place: str, file: str, problems: Problems) -> dict[str, tuple[str, ...]]:
    """Return the members of a stack, each with the spec that holds where a line says no other."""
    if name is None:
        return {}
    if kind not in _OF_STACKS:
        problems.add(f"{file}: {place}", "a stack has no meaning here", f"it stands with {', '.join(_OF_STACKS)}")
        return {}
    try:
        return {member: (spec.text,) for member, spec in find_stack(name).requires.items()}
    except UsageError as error:
        problems.add(f"{file}: {place}", error.message, error.hint or "")
        return {}
