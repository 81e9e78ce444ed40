"""What later releases of a published one bar: a release of another package that came out after the stated one.

As :mod:`envsmith.knowledge.graph.later_bounds` reads it off measured releases. Only a bound that bars what is newer
counts, and only of the first releases that could know of what they bar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envsmith.errors import ContentError, NetworkError
from envsmith.knowledge.graph.later_bounds import CAPS
from envsmith.lock.index.index import IndexFile

# How many releases are read, and from how many series after that of the stated one.
_MOST, _SERIES = 5, 1
# What a release declares of each distribution, by its normalised name, and of ``python``: on each Python that may be meant.
Declared = dict[str, list[SpecifierSet]]


@dataclass(frozen=True, kw_only=True, slots=True)
class LaterBound:
    """What a later release, read from ``file``, says of a stated release of another distribution: only ``caps``.

    ``barred`` is the stated one, or the first of its series, which the later release could know. It ``is_new`` where it
    came out after the release that is asked about.
    """

    distribution: str
    barred: Version
    is_new: bool
    later: str
    file: IndexFile
    caps: SpecifierSet


def barred_later(
    version: str,
    files: Mapping[str, IndexFile],
    stated: Mapping[str, Version],
    declared: Callable[[IndexFile], Declared],
    days_of: Callable[[str], Mapping[Version, str]],
) -> Iterator[LaterBound]:
    """Yield the first bound on each stated release whose series came out after ``version`` and before what bars it.

    The next release of the same series may bar what was there before too: it was published to say so. ``files`` are those
    of the releases of a project, oldest first. ``stated`` are releases by distribution, ``days_of`` is asked for the days
    of the series of one. A release that declares nothing of a distribution may not take it: the next one tells.
    """
    following, own_day = _following(version, files), files[version].day or "~"
    own, *of_next = _read(declared, [files[v] for v in (version, *following[:1])])
    series = {n: days for n in stated if any(n in b for b in (own, *of_next)) and (days := days_of(n))}
    patch = next((v for v in following[:1] if Version(v).release[:2] == Version(version).release[:2]), None)
    first = min((day for days in series.values() for day in days.values() if day > own_day), default="~")
    aware = [v for v in following if v == patch or (files[v].day or "") >= first][:_MOST]
    for later, bounds in zip(aware, _read(declared, [files[v] for v in aware]), strict=True):
        for name, days in [*series.items()]:
            caps = [SpecifierSet(",".join(filter(_is_cap, map(str, bound)))) for bound in bounds.get(name, ())]
            since = "" if later == patch and name in own else own_day
            day, barred = min(((day, v) for v, day in days.items() if day > since), default=("~", stated[name]))
            could_know = day <= (files[later].day or "") and (name in own or later == following[0])
            if could_know and caps and not any(_contains(c, stated[name]) or _contains(c, barred) for c in caps):
                del series[name]
                yield LaterBound(
                    distribution=name,
                    barred=barred,
                    is_new=day > own_day,
                    later=later,
                    file=files[later],
                    caps=caps[0],
                )


def _contains(caps: SpecifierSet, release: Version) -> bool:
    return caps.contains(release.public, prereleases=True)


def _is_cap(clause: str) -> bool:
    return clause.startswith(CAPS)


def _following(version: str, files: Mapping[str, IndexFile]) -> list[str]:
    """Return the final releases after one, of its series and of the next."""
    after = [v for v, file in files.items() if Version(v) > Version(version) and file.yanked is None]
    finals = [v for v in after if not Version(v).is_prerelease]
    series = dict.fromkeys(Version(v).release[:2] for v in (version, *finals))
    near = [*series][: _SERIES + 1]
    return [v for v in finals if Version(v).release[:2] in near]


def _read(declared: Callable[[IndexFile], Declared], files: Sequence[IndexFile]) -> list[Declared]:
    def one(file: IndexFile) -> Declared:
        with suppress(NetworkError, ContentError):
            return declared(file)
        return {}

    with ThreadPoolExecutor(max_workers=_MOST) as pool:
        return [*pool.map(one, files)]
