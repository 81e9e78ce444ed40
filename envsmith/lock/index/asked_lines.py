"""The releases of a project whose files have the lines of code that a traceback shows, each at its number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from envsmith.lock.index.asked_names import AskedReleases, between, spread
from envsmith.model.code_line import CodeLine

# How many releases are opened at most. Of the 250 of transformers, up to 37 were.
_MOST = 40


def releases_with(releases: AskedReleases, lines: Sequence[CodeLine]) -> tuple[str, ...]:
    """Return the releases that have every line at its number, oldest first, or none where too many would be read.

    Files grow, so a line is found as by bisection: above its number in an older release, below in a newer one. One line
    that stands several times in a file tells nothing by itself.

    ``NetworkError`` when the releases cannot be read in time.
    """
    versions = releases.versions
    sightings = _read(releases, lines, spread(len(versions)), lambda each: tuple(line.side for line in each))
    return tuple(
        versions[at]
        for at in sorted(sightings)
        if all(each.side == 0 for each in sightings[at]) and (len(lines) > 1 or sightings[at][0].is_alone)
    )


def first_without(releases: AskedReleases, line: CodeLine, release: str) -> str | None:
    """Return the first release after one that no longer has a line of code, wherever it stood in its file.

    ``None`` where the newest has it still, or the release itself has it not.

    ``NetworkError`` when the releases cannot be read in time.
    """
    versions = releases.versions
    own = versions.index(release)
    places = {own + at for at in spread(len(versions) - own)}
    sightings = _read(releases, [line], places, lambda each: each[0].side is not None)
    having = [at for at, (each,) in sightings.items() if each.side is not None]
    after = max(having, default=-1) + 1
    return versions[after] if own in having and after in sightings else None


class _Sighting(NamedTuple):
    """A line in one release. ``side`` is -1 before its number, 0 at it, 1 behind it, ``None`` where it is not."""

    side: int | None
    is_alone: bool


def _read(
    releases: AskedReleases,
    lines: Sequence[CodeLine],
    places: Iterable[int],
    state: Callable[[Sequence[_Sighting]], object],
) -> dict[int, Sequence[_Sighting]]:
    """Find lines in the releases at some places, and between those that differ until they are neighbours.

    Nothing is returned where more releases than a person waits for would have to be read.
    """
    sightings: dict[int, Sequence[_Sighting]] = {}
    new, tried = {*places}, set[int]()
    while new:
        sightings |= _find(releases, new, lines)
        tried |= new
        new = between(sightings, {at: state(each) for at, each in sightings.items()}) - tried
        if len(tried | new) > _MOST:
            return {}
    return sightings


def _find(releases: AskedReleases, places: Iterable[int], lines: Sequence[CodeLine]) -> dict[int, Sequence[_Sighting]]:
    sources = releases.sources(places, {line.path for line in lines})
    return {at: tuple(_find_line(files, line) for line in lines) for at, files in sources.items()}


def _find_line(files: Mapping[str, bytes], line: CodeLine) -> _Sighting:
    rows = files.get(line.path, b"").decode(errors="replace").split("\n")
    numbers = [number for number, row in enumerate(rows, 1) if row.strip() == line.text]
    if not numbers:
        return _Sighting(None, is_alone=False)
    distance = min((number - line.number for number in numbers), key=abs)
    return _Sighting((distance > 0) - (distance < 0), is_alone=len(numbers) == 1)
