"""A campaign file: which cells it chooses, and where they run. Every problem of it is reported at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

from envsmith.base.files import read_bounded
from envsmith.base.schema import (
    Day,
    Made,
    Parsed,
    Prepared,
    Problems,
    Text,
    WrongValueError,
    exactly,
    not_empty,
    one_or_many,
    read_document,
    spelt,
    strict,
    text_of,
    whole_number,
    written,
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


def _component(value: object, table: ComponentTable) -> str:
    component = table.find(str(value))
    if component is None:
        raise WrongValueError("unknown component", "see matrix/components.yaml")
    return component.name


_Words = tuple[Annotated[str, text_of(200)], ...]
_Specs = Annotated[tuple[SpecText, ...], not_empty("an empty list admits no version"), one_or_many()]
_Where = Mapping[Annotated[str, Parsed(_component)], _Specs]


@spelt
@dataclass(frozen=True, kw_only=True, slots=True)
class _Beside:
    """Components, and what stands among them in the file."""

    where: _Where = field(default_factory=dict, metadata=written(""))
    words: _Words = field(default=(), metadata=written("stages"))
    since: Day | None = None


def _set_apart(key: str, value: object) -> object:
    if not isinstance(value, dict):
        return value
    apart = {key: value[key]} if key in value else {}
    return {**apart, "": {name: specs for name, specs in value.items() if name != key}}


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    grid: _Where | None = None
    solved: _Where | None = None
    cover: _Where | None = None
    bad: Annotated[_Beside, Prepared(partial(_set_apart, "stages"))] | None = None
    ids: _Words | None = None
    expired: _Where | None = None
    changed: Annotated[_Beside, Prepared(partial(_set_apart, "since"))] | None = None
    stack: Text | None = None
    take: Annotated[int, whole_number(1, _MAX, "a number")] | None = None
    why: Text = ""


def _choice(line: _Line, _context: object) -> CellChoice:
    kinds = [kind for kind in _KINDS if getattr(line, kind) is not None]
    if len(kinds) != 1:
        expected = "one of " + ", ".join(_KINDS) + " belongs here"
        raise WrongValueError(expected, "each entry of `cells` is one way to choose")
    kind, content = kinds[0], getattr(line, kinds[0])
    if not isinstance(content, _Beside):
        content = _Beside(words=content) if kind == "ids" else _Beside(where=content)
    where = _members(line.stack, kind)
    where |= {name: tuple(spec.text for spec in several) for name, several in content.where.items()}
    return CellChoice(kind=kind, where=where, words=content.words, since=content.since, take=line.take, why=line.why)


def _members(name: str | None, kind: str) -> dict[str, tuple[str, ...]]:
    """Return the members of a stack, each with the spec that holds where a line says no other."""
    if name is None:
        return {}
    if kind not in _OF_STACKS:
        advice = f"it stands with {', '.join(_OF_STACKS)}"
        raise WrongValueError("a stack has no meaning here", advice, path=".stack", part=name)
    try:
        return {member: (spec.text,) for member, spec in find_stack(name).requires.items()}
    except UsageError as error:
        raise WrongValueError(error.message, error.hint or "", path=".stack") from None


def _source(value: object, _context: object) -> str:
    try:
        return str(value) if parse_wish(str(value)).sha256 else ""
    except UsageError as error:
        raise WrongValueError("not a source archive", error.hint or "") from None


_TIER = text_of(9, re.compile("import|quick|full|framework"), "choose import, quick, full, framework", "unknown word")
_NAME = text_of(
    40, re.compile(r"[a-z0-9][a-z0-9.-]{0,39}"), "lower-case letters, digits, dots and hyphens", "no name of a campaign"
)


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Campaign:
    """A campaign file."""

    schema: Annotated[int, exactly(_SCHEMA, f"another schema — this envsmith reads schema: {_SCHEMA}")] = _SCHEMA
    name: Annotated[str, _NAME]
    choices: tuple[Annotated[CellChoice, Made(_Line, _choice)], ...] = field(metadata=written("cells"))
    ranks: Annotated[int, whole_number(2, 64, "a number")] = 2
    tier: Annotated[str, _TIER] = "quick"
    exclude_newer: Day | None = None
    executor: CampaignSettings = field(default_factory=CampaignSettings)
    sources: tuple[Annotated[str, Parsed(_source)], ...] = ()


def read_campaign(path: Path, table: ComponentTable) -> Campaign:
    """Read a campaign file. ``DataError`` lists every problem."""
    problems = Problems()
    campaign = read_document(Campaign, str(path), read_bounded(path, _MAX_BYTES), problems, context=table)
    if campaign is None:
        raise DataError(
            f"Cannot read {path}: it is not a campaign file.",
            details=problems.lines,
            hint="See docs/how-to/prove.md for the fields.",
        )
    return campaign
