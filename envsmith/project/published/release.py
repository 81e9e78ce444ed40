"""One release on the package index: what it declares, what its files were built for, what its code takes."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envsmith.errors import ContentError, NetworkError
from envsmith.knowledge.graph.releases import YANKED_FIX, yanked_cause
from envsmith.lock.index.asked_names import twice
from envsmith.lock.index.distribution import ReleaseFacts, best_file, read_release
from envsmith.lock.index.index import PackageIndex, yanked_text
from envsmith.lock.index.release_sources import open_archive
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.net.http import NotFoundError
from envsmith.project.published.code import PublishedRelease, lacking, naming, takes_what_is_there
from envsmith.project.published.later import Declared, barred_later
from envsmith.project.published.metadata import refused_by_extras, refused_requirements
from envsmith.project.published.python import refused_by_python
from envsmith.project.published.refusals import SettledRelease
from envsmith.project.published.stated import PYTHONS, Stated, days_of, declared, stated_python, stated_releases
from envsmith.project.published.wheels import ReleaseWheels, evidence_of

# A person waits: how many bytes of an sdist and of sources are worth reading. Of a release of which the graph knows much, how
# many of those that name a stated package.
_MAX_SDIST, _MAX_SOURCES, _MAX_MEASURED = 8 << 20, 32 << 20, 8 << 20
# Folders of an archive that no user imports.
_ASIDE = frozenset({"benchmarks", "conftest", "docs", "examples", "scripts", "setup", "test", "tests", "tools"})


class IndexRelease:
    """One release on the index, read as far as a question needs. ``NotFoundError`` where the index does not have it.

    ``extras`` are those that it is stated with, ``users`` are stated releases that require it: it takes nothing of those
    that it does not require itself. ``patience`` are the seconds for the names of each package that it takes from.
    ``unread`` are releases whose names it takes and the index did not tell, each with the reason.
    """

    def __init__(
        self,
        packages: PackageIndex,
        name: str,
        project: str,
        version: str,
        *,
        extras: Collection[str] = (),
        users: Sequence[IndexRelease] = (),
        patience: float = 20.0,
    ) -> None:
        self.name, self.project, self.version = name, project, version
        self._extras, self._users = extras, users
        self._packages, self._fetcher = packages, packages.fetcher
        self._facts: ReleaseFacts | None = None
        self.unread: list[str] = []
        releases = packages.project(project).releases().items()
        files = {text: file for text, of_release in releases if (file := best_file(of_release))}
        self._text = next((text for text in files if Version(text) == Version(version)), "")
        if not self._text:
            raise NotFoundError(f"Cannot read {project} {version}: the package index has no such release.")
        of_this = next(of_release for text, of_release in releases if text == self._text)
        self._files, self._file, self._yanked = files, files[self._text], yanked_text(of_this)
        measured = evidence_of(self._file, EvidenceKind.MEASURED)
        release = PublishedRelease(name=name, version=version, evidence=measured, patience=patience)
        self._wheels = ReleaseWheels(release, of_this, self._fetcher, self.unread.append)

    def faults(self, versions: Mapping[str, str], platform: Platform) -> Iterator[Finding]:
        """Yield that it was yanked, and what it declares and the stated versions contradict, else what its code takes and they lack.

        And what a later release of it bars, where its files cannot be read too.
        """
        yield from self._withdrawal()
        stated, python = stated_releases(versions), stated_python(versions)
        errors: list[Finding] = []
        with suppress(NetworkError, ContentError):  # METADATA that nobody can read says nothing of its files
            yield from refused_requirements(self._wheels.release, self._read_facts(), stated)
            errors += self._contradictions(stated, python, platform)
        try:
            errors = errors or [*self._wheels.faults(versions, platform)]
            if not any(error.severity is Severity.ERROR for error in errors):
                errors += twice(self._lacking, versions)
        finally:
            yield from errors
            faulty = {component for error in errors for component in error.components}
            yield from self.hinted(versions, platform, versions.keys() - faulty)

    @property
    def required(self) -> frozenset[str]:
        """Return the distributions that it names as requirements, those of all its extras too."""
        with suppress(NetworkError, ContentError):
            return frozenset(normal_name(Requirement(line).name) for line in self._read_facts().requires)
        return frozenset()

    def uses(self, versions: Mapping[str, str]) -> Sequence[Finding]:
        """Return what its code takes and the stated versions lack, where the graph knows what it declares."""
        return twice(lambda stated: self._lacking(stated, is_measured=True), versions)

    def _withdrawal(self) -> Iterator[Finding]:
        if self._yanked:
            reason = "yanked" if self._yanked is True else self._yanked
            yield Finding(
                rule="release-yanked",
                severity=Severity.WARNING,
                components={self.name: self.version},
                message=f"{self.name} {self.version}: {yanked_cause(reason)}",
                evidence=(self.declaration,),
                fix=YANKED_FIX,
                stage="install",
            )

    @property
    def declaration(self) -> Evidence:
        """Return the evidence for what it declares."""
        return evidence_of(self._file, EvidenceKind.DECLARED)

    def contradicted(self, versions: Mapping[str, str], platform: Platform, among: Container[str]) -> Iterator[Finding]:
        """Yield what it declares and the stated releases of components ``among`` them contradict."""
        stated = {name: each for name, each in stated_releases(versions).items() if each[0] in among}
        yield from self._contradictions(stated, stated_python(versions), platform)

    def runs_on(self, python: str, platform: Platform) -> bool:
        """Return whether a minor of Python may have it, by its files and what it declares of Python."""
        admitted = SpecifierSet(self._read_facts().requires_python or "")
        return self._wheels.has_file(python, platform) and admitted.contains(f"{python}.99")

    def declared(self, python: str | None, platform: Platform) -> Declared:
        """Return what it declares, with the extras that it is stated with."""
        pythons = [minor for minor in PYTHONS if self._wheels.has_file(minor, platform)] or PYTHONS
        return declared(self._read_facts(), [python] if python else pythons, platform, self.project, self._extras)

    def _read_facts(self) -> ReleaseFacts:
        self._facts = self._facts or read_release(self._fetcher, self._file)
        return self._facts

    def _contradictions(self, stated: Stated, python: str | None, platform: Platform) -> Iterator[Finding]:
        for distribution, specifiers in self.declared(python, platform).items():
            component, present = stated.get(distribution, ("", None))
            if present is not None and not any(each.contains(present, prereleases=True) for each in specifiers):
                specifier, extras = specifiers[0], ",".join(sorted(self._extras))
                name = f"{self.name}[{extras}]" if extras else self.name
                yield Finding(
                    rule="release-declares",
                    severity=Severity.ERROR,
                    components={self.name: self.version, component: str(present)},
                    needs={component: str(specifier)},
                    message=f"{name} {self.version} declares {component} {specifier}; {component} {present} is there",
                    evidence=(self.declaration,),
                    fix=f"Install {component}{specifier}, or another release of {self.name}.",
                    stage="install",
                )

    def hinted(self, versions: Mapping[str, str], platform: Platform, among: Container[str]) -> Iterator[Finding]:
        """Yield a warning for each release ``among`` the stated ones that an extra or a later release of it bars."""
        stated, python = stated_releases(versions), stated_python(versions)
        others = {
            name: release
            for name, (of, release) in stated.items()
            if of in among and normal_name(of) != normal_name(self.name)
        }
        pythons = [python] if python else PYTHONS
        with suppress(NetworkError, ContentError):
            free = {name: others[name] for name in others.keys() - self.declared(python, platform).keys()}
            for each in refused_by_extras(self._read_facts(), free, pythons, platform, self.project):
                component, present = stated[each.distribution]
                yield Finding(
                    rule="release-extra",
                    severity=Severity.WARNING,
                    components={self.name: self.version, component: str(present)},
                    needs={component: str(each.bound)},
                    message=f"{self.name} {self.version} declares {component} {each.bound} for its extra {each.extra}; "
                    f"{component} {present} is there",
                    evidence=(self.declaration,),
                    fix=f"Install {component}{each.bound}, or another release of {self.name}.",
                    stage="import",
                )
        bounds = barred_later(
            self._text,
            self._files,
            others,
            lambda file: declared(read_release(self._fetcher, file), pythons, platform),
            lambda name: days_of(self._packages, name, *stated[name]),
        )
        for bound in bounds:
            component, present = stated[bound.distribution]
            news = f"and {self.name} {self.version}, the release before, does not say so"
            if bound.is_new:
                barred = "which" if bound.barred == present else f"and {bound.barred}"
                news = f"{barred} came out between {self.name} {self.version} and that release"
            yield Finding(
                rule="release-later",
                severity=Severity.WARNING,
                components={self.name: self.version, component: str(present)},
                needs={component: str(bound.caps)},
                message=f"{self.name} {bound.later} declares {component} {bound.caps}; {component} {present} is there, {news}",
                evidence=(evidence_of(bound.file, EvidenceKind.DECLARED),),
                fix=f"Install {component}{bound.caps}, or a release of {self.name} that works with {component} {present}.",
                stage="import",
            )

    def _lacking(self, versions: Mapping[str, str], *, is_measured: bool = False) -> list[Finding]:
        """Return what surely runs at its import and takes what the stated versions lack, else what its functions take.

        Many sources are not read, which is said where the graph knows nothing of them.
        """
        file = self._file
        strangers = {user.name for user in self._users if user.project not in self.required}
        aside = {normal_name(name) for name in (self.name, *strangers)}
        others = {name: version for name, version in versions.items() if normal_name(name) not in aside}
        if not others or (not file.is_wheel and (file.size or 0) > _MAX_SDIST):
            return []
        with open_archive(self._fetcher, file) as archive:
            root = import_root(self.project, [member.path for member in archive.members])
            if not root:
                return []
            stem = root.replace(".", "/")
            members = [
                each
                for each in archive.members
                if each.path.startswith(f"{stem}/")
                or each.path == f"{stem}.py"
                # A wheel may install other packages beside its root: the code of them is called too.
                or (file.is_wheel and _ASIDE.isdisjoint(each.path.partition("/")[0].split("_")))
            ]
            if (size := sum(member.size for member in members)) > _MAX_SOURCES:
                self.unread += [] if is_measured else [f"the others: {size >> 20} MB of sources are more than is read"]
                return []
            texts = dict(archive.read([member.path for member in members]))
        release, unread = self._wheels.release, self.unread.append
        settled = SettledRelease(root, texts, {self.name: self.version}, others)
        refused = [*refused_by_python(release, settled, lambda: self.required)]
        named = naming(texts, others)
        size = sum(len(texts[path]) for path in named)
        is_stopped = any(each.severity is Severity.ERROR for each in refused)
        if is_stopped or not size or (is_measured and size > _MAX_MEASURED):
            return refused
        if is_measured and takes_what_is_there(texts, named, others):
            return refused
        return [*refused, *lacking(release, settled, self._packages, named=named, unread=unread)]


def import_root(project: str, paths: Sequence[str]) -> str:
    """Return the module that a user of a project imports, ``""`` where its files do not tell.

    It has the name of the project (``pyannote.audio`` of ``pyannote-audio``), or is the only one that is no test, or the
    only one of which the project has the words (``open_clip`` of ``open-clip-torch``), or the only folder, or what lies
    in a namespace of several projects (``google.cloud.audit``).
    """
    folders = [path.removesuffix("/__init__.py") for path in paths if path.endswith("/__init__.py")]
    modules = [path.removesuffix(".py") for path in paths if "/" not in path]
    tops = [place for place in (*folders, *modules) if "/" not in place and place not in _ASIDE]
    named = [place for place in (*tops, *folders) if normal_name(place.replace("/", "-")) == project]
    named = [place for place in named if place in tops or not _is_part(place, paths)]
    alike = [top for top in tops if f"-{normal_name(top)}-" in f"-{project}-"]
    spaces = () if tops else {path.rpartition("/")[0] for path in paths if path.split("/")[0] not in _ASIDE}
    shared = posixpath.commonpath(spaces) if spaces and all(spaces) else ""
    packages = [top for top in tops if top in folders]
    certain = [*named, *(places[0] for places in (tops, alike, packages) if len(places) == 1), shared]
    return certain[0].replace("/", ".")


def _is_part(place: str, paths: Sequence[str]) -> bool:
    """Return whether a folder is one of several of a package: ``hydra.core`` of ``hydra``, but not ``pyannote.audio``."""
    top = place.partition("/")[0]
    package = f"{top}/__init__.py"
    return package in paths and not all(
        path.startswith((f"{place}/", package)) for path in paths if path.startswith(f"{top}/")
    )
