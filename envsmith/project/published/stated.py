"""The stated versions as requirements name them, and what a release declares, each on every Python that may be meant."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envsmith.knowledge.graph.load import components, version_graph
from envsmith.lock.index.distribution import ReleaseFacts
from envsmith.lock.index.index import PackageIndex
from envsmith.lock.index.markers import holds
from envsmith.model.cell import Platform
from envsmith.model.component import Role
from envsmith.model.project_name import normal_name
from envsmith.model.version import minor_of
from envsmith.net.http import NotFoundError
from envsmith.project.published.later import Declared

# Of a marker, where no Python is stated.
PYTHONS = tuple(f"3.{minor}" for minor in range(8, 15))
# Exact versions by the normalised names that requirements have, each with the name of its component.
Stated = Mapping[str, tuple[str, Version]]


def declared(
    facts: ReleaseFacts, pythons: Iterable[str], platform: Platform, project: str = "", extras: Collection[str] = ()
) -> Declared:
    """Return what a release declares, by distribution, on each of the ``pythons`` that may be meant.

    With ``extras``, and those that they name themselves of the same ``project``.
    """
    of_python = SpecifierSet(facts.requires_python or "")
    minors = [minor for minor in pythons if of_python.contains(minor)] or [*pythons]
    requirements = [(normal_name(r.name), r) for r in map(Requirement, facts.requires)]
    extras = _with_inner(extras, [r for of, r in requirements if of == project], platform)
    bounds: Declared = {"python": [of_python]}
    for name in dict.fromkeys(name for name, _ in requirements):
        lines = [r for of, r in requirements if of == name]
        clauses = [
            [str(r.specifier) for r in lines if any(holds(r.marker, m, platform, extra) for extra in ("", *extras))]
            for m in minors
        ]
        if clauses and all(clauses):
            bounds[name] = [SpecifierSet(",".join(filter(None, each))) for each in clauses]
    return bounds


def _with_inner(extras: Collection[str], own: Sequence[Requirement], platform: Platform) -> frozenset[str]:
    """Return extras with those that requirements of the ``own`` project name: ``all`` may be ``sglang[srt,openai]``."""
    every = frozenset(extras)
    named = {e for r in own for e in r.extras if any(holds(r.marker, m, platform, x) for m in PYTHONS for x in every)}
    return every if named <= every else _with_inner(every | named, own, platform)


def days_of(packages: PackageIndex, distribution: str, component: str, release: Version) -> dict[Version, str]:
    """Return the days on which the final releases of a stated one's series came out, up to it. None where nobody tells."""
    days: dict[Version, str] = {}
    with suppress(NotFoundError):
        for text, files in packages.project(distribution).releases().items() if component != "python" else ():
            version = Version(text)
            if version.release[:2] == release.release[:2] and version <= release and not version.is_prerelease:
                days[version] = min((file.day or "~" for file in files), default="~")
    graph_name = minor_of(str(release)) if component == "python" else release.public
    if day := version_graph().released_on(component, graph_name):
        days[release] = day
    return {version: day for version, day in days.items() if day != "~"}


def stated_releases(versions: Mapping[str, str]) -> Stated:
    """Return the exact versions by the normalised names that requirements have, each with the name of its component."""
    stated: dict[str, tuple[str, Version]] = {}
    for name, text in versions.items():
        component = components().find(name)
        if text[:1].isdigit() and not (component and component.role is Role.HOST):
            names = (*component.distributions, component.name) if component else (name,)
            stated |= {normal_name(each): (component.name if component else name, Version(text)) for each in names}
    return stated


def stated_python(versions: Mapping[str, str]) -> str | None:
    """Return the stated Python as ``3.11``."""
    python = versions.get("python", "")
    return minor_of(python) if python[:1].isdigit() else None
