"""What the sources of a published release take, held against the stated versions of other packages."""

from __future__ import annotations

import ast
import datetime as dt
import itertools
import re
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from envsmith.knowledge.names.modules import distributions_by_module
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.own_classes import Ancestors, OwnClasses
from envsmith.knowledge.names.reach import PackageUses
from envsmith.knowledge.names.settled_source import SettledSources, VersionRefusal
from envsmith.lock.index.index import PackageIndex
from envsmith.model.finding import Finding
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Evidence, Severity
from envsmith.project.code.judge_overrides import judge_overrides
from envsmith.project.code.judge_refused import judge_refused
from envsmith.project.code.judge_uses import by_distribution, component_name, is_guarded, judge_uses
from envsmith.project.code.python_files import ProjectSources, SourceText
from envsmith.project.code.reading import ProjectUses, UsePlace, read_project_uses
from envsmith.project.published.names import names_with_published
from envsmith.project.published.protos import PROTOBUF, refused_protos
from envsmith.project.published.refusals import (
    OTHER_DEVICE,
    SettledRelease,
    refusal_at_import,
    refusal_before_use,
    refusals_in_functions,
    warning_at_import,
)
from envsmith.project.published.tags import Descent, judge_tags, tags_asked

# Who asks whether a package is there may ask for a later release of it: such code is held to what went, not to what came.
_NEVER = dt.date.min.isoformat()
# How much of what functions take is told of one release.
_SHOWN = 3
# A person waits: of the code of functions no more bytes are read.
_MAX_READ = 8 << 20
# The names that are asked for what places take, and the places that are asked for.
_NamesOf = Callable[[Sequence[UsePlace]], AbstractContextManager[tuple[NameIndex, Sequence[UsePlace]]]]
# Folders whose code no user runs.
_ASIDE = frozenset({"benchmark", "benchmarks", "conftest", "examples", "prototype", "test", "tests"})


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRelease:
    """A release whose sources were read, and the file that they were read from.

    ``patience`` are the seconds for the names of each package that it takes from.
    """

    name: str
    version: str
    evidence: Evidence
    patience: float = 20.0

    def refusing(self, refusal: VersionRefusal, versions: Mapping[str, str], severity: Severity, what: str) -> Finding:
        """Return that it refuses stated versions."""
        return self._at_odds("release-refuses", refusal, versions, severity, f"{what} refuses")

    def warning(self, warning: VersionRefusal, versions: Mapping[str, str]) -> Finding:
        """Return that it warns of stated versions."""
        return self._at_odds("release-warns", warning, versions, Severity.WARNING, "warns when it is imported of")

    def _at_odds(
        self, rule: str, refusal: VersionRefusal, versions: Mapping[str, str], severity: Severity, what: str
    ) -> Finding:
        stated = {component_name(name): version for name, version in versions.items()}
        refused = {name: stated[name] for name in map(component_name, refusal.packages) if name in stated}
        words = " and ".join(f"{name} {version}" for name, version in refused.items())
        return Finding(
            rule=rule,
            severity=severity,
            components={self.name: self.version, **refused},
            message=f"{self.name} {self.version} {what} {words}, as `{refusal.condition}` holds",
            evidence=(self.evidence,),
            fix=f"Install another release of {' or '.join(refused)}, or of {self.name}.",
            stage="import",
        )

    def finding(self, rule: str, finding: Finding, severity: Severity, what: str) -> Finding:
        """Return what was found in its sources as a finding about it."""
        return replace(
            finding,
            rule=rule,
            severity=severity,
            components={self.name: self.version, **finding.components},
            message=f"{self.name} {self.version} {what}: {finding.message}",
            evidence=(self.evidence, *finding.evidence),
            where=None,
        )


def lacking(
    release: PublishedRelease,
    settled: SettledRelease,
    packages: PackageIndex,
    *,
    named: Sequence[str],
    unread: Callable[[str], None],
) -> list[Finding]:
    """Return what surely runs at its import and takes what the stated versions lack, else what its functions take.

    ``settled`` are its sources beside these versions, ``named`` the paths of :func:`naming`, ``packages`` the index that is
    asked for what was not measured. ``unread`` is told what it does not tell.
    """
    names = NameIndex.installed()
    root, texts, versions = settled.root, settled.texts, settled.versions
    sources, package = settled.sources, settled.package

    def names_of(uses: Sequence[UsePlace]) -> AbstractContextManager[tuple[NameIndex, Sequence[UsePlace]]]:
        return names_with_published(names, uses, by_distribution(versions), packages, unread, longest=release.patience)

    if refusal := refusal_at_import(root, package, sources):
        return [release.refusing(refusal, versions, Severity.ERROR, "cannot be imported: it")]
    errors = _at_import(root, package, versions, names_of, release.evidence.date)
    if errors:
        return [release.finding("release-takes", error, Severity.ERROR, "cannot be imported") for error in errors]
    if refused := _refused_proto(release, texts, versions, {*package.paths_at_import(root)}):
        return [refused]
    if refusal := refusal_before_use(root, package, sources, texts):
        return [release.refusing(refusal, versions, Severity.WARNING, "fails where it is first used: it")]
    later = _when_called(texts, named, versions, names_of, sources, written=release.evidence.date)
    uses = [release.finding("release-uses", each, Severity.WARNING, "fails where this runs") for each in later]
    run = {path: text for path, text in texts.items() if is_of_package(path)}
    for place, refusal in refusals_in_functions(run, sources, versions):
        uses.append(release.refusing(refusal, versions, Severity.WARNING, f"fails where this runs: {place}"))
    warning = warning_at_import(root, package, sources)
    return [release.warning(warning, versions), *uses] if warning else uses


def _refused_proto(
    release: PublishedRelease, texts: Mapping[str, bytes], versions: Mapping[str, str], at_import: Container[str]
) -> Finding | None:
    """Return that protobuf refuses a module of it: one that its import runs, if there is one."""
    stated = versions.get(PROTOBUF, "")
    refused = (
        sorted(refused_protos(texts, Version(stated)), key=lambda one: one[0] not in at_import)
        if stated[:1].isdigit()
        else []
    )
    if not refused:
        return None
    path, maker, spec = refused[0]
    is_run = path in at_import
    return Finding(
        rule="release-protos",
        severity=Severity.ERROR if is_run else Severity.WARNING,
        components={release.name: release.version, PROTOBUF: stated},
        needs={PROTOBUF: spec},
        message=f"{release.name} {release.version} {'cannot be imported' if is_run else 'fails where this is loaded'}: "
        f"{maker} made {path}, which protobuf {stated} refuses",
        evidence=(release.evidence,),
        fix=f"Install protobuf{spec}, or another release of {release.name}.",
        stage="import",
    )


def _at_import(
    root: str, package: PackageUses[str], versions: Mapping[str, str], names_of: _NamesOf, written: str
) -> list[Finding]:
    present = {normal_name(name) for name in versions}
    uses = [
        UsePlace(use=placed.use, where=placed.module)
        for placed in package.at_import(root)
        if present.issuperset(map(normal_name, placed.available))
    ]
    with names_of(uses) as (published_names, doubtful):
        findings = judge_uses(ProjectUses(uses=tuple(doubtful)), versions, published_names, written=written).findings
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def _when_called(
    texts: Mapping[str, bytes],
    named: Sequence[str],
    versions: Mapping[str, str],
    names_of: _NamesOf,
    settled: SettledSources,
    *,
    written: str,
) -> list[Finding]:
    """Return what code of it takes that may never run: each name once. Only the ``named`` sources are read."""
    releases, names = by_distribution(versions), NameIndex.installed()
    classes, descents = OwnClasses(texts, settled.parse), list[Descent]()

    def remembered(path: str, node: ast.ClassDef) -> Ancestors | None:
        ancestors = classes.of_class(path, node)
        descents.extend([Descent(f"{path}:{node.lineno}", node.name, ancestors)] if ancestors else [])
        return ancestors

    code = read_project_uses(
        _installed(texts, named),
        lambda name: names.distribution_of(name) is not None,
        parse=settled.parse,
        ancestors=remembered,
    )
    uses_here = (place for place in reversed(code.uses) if not _is_for_another_device(place))
    modules = (normal_name(module) for module, of in distributions_by_module().items() if of in releases)
    present = {*releases, *modules}
    unguarded = [place for place in uses_here if not is_guarded(place.use.guard.beside(present))]
    once = {(place.use.chain, place.use.arguments, place.use.call): place for place in unguarded}
    uses = tuple(reversed(once.values()))
    tags = [*tags_asked(descents)]
    with names_of([*uses, *tags]) as (published_names, doubtful):

        def judged(day: str, *, asks: bool) -> Sequence[Finding]:
            places = (each for each in doubtful if each not in tags and is_guarded(each.use.guard) is asks)
            return judge_uses(replace(code, uses=tuple(places)), versions, published_names, written=day).findings

        findings = [*judged(written, asks=False), *judged(_NEVER, asks=True)]
        overrides = [*judge_refused(code, releases, names), *judge_overrides(code, releases, published_names, {})]
        untagged = [*judge_tags(descents, releases, published_names)]
    return [*findings, *untagged, *overrides][:_SHOWN]


def _is_for_another_device(place: UsePlace) -> bool:
    """Return whether code that may never run takes what no device of CUDA needs (``torch.xpu.synchronize``)."""
    may_run = place.use.function is not None or place.use.guard.branch
    names = place.use.chain if may_run else ()
    # XLA compiles for every device (``jax.interpreters.xla``).
    return (
        any(OTHER_DEVICE.fullmatch(name) for name in names if name != "xla")
        or OTHER_DEVICE.search(place.where) is not None
    )


def naming(texts: Mapping[str, bytes], versions: Mapping[str, str]) -> list[str]:
    """Return the paths of the sources that import a stated package, or quote a requirement of one."""
    names = _module_words(versions)
    quoted = b"|".join(name.replace("-", "[-_.]").encode() for name in sorted(by_distribution(versions)))
    says = re.compile(
        rb"\b(?:import|from)\b[^\n#]*\b(?:%s)\b|(?:import\w*|module|lazy\w*)\(.(?:%s)\b|['\"](?:%s) ?[<>=!~]="
        % (names, names, quoted)
    )
    return [path for path, text in texts.items() if says.search(text)]


def takes_what_is_there(texts: Mapping[str, bytes], named: Sequence[str], versions: Mapping[str, str]) -> bool:
    """Return whether the ``named`` sources, read as they stand, take nothing that the stated versions lack, and ask for none.

    Then nothing else of the release need be read. ``False`` where they take what was not measured.
    """
    names, releases, words = NameIndex.installed(), by_distribution(versions), _module_words(versions)
    asking = re.compile(
        rb"\b(?:is_)?(?:%s)[^\n]*(?:ersion|greater)|(?:ersion|greater)[^\n]*\b(?:%s)\b" % (words, words)
    )
    if any(asking.search(texts[path]) for path in named):
        return False
    code = read_project_uses(_installed(texts, named), lambda name: names.distribution_of(name) is not None)
    by_module = distributions_by_module()
    projects = {by_module.get(root, normal_name(root)) for root in (place.use.chain[0] for place in code.uses)}
    if not all(names.has_release(*each) for each in releases.items() if each[0] in projects):
        return False
    methods = (*judge_refused(code, releases, names), *judge_overrides(code, releases, names, {}))
    return not (judge_uses(code, versions, names).findings or methods)


def _installed(texts: Mapping[str, bytes], named: Sequence[str]) -> ProjectSources:
    """Return the named sources that users run, up to a size. They are installed: no folder stands before a package."""
    sources = [SourceText(path=path, text=texts[path]) for path in named if is_of_package(path)]
    sizes = itertools.accumulate(len(source.text) for source in sources)
    read = tuple(source for source, size in zip(sources, sizes, strict=True) if size <= _MAX_READ)
    return ProjectSources(root=Path(), sources=read, files=frozenset())


def _module_words(versions: Mapping[str, str]) -> bytes:
    """Return the modules of stated packages, as an alternative of a regular expression."""
    releases = by_distribution(versions)
    by_module = distributions_by_module() | NameIndex.installed().roots
    modules = {module for module, distribution in by_module.items() if distribution in releases}
    modules |= {name.replace("-", "_") for name in releases}
    return b"|".join(re.escape(module).encode() for module in sorted(modules))


def is_of_package(path: str) -> bool:
    """Return whether a source is one that users run, and no example or test."""
    parts = path.removesuffix(".py").split("/")
    return path.endswith(".py") and not any(part in _ASIDE or part.startswith("test_") for part in parts)
