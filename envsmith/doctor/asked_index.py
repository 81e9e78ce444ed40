"""What the package index says of the packages that a text is about: names, lines of code, what releases require."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from envsmith.doctor.facts import Facts
from envsmith.doctor.lacks import Lack, best_answer, callables, installed_version, listed_project
from envsmith.doctor.mended_line import MendedLine, find_mended_line
from envsmith.doctor.read.lines import fold
from envsmith.doctor.read.resolutions import Statement
from envsmith.doctor.signatures import Hit
from envsmith.doctor.traced_releases import with_traced_releases
from envsmith.errors import EnvsmithError
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.lock.index.asked_lines import first_without, releases_with
from envsmith.lock.index.asked_names import FIRST, MOST, AskedReleases, between, spread
from envsmith.lock.index.asked_requirements import nearest_release_with
from envsmith.lock.index.index import PackageIndex
from envsmith.model.code_line import CodeLine
from envsmith.net.http import NotFoundError

_Answer = TypeVar("_Answer")
# How many packages are asked for, because a person waits.
_PACKAGES = 2
# What all releases of so many years have is missing because another copy is imported: nobody installs an older one.
_YEARS = 7


@dataclass(frozen=True, slots=True)
class AskedIndex:
    """The package index of the user. ``say`` hears what is read, and why something could not be."""

    find: Callable[[], PackageIndex]
    say: Callable[[str], None]

    def names(self, lacks: Sequence[Lack], facts: Facts, names: NameIndex) -> NameIndex:
        """Return the names with those of the packages that lack something, read where they are published."""
        packages: dict[str, tuple[str, Lack]] = {}
        for lack in lacks:
            for root in _roots(lack):
                project = _project(root, lack, facts)
                if project and project not in names.distributions():
                    packages.setdefault(project, (root, lack))
        for project, (root, lack) in [*packages.items()][:_PACKAGES]:
            is_installed = _is_installed(root, lack)
            version = installed_version(project, facts)
            try:
                with AskedReleases(
                    self.find(), project, years=None if is_installed else _YEARS, among=version
                ) as releases:
                    self.say(
                        f"reading releases of {project} on the package index, because what is asked was not measured"
                    )
                    names = _read(root, lack, facts, names, releases) or names
            except NotFoundError:
                continue
            except EnvsmithError as error:
                self.say(f"not read: {error.message}")
        return names

    def traced(self, facts: Facts, texts: Sequence[tuple[str, str]]) -> Facts:
        """Return the facts with the releases that printed the tracebacks of texts, where no version is stated."""
        return with_traced_releases(facts, texts, self._releases)

    def mended(self, facts: Facts, texts: Sequence[tuple[str, str]]) -> MendedLine | None:
        """Return the line at which a package itself failed, where a newer release has it no longer."""
        return find_mended_line(facts, texts, self._mending)

    def taking(self, hit: Hit) -> Hit:
        """Return a conflict of two requirements with the release of who asks that goes with the other one."""
        if "taker" not in hit.groups:
            return hit
        asker, release, need, spec = hit.groups["taker"].split(" ", 3)
        wish = Statement("", "", need, spec)
        try:
            self.say(f"reading releases of {asker} on the package index: which of them goes with {need}{spec}")
            fitting = nearest_release_with(
                self.find(), asker, release, need, lambda own: not wish.excludes(Statement(asker, "", need, own))
            )
        except NotFoundError:
            return hit
        except EnvsmithError as error:
            self.say(f"not read: {error.message}")
            return hit
        if fitting is None:
            return hit
        alternative = hit.groups["way"].partition(", or ")[0]
        way = f"{asker} {fitting} goes with {need}{spec}, by its metadata on the package index. Or {alternative[0].lower()}{alternative[1:]}"
        needs = "; ".join(filter(None, [hit.groups.get("needs"), f"{asker}=={fitting}"]))
        return hit.naming(way=way, needs=needs)

    def _releases(self, project: str, lines: Sequence[CodeLine]) -> Sequence[str]:
        """Return the releases of a project that have lines of code, none where the index does not say."""
        why = "which of them printed the traceback"
        return self._answer(project, why, lambda releases: releases_with(releases, lines)) or ()

    def _mending(self, project: str, line: CodeLine, version: str) -> tuple[str, str] | None:
        """Return the release of a version that has a line of code, and the first after it that has not."""

        def mending(releases: AskedReleases) -> tuple[str, str] | None:
            of_version = [v for v in releases.versions if v == version or v.startswith(f"{version}.")]
            since = first_without(releases, line, of_version[-1]) if of_version else None
            return (of_version[-1], since) if since else None

        return self._answer(project, "which of them still has what failed", mending)

    def _answer(self, project: str, why: str, question: Callable[[AskedReleases], _Answer]) -> _Answer | None:
        """Return what the releases of a project answer, ``None`` where the index does not say."""
        try:
            with AskedReleases(self.find(), project) as releases:
                self.say(f"reading releases of {project} on the package index: {why}")
                return question(releases)
        except NotFoundError:
            return None
        except EnvsmithError as error:
            self.say(f"not read: {error.message}")
            return None


def _roots(lack: Lack) -> Iterator[str]:
    """Yield the modules of which a package may be asked for: of the message, else of the call above it."""
    if lack.root:
        yield lack.root
        return
    yield from (name.partition(".")[0] for name in callables(lack) if "." in name)


def _project(root: str, lack: Lack, facts: Facts) -> str | None:
    """Return the project that brings a module, where it is known, or the text shows that it was installed.

    A module of one's own may have the name of a project that has nothing to do with it. One inside of another module
    tells by itself whether the project has it.
    """
    listed = listed_project(root)
    project = listed or fold(root)
    is_nested = "." in lack.owner and not lack.file
    is_there = listed or is_nested or project in facts.distributions or _is_installed(root, lack)
    return project if is_there else None


def _is_installed(root: str, lack: Lack) -> bool:
    """Return whether a path in the text shows that the module is one that was installed, and none of one's own."""
    return f"-packages/{root}/" in lack.around.replace("\\", "/")


def _read(root: str, lack: Lack, facts: Facts, names: NameIndex, releases: AskedReleases) -> NameIndex | None:
    """Return the index with the releases between which the answer changes.

    ``None`` where they have neither what is asked nor the module that it is asked of.
    """
    versions = releases.versions
    places = spread(len(versions))
    with suppress(ValueError):
        places.add(versions.index(installed_version(releases.project, facts) or ""))
    while places:
        index = names.with_names(releases.names(places, root))
        answer = best_answer(lack, facts, index)
        if answer is None or answer[1].distribution != releases.project:
            return None
        present, absent = answer[1].present, answer[1].absent
        if present and absent:
            new = between(places, {at: (v in present, v in absent) for at, v in enumerate(versions)})
        else:  # a few releases may be the only ones that differ
            new = spread(len(versions), MOST) - places
        if not new or len(places | new) > MOST + FIRST:
            owner = index.ask(lack.owner) if lack.root else None
            return index if present or owner is None or owner.present else None
        places = places | new
    return None
