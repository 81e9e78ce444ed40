"""The names of stated releases that were not measured, read on the package index as far as something takes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from envsmith.errors import EnvsmithError, NetworkError
from envsmith.knowledge.names.module_uses import Use
from envsmith.knowledge.names.modules import distributions_by_module
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.presence import Presence
from envsmith.lock.index.asked_names import AskedReleases, between
from envsmith.lock.index.index import PackageIndex
from envsmith.model.project_name import normal_name
from envsmith.project.code.judge_uses import Questions
from envsmith.project.code.reading import UsePlace

# A person waits: how many packages are opened for one release that takes from them.
_MOST = 2
# Of an argument that none has among so many releases nothing is said: a decorator may take it.
_FEW = 12


@contextmanager
def names_with_published(
    names: NameIndex,
    uses: Sequence[UsePlace],
    releases: Mapping[str, str],
    packages: PackageIndex,
    unread: Callable[[str], None],
    *,
    longest: float,
) -> Iterator[tuple[NameIndex, Sequence[UsePlace]]]:
    """Yield the names with those of the stated releases from which something is taken, where they were not measured.

    And the uses, without those of which such a release has all: nothing else of them is read in other releases. Of a
    release that was measured the tables name no decorator: it is read where one hides whether an argument is taken.
    ``releases`` are versions by distribution. ``unread`` is told what the index does not tell, and why. ``longest`` are
    the seconds for each of them.
    """
    with ExitStack() as opened:
        doubtful = uses
        for number, (root, project, hidden) in enumerate(_open_questions(names, uses, releases)):
            version, unsaid = releases[project], partial(_unsaid, unread, f"{project} {releases[project]}")
            if number >= _MOST:
                unread(f"{project} {version}: no more than {_MOST} packages are opened for one release")
                continue
            taken = [place for place in uses if place.use.chain[0] == root]
            if hidden:
                taken = [*hidden, *_lacking(names, version, taken)]
            try:
                asked = opened.enter_context(AskedReleases(packages, project, among=version, longest=longest))
                names_read, lacking = _Reader(names, root, asked, unsaid).read(version, taken)
            except EnvsmithError as error:
                unsaid(error.reason)
                continue
            if not hidden or any(place in lacking for place in hidden):
                names = names_read
                doubtful = [place for place in doubtful if place.use.chain[0] != root or place in lacking]
        yield names, doubtful


def _open_questions(
    names: NameIndex, uses: Sequence[UsePlace], releases: Mapping[str, str]
) -> Iterator[tuple[str, str, list[UsePlace]]]:
    """Yield the modules of stated distributions on which the index is asked, with the distribution.

    Where the release was measured, with the uses of which a decorator hides something.
    """
    by_module = distributions_by_module()
    for root in dict.fromkeys(place.use.chain[0] for place in uses):
        project = by_module.get(root, normal_name(root))
        version = releases.get(project)
        if version is None:
            continue
        taken = (place for place in uses if place.use.chain[0] == root)
        is_measured = names.has_release(project, version)
        hidden = [place for place in taken if is_measured and _is_hidden(names, version, place.use)]
        if hidden or not is_measured:
            yield root, project, hidden


def _is_hidden(names: NameIndex, version: str, use: Use) -> bool:
    return any(names.is_hidden(".".join(use.chain), argument, version) for argument in use.arguments)


def _lacking(names: NameIndex, version: str, uses: Sequence[UsePlace]) -> list[UsePlace]:
    questions = Questions(names)
    return [place for place in uses if any(version in p.absent for p in _presences(questions, [place]))]


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
        if not index.has_release(self.asked.project, version):
            raise NetworkError(f"Cannot read {self.asked.project} {version}: its file cannot be opened.")
        uses = _lacking(index, version, uses)
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
    arguments = [questions.ask(".".join(use.chain), argument) for use in uses for argument in use.questions]
    return [*dict.fromkeys(presence for presence in (*steps, *arguments) if presence)]


def _states(presence: Presence, versions: Sequence[str]) -> dict[int, tuple[bool, bool]]:
    return {at: (version in presence.present, version in presence.absent) for at, version in enumerate(versions)}
