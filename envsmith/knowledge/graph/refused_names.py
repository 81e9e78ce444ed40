"""Names that releases of a package refuse when they are asked for, though its sources seem to bind them."""

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
class _RefusedFile:
    names: tuple[RefusedNames, ...]
    evidence: Mapping[Text, Any] = field(default_factory=dict)


@lru_cache(maxsize=1)
def refused_names() -> Mapping[str, RefusedNames]:
    """Return which releases refuse each name, and how that was seen. ``DataError`` lists every problem of the file."""
    return {name: row for row in REFUSED_NAMES.load().names for name in row.names}


REFUSED_NAMES = kept_table("refused-names", "refused.yaml", _RefusedFile)
