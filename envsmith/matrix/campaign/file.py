"""The campaign file: YAML from a person -> :class:`Campaign`, or one error with every problem and its key path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.errors import DataError
from envsmith.graph.parse import Node, Problems, parse_yaml
from envsmith.model.component import ComponentTable
from envsmith.model.version import Spec

__all__ = ["Campaign", "Choice", "read_campaign"]

_SCHEMA = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")
_KINDS = ("grid", "solved", "cover", "bad", "ids", "expired", "changed")
_MAX = 100_000
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One line of ``cells:``. ``kind`` is one of grid, solved, cover, bad, ids, expired, changed.

    ``where`` maps a component to specs (each alone for ``grid``, their union for the others); ``words`` are cell ids, stages or rule ids;
    ``since`` an ISO day; ``take`` how many at most.
    """

    kind: str
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    since: str | None = None
    take: int | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Campaign:
    """``executor`` are the settings of the executor that is called, by its own names."""

    name: str
    choices: tuple[Choice, ...]
    ranks: int = 2
    tier: str = "quick"
    exclude_newer: str | None = None
    executor: Mapping[str, object] = field(default_factory=dict)


def read_campaign(path: Path, table: ComponentTable) -> Campaign:
    """Read a campaign file. ``DataError`` lists every problem."""
    problems = Problems()
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path}: larger than {_MAX_BYTES >> 20} MiB")
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    root = parse_yaml(str(path), content, problems)
    campaign = _campaign(root, table) if root is not None else None
    if problems.lines or campaign is None:
        raise DataError(
            f"{path}: no campaign file",
            details=problems.lines,
            hint="the fields are described in docs/how-to/campaigns.md",
        )
    return campaign


def _campaign(root: Node, table: ComponentTable) -> Campaign | None:
    fields = root.fields(("schema", "name", "cells"), ("ranks", "tier", "exclude_newer", "executor"))
    if "schema" in fields and fields["schema"].value != _SCHEMA:
        fields["schema"].wrong("another schema", f"this envsmith reads schema: {_SCHEMA}")
    name = fields["name"].text() if "name" in fields else None
    if name and not _NAME.fullmatch(name):
        fields["name"].wrong("no name of a campaign", "lower-case letters, digits, dots and hyphens")
    tier = fields["tier"].text() if "tier" in fields else "quick"
    if tier not in {"import", "quick", "full", "framework"}:
        fields["tier"].wrong("unknown tier", "choose import, quick, full or framework")
    day = fields["exclude_newer"].day() if "exclude_newer" in fields else None
    choices = [_choice(node, table) for node in (fields["cells"].sequence() if "cells" in fields else [])]
    executor = _settings(fields["executor"]) if "executor" in fields else {}
    return Campaign(
        name=name or "",
        choices=tuple(c for c in choices if c),
        ranks=_number(fields.get("ranks"), 2, 64) or 2,
        tier=tier or "quick",
        exclude_newer=day,
        executor=executor,
    )


def _settings(node: Node) -> dict[str, object]:
    known = (
        "jobs",
        "free_disk_gib",
        "free_memory_gib",
        "partition",
        "cpus",
        "gpus",
        "minutes",
        "memory_gib",
        "at_once",
        "python",
    )
    fields = node.fields((), known)
    found: dict[str, object] = {}
    for name, value in fields.items():
        found[name] = value.text() if name in {"partition", "python"} else _number(value, 0, _MAX)
    return found


def _choice(node: Node, table: ComponentTable) -> Choice | None:
    fields = node.fields((), (*_KINDS, "take", "why"))
    kinds = [kind for kind in _KINDS if kind in fields]
    if len(kinds) != 1:
        node.wrong("one of " + ", ".join(_KINDS) + " belongs here", "each entry of `cells` is one way to choose")
        return None
    kind = kinds[0]
    take, why = _number(fields.get("take"), 1, _MAX), fields["why"].text() if "why" in fields else ""
    if kind == "ids":
        return Choice(kind=kind, words=_texts(fields[kind]), take=take, why=why or "")
    own = dict(fields[kind].items())
    words = _texts(own.pop("stages")) if kind == "bad" and "stages" in own else ()
    since = own.pop("since").day() if kind == "changed" and "since" in own else None
    where = {}
    for name, value in own.items():
        component = table.find(name)
        if component is None:
            value.wrong("unknown component", "see matrix/components.yaml")
        else:
            where[component.name] = _specs(value)
    return Choice(kind=kind, where=where, words=words, since=since, take=take, why=why or "")


def _specs(node: Node) -> tuple[str, ...]:
    nodes = node.sequence() if isinstance(node.value, list) else [node]
    specs = [n.spec() for n in nodes]
    return tuple(s.text for s in specs if isinstance(s, Spec))


def _texts(node: Node) -> tuple[str, ...]:
    return tuple(t for t in (n.text(maximum=200) for n in node.sequence()) if t)


def _number(node: Node | None, least: int, most: int) -> int | None:
    if node is None:
        return None
    if isinstance(node.value, bool) or not isinstance(node.value, int) or not least <= node.value <= most:
        node.wrong(f"a number from {least} to {most} belongs here")
        return None
    return node.value
