"""What a published release says itself of the stated versions: a ``raise`` behind a comparison with one of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property

from envsmith.knowledge.names.modules import distributions_by_module
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.own_classes import module_of
from envsmith.knowledge.names.reach import PackageUses
from envsmith.knowledge.names.scopes import FUNCTIONS, Chain, within
from envsmith.knowledge.names.settled_source import SettledSources, VersionRefusal
from envsmith.model.project_name import normal_name
from envsmith.project.code.judge_uses import by_distribution, has
from envsmith.project.published_stated import stated_python


def settled_sources(
    root: str, texts: Mapping[str, bytes], itself: Mapping[str, str], versions: Mapping[str, str], names: NameIndex
) -> SettledSources:
    """Return the sources of the release ``itself``, by its name, as they run beside the stated versions."""
    own = by_distribution(itself)
    releases, by_module = (
        by_distribution(versions) | own,
        distributions_by_module() | dict.fromkeys([root], next(iter(own), root)),
    )

    def has_name(chain: Chain) -> bool:
        presence = names.ask(".".join(chain))
        return presence is not None and has(presence, releases.get(presence.distribution, "")) is True

    return SettledSources(
        texts,
        releases,
        stated_python(versions),
        lambda module: by_module.get(module, normal_name(module)),
        has_name,
        itself=frozenset(own),
    )


class SettledRelease:
    """The sources of the release ``itself`` as they run beside the stated versions, read when they are asked for."""

    def __init__(
        self, root: str, texts: Mapping[str, bytes], itself: Mapping[str, str], versions: Mapping[str, str]
    ) -> None:
        self.root, self.texts, self.versions = root, texts, versions
        self._itself = itself

    @cached_property
    def sources(self) -> SettledSources:
        """Return its sources."""
        return settled_sources(self.root, self.texts, self._itself, self.versions, NameIndex.installed())

    @cached_property
    def package(self) -> PackageUses[str]:
        """Return what its import runs."""
        files = {path: path for path in self.texts}
        return PackageUses([self.root], files, self.texts.__getitem__, parse=self.sources.parse)


def refusal_at_import(root: str, package: PackageUses[str], sources: SettledSources) -> VersionRefusal | None:
    """Return what stops the import of a package, if something does."""
    stops = ((stop.path, stop.line) for stop in package.stops(root) if not stop.available)
    return next((refusal for stop in stops if (refusal := sources.refusals.get(stop))), None)


def warning_at_import(root: str, package: PackageUses[str], sources: SettledSources) -> VersionRefusal | None:
    """Return what the import of a package warns of, if it does."""
    run = {*package.paths_at_import(root)}
    return next((warning for (path, _), warning in sources.warnings.items() if path in run), None)


def refusal_before_use(
    root: str, package: PackageUses[str], sources: SettledSources, texts: Mapping[str, bytes]
) -> VersionRefusal | None:
    """Return what a function refuses that a module hands on where it is imported, to be called before it is used."""
    refusing = {path for path, _ in sources.refusals}
    for path in dict.fromkeys(path for path in package.paths_at_import(root) if path in refusing):
        for name in _functions_handed_on(ast.parse(texts[path]).body):
            content = package.content(module_of(path), name)
            for stop in content.stops if content else ():
                refusal = sources.refusals.get((path, stop.line))
                if refusal and stop.function == name and not (stop.guard.tests or stop.guard.caught):
                    return refusal
    return None


def _functions_handed_on(body: list[ast.stmt]) -> Iterator[str]:
    run = [node for node in body if not isinstance(node, (*FUNCTIONS, ast.ClassDef))]
    calls = [node for node in within(run) if isinstance(node, ast.Call)]
    handed = {
        a.id for call in calls for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Name)
    }
    return (node.name for node in body if isinstance(node, FUNCTIONS) and node.name in handed)
