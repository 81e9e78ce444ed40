"""What the package index says of the packages that a text is about: names, lines of code, what releases require."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from envsmith.doctor.facts import Facts
from envsmith.doctor.lacks import Lack, best_answer, installed_version
from envsmith.doctor.mended_line import MendedLine, find_mended_line
from envsmith.doctor.read.resolutions import Statement
from envsmith.doctor.signatures import Hit
from envsmith.doctor.suspects import Suspect, suspects
from envsmith.doctor.traced_releases import with_traced_releases
from envsmith.errors import EnvsmithError, NetworkError
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.presence import Presence
from envsmith.lock.index.asked_lines import first_without, releases_with
from envsmith.lock.index.asked_names import FIRST, MOST, AskedReleases, between, spread
from envsmith.lock.index.asked_requirements import nearest_release_with
from envsmith.lock.index.index import PackageIndex
from envsmith.model.code_line import CodeLine
from envsmith.net.http import NotFoundError

_Answer = TypeVar("_Answer")
# How many packages are asked for, and how many releases of one may fail to be read.
_PACKAGES, _FAILURES = 3, 3
# What all releases of so many years have is missing because another copy is imported: nobody installs an older one.
_YEARS = 7


@dataclass(frozen=True, slots=True)
class AskedIndex:
    """The package index of the user. ``say`` hears what is read, and why something could not be.

    A question takes ``longest`` seconds, because a person waits, half as long for the releases of tracebacks.
    """

    find: Callable[[], PackageIndex]
    say: Callable[[str], None]
    longest: float = 20.0
    clock: Callable[[], float] = time.monotonic

    def names(self, lacks: Sequence[Lack], facts: Facts, names: NameIndex) -> NameIndex:
        """Return the names with those of the packages that lack something, read where they are published."""
        end = self.clock() + self.longest
        read: set[str] = set()
        for lack in lacks:
            for each in suspects(lack, facts, names):
                seconds = end - self.clock()
                if each.project in read or len(read) >= _PACKAGES or seconds < 1:
                    continue
                read.add(each.project)
                if added := self._names_of(each, facts, names, seconds):
                    names = added
                    break
        return names

    def _names_of(self, suspect: Suspect, facts: Facts, names: NameIndex, longest: float) -> NameIndex | None:
        """Return the names with those of a package, ``None`` where it explains nothing or the index does not say."""
        years = None if suspect.is_installed else _YEARS
        version = installed_version(suspect.project, facts)
        try:
            with AskedReleases(
                self.find(), suspect.project, years=years, among=version, longest=longest, clock=self.clock
            ) as releases:
                self.say(
                    f"reading releases of {suspect.project} on the package index, because what is asked was not measured"
                )
                return _Reading(suspect, facts, names, releases, self.say).index()
        except NotFoundError:
            return None
        except EnvsmithError as error:
            self.say(f"not read: {error.message}")
            return None

    def traced(self, facts: Facts, texts: Sequence[tuple[str, str]]) -> Facts:
        """Return the facts with the releases that printed the tracebacks of texts, where no version is stated."""
        end = self.clock() + self.longest / 2

        def releases(project: str, lines: Sequence[CodeLine]) -> Sequence[str]:
            seconds = end - self.clock()
            if seconds < 1:
                return ()
            why = "which of them printed the traceback"
            return self._answer(project, why, lambda each: releases_with(each, lines), seconds) or ()

        return with_traced_releases(facts, texts, releases)

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

    def _mending(self, project: str, line: CodeLine, version: str) -> tuple[str, str] | None:
        """Return the release of a version that has a line of code, and the first after it that has not."""

        def mending(releases: AskedReleases) -> tuple[str, str] | None:
            of_version = [v for v in releases.versions if v == version or v.startswith(f"{version}.")]
            since = first_without(releases, line, of_version[-1]) if of_version else None
            return (of_version[-1], since) if since else None

        return self._answer(project, "which of them still has what failed", mending, self.longest)

    def _answer(
        self, project: str, why: str, question: Callable[[AskedReleases], _Answer], longest: float
    ) -> _Answer | None:
        """Return what the releases of a project answer, ``None`` where the index does not say."""
        try:
            with AskedReleases(self.find(), project, longest=longest) as releases:
                self.say(f"reading releases of {project} on the package index: {why}")
                return question(releases)
        except NotFoundError:
            return None
        except EnvsmithError as error:
            self.say(f"not read: {error.message}")
            return None


@dataclass(frozen=True, slots=True)
class _Reading:
    """The releases of a package, read until those between which the answer changes are neighbours."""

    suspect: Suspect
    facts: Facts
    names: NameIndex
    releases: AskedReleases
    say: Callable[[str], None]

    def index(self) -> NameIndex | None:
        """Return the names with those of the releases that were read.

        ``None`` where they have neither what is asked nor the module that it is asked of, or where a package that is only
        a guess tells nothing. Where time runs out, nothing is said of the releases between those that differ.
        """
        read, states, new = set[int](), dict[int, object](), self._first()
        index: NameIndex | None = None
        failures = 0
        while new:
            try:
                later = self.names.with_names(self.releases.names(read | new, self.suspect.root))
                answer = best_answer(self.suspect.lack, self.facts, later)
            except NetworkError as error:
                failures += 1
                if failures <= _FAILURES and not self.releases.is_late:
                    continue  # without the release that could not be read
                if len(set(states.values())) < 2:
                    raise
                self.say(f"not read to the end: {error.message}")
                unread = {at for low, high in _differing(states) for at in range(low + 1, high)}
                return self.names.with_names(self.releases.names(read, self.suspect.root, unread=unread))
            if answer is None or answer[1].distribution != self.releases.project:
                return None
            read, index, presence = read | new, later, answer[1]
            places = {version: at for at, version in enumerate(self.releases.versions)}
            states = {places[v]: (v in presence.present, v in presence.absent) for v in presence.releases}
            if presence.present and presence.absent:
                new = between(states, states) - read
            else:  # a few releases may be the only ones that differ
                new = spread(len(places), MOST) - read
            if not new or len(read | new) > MOST + FIRST:
                return index if self._is_told(presence, index) else None
        return index

    def _first(self) -> set[int]:
        versions = self.releases.versions
        places = spread(len(versions))
        with suppress(ValueError):  # what an upgrade took away or brought lies next to the release that is stated
            at = versions.index(installed_version(self.releases.project, self.facts) or "")
            places |= {at - 1, at, at + 1} & {*range(len(versions))}
        return places

    def _is_told(self, presence: Presence, index: NameIndex) -> bool:
        """Return whether the releases explain the message: they differ, or the text shows that the package is meant."""
        if self.suspect.is_guess:
            return bool(presence.present and presence.absent)
        owner = index.ask(self.suspect.lack.owner) if self.suspect.lack.root else None
        return bool(presence.present) or owner is None or bool(owner.present)


def _differing(states: Mapping[int, object]) -> Iterator[tuple[int, int]]:
    """Yield the neighbours that differ and have others between them."""
    for low, high in itertools.pairwise(sorted(states)):
        if high - low > 1 and states[low] != states[high]:
            yield low, high
