"""The releases between the two ends of a culprit, and the day of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from envsmith.base.files import scratch, write_whole
from envsmith.doctor.bisect.changes import ChangeGroup, DifferingPackage
from envsmith.doctor.bisect.outcome import TrialOutcome
from envsmith.doctor.bisect.search import narrow_past
from envsmith.doctor.bisect.trials import PackageSet, Trials
from envsmith.errors import LockError, NetworkError
from envsmith.lock.index.index import IndexFile, PackageIndex

# Half of the weight lies on the releases that change the major number, or where there is none, the minor one.
_HALF = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class DatedRelease:
    """A release, and the day when it was published, where the index tells."""

    version: str
    day: str | None = None

    def __str__(self) -> str:
        return f"{self.version} ({self.day})" if self.day else self.version


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseStep:
    """The last good and the first bad release of a package. ``skipped`` between them could not be judged."""

    name: str
    good: DatedRelease
    bad: DatedRelease
    skipped: tuple[str, ...] = ()

    @property
    def is_older(self) -> bool:
        """Return whether the bad release is the older one."""
        return Version(self.bad.version) < Version(self.good.version)

    @property
    def remedy(self) -> str:
        """Return the requirement that stays clear of it."""
        return f"{self.name}{'>' if self.is_older else '<'}{self.bad.version}"


def narrow_releases(
    group: ChangeGroup, base: PackageSet, error: str, trials: Trials, index: PackageIndex
) -> ReleaseStep | None:
    """Return between which two releases of a group's lead the command breaks. ``None`` where it came or went.

    ``base`` are the packages in which the group is the one that is tried: with it at its good version they pass.
    """
    change = group.lead
    if change.good is None or change.bad is None:
        return None
    releases = _between(change, index, base.python)
    sets: dict[int, PackageSet | None] = {}
    others: set[int] = set()

    def is_bad(position: int) -> bool | None:
        if position not in sets:
            sets[position] = _with_release(group, releases[position].version, base, trials)
        packages = sets[position]
        if packages is None:
            return None
        outcome: TrialOutcome = trials.attempt(packages)
        if outcome.passed is False and not outcome.is_like(error):
            # With another release of one package, another error is one of the same kind, unless the next one works.
            others.add(position)
        return None if outcome.passed is None else not outcome.passed

    good, bad = narrow_past(_weights([release.version for release in releases]), is_bad, others.__contains__)
    return ReleaseStep(
        name=change.name,
        good=releases[good],
        bad=releases[bad],
        skipped=tuple(release.version for release in releases[good + 1 : bad]),
    )


def _between(change: DifferingPackage, index: PackageIndex, python: str) -> list[DatedRelease]:
    """Return the releases from the good version to the bad one, both of them first and last.

    Prereleases and yanked releases count only as an end.
    """
    good, bad = str(change.good), str(change.bad)
    try:
        releases = index.project(change.name).releases()
    except NetworkError:
        releases = {}
    days = {_public(version): _day(files) for version, files in releases.items()}
    low, high = sorted((Version(good), Version(bad)))
    inner = [
        version
        for version, files in releases.items()
        if low < Version(version) < high
        and Version(version).public not in {low.public, high.public}
        and not Version(version).is_prerelease
        and any(file.yanked is None and _is_for(file, python) for file in files)
    ]
    inner = inner if Version(good) < Version(bad) else inner[::-1]
    return [DatedRelease(version=version, day=days.get(_public(version))) for version in (good, *inner, bad)]


def _with_release(group: ChangeGroup, version: str, base: PackageSet, trials: Trials) -> PackageSet | None:
    """Return the set with another release of a group's lead, and with what that release pins or newly requires.

    ``None`` where uv finds no such set.
    """
    lead = group.lead.name
    if version in {group.lead.good, group.lead.bad}:
        end = {c.name: c.good if version == group.lead.good else c.bad for c in group.changes}
        pins = {**base.pins, **{n: v for n, v in end.items() if v}}
        return PackageSet(pins={n: v for n, v in pins.items() if end.get(n, v)}, python=base.python)
    fixed = {name: pin for name, pin in base.pins.items() if name not in group.names}
    for constraints in (fixed, {}):
        try:
            resolved = resolve([f"{lead}=={version}"], constraints, base.python, trials)
        except LockError:
            continue
        added = {n: v for n, v in resolved.items() if n in group.names or n not in fixed}
        return PackageSet(pins={**fixed, **added, lead: version}, python=base.python)
    return None


def resolve(
    requirements: Sequence[str],
    constraints: Mapping[str, str],
    python: str,
    trials: Trials,
    *,
    exclude_newer: str | None = None,
    files: Sequence[str] = (),
) -> dict[str, str]:
    """Return what uv resolves for requirements and files of requirements under exact constraints. ``LockError``."""
    with scratch() as folder:
        wish, limits = folder / "requirements.in", folder / "constraints.txt"
        write_whole(wish, "".join(f"{line}\n" for line in requirements), durable=False)
        write_whole(limits, "".join(f"{n}=={v}\n" for n, v in constraints.items()), durable=False)
        arguments = ["pip", "compile", str(wish), *files, "--constraint", str(limits), "--python-version", python]
        newest = exclude_newer or trials.exclude_newer
        answer = trials.uv.check(
            [*arguments, "--no-header", "--no-annotate", *(["--exclude-newer", newest] if newest else [])],
            work="resolve the packages of a trial",
        )
    pins = (line.partition("==") for line in answer.stdout.splitlines() if "==" in line)
    return {name.strip().partition("[")[0]: version.split(";")[0].strip() for name, _, version in pins}


def _weights(versions: Sequence[str]) -> list[float]:
    """Return the prior weight of each step between two releases."""
    steps = [(_parts(a), _parts(b)) for a, b in itertools.pairwise(versions)]
    for length in (1, 2):
        jumps = [before[:length] != after[:length] for before, after in steps]
        if any(jumps):
            share = _HALF / sum(jumps)
            return [_HALF / len(steps) + (share if jump else 0.0) for jump in jumps]
    return [1.0] * len(steps)


def _parts(version: str) -> tuple[int, ...]:
    try:
        return Version(version).release
    except InvalidVersion:
        return ()


def _public(version: str) -> str:
    return Version(version).public


def _day(files: Iterable[IndexFile]) -> str | None:
    days = [file.day for file in files if file.day]
    return min(days) if days else None


def _is_for(file: IndexFile, python: str) -> bool:
    try:
        return not file.requires_python or SpecifierSet(file.requires_python).contains(f"{python}.99")
    except InvalidSpecifier:
        return True
