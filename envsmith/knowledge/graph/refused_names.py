"""What releases of a package refuse though its sources say nothing of it: names, methods of a user's class, calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from envsmith.base.schema import Text, strict
from envsmith.knowledge.graph.fields import Sources, SpecText, kept_table


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedNames:
    """Dotted names, and the releases that refuse them."""

    names: tuple[Text, ...]
    releases: SpecText
    evidence: Sources


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedUse:
    """What releases refuse of who uses them. ``effect`` is what they do then: "refuses (TypeError)".

    ``methods`` are those that a class of the user has in the place of ``Class.method`` of one of the ``packages``, where
    they want the argument ``taking`` if one is named. ``members`` are attributes that no class of the ``packages`` has any
    more, and nothing else has. ``calls`` are dotted names that are called ``without`` any of these
    arguments, or ``giving`` one of those, or a value of it (``copy=False``). With ``beyond`` only those count of whose result something is taken that this
    class lacks, and every plain value of Python, and nothing where one of the names ``lifted_by`` is taken.
    """

    releases: SpecText
    effect: Text
    fix: Text
    evidence: Sources
    packages: tuple[Text, ...] = ()
    methods: tuple[Text, ...] = ()
    taking: Text = ""
    members: tuple[Text, ...] = ()
    calls: tuple[Text, ...] = ()
    without: tuple[Text, ...] = ()
    giving: tuple[Text, ...] = ()
    beyond: Text = ""
    lifted_by: tuple[Text, ...] = ()


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _RefusedFile:
    names: tuple[RefusedNames, ...]
    uses: tuple[RefusedUse, ...] = ()
    evidence: Mapping[Text, Any] = field(default_factory=dict)


@lru_cache(maxsize=1)
def refused_names() -> Mapping[str, RefusedNames]:
    """Return which releases refuse each name, and how that was seen. ``DataError`` lists every problem of the file."""
    return {name: row for row in REFUSED_NAMES.load().names for name in row.names}


@lru_cache(maxsize=1)
def refused_uses() -> tuple[RefusedUse, ...]:
    """Return what releases refuse of who uses them. ``DataError`` as of :func:`refused_names`."""
    return REFUSED_NAMES.load().uses


@lru_cache(maxsize=1)
def followed_calls() -> frozenset[str]:
    """Return the calls of which it counts what is done with their results."""
    return frozenset(path for row in refused_uses() if row.beyond for path in row.calls)


@lru_cache(maxsize=1)
def refused_members() -> frozenset[str]:
    """Return the attributes that packages have no more."""
    return frozenset(name for row in refused_uses() for name in row.members)


REFUSED_NAMES = kept_table("refused-names", "refused.yaml", _RefusedFile)
