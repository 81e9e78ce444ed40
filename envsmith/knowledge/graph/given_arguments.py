"""Arguments that a package gives its own methods, so that a method of a user's in their place must take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from envsmith.base.schema import Text, strict
from envsmith.knowledge.graph.fields import Sources, kept_table


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class GivenArguments:
    """What is given to one method, from the release on in which the method has it."""

    method: Text
    gives: tuple[Text, ...]
    evidence: Sources


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _GivenFile:
    methods: tuple[GivenArguments, ...]
    evidence: Mapping[Text, Any] = field(default_factory=dict)


@lru_cache(maxsize=1)
def given_arguments() -> Mapping[str, GivenArguments]:
    """Return what is given, by the dotted path of the method. ``DataError`` lists every problem of the file."""
    return {row.method: row for row in GIVEN_ARGUMENTS.load().methods}


GIVEN_ARGUMENTS = kept_table("given-arguments", "given.yaml", _GivenFile)
