"""By time: what a file of requirements meant at each moment, and between which two uploads the command broke."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from envsmith.bisect.outcome import Outcome
from envsmith.bisect.releases import resolve
from envsmith.bisect.search import narrow
from envsmith.bisect.trial import PackageSet, Trials
from envsmith.errors import LockError, NetworkError, UsageError
from envsmith.python.index import PackageIndex

# The farthest that is looked back for a moment at which the command passed: about four years.
_FARTHEST = dt.timedelta(weeks=256)
_SECOND = dt.timedelta(seconds=1)


@dataclass(kw_only=True, slots=True)
class Past:
    """The packages that requirements stood for at a moment."""

    files: tuple[str, ...]
    python: str
    trials: Trials
    _sets: dict[str, PackageSet | None] = field(default_factory=dict)

    def at(self, moment: dt.datetime) -> PackageSet | None:
        """Return what uv resolves of the uploads up to a moment. ``None`` where there is no such set."""
        date = _text(moment)
        if date not in self._sets:
            try:
                pins = resolve([], {}, self.python, self.trials, exclude_newer=date, files=self.files)
                self._sets[date] = PackageSet(pins=pins, python=self.python)
            except LockError:
                self._sets[date] = None
        return self._sets[date]

    def attempt(self, moment: dt.datetime) -> Outcome:
        """Return what came of the packages of a moment."""
        packages = self.at(moment)
        if packages is None:
            return Outcome(passed=None, error="uv finds no set of packages")
        self.trials.exclude_newer = _text(moment)
        try:
            return self.trials.attempt(packages)
        finally:
            self.trials.exclude_newer = None


def step_back(past: Past, bad: dt.datetime) -> dt.datetime:
    """Return a moment at which the command passed: 1, 2, 4 … weeks before. ``UsageError`` where there is none."""
    distance = dt.timedelta(weeks=1)
    while distance <= _FARTHEST:
        if past.attempt(bad - distance).passed:
            return bad - distance
        distance *= 2
    raise UsageError(
        "Cannot find a day on which the command passed: it fails with the packages of "
        f"{distance.days // 14} weeks ago too.",
        hint="Give a day with --good, or look at the command itself.",
    )


def narrow_time(
    past: Past, good: dt.datetime, bad: dt.datetime, error: str, index: PackageIndex
) -> tuple[PackageSet, PackageSet, dt.datetime, int]:
    """Return the packages just before and just after the upload that broke the command, its time, and how many there are.

    The candidates are the uploads of all packages at either end.
    """
    ends = [past.at(good), past.at(bad)]
    names = {name for end in ends if end for name in end.pins}
    moments = [good, *sorted(set(_uploads(names, good, bad, index))), bad]

    def is_bad(position: int) -> bool | None:
        outcome = past.attempt(moments[position])
        if outcome.passed is False and not outcome.is_like(error):
            return True
        return None if outcome.passed is None else not outcome.passed

    before, after = narrow([1.0] * (len(moments) - 1), is_bad)
    sets = past.at(moments[before]), past.at(moments[after])
    if sets[0] is None or sets[1] is None:
        raise UsageError("Cannot search by time: uv finds no set of packages at one of the ends.")
    return sets[0], sets[1], moments[after] - _SECOND, len(moments) - 2


def _uploads(names: Iterable[str], good: dt.datetime, bad: dt.datetime, index: PackageIndex) -> Iterator[dt.datetime]:
    """Yield the second after each first upload of a release: that of a set that has it."""
    for name in sorted(names):
        try:
            releases: Mapping[str, object] = index.project(name).releases()
        except NetworkError:
            continue
        for files in releases.values():
            times = sorted(file.uploaded for file in files if file.uploaded)  # type: ignore[attr-defined]
            if times:
                moment = parse_moment(times[0]) + _SECOND
                if good < moment < bad:
                    yield moment


def parse_moment(text: str) -> dt.datetime:
    """Return a day or a time of ISO 8601 in UTC. ``ValueError``."""
    moment = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)).replace(microsecond=0)


def _text(moment: dt.datetime) -> str:
    return moment.astimezone(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
