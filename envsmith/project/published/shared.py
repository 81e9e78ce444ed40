"""What two stated releases ask of a third package, where none of its releases is both."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, product

from packaging.specifiers import SpecifierSet

from envsmith.model.cell import Platform
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity
from envsmith.project.published.later import Declared
from envsmith.project.published.release import IndexRelease
from envsmith.project.published.stated import PYTHONS

# Clauses of which the version itself fits.
_FROM = (">=", "==", "~=")
# Of Python every minor with its first and with a late patch: ``<=3.11`` and ``>=3.9.1`` are both met by one of them.
_PYTHONS = tuple(f"3.{minor}{patch}" for minor in range(5, 15) for patch in ("", ".99"))


def disagreements(
    releases: Mapping[IndexRelease, Declared], stated: Collection[str], releases_of: Callable[[str], Iterable[str]]
) -> Iterator[Finding]:
    """Yield an error for two of some releases that ask for one package, not ``stated``, in ranges that exclude each other.

    ``releases_of`` is asked for all releases of such a package: it may have none between the two ranges.
    """
    for (first, first_bounds), (second, second_bounds) in combinations(releases.items(), 2):
        for name in sorted(first_bounds.keys() & second_bounds.keys() - set(stated)):
            pairs = [f"{a},{b}".strip(",") for a, b in product(first_bounds[name], second_bounds[name])]
            if any(map(_is_plainly_met, pairs)):
                continue
            candidates = _PYTHONS if name == "python" else tuple(releases_of(name))
            if candidates and not any(_is_met(pair, candidates) for pair in pairs):
                yield Finding(
                    rule="releases-disagree",
                    severity=Severity.ERROR,
                    components={first.name: first.version, second.name: second.version},
                    message=f"{first.name} {first.version} declares {name} {first_bounds[name][0]}, {second.name} {second.version} "
                    f"declares {name} {second_bounds[name][0]}: no release of {name} is both",
                    evidence=(first.declaration, second.declaration),
                    fix=f"Install another release of {first.name} or of {second.name}.",
                    stage="install",
                )


def disagreements_by_python(
    releases: Collection[IndexRelease],
    platform: Platform,
    stated: Collection[str],
    releases_of: Callable[[str], Iterable[str]],
) -> Iterator[Finding]:
    """Yield an error for two releases that exclude each other so on each Python that both have, a warning from one on."""
    running = {minor: [each for each in releases if each.runs_on(minor, platform)] for minor in PYTHONS}
    conflicts: dict[frozenset[tuple[str, str]], dict[str, Finding]] = {}
    for minor, present in running.items():
        bounds = {each: each.declared(minor, platform) for each in present}
        for finding in disagreements(bounds, stated, releases_of):
            conflicts.setdefault(frozenset(finding.components.items()), {}).setdefault(minor, finding)
    for pair, by_minor in conflicts.items():
        common = [m for m, present in running.items() if pair <= {(each.name, each.version) for each in present}]
        first, finding = next(iter(by_minor.items()))
        if common == [*by_minor]:
            yield finding
        elif common[-len(by_minor) :] == [*by_minor] and len(by_minor) > 1:
            yield replace(finding, severity=Severity.WARNING, message=f"{finding.message}, from Python {first} on")


def _is_plainly_met(ranges: str) -> bool:
    """Return whether a version that the ranges name is in them, or they name no lower first."""
    lower = [clause.strip("><=~!").removesuffix(".*") for clause in ranges.split(",") if clause.startswith(_FROM)]
    return (not lower and ">" not in ranges) or _is_met(ranges, lower)


def _is_met(ranges: str, releases: Iterable[str]) -> bool:
    both = SpecifierSet(ranges)
    return any(both.contains(release, prereleases=True) for release in releases)
