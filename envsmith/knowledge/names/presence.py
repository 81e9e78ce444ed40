"""The answer of the name index to one question."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Presence:
    """Which measured releases have a name, or accept an argument of it.

    ``present`` are releases that have it where everything optional is installed. ``unknown`` are releases where the
    name may be made at run time or in C++. ``successor`` replaces it in the newest release, where the sources say so.
    ``wanting`` are the parameters that a whole call leaves out, each with the releases that want it.
    ``date`` is the day of the newest measured release, ``root`` the module that a user imports. Of a sample, not every
    release between the first and the last was read.
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
    wanting: tuple[tuple[str, frozenset[str]], ...] = ()
    root: str = ""
    is_sample: bool = False

    def spec(self) -> str:
        """Return a PEP 440 specifier of the releases that have it, ``""`` for all of them.

        Without any release it is the impossible ``<0``. What is older than the first measured release, or newer than
        the last, is taken to be like that one.
        """
        return spec_of(self.releases, self.present)

    def short_spec(self) -> str:
        """Return :meth:`spec` as long as a requirement may be."""
        return short_spec_of(self.releases, self.present)

    def ranges(self) -> str:
        """Return :meth:`spec`, or where that is too long its longest ranges: ``>=4.36.0,<4.49.0 or >=5.13.0``."""
        spec = self.spec()
        return spec if _is_short(spec) else " or ".join(_longest_ranges(self.releases, self.present, _RANGES))


# A requirement that is longer, or has more exceptions, is of no use to anybody.
_LONGEST, _EXCEPTIONS = 120, 2
# How many ranges a sentence lists.
_RANGES = 3


def short_spec_of(releases: Sequence[str], having: Collection[str]) -> str:
    """Return the specifier of ``having``. Of more gaps than fit into it, that of its longest range."""
    spec = spec_of(releases, having)
    return spec if _is_short(spec) else _longest_ranges(releases, having, 1)[0]


def _is_short(spec: str) -> bool:
    return len(spec) <= _LONGEST and spec.count("!=") <= _EXCEPTIONS


def _longest_ranges(releases: Sequence[str], having: Collection[str], most: int) -> list[str]:
    """Return the specifiers of the longest ranges of neighbours, in order."""
    runs = [[*run] for has, run in itertools.groupby(releases, having.__contains__) if has]
    longest = sorted(runs, key=len)[-most:]
    return [spec_of(releases, run) for run in runs if run in longest]


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
