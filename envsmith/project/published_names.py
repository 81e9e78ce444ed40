"""The names of stated releases that were not measured, read on the package index as far as something takes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from envsmith.errors import EnvsmithError
from envsmith.knowledge.names.modules import distributions_by_module
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.presence import Presence
from envsmith.lock.index.asked_names import AskedReleases, between
from envsmith.lock.index.index import PackageIndex
from envsmith.model.project_name import normal_name
from envsmith.project.code.judge_uses import Questions
from envsmith.project.code.reading import UsePlace

# A person waits: how many packages are opened for one release that takes from them, and the seconds for each.
_MOST, _LONGEST = 2, 20.0
# Of an argument that none has among so many releases nothing is said: a decorator may take it.
_FEW = 12


@contextmanager
def names_with_published(
    names: NameIndex,
    uses: Sequence[UsePlace],
    releases: Mapping[str, str],
    packages: PackageIndex,
    unread: Callable[[str], None],
) -> Iterator[NameIndex]:
    """Yield the names with those of the stated releases from which something is taken, where they were not measured.

    ``releases`` are versions by distribution. ``unread`` is told what the index does not tell, and why.
    """
    with ExitStack() as opened:
        for number, (root, project) in enumerate(_unmeasured(names, uses, releases).items()):
            if number >= _MOST:
                unread(f"{project} {releases[project]}: no more than {_MOST} packages are opened for one release")
                continue
            taken = [place for place in uses if place.use.chain[0] == root]
            try:
                asked = opened.enter_context(
                    AskedReleases(packages, project, among=releases[project], longest=_LONGEST)
                )
                names = _Reader(names, root, taken, asked).read(releases[project])
            except EnvsmithError as error:
                unread(f"{project} {releases[project]}: the package index did not say, {error.reason}")
        yield names


def _unmeasured(names: NameIndex, uses: Sequence[UsePlace], releases: Mapping[str, str]) -> dict[str, str]:
    """Return the modules of stated distributions that have no index, each with its distribution."""
    by_module = distributions_by_module()
    roots = {root: by_module.get(root, normal_name(root)) for root in dict.fromkeys(p.use.chain[0] for p in uses)}
    return {r: project for r, project in roots.items() if project in releases and not names.distribution_of(r)}


@dataclass(frozen=True, slots=True)
class _Reader:
    """The releases of one project, opened between those that differ in what is taken."""

    names: NameIndex
    root: str
    uses: Sequence[UsePlace]
    asked: AskedReleases

    def read(self, version: str) -> NameIndex:
        """Return the names with those of one release, and where it lacks something of others too: near ones first."""
        versions = self.asked.versions
        if version not in versions:
            return self.names
        at, last, step = versions.index(version), len(versions) - 1, 1
        places = {at}
        index = self._opened(places)
        while self._lacking(index, version, places) and step < 2 * last:
            places |= {max(0, at - step), min(last, at + step)}
            index, step = self._opened(places), 2 * step
        while True:
            lacking = [p for p in self._presences(index) if version in p.absent and p.present]
            new = set[int]().union(*(between(places, _states(p, versions)) for p in lacking)) - places
            if not new:
                return index
            places |= new
            index = self._opened(places)

    def _lacking(self, index: NameIndex, version: str, places: Collection[int]) -> bool:
        """Return whether a release lacks something that no opened one has, while there are others."""
        missing = [p for p in self._presences(index) if version in p.absent and not p.present]
        missing = [p for p in missing if p.argument is None or len(places) < _FEW]
        return bool(missing) and len(places) < len(self.asked.versions)

    def _opened(self, places: Collection[int]) -> NameIndex:
        return self.names.with_names(self.asked.names(places, self.root))

    def _presences(self, index: NameIndex) -> list[Presence]:
        questions = Questions(index)
        uses = [place.use for place in self.uses]
        steps = [questions.step(use, depth) for use in uses for depth in range(2, len(use.chain) + 1)]
        arguments = [questions.ask(".".join(use.chain), keyword) for use in uses for keyword in use.keywords]
        return [*dict.fromkeys(presence for presence in (*steps, *arguments) if presence)]


def _states(presence: Presence, versions: Sequence[str]) -> dict[int, tuple[bool, bool]]:
    return {at: (version in presence.present, version in presence.absent) for at, version in enumerate(versions)}
