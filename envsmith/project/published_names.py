"""The names of stated releases that were not measured, read on the package index as far as something takes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from envsmith.errors import EnvsmithError, NetworkError
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
) -> Iterator[tuple[NameIndex, Sequence[UsePlace]]]:
    """Yield the names with those of the stated releases from which something is taken, where they were not measured.

    And the uses, without those of which such a release has all: nothing else of them is read in other releases.
    ``releases`` are versions by distribution. ``unread`` is told what the index does not tell, and why.
    """
    with ExitStack() as opened:
        doubtful = uses
        for number, (root, project) in enumerate(_unmeasured(names, uses, releases).items()):
            if number >= _MOST:
                unread(f"{project} {releases[project]}: no more than {_MOST} packages are opened for one release")
                continue
            taken = [place for place in uses if place.use.chain[0] == root]
            try:
                asked = opened.enter_context(
                    AskedReleases(packages, project, among=releases[project], longest=_LONGEST)
                )
                reader = _Reader(names, root, asked, partial(_unsaid, unread, f"{project} {releases[project]}"))
                names, lacking = reader.read(releases[project], taken)
                doubtful = [place for place in doubtful if place.use.chain[0] != root or place in lacking]
            except EnvsmithError as error:
                _unsaid(unread, f"{project} {releases[project]}", error.reason)
        yield names, doubtful


def _unmeasured(names: NameIndex, uses: Sequence[UsePlace], releases: Mapping[str, str]) -> dict[str, str]:
    """Return the modules of stated distributions of which the stated release has no index, each with its distribution."""
    by_module = distributions_by_module()
    roots = {root: by_module.get(root, normal_name(root)) for root in dict.fromkeys(p.use.chain[0] for p in uses)}
    return {
        root: project
        for root, project in roots.items()
        if project in releases and not names.has_release(project, releases[project])
    }


def _unsaid(unread: Callable[[str], None], release: str, reason: str) -> None:
    unread(f"{release}: the package index did not say, {reason}")


def _wider(at: int, last: int) -> Iterator[set[int]]:
    """Yield places on both sides of one, each time at twice the distance."""
    step = 1
    while step < 2 * last:
        yield {max(0, at - step), min(last, at + step)}
        step *= 2


@dataclass(frozen=True, slots=True)
class _Reader:
    """The releases of one project, opened between those that differ in what is taken."""

    names: NameIndex
    root: str
    asked: AskedReleases
    unread: Callable[[str], None]

    def read(self, version: str, uses: Sequence[UsePlace]) -> tuple[NameIndex, Sequence[UsePlace]]:
        """Return the names with those of one release, and the uses of what it lacks: of that others too, near ones first.

        Where the index takes too long for what no release may have, it is what was settled before.
        """
        versions = self.asked.versions
        if version not in versions:
            return self.names, uses
        at = versions.index(version)
        places, wider = {at}, _wider(at, len(versions) - 1)
        settled = index = self._opened(places)
        questions = Questions(index)
        if not index.has_release(self.asked.project, version):
            raise NetworkError(f"Cannot read {self.asked.project} {version}: its file cannot be opened.")
        uses = [place for place in uses if any(version in p.absent for p in _presences(questions, [place]))]
        try:
            while True:
                absent = [p for p in _presences(Questions(index), uses) if version in p.absent]
                elsewhere = [p for p in absent if p.present]
                new = set[int]().union(*(between(places, _states(p, versions)) for p in elsewhere)) - places
                if not new:
                    settled = index
                    is_open = any(not p.present and (p.argument is None or len(places) < _FEW) for p in absent)
                    new = next((step for step in wider if step - places), set[int]()) if is_open else new
                if not new:
                    break
                places |= new
                index = self._opened(places)
        except NetworkError as error:
            self.unread(error.reason)
        return settled, uses

    def _opened(self, places: Collection[int]) -> NameIndex:
        return self.names.with_names(self.asked.names(places, self.root))


def _presences(questions: Questions, places: Sequence[UsePlace]) -> list[Presence]:
    uses = [place.use for place in places]
    steps = [questions.step(use, depth) for use in uses for depth in range(2, len(use.chain) + 1)]
    arguments = [questions.ask(".".join(use.chain), argument) for use in uses for argument in use.arguments]
    return [*dict.fromkeys(presence for presence in (*steps, *arguments) if presence)]


def _states(presence: Presence, versions: Sequence[str]) -> dict[int, tuple[bool, bool]]:
    return {at: (version in presence.present, version in presence.absent) for at, version in enumerate(versions)}
