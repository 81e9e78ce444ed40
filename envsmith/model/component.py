"""The components of a cell: whatever has versions and takes part in rules."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from envsmith.base.schema import Text, strict

# What a wheel of torch carries, or declares in one release: where torch changes, this follows it.
CARRIED = ("cuda", "nccl", "cudnn", "triton")


class Role(str, Enum):
    """What part a component plays in a cell."""

    FRAMEWORK = "framework"
    CORE = "core"
    COMPANION = "companion"
    HOST = "host"


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """``distributions`` are its names on the package index. ``short`` is its spelling in a cell id."""

    name: Text
    role: Role
    short: Text
    title: Text
    distributions: tuple[Text, ...] = ()
    aliases: tuple[Text, ...] = ()


def _fold(name: str) -> str:
    return re.sub(r"[-_.\s]+", "-", name.strip().lower())


@dataclass(frozen=True, slots=True)
class ComponentTable:
    """All components by name, alias and distribution."""

    by_name: Mapping[str, Component]
    by_spelling: Mapping[str, str]

    @classmethod
    def of(cls, components: Iterable[Component]) -> ComponentTable:
        """Put components into an index. ``ValueError`` when two claim one spelling."""
        by_name = {c.name: c for c in components}
        spellings: dict[str, str] = {}
        for c in by_name.values():
            for spelling in dict.fromkeys([c.name, *c.aliases, *c.distributions]):
                owner = spellings.setdefault(_fold(spelling), c.name)
                if owner != c.name:
                    raise ValueError(f"{spelling!r} names both {owner} and {c.name}")
        return cls(by_name, spellings)

    def find(self, name: str) -> Component | None:
        """Return the component that people mean by ``name`` (case, ``-`` and ``_`` do not matter), or ``None``."""
        component = self.by_spelling.get(_fold(name))
        return self.by_name[component] if component else None

    def nearest(self, name: str, among: Container[str] | None = None, *, cutoff: float = 0.5) -> list[str]:
        """Return up to three components with a spelling near an unknown name, at least as alike as ``cutoff``."""
        import difflib

        folded = _fold(name)
        pool = [s for s, n in self.by_spelling.items() if among is None or n in among]
        alike = set(difflib.get_close_matches(folded, pool, n=5, cutoff=max(cutoff, 0.7)))
        near = difflib.get_close_matches(folded, pool, n=5, cutoff=cutoff)
        names = (self.by_spelling[s] for s in near if s in alike or s[0] == folded[:1])  # click is no glibc
        return list(dict.fromkeys(names))[:3]

    def with_role(self, role: Role) -> list[Component]:
        """Return those with a role, in file order."""
        return [c for c in self.by_name.values() if c.role is role]
