"""What the package index says of releases that the graph does not know: what they declare, and what their code takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

from envsmith.errors import ContentError, EnvsmithError, NetworkError
from envsmith.knowledge.graph.load import components, version_graph
from envsmith.lock.index.index import PackageIndex, quick_index
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding, Judgement
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Severity
from envsmith.net.http import NotFoundError
from envsmith.project.code.judge_uses import component_name
from envsmith.project.published.later import Declared
from envsmith.project.published.release import IndexRelease
from envsmith.project.published.shared import disagreements, disagreements_by_python
from envsmith.project.published.stated import stated_python, stated_releases

# Failures in a row after which no further release is asked for.
_FAILURES = 2
# Rules on what a release says of others beside what it requires.
_HINTS = frozenset({"release-extra", "release-later"})
# The extras that releases are stated with, by component or normalised name.
Extras = Mapping[str, Collection[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Patience:
    """How many releases a person waits for, and the seconds after which no further one is asked for.

    ``names`` are the seconds for the names of one package.
    """

    releases: int
    seconds: float
    names: float

    def refuse(self, number: int, failures: int, seconds_left: float) -> None:
        """Raise ``NetworkError`` where whoever waits has waited enough."""
        if number >= self.releases:
            raise NetworkError(
                f"Cannot read the package index: no more than {self.releases} releases are read at once."
            )
        if failures >= _FAILURES:
            raise NetworkError("Cannot read the package index: it failed for those before.")
        if seconds_left < 0:
            raise NetworkError(f"Cannot read the package index: it took more than {self.seconds:.0f} s for the others.")


# Of a set that is only looked at, and of one of which all is to be read.
_SHORT = _Patience(releases=8, seconds=40.0, names=20.0)
_LONG = _Patience(releases=60, seconds=300.0, names=90.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Question:
    """What one release on the index is asked. Of a ``measured`` release the graph knows what it declares."""

    name: str
    version: str
    measured: bool
    answer: Callable[[IndexRelease], Iterable[Finding]]

    def __str__(self) -> str:
        """Return it as the beginning of a sentence."""
        return f"what {self.name} {self.version} {'takes' if self.measured else 'asks for'}"


def judge_published(
    versions: Mapping[str, str],
    judgement: Judgement,
    platform: Platform,
    find: Callable[[], PackageIndex] = quick_index,
    clock: Callable[[], float] = time.monotonic,
    *,
    reads_measured: bool = False,
    extras: Extras = MappingProxyType({}),
) -> Judgement:
    """Return a judgement of versions with what unknown releases among them ask for, and the others do not give.

    ``reads_measured`` reads what the code of the other releases takes too. ``extras`` are those that a release is stated
    with, by its name: of the extras of a measured one the graph knows nothing. What the index does not tell is said in
    ``unknown``. A release that an error names already is not asked for.
    """
    faulty = {name for f in judgement.findings if f.severity is Severity.ERROR for name in f.components}
    findings: list[Finding] = []
    unknown: list[str] = []
    subjects = set(map(component_name, version_graph().unknown_releases(versions)))
    patience = _LONG if reads_measured else _SHORT
    failures, end = 0, clock() + patience.seconds
    declarations: dict[IndexRelease, Declared] = {}
    uses = _uses(versions, is_proved=judgement.proof is not None) if reads_measured else None
    for number, question in enumerate(_questions(versions, platform, faulty, subjects, uses, extras=extras)):
        try:
            patience.refuse(number, failures, end - clock())
            of_name = extras.get(normal_name(question.name), ())
            if release := _release(
                find(), question.name, question.version, of_name, declarations, patience=patience.names
            ):
                with suppress(NetworkError, ContentError):
                    declarations[release] = release.declared(stated_python(versions), platform)
                findings.extend(_new(question.answer(release), judgement))  # as far as they come
                if not question.measured:
                    findings.extend(_of_inferred(release, judgement.inferred, versions, platform))
                of = f"what {question.name} {question.version} takes of"
                unknown.extend(f"{of} {unread}" for unread in dict.fromkeys(release.unread))
            elif not question.measured:
                unknown.append(f"{question}: the package index has no such release")
                subjects.discard(component_name(question.name))
            failures = 0
        except EnvsmithError as error:  # noqa: PERF203 - few questions
            failures += 1
            unknown.append(f"{question}: the package index did not say, {error.reason}")
    if failures < _FAILURES and clock() < end:
        findings.extend(_disagreements(declarations, versions, platform, find))
    return replace(
        judgement, findings=(*judgement.findings, *findings), unknown=(*judgement.unknown, *unknown)
    ).settled()


def _new(findings: Iterable[Finding], judgement: Judgement) -> Iterator[Finding]:
    """Yield the findings but what an extra or a later release bars of a pair that the graph warns of."""
    judged_pairs = [each.components.keys() for each in judgement.findings if each.severity is not Severity.NOTE]
    return (each for each in findings if each.rule not in _HINTS or each.components.keys() not in judged_pairs)


def _of_inferred(
    release: IndexRelease, inferred: Mapping[str, str], versions: Mapping[str, str], platform: Platform
) -> Iterator[Finding]:
    """Yield a warning for what a release declares and a component contradicts that comes with the stated torch."""
    brought = inferred.keys() - versions.keys() if "torch" in versions else ()
    for finding in release.contradicted({**inferred, **versions}, platform, brought):
        yield replace(
            finding,
            severity=Severity.WARNING,
            components={release.name: release.version, "torch": versions["torch"]},
            message=f"{finding.message}, which comes with torch {versions['torch']}",
        )


def _disagreements(
    declarations: Mapping[IndexRelease, Declared],
    versions: Mapping[str, str],
    platform: Platform,
    find: Callable[[], PackageIndex],
) -> Iterator[Finding]:
    """Yield what releases ask of packages that are not stated, and no release of those packages is."""

    def releases_of(project: str) -> Iterable[str]:
        with suppress(EnvsmithError):
            return find().project(project).releases()
        return ()

    everywhere = [*disagreements(declarations, stated_releases(versions), releases_of)]
    yield from everywhere
    if not everywhere and stated_python(versions) is None:
        yield from disagreements_by_python(declarations, platform, stated_releases(versions), releases_of)


def _questions(
    versions: Mapping[str, str],
    platform: Platform,
    faulty: Container[str],
    subjects: Collection[str],
    uses: Callable[[IndexRelease], Iterable[Finding]] | None,
    *,
    extras: Container[str],
) -> Iterator[_Question]:
    """Yield what is asked. ``subjects``, looked at then, are the releases of which later ones are asked what they bar.

    ``uses`` tells what the code of a measured release takes, where that is asked.
    """

    def of_measured(release: IndexRelease) -> Iterator[Finding]:
        yield from release.contradicted(versions, platform, versions if release.name in extras else subjects)
        if uses:
            yield from uses(release)
        yield from release.hinted(versions, platform, versions if uses else subjects)

    unmeasured = version_graph().unknown_releases(versions)
    measured = _measured(versions, unmeasured)
    for name, version in unmeasured.items():
        if component_name(name) not in faulty:
            yield _Question(name=name, version=version, measured=False, answer=lambda r: r.faults(versions, platform))
    for name, version in measured.items():
        if (subjects or uses or name in extras) and component_name(name) not in faulty:
            yield _Question(name=name, version=version, measured=True, answer=of_measured)


def _uses(versions: Mapping[str, str], *, is_proved: bool) -> Callable[[IndexRelease], Iterator[Finding]]:
    """Return what tells the uses of a release that fail: notes where a run of the set passed, which did without them."""

    def uses(release: IndexRelease) -> Iterator[Finding]:
        for finding in release.uses(versions):
            message = f"{finding.message} A run of this set passed without it."
            yield replace(finding, severity=Severity.NOTE, message=message) if is_proved else finding

    return uses


def _release(
    packages: PackageIndex,
    name: str,
    version: str,
    extras: Collection[str],
    earlier: Iterable[IndexRelease],
    *,
    patience: float,
) -> IndexRelease | None:
    """Return a release under its name, or under another that the component is published as.

    ``earlier`` are stated releases that were read before it, ``patience`` the seconds for the names of a package.
    """
    component = components().find(name)
    for project in component.distributions if component and component.distributions else (name,):
        with suppress(NotFoundError):
            users = [each for each in earlier if normal_name(project) in each.required]
            return IndexRelease(packages, name, project, version, extras=extras, users=users, patience=patience)
    return None


def _measured(versions: Mapping[str, str], unmeasured: Container[str]) -> dict[str, str]:
    """Return the stated releases of components that the package index has, without those that were not measured."""
    found = {name: components().find(name) for name in versions if name not in unmeasured}
    return {name: versions[name] for name, c in found.items() if c and c.distributions and versions[name][:1].isdigit()}
