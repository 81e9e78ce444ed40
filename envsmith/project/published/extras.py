"""What the extras of a release ask for, of packages that the release itself asks nothing of.

Who installs both without the extra has the pair that its author did not mean, and no installer says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envsmith.lock.index.component_needs import extras_of, is_for_users
from envsmith.lock.index.distribution import ReleaseFacts
from envsmith.model.cell import Platform
from envsmith.model.project_name import normal_name
from envsmith.project.published.stated import declared

# One release alone is what the author tried, and its patch releases differ little: ``==4.48.3``.
_EXACT = re.compile(r"===?\s*(\d+\.\d+)(?:\.\d+)*(?:\.?(?:post|a|b|rc)\d+)?(?:\+.*)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtraBound:
    """What an extra asks of a stated release of a distribution that is not there."""

    distribution: str
    extra: str
    bound: SpecifierSet


def refused_by_extras(
    facts: ReleaseFacts, stated: Mapping[str, Version], pythons: Collection[str], platform: Platform, project: str
) -> Iterator[ExtraBound]:
    """Yield a bound for each stated release that no extra takes of those that ask for it.

    Not where the release asks for the distribution without an extra too. Extras for developers and other hardware say
    nothing. ``stated`` are releases by distribution, ``pythons`` those that may be meant.
    """
    named: dict[str, set[str]] = {}
    required: set[str] = set()
    for requirement in map(Requirement, facts.requires):
        distribution, extras = normal_name(requirement.name), extras_of(str(requirement.marker or ""))
        if extras:
            named.setdefault(distribution, set()).update(filter(is_for_users, extras))
        else:
            required.add(distribution)
    for name in sorted(named.keys() & stated.keys() - required):
        asked = {extra: declared(facts, pythons, platform, project, (extra,)).get(name) for extra in sorted(named[name])}
        bounds = [(extra, each) for extra, each in asked.items() if each]
        accepted = (_of_series(bound) for _, each in bounds for bound in each)
        if bounds and not any(bound.contains(stated[name], prereleases=True) for bound in accepted):
            extra, (bound, *_) = bounds[0]
            yield ExtraBound(distribution=name, extra=extra, bound=bound)


def _of_series(bound: SpecifierSet) -> SpecifierSet:
    """Return a bound with the series in the place of one release: ``==4.48.*`` for ``==4.48.3``."""
    return SpecifierSet(",".join(f"=={m[1]}.*" if (m := _EXACT.fullmatch(str(c))) else str(c) for c in bound))
