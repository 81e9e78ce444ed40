"""The answer of the name index to one question."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Presence:
    """Which measured releases have a name, or accept an argument of it.

    ``present`` are releases that have it where everything optional is installed. ``unknown`` are releases where the
    name may be made at run time or in C++. ``successor`` replaces it in the newest release, where the sources say so.
    ``date`` is the day of the newest measured release.
    """

    distribution: str
    path: str
    argument: str | None
    releases: tuple[str, ...]
    present: frozenset[str]
    absent: frozenset[str]
    unknown: frozenset[str]
    successor: str | None = None
    date: str = ""

    def spec(self) -> str:
        """Return a PEP 440 specifier of the releases that have it, ``""`` for all of them.

        Without any release it is the impossible ``<0``. What is older than the first measured release, or newer than
        the last, is taken to be like that one.
        """
        return spec_of(self.releases, self.present)

    def short_spec(self) -> str:
        """Return :meth:`spec` as long as a requirement may be."""
        return short_spec_of(self.releases, self.present)


# A requirement with more exceptions than that is of no use to anybody.
_LONGEST = 120


def short_spec_of(releases: Sequence[str], having: Collection[str]) -> str:
    """Return the specifier of ``having``. Of more gaps than fit into it, that of the releases behind the last one."""
    spec = spec_of(releases, having)
    if len(spec) <= _LONGEST:
        return spec
    last = max(at for at, release in enumerate(releases) if release in having)
    first = last
    while first and releases[first - 1] in having:
        first -= 1
    return f">={releases[first]}" + (f",<{releases[last + 1]}" if last + 1 < len(releases) else "")


def spec_of(releases: Sequence[str], having: Collection[str]) -> str:
    """Return the specifier of ``having`` among ``releases``, oldest first, as :meth:`Presence.spec` describes it."""
    places = [at for at, release in enumerate(releases) if release in having]
    if not places:
        return "<0"
    first, last = places[0], places[-1]
    clauses = [f">={releases[first]}"] if first else []
    if last + 1 < len(releases):
        clauses.append(f"<{releases[last + 1]}")
    clauses += [f"!={releases[at]}" for at in range(first, last) if releases[at] not in having]
    return ",".join(clauses)
