"""What a backend of a version does with a case: expectations, read from ``matrix/collectives.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Annotated

from envsmith.base.json_types import JsonDict
from envsmith.base.schema import Prepared, Text, each_once, strict, whole_number
from envsmith.knowledge.graph.fields import Sources, SpecText, load_table
from envsmith.model.rule import Evidence


class Expect(str, Enum):
    """What is expected of a case on a backend."""

    OK = "ok"
    REFUSED = "refused"
    WRONG = "wrong"
    EITHER = "either"
    AVOID = "avoid"


# A word or a number, or a list of those.
_Words = Annotated[
    frozenset[str], Prepared(lambda value: [str(item) for item in (value if isinstance(value, list) else [value])])
]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Selectors:
    """What a line speaks of. One that is absent means any. ``without`` names packages that are not installed."""

    backend: _Words | None = None
    op: _Words | None = None
    dtype: _Words | None = None
    redop: _Words | None = None
    n: _Words | None = None
    engine: _Words | None = None
    torch: SpecText | None = None
    nccl: SpecText | None = None
    without: _Words | None = None

    def matches(self, case: Mapping[str, str]) -> bool:
        """Return whether a case is meant."""
        return (
            (self.op is None or case.get("op", "") in self.op)
            and (self.dtype is None or case.get("dtype", "") in self.dtype)
            and (self.redop is None or case.get("redop", "") in self.redop)
            and (self.n is None or case.get("n", "") in self.n)
        )

    def applies(self, backend: str, engine: str, versions: Mapping[str, str]) -> bool:
        """Return whether cases are meant there. An unknown version is in no range, one of ``none`` is known to be absent."""
        if (self.backend and backend not in self.backend) or (self.engine and engine not in self.engine):
            return False
        if self.without is not None and not any(versions.get(name) == "none" for name in self.without):
            return False
        ranges = (("torch", self.torch), ("nccl", self.nccl))
        return all(not s or s.is_any or (n in versions and s.contains(versions[n])) for n, s in ranges)


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """One line: what it speaks of, what is expected and where that comes from."""

    id: Text
    when: Selectors
    expect: Expect
    evidence: Sources
    note: Text | None = None
    min_sm: Annotated[int, whole_number(1, 1000)] | None = None

    def to_json(self) -> JsonDict:
        """Return what the agent reads."""
        row = {"expect": self.expect.value, "line": self.id, "note": self.note or ""}
        return row | ({"min_sm": self.min_sm} if self.min_sm else {})


# What is expected where no line speaks of a case.
WORKS = Expectation(id="", when=Selectors(), expect=Expect.OK, evidence=())


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Expectations:
    """All lines, in the order of the file."""

    expectations: Annotated[tuple[Expectation, ...], each_once(attrgetter("id"))]
    evidence: Mapping[str, Evidence] = field(default_factory=dict)

    def under(self, backend: str, engine: str, versions: Mapping[str, str]) -> Expectations:
        """Return the lines that speak of a backend, an engine of torch and these versions."""
        return replace(
            self, expectations=tuple(e for e in self.expectations if e.when.applies(backend, engine, versions))
        )

    def of(self, case: Mapping[str, str]) -> Expectation:
        """Return the last line that speaks of the case, or that it works."""
        return next((line for line in reversed(self.expectations) if line.when.matches(case)), WORKS)


@cache
def load_expectations(folder: Path | None = None) -> Expectations:
    """Read and check the file. Raises :class:`DataError` that lists every problem with its key path."""
    return load_table(Expectations, "collectives.yaml", folder)
