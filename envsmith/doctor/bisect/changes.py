"""What differs between two sets of packages: changes that belong together, in an order in which each step can stand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from envsmith.model.version import is_same_version

# Canonical name of a distribution -> its version.
Pins = Mapping[str, str]
# What a release requires on this machine, by canonical name; nothing where it was not read.
Requires = Callable[[str, str], Mapping[str, Requirement]]
# Prior weights: how likely a change is the one. A major release breaks more often than a patch (semantic versions), and
# a package that the traceback passes through more often than another; most of all the one of its last frame, or of its
# last line.
_MAJOR, _MINOR, _NAMED, _BLAMED = 4.0, 2.0, 4.0, 16.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DifferingPackage:
    """One package that differs. ``None`` stands for an end that does not have it."""

    name: str
    good: str | None
    bad: str | None

    def __str__(self) -> str:
        return f"{self.name} {self.good or '(absent)'} -> {self.bad or '(absent)'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeGroup:
    """Changes that are tried together, because one end pins them to one another. The first one leads: it pins the others."""

    changes: tuple[DifferingPackage, ...]

    @property
    def lead(self) -> DifferingPackage:
        """Return the change by which the group is called."""
        return self.changes[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of its packages."""
        return tuple(change.name for change in self.changes)

    def __str__(self) -> str:
        count = len(self.changes) - 1
        return str(self.lead) + (f" (with {count} that it pins)" if count else "")


def changes_between(good: Pins, bad: Pins) -> tuple[DifferingPackage, ...]:
    """Return every package whose version differs, by name."""
    names = sorted({*good, *bad})
    return tuple(
        DifferingPackage(name=name, good=good.get(name), bad=bad.get(name))
        for name in names
        if not is_same_version(good.get(name), bad.get(name))
    )


def groups_between(good: Pins, bad: Pins, requires: Requires) -> tuple[ChangeGroup, ...]:
    """Return the changes in groups, in an order of which each beginning violates as few declared ranges as it can.

    Two changes belong together where a release at one of the ends pins the required by an exact ``==``, and where each
    end's release excludes the other end's of what it requires: no installer makes a set with one of them changed.
    """
    changes = {change.name: change for change in changes_between(good, bad)}
    parent = {name: name for name in changes}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    pinned: dict[str, set[str]] = {name: set() for name in changes}
    for pins in (good, bad):
        for name in changes:
            if name not in pins:
                continue
            for required, requirement in requires(name, pins[name]).items():
                if required in changes and (
                    _is_exact(requirement) or _move_together(name, required, good, bad, requires)
                ):
                    pinned[name].add(required)
                    parent[root(required)] = root(name)
    members: dict[str, list[str]] = {}
    for name in changes:
        members.setdefault(root(name), []).append(name)
    groups = [
        ChangeGroup(changes=tuple(changes[n] for n in sorted(names, key=lambda n: (-len(pinned[n]), n))))
        for names in members.values()
    ]
    return _ordered(groups, good, bad, requires)


def _move_together(name: str, required: str, good: Pins, bad: Pins, requires: Requires) -> bool:
    """Tell whether each end's release of one package excludes the other end's release of another."""

    def excludes(pins: Pins, further_pins: Pins) -> bool:
        requirement = requires(name, pins[name]).get(required) if name in pins else None
        return requirement is not None and required in further_pins and not _meets(further_pins[required], requirement)

    return excludes(good, bad) and excludes(bad, good)


def pins_with(groups: Iterable[ChangeGroup], good: Pins) -> dict[str, str]:
    """Return the good set with the groups at their bad versions."""
    pins = dict(good)
    for group in groups:
        for change in group.changes:
            if change.bad is None:
                pins.pop(change.name, None)
            else:
                pins[change.name] = change.bad
    return pins


def still_required(groups: Iterable[ChangeGroup], end: Pins, pins: Pins, requires: Requires) -> dict[str, str]:
    """Return what is not in ``pins`` although a group at its version of one end requires it: no installer makes such a set.

    What is missing for a package that is the same at both ends stays missing, because that may be what breaks.
    """
    users = [change.name for group in groups for change in group.changes if change.name in end]
    needed: dict[str, str] = {}
    while users:
        name = users.pop()
        for required in requires(name, end[name]):
            if required in end and required not in pins and required not in needed:
                needed[required] = end[required]
                users.append(required)
    return needed


def weights(groups: Sequence[ChangeGroup], error: str) -> tuple[float, ...]:
    """Return the prior weight of each group: the jump of its versions, and whether the failing output names it."""
    named = _packages_in(error)
    *_, line = error.strip().splitlines() or [""]
    blamed = {*named[-1:], *re.findall(r"[a-z0-9_]{3,}", line.lower())}
    result = []
    for group in groups:
        weight = max(_jump(change) for change in group.changes)
        folders = {name.replace("-", "_").lower() for name in group.names}
        if blamed & folders:
            weight *= _BLAMED
        elif folders & set(named):
            weight *= _NAMED
        result.append(weight)
    return tuple(result)


def _ordered(groups: list[ChangeGroup], good: Pins, bad: Pins, requires: Requires) -> tuple[ChangeGroup, ...]:
    """Order greedily: next comes the group whose change leaves the fewest unmet requirements."""
    pins, remaining, ordered = dict(good), list(groups), []
    users = _users(good, bad, requires)
    while remaining:
        costs = [(_added_cost(group, pins, requires, users), n) for n, group in enumerate(remaining)]
        group = remaining.pop(min(costs)[1])
        pins = pins_with([group], pins)
        ordered.append(group)
    return tuple(ordered)


def _users(good: Pins, bad: Pins, requires: Requires) -> dict[str, set[str]]:
    """Return, for each package, the packages that require it at one of the ends."""
    users: dict[str, set[str]] = {}
    for pins in (good, bad):
        for name, version in pins.items():
            for required in requires(name, version):
                users.setdefault(required, set()).add(name)
    return users


def _added_cost(group: ChangeGroup, pins: Pins, requires: Requires, users: Mapping[str, set[str]]) -> int:
    """Return how many more requirements are unmet once the group has changed."""
    after = pins_with([group], pins)
    concerned = {*group.names, *(user for name in group.names for user in users.get(name, ()))}
    return _unmet(concerned, after, requires) - _unmet(concerned, pins, requires)


def _unmet(names: Iterable[str], pins: Pins, requires: Requires) -> int:
    return sum(
        required not in pins or not _meets(pins[required], requirement)
        for name in names
        if name in pins
        for required, requirement in requires(name, pins[name]).items()
    )


def _meets(version: str, requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True


def _is_exact(requirement: Requirement) -> bool:
    return any(s.operator in {"==", "==="} and not s.version.endswith(".*") for s in requirement.specifier)


def _jump(change: DifferingPackage) -> float:
    """Return how far apart the two versions are: 1 for a patch release."""
    if change.good is None or change.bad is None:
        return _MINOR
    try:
        good, bad = Version(change.good), Version(change.bad)
    except InvalidVersion:
        return _MINOR
    if good.major != bad.major:
        return _MAJOR
    return _MINOR if good.minor != bad.minor else 1.0


_FRAME = re.compile(r"(?:site|dist)-packages/([A-Za-z0-9_]+)|No module named '([A-Za-z0-9_]+)|from '([A-Za-z0-9_]+)")


def _packages_in(error: str) -> list[str]:
    """Return the importable names that an output mentions, in its order."""
    return [next(filter(None, match)).lower() for match in _FRAME.findall(error)]
