"""What a project's code takes, held against the releases of a set of versions: one finding for each name and file."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from envsmith.base.text import counted
from envsmith.knowledge.graph.load import components
from envsmith.knowledge.graph.refused_names import refused_names
from envsmith.knowledge.names.guards import Guard
from envsmith.knowledge.names.module_uses import Use
from envsmith.knowledge.names.modules import is_shared
from envsmith.knowledge.names.presence import Presence
from envsmith.knowledge.names.whole_calls import MARK
from envsmith.model.finding import Finding
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Evidence, Severity
from envsmith.model.version import public
from envsmith.project.code.reading import ProjectUses, UsePlace

_SHOWN = 12
# How long code may take what its maintainers had before it was released.
_AHEAD = dt.timedelta(days=90)
_GRAVEST = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


class Index(Protocol):
    """What is asked which release has a name."""

    def distribution_of(self, module: str) -> str | None:
        """Return the distribution that a module belongs to."""

    def ask(self, path: str, argument: str | None = None, *, distribution: str | None = None) -> Presence | None:
        """Return which releases have a name, or accept an argument of it."""

    def ask_module(self, path: str) -> Presence | None:
        """Return which releases have a module that can be imported."""

    def evidence(self, distribution: str, version: str) -> tuple[Evidence, ...]:
        """Return the files that the answer about a release was read from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NameNeed:
    """A name, or an argument of it, that some releases have and some lack, and every place that takes it."""

    presence: Presence
    places: tuple[UsePlace, ...]

    @property
    def is_call(self) -> bool:
        """Return whether it is a call that some releases take as it is, and others want more of."""
        return (self.presence.argument or "").startswith(MARK)

    @property
    def name(self) -> str:
        """Return ``accelerate.Accelerator(dispatch_batches=)``, or how many arguments are given by position."""
        path, argument = self.presence.path, self.presence.argument or ""
        if self.is_call:
            return f"{path}() without further arguments"
        if argument.startswith("#"):
            return f"{path}() with {counted(int(argument[1:]), 'argument')} by position"
        return f"{path}({argument}=)" if argument else path


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumed:
    """The newest measured release that a project admits where nothing names one. ``spec`` is empty for any."""

    version: str
    spec: str = ""

    @property
    def words(self) -> str:
        """Return why it is this one."""
        return f"the newest release that {self.spec} admits" if self.spec else "the newest release"

    def admits_one_of(self, releases: Iterable[str]) -> bool:
        """Return whether the project admits one of these releases."""
        return any(SpecifierSet(self.spec).contains(release, prereleases=True) for release in releases)


class Questions:
    """The uses of a project as questions to the name index, each asked once."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._answers: dict[tuple[str, str | None], Presence | None] = {}

    def distribution(self, use: Use) -> str | None:
        """Return the distribution that a use takes from, ``None`` without an index of it."""
        return self._index.distribution_of(".".join(use.chain))

    def ask(self, path: str, argument: str | None = None) -> Presence | None:
        """Ask the index."""
        key = (path, argument)
        if key not in self._answers:
            self._answers[key] = self._index.ask(path, argument)
        return self._answers[key]

    def step(self, use: Use, depth: int) -> Presence | None:
        """Return the answer for the first steps of a use. What an import goes through is a module, whatever a star brings."""
        path = ".".join(use.chain[:depth])
        presence = self.ask(path)
        is_unsure = presence is not None and bool(presence.unknown)
        return self._index.ask_module(path) if is_unsure and use.imported and depth < len(use.chain) else presence

    def of(self, use: Use) -> Iterator[Presence]:
        """Yield the answer for each step of a use (``torch.cuda``, then ``torch.cuda.amp``), then for each argument.

        A step that no release has is not a name that releases differ in: an object has it, or nothing does. An import
        asks for the root too: a distribution may drop one of several (``pkg_resources`` of setuptools).
        """
        root = self._index.ask_module(use.chain[0]) if use.imported else None
        if root is not None and root.absent and root.releases[0] in root.present:
            yield root
        for depth in range(2, len(use.chain) + 1):
            presence = self.step(use, depth)
            if presence is None or not (presence.present or presence.unknown):
                return
            yield presence
        for argument in use.questions:
            presence = self.ask(".".join(use.chain), argument)
            if presence is not None and presence.present:
                yield presence

    def is_reached(self, use: Use, releases: Mapping[str, str]) -> bool:
        """Return whether every ``hasattr`` on the way to a use comes out as the use needs it, or may."""
        for test in use.guard.tests:
            presence = self.ask(".".join((*test.chain, test.name)))
            version = releases.get(presence.distribution) if presence else None
            if presence and version and has(presence, version) is not test.holds:
                return False
        return True

    def needs(self, uses: Iterable[UsePlace]) -> list[NameNeed]:
        """Return every name that releases differ in, with its places. What no guard keeps from running comes first."""
        places: dict[tuple[str, str | None], list[UsePlace]] = {}
        answers: dict[tuple[str, str | None], Presence] = {}
        for place in uses:
            for presence in self.of(place.use):
                root, *inner = presence.path.split(".")
                if presence.present and presence.absent and not (len(inner) == 1 and is_shared(root)):
                    key = (presence.path, presence.argument)
                    answers[key] = presence
                    places.setdefault(key, []).append(place)
        return [NameNeed(presence=answers[key], places=tuple(where)) for key, where in places.items()]

    def nowhere(self, uses: Iterable[UsePlace]) -> list[NameNeed]:
        """Return every name that an import takes of a module and that no release has, lacked where the module is there.

        Of a sample of releases nothing is said.
        """
        places: dict[str, list[UsePlace]] = {}
        presences: dict[str, Presence] = {}
        for place in (place for place in uses if place.use.imported and not is_shared(place.use.chain[0])):
            *modules, _ = chain = place.use.chain
            presence, module = self.step(place.use, len(chain)), self._index.ask_module(".".join(modules))
            if presence and module and not (presence.present or presence.unknown or presence.is_sample):
                presences[presence.path] = replace(presence, absent=presence.absent & module.present)
                places.setdefault(presence.path, []).append(place)
        return [NameNeed(presence=presence, places=tuple(places[path])) for path, presence in presences.items()]


def outermost(needs: Sequence[NameNeed]) -> list[NameNeed]:
    """Return the names that lie in no other one of them: where a module is missing, so is all that it holds.

    The module that replaces what it held replaces the module.
    """
    by_module: dict[str | None, list[NameNeed]] = {None: []}
    missing = {need.presence.path for need in needs if need.presence.argument is None}
    for need in needs:
        steps = need.presence.path.split(".")
        count = len(steps) + (need.presence.argument is not None)
        within = (".".join(steps[:depth]) for depth in range(1, count))
        by_module.setdefault(next((path for path in within if path in missing), None), []).append(need)
    outer = []
    for need in by_module.pop(None):
        presence = need.presence
        if presence.argument is None and presence.successor is None:
            presence = replace(presence, successor=_moved(presence.path, by_module.get(presence.path, ())))
        outer.append(replace(need, presence=presence))
    return outer


def _moved(path: str, members: Iterable[NameNeed]) -> str | None:
    """Return the one module to which the members of another went, each under its old name."""
    modules = set()
    for presence in (n.presence for n in members if n.presence.successor and n.presence.argument is None):
        module, same, behind = (presence.successor or "").rpartition(presence.path.removeprefix(path))
        modules.add(module if same and not behind else None)
    return modules.pop() if len(modules) == 1 else None


def has(presence: Presence, version: str) -> bool | None:
    """Return whether a release has the name. ``None`` where it may, or where neither side of it was measured."""
    answers = {True: presence.present, False: presence.absent}
    for answer, releases in answers.items():
        if version in releases:
            return answer
    try:
        key = Version(version)
    except InvalidVersion:
        return None
    keys = [Version(release) for release in presence.releases]
    place = bisect_right(keys, key)
    if place == 0:
        return None
    before = presence.releases[place - 1]
    if keys[place - 1] == key or place == len(keys):
        near = {before} if keys[place - 1] == key else set()
    else:
        near = {before, presence.releases[place]}
    return next((answer for answer, releases in answers.items() if near and near <= releases), None)


def severity_of(use: Use) -> Severity:
    """Return what a missing name does: stop an import, stop a function, or only take a guarded way."""
    if is_guarded(use.guard):
        return Severity.NOTE
    return Severity.WARNING if use.function is not None or use.guard.branch else Severity.ERROR


def is_guarded(guard: Guard) -> bool:
    """Return whether the code itself asks for a version, or takes the failure."""
    return guard.asks


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeJudgement:
    """Findings, how many uses were judged, and what was not judged, a sentence each."""

    findings: tuple[Finding, ...]
    judged: int
    blind: tuple[str, ...] = ()


def judge_uses(
    uses: ProjectUses,
    versions: Mapping[str, str],
    index: Index,
    assumed: Mapping[str, Assumed] | None = None,
    *,
    written: str = "",
) -> CodeJudgement:
    """Judge the uses of a project by a set of versions, given by component or distribution.

    A name that only an ``assumed`` release of a distribution lacks stops nothing that the project itself asks for: it
    is a warning. Code that was ``written`` by a day, in ISO form, means nothing that came long after it.
    """
    questions = Questions(index)
    assumed = assumed or {}
    releases = {**{name: one.version for name, one in assumed.items()}, **by_distribution(versions)}
    judged: list[UsePlace] = []
    without_version: Counter[str] = Counter()
    without_index: set[str] = set()
    for place in uses.uses:
        distribution = questions.distribution(place.use)
        if distribution is None:
            without_index.add(place.use.chain[0])
        elif distribution not in releases:
            without_version[distribution] += 1
        elif questions.is_reached(place.use, releases):
            judged.append(place)
    lacking = [
        need
        for need in (*questions.needs(judged), *questions.nowhere(judged))
        if has(need.presence, release := releases[need.presence.distribution]) is False
        and not (written and _came_after(need, release, index, dt.date.fromisoformat(written)))
    ]
    findings = [
        finding
        for need in outermost(lacking)
        for finding in _findings(need, releases[need.presence.distribution], index, assumed)
    ]
    findings.sort(key=lambda f: (_GRAVEST.index(f.severity), f.where or ""))
    return CodeJudgement(
        findings=tuple(findings), judged=len(judged), blind=tuple(_blind(uses, without_version, without_index))
    )


def by_distribution(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the release of each distribution. What is absent, or in an unknown release, is left out."""
    releases: dict[str, str] = {}
    table = components()
    for name, version in versions.items():
        component = table.find(name)
        if version[:1].isdigit():
            names = component.distributions if component and component.distributions else (normal_name(name),)
            releases |= dict.fromkeys(names, public(version))
    return releases


def component_name(distribution: str) -> str:
    """Return the component that a distribution belongs to, or its own name."""
    component = components().find(distribution)
    return component.name if component else distribution


def _findings(need: NameNeed, version: str, index: Index, assumed: Mapping[str, Assumed]) -> Iterator[Finding]:
    """Yield a finding for each file that takes a name which ``version`` lacks."""
    presence = need.presence
    one = assumed.get(presence.distribution)
    # What no release has may come from another package that shares the namespace, or from a development version.
    is_mild = not presence.present or (one is not None and one.admits_one_of(presence.present))
    which = f"{version}, {one.words}," if one is not None else version
    files: dict[str, list[UsePlace]] = {}
    for place in need.places:
        files.setdefault(place.where.partition(":")[0], []).append(place)
    component = component_name(presence.distribution)
    refused = refused_names().get(presence.path)
    seen = refused.evidence if refused and refused.releases.contains(version) else ()
    for places in files.values():
        worst = min(places, key=lambda t: _GRAVEST.index(severity_of(t.use)))
        lines = [*dict.fromkeys(t.where.partition(":")[2] for t in places if t.where != worst.where and ":" in t.where)]
        again = f" (also in line {', '.join(lines[:_SHOWN])})" if lines else ""
        yield Finding(
            rule="code-argument" if presence.argument else "code-name",
            severity=max(severity_of(worst.use), Severity.WARNING, key=_GRAVEST.index)
            if is_mild
            else severity_of(worst.use),
            components={component: version},
            needs={component: presence.spec()} if presence.present else {},
            message=f"{worst.where} {_lack(need, version, f'{component} {which}')}{again}",
            evidence=(*seen, *index.evidence(presence.distribution, version)),
            fix=_fix(need, component, version),
            where=worst.where,
        )


def _came_after(need: NameNeed, version: str, index: Index, day: dt.date) -> bool:
    """Return whether no release up to ``version`` has a name, and the first one that has it came long after a day.

    ``model.lm_head`` of 2024 is an attribute of a subclass, not the one that the base class got in 2025: for an attribute
    of an object any day after is late.
    """
    gone, new = _borders(need.presence, version)
    if gone or not new:
        return False
    days = [evidence.date for evidence in index.evidence(need.presence.distribution, new) if evidence.date]
    ahead = dt.timedelta() if all(place.use.member for place in need.places) else _AHEAD
    return bool(days) and dt.date.fromisoformat(days[0]) - day > ahead


def _lack(need: NameNeed, version: str, release: str) -> str:
    """Return what code takes and a release does not have, or what a call leaves out and the release requires."""
    presence = need.presence
    if not need.is_call:
        return f"takes {need.name}, which {release} does not have: {history(presence, version)}"
    parameters = " and ".join(_wanted(presence, version))
    gone, back = _borders(presence, version)
    releases = [*([f"before {gone}"] if gone else []), *([f"from {back} on"] if back else [])]
    return (
        f"calls {presence.path}() without {parameters}, which {release} requires: "
        f"the call is complete {' and '.join(releases)}"
    )


def _wanted(presence: Presence, version: str) -> list[str]:
    """Return the parameters that a call leaves out, of the release itself or of the last measured one before it."""
    earlier = [release for release in presence.releases if Version(release) <= Version(version)]
    last = next(release for release in reversed(earlier) if release in presence.absent)
    return [name for name, releases in presence.wanting if last in releases]


def history(presence: Presence, version: str) -> str:
    """Return when a name went and came: ``it went with 4.42.0``, or ``no release does``."""
    gone, back = _borders(presence, version)
    parts = [f"it went with {gone}"] if gone else []
    if not presence.present:
        parts.append("no release does")
    if back:
        parts.append(f"it {'is back in' if gone else 'came with'} {back}")
    return " and ".join(parts)


def _borders(presence: Presence, version: str) -> tuple[str | None, str | None]:
    """Return the release with which it went, and the later one that has it."""
    place = sum(1 for release in presence.releases if Version(release) <= Version(version))
    earlier, later = presence.releases[:place], presence.releases[place:]
    last = max((at for at, release in enumerate(earlier) if release in presence.present), default=None)
    gone = None if last is None else next((r for r in earlier[last + 1 :] if r in presence.absent), version)
    return gone, next((release for release in later if release in presence.present), None)


def _fix(need: NameNeed, component: str, version: str) -> str:
    presence, instead = need.presence, "Install "
    if not presence.present:
        return f"Take a name that {component} has, or another release of the code that takes it."
    if need.is_call:
        instead = f"Give {' and '.join(_wanted(presence, version))}, or install "
    elif presence.successor:
        instead = f"Take {presence.successor} instead, or install "
    return f"{instead}{component} {presence.ranges()}."


def _blind(uses: ProjectUses, without_version: Mapping[str, int], without_index: Iterable[str]) -> Iterator[str]:
    for distribution, count in sorted(without_version.items()):
        number = "1 use of it was" if count == 1 else f"{count} uses of it were"
        yield f"{distribution}: no version is stated, so {number} not judged"
    if modules := sorted(without_index):
        further = f" and {len(modules) - _SHOWN} more" if len(modules) > _SHOWN else ""
        yield f"{len(modules)} packages have no name index: {', '.join(modules[:_SHOWN])}{further}"
    if count := sum(uses.unseen.values()):
        named = ", ".join(sorted(filter(None, uses.unseen)))
        yield f"{count} lines choose a name at run time" + (f" ({named})" if named else "")
    if uses.unreadable:
        further = f" and {len(uses.unreadable) - 3} more" if len(uses.unreadable) > 3 else ""
        yield f"{len(uses.unreadable)} files were not read: {'; '.join(uses.unreadable[:3])}{further}"
