"""One release on the package index: what it declares, what its files were built for, what its code takes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envsmith.errors import ContentError, NetworkError
from envsmith.knowledge.graph.load import components, version_graph
from envsmith.knowledge.graph.releases import YANKED_FIX, yanked_cause
from envsmith.lock.index.array_abi import built_for
from envsmith.lock.index.asked_names import twice
from envsmith.lock.index.distribution import best_file, read_release
from envsmith.lock.index.index import IndexFile, PackageIndex, yanked_text
from envsmith.lock.index.markers import holds
from envsmith.lock.index.release_sources import open_archive
from envsmith.lock.index.torch_wheel import linux_wheels
from envsmith.model.cell import Platform
from envsmith.model.component import Role
from envsmith.model.finding import Finding
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.model.version import minor_of
from envsmith.net.http import NotFoundError
from envsmith.project.published_code import PublishedRelease, lacking
from envsmith.project.published_later import Declared, barred_later

# A person waits: how many bytes of an sdist, of sources and of compiled files are worth reading.
_MAX_SDIST, _MAX_SOURCES, _MAX_COMPILED = 8 << 20, 24 << 20, 24 << 20
# Folders of an archive that no user imports.
_ASIDE = frozenset({"benchmarks", "conftest", "docs", "examples", "scripts", "setup", "test", "tests", "tools"})
# Of a marker, where no Python is stated.
_PYTHONS = tuple(f"3.{minor}" for minor in range(8, 15))


# Exact versions by the normalised names that requirements have, each with the name of its component.
Stated = Mapping[str, tuple[str, Version]]


class IndexRelease:
    """One release on the index, read as far as a question needs. ``NotFoundError`` where the index does not have it."""

    def __init__(self, packages: PackageIndex, name: str, project: str, version: str) -> None:
        self.name, self.project, self.version = name, project, version
        self._packages, self._fetcher = packages, packages.fetcher
        releases = packages.project(project).releases().items()
        files = {text: file for text, of_release in releases if (file := best_file(of_release))}
        self._text = next((text for text in files if Version(text) == Version(version)), "")
        if not self._text:
            raise NotFoundError(f"Cannot read {project} {version}: the package index has no such release.")
        self._all = next(of_release for text, of_release in releases if text == self._text)
        self._files, self._file, self._yanked = files, files[self._text], yanked_text(self._all)

    def faults(self, versions: Mapping[str, str], platform: Platform) -> Iterator[Finding]:
        """Yield that it was yanked, and what it declares and the stated versions contradict, else what its code takes and they lack.

        And what a later release of it bars, where its files cannot be read too.
        """
        yield from self._withdrawal()
        stated, python = _by_distribution(versions), _python(versions)
        errors: list[Finding] = []
        with suppress(ContentError):  # a line of its METADATA that nobody can read says nothing of its files
            errors += self._contradictions(stated, python, platform)
        try:
            errors = errors or self._built_for_numpy_1(stated, python, platform) or twice(self._lacking, versions)
        finally:
            yield from errors
            faulty = {component for error in errors for component in error.components}
            yield from self.barred(versions, platform, versions.keys() - faulty)

    def _withdrawal(self) -> Iterator[Finding]:
        if self._yanked:
            reason = "yanked" if self._yanked is True else self._yanked
            yield Finding(
                rule="release-yanked",
                severity=Severity.WARNING,
                components={self.name: self.version},
                message=f"{self.name} {self.version}: {yanked_cause(reason)}",
                evidence=(self._evidence(EvidenceKind.DECLARED),),
                fix=YANKED_FIX,
                stage="install",
            )

    def _evidence(self, kind: EvidenceKind, file: IndexFile | None = None) -> Evidence:
        read = file or self._file
        return Evidence(
            kind=kind,
            source=f"{read.filename}, read on the package index now",
            date=read.day or "",
            sha256=read.sha256,
        )

    def _declared(self, file: IndexFile, python: str | None, platform: Platform) -> Declared:
        """Return what a release declares, by distribution and for ``python``, on each Python that may be meant."""
        facts = read_release(self._fetcher, file)
        of_python = SpecifierSet(facts.requires_python or "")
        minors = [python] if python else [minor for minor in _PYTHONS if of_python.contains(minor)]
        requirements = [(normal_name(r.name), r) for r in map(Requirement, facts.requires)]
        declared: Declared = {"python": [of_python]}
        for name in dict.fromkeys(name for name, _ in requirements):
            lines = [r for of, r in requirements if of == name]
            clauses = [[str(r.specifier) for r in lines if holds(r.marker, m, platform)] for m in minors]
            if clauses and all(clauses):
                declared[name] = [SpecifierSet(",".join(filter(None, each))) for each in clauses]
        return declared

    def _contradictions(self, stated: Stated, python: str | None, platform: Platform) -> Iterator[Finding]:
        for name, specifiers in self._declared(self._file, python, platform).items():
            component, present = stated.get(name, ("", None))
            if present is not None and not any(each.contains(present, prereleases=True) for each in specifiers):
                specifier = specifiers[0]
                yield Finding(
                    rule="release-declares",
                    severity=Severity.ERROR,
                    components={self.name: self.version, component: str(present)},
                    needs={component: str(specifier)},
                    message=f"{self.name} {self.version} declares {component} {specifier}; {component} {present} is there",
                    evidence=(self._evidence(EvidenceKind.DECLARED),),
                    fix=f"Install {component}{specifier}, or another release of {self.name}.",
                    stage="install",
                )

    def barred(self, versions: Mapping[str, str], platform: Platform, among: Container[str]) -> Iterator[Finding]:
        """Yield a warning for each release ``among`` the stated ones that a later release of it bars, out meanwhile."""
        stated, python = _by_distribution(versions), _python(versions)
        others = {name: release for name, (of, release) in stated.items() if of in among and of != self.name}
        bounds = barred_later(
            self._text,
            self._files,
            others,
            lambda file: self._declared(file, python, platform),
            lambda name: _day_of(self._packages, name, *stated[name]),
        )
        for bound in bounds:
            component, present = stated[bound.distribution]
            yield Finding(
                rule="release-later",
                severity=Severity.WARNING,
                components={self.name: self.version, component: str(present)},
                needs={component: str(bound.caps)},
                message=f"{self.name} {bound.later} declares {component} {bound.caps}; {component} {present} is there, "
                f"which came out between {self.name} {self.version} and that release",
                evidence=(self._evidence(EvidenceKind.DECLARED, bound.file),),
                fix=f"Install {component}{bound.caps}, or a release of {self.name} that works with {component} {present}.",
                stage="import",
            )

    def _built_for_numpy_1(self, stated: Stated, python: str | None, platform: Platform) -> list[Finding]:
        """Return that its compiled files for the stated Python, else the newest one, were built for numpy 1 beside numpy 2."""
        component, present = stated.get("numpy", ("", Version("0")))
        wheels = linux_wheels(self._all).get(platform, ()) if present.major > 1 else ()
        tag = f"-cp{(python or '3').replace('.', '')}"
        fitting = [f for f in wheels if tag in f.filename and "t-" not in f.filename and "musl" not in f.filename]
        file, built = fitting[-1] if fitting else self._file, ""
        with suppress(NetworkError):
            built = twice(lambda url: built_for(url, self._fetcher, budget=_MAX_COMPILED), file.url) if fitting else ""
        if built != "one":
            return []
        return [
            Finding(
                rule="release-arrays",
                severity=Severity.ERROR,
                components={self.name: self.version, component: str(present)},
                needs={component: "<2"},
                message=f"{self.name} {self.version} cannot be imported: {file.filename} was built for numpy 1; "
                f"{component} {present} is there",
                evidence=(self._evidence(EvidenceKind.MEASURED, file),),
                fix=f"Install {component}<2, or another release of {self.name}.",
                stage="import",
            )
        ]

    def _lacking(self, versions: Mapping[str, str]) -> list[Finding]:
        """Return what surely runs at its import and takes what the stated versions lack, else what its functions take."""
        file = self._file
        if not file.is_wheel and (file.size or 0) > _MAX_SDIST:
            return []
        with open_archive(self._fetcher, file) as archive:
            root = import_root(self.project, [member.path for member in archive.members])
            stem = root.replace(".", "/")
            members = {m.path: m for m in archive.members if m.path.startswith(f"{stem}/") or m.path == f"{stem}.py"}
            if not root or sum(member.size for member in members.values()) > _MAX_SOURCES:
                return []
            texts = dict(archive.read(members))
        others = {name: v for name, v in versions.items() if name != self.name}
        return lacking(self._told(), root, texts, others, self._packages)

    def _told(self) -> PublishedRelease:
        return PublishedRelease(name=self.name, version=self.version, evidence=self._evidence(EvidenceKind.MEASURED))


def import_root(project: str, paths: Sequence[str]) -> str:
    """Return the module that a user of a project imports, ``""`` where its files do not tell.

    It has the name of the project (``pyannote.audio`` of ``pyannote-audio``), or is the only one that is no test.
    """
    folders = [path.removesuffix("/__init__.py") for path in paths if path.endswith("/__init__.py")]
    modules = [path.removesuffix(".py") for path in paths if "/" not in path]
    tops = [place for place in (*folders, *modules) if "/" not in place and place not in _ASIDE]
    named = [place for place in (*tops, *folders) if normal_name(place.replace("/", "-")) == project]
    return next(iter(named or (tops if len(tops) == 1 else ())), "").replace("/", ".")


def _day_of(packages: PackageIndex, distribution: str, component: str, release: Version) -> str:
    """Return the day on which a stated release came out, ``""`` where nobody tells."""
    graph_name = minor_of(str(release)) if component == "python" else release.public
    if day := version_graph().released_on(component, graph_name):
        return day
    with suppress(NotFoundError):
        of_project = packages.project(distribution).releases().items()
        return min((f.day or "" for text, files in of_project if Version(text) == release for f in files), default="")
    return ""


def _by_distribution(versions: Mapping[str, str]) -> Stated:
    """Return the exact versions by the normalised names that requirements have, each with the name of its component."""
    stated: dict[str, tuple[str, Version]] = {}
    for name, text in versions.items():
        component = components().find(name)
        if text[:1].isdigit() and not (component and component.role is Role.HOST):
            names = (*component.distributions, component.name) if component else (name,)
            stated |= {normal_name(each): (component.name if component else name, Version(text)) for each in names}
    return stated


def _python(versions: Mapping[str, str]) -> str | None:
    python = versions.get("python", "")
    return minor_of(python) if python[:1].isdigit() else None
