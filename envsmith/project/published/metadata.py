"""What the METADATA of a published release says beside what it declares: forms that installers refuse, bounds of extras.

Who installs a release beside another that only an extra of it bounds has the pair that its author did not mean, and no
installer says so.
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
from envsmith.model.finding import Finding
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Severity
from envsmith.project.published.code import PublishedRelease
from envsmith.project.published.stated import Stated, declared

# Seen on 2026-11-29 by installing gym 0.21.0 (opencv-python>=3.) and omegaconf 2.0.6 (PyYAML>=5.1.*): pip 24.0 and
# setuptools 66.1.1 take them, pip 24.1 and setuptools 67.0.0 do not. uv takes the wheel.
_PIP, _SETUPTOOLS = Version("24.1"), Version("67")
# One release alone is what the author tried, and its patch releases differ little: ``==4.48.3``.
_EXACT = re.compile(r"===?\s*(\d+\.\d+)(?:\.\d+)*(?:\.?(?:post|a|b|rc)\d+)?(?:\+.*)?")


def refused_requirements(release: PublishedRelease, facts: ReleaseFacts, stated: Stated) -> Iterator[Finding]:
    """Yield that setuptools refuses what a release requires where it is built from its source, else that pip does.

    An error beside a stated setuptools, a warning where none is stated. None beside an older one.
    """
    is_built = not facts.filename.endswith(".whl")
    tool, since = ("setuptools", _SETUPTOOLS) if is_built else ("pip", _PIP)
    _, present = stated.get(tool, ("", None))
    if not facts.refused or (present and present < since):
        return
    wheel_fix = f"Install it with uv or with pip below {_PIP}, or take another release of {release.name}."
    source_fix = f"Install setuptools below {_SETUPTOOLS}, then it with --no-build-isolation, or take another release of {release.name}."
    yield Finding(
        rule="release-metadata",
        severity=Severity.ERROR if is_built and present else Severity.WARNING,
        components={release.name: release.version} | ({tool: str(present)} if present else {}),
        needs={tool: f"<{since}"},
        message=f"{release.name} {release.version} requires {facts.refused[0]}, a form that {tool} refuses from {since} on"
        + (", and it has no wheel" if is_built else ""),
        evidence=(release.evidence,),
        fix=source_fix if is_built else wheel_fix,
        stage="install",
    )


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
        bounds_of = {
            extra: declared(facts, pythons, platform, project, (extra,)).get(name) for extra in sorted(named[name])
        }
        bounds = [(extra, each) for extra, each in bounds_of.items() if each]
        accepted = (_of_series(bound) for _, each in bounds for bound in each)
        if bounds and not any(bound.contains(stated[name], prereleases=True) for bound in accepted):
            extra, (bound, *_) = bounds[0]
            yield ExtraBound(distribution=name, extra=extra, bound=bound)


def _of_series(bound: SpecifierSet) -> SpecifierSet:
    """Return a bound with the series in the place of one release: ``==4.48.*`` for ``==4.48.3``."""
    return SpecifierSet(",".join(f"=={m[1]}.*" if (m := _EXACT.fullmatch(str(c))) else str(c) for c in bound))
