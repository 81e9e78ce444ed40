"""What the package index says of releases that the graph does not know: what they declare, and what their code takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envsmith.errors import EnvsmithError
from envsmith.knowledge.graph.load import components, version_graph
from envsmith.knowledge.graph.releases import YANKED_FIX, yanked_cause
from envsmith.lock.index.distribution import best_file, read_release
from envsmith.lock.index.index import PackageIndex, quick_index, yanked_text
from envsmith.lock.index.markers import holds_everywhere
from envsmith.lock.index.release_sources import open_archive
from envsmith.model.cell import Platform
from envsmith.model.component import Role
from envsmith.model.finding import Finding, Judgement
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.model.version import minor_of
from envsmith.net.http import NotFoundError
from envsmith.project.code.judge_uses import component_name
from envsmith.project.published_code import PublishedRelease, lacking

# A person waits: how many releases are asked for, and how many bytes of an sdist or of sources are worth reading.
_MOST = 8
_MAX_SDIST, _MAX_SOURCES = 8 << 20, 24 << 20
# Folders of an archive that no user imports.
_ASIDE = frozenset({"benchmarks", "conftest", "docs", "examples", "scripts", "setup", "test", "tests", "tools"})
# Of a marker, where no Python is stated.
_PYTHONS = tuple(f"3.{minor}" for minor in range(8, 15))


def judge_published(
    versions: Mapping[str, str],
    judgement: Judgement,
    platform: Platform,
    find: Callable[[], PackageIndex] = quick_index,
) -> Judgement:
    """Return a judgement of versions with what unknown releases among them ask for, and the others do not give.

    What the index does not tell is said in ``unknown``. A release that an error names already is not asked for.
    """
    faulty = {name for f in judgement.findings if f.severity is Severity.ERROR for name in f.components}
    findings: list[Finding] = []
    unknown: list[str] = []
    what = ""
    try:
        for name, version in [*version_graph().unknown_releases(versions).items()][:_MOST]:
            what = f"what {name} {version} asks for"
            if component_name(name) in faulty:
                continue
            if release := _release(find(), name, version):
                findings += release.faults(versions, platform)
            else:
                unknown.append(f"{what}: the package index has no such release")
    except EnvsmithError as error:  # whoever waits has waited once
        unknown.append(f"{what}: the package index did not say, {error.reason}")
    return replace(
        judgement, findings=(*judgement.findings, *findings), unknown=(*judgement.unknown, *unknown)
    ).settled()


def _release(packages: PackageIndex, name: str, version: str) -> _Release | None:
    """Return a release under its name, or under another that the component is published as."""
    component = components().find(name)
    for project in component.distributions if component and component.distributions else (name,):
        with suppress(NotFoundError):
            return _Release(packages, name, project, version)
    return None


class _Release:
    """One release on the index, read as far as a question needs. ``NotFoundError`` where the index does not have it."""

    def __init__(self, packages: PackageIndex, name: str, project: str, version: str) -> None:
        self.name, self.project, self.version = name, project, version
        self._packages, self._fetcher = packages, packages.fetcher
        releases = packages.project(project).releases()
        files = next((files for text, files in releases.items() if Version(text) == Version(version)), ())
        file, reason = best_file(files), yanked_text(files)
        if file is None:
            raise NotFoundError(f"Cannot read {project} {version}: the package index has no such release.")
        self._file, self._yanked = file, "yanked" if reason is True else reason

    def faults(self, versions: Mapping[str, str], platform: Platform) -> list[Finding]:
        """Return that it was yanked, and what it declares and they contradict, else what its code takes and they lack."""
        contradictions = [*self._contradictions(_by_distribution(versions), platform)]
        return [*self._withdrawal(), *(contradictions or self._lacking(versions))]

    def _withdrawal(self) -> Iterator[Finding]:
        if self._yanked:
            yield Finding(
                rule="release-yanked",
                severity=Severity.WARNING,
                components={self.name: self.version},
                message=f"{self.name} {self.version}: {yanked_cause(str(self._yanked))}",
                evidence=(self._evidence(EvidenceKind.DECLARED),),
                fix=YANKED_FIX,
                stage="install",
            )

    def _evidence(self, kind: EvidenceKind) -> Evidence:
        return Evidence(
            kind=kind,
            source=f"{self._file.filename}, read on the package index now",
            date=self._file.day or "",
            sha256=self._file.sha256,
        )

    def _contradictions(self, stated: Mapping[str, tuple[str, Version]], platform: Platform) -> Iterator[Finding]:
        facts = read_release(self._fetcher, self._file)
        python = stated.get("python")
        minors = [minor_of(str(python[1]))] if python else _PYTHONS
        requirements = [(normal_name(r.name), r.specifier, r.marker) for r in map(Requirement, facts.requires)]
        for name, specifier, marker in [("python", SpecifierSet(facts.requires_python or ""), None), *requirements]:
            component, present = stated.get(name, ("", None))
            if present is None or specifier.contains(present, prereleases=True):
                continue
            if holds_everywhere(marker, minors, platform):
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


def _by_distribution(versions: Mapping[str, str]) -> dict[str, tuple[str, Version]]:
    """Return the exact versions by the normalised names that requirements have, each with the name of its component."""
    stated: dict[str, tuple[str, Version]] = {}
    for name, text in versions.items():
        component = components().find(name)
        if text[:1].isdigit() and not (component and component.role is Role.HOST):
            names = (*component.distributions, component.name) if component else (name,)
            stated |= {normal_name(each): (component.name if component else name, Version(text)) for each in names}
    return stated
