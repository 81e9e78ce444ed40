"""The whole search between two ends: both ends tried, the culprits found and confirmed, their releases narrowed."""

from __future__ import annotations

from dataclasses import dataclass, field

from envsmith.base.progress import EventKind, Progress, ProgressEvent, silent
from envsmith.base.text import counted
from envsmith.doctor.bisect.changes import (
    ChangeGroup,
    changes_between,
    groups_between,
    pins_with,
    still_required,
    weights,
)
from envsmith.doctor.bisect.outcome import TrialOutcome
from envsmith.doctor.bisect.release_steps import ReleaseStep, narrow_releases
from envsmith.doctor.bisect.search import Culprit, find_culprits
from envsmith.doctor.bisect.trials import MORE, PackageSet, Trials
from envsmith.errors import UsageError
from envsmith.lock.index.index import PackageIndex

# With several tries the bad end must fail this much more often than the good one.
_APART = 0.4
_MOST_LINES = 5
# A trial with so few groups at one of the ends is described by their names.
_FEW = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Guilty:
    """Groups of packages that break the command together, the error, and the releases where they began to.

    ``alone`` says that they broke it with everything else at the good end, ``is_in_the_way`` that the bad end does not
    fail so: it shows when another culprit is put back.
    """

    groups: tuple[ChangeGroup, ...]
    steps: tuple[ReleaseStep, ...]
    error: str
    alone: bool
    is_in_the_way: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """What a search found. ``within`` are the groups that it could not tell apart.

    ``explains`` says that with the culprits put back the command was tried and passes. ``runs`` counts the trials of
    this search without those that the journal had.
    """

    good: PackageSet
    bad: PackageSet
    groups: tuple[ChangeGroup, ...]
    guilty: tuple[Guilty, ...]
    within: tuple[ChangeGroup, ...]
    explains: bool
    trials: int
    runs: int
    seconds: float
    skipped: tuple[str, ...]


def try_ends(good: PackageSet, bad: PackageSet, trials: Trials) -> TrialOutcome:
    """Try both ends, set the time limit by them, and return how the bad one fails. ``UsageError`` where they do not differ."""
    good_runs = _runs(trials, good, "good")
    passed = next((outcome for outcome in good_runs if outcome.passed), None)
    if passed is None:
        raise UsageError(
            f"Cannot search for the culprit: the command fails at the good end too ({good_runs[0].error}).",
            hint="Check the command by itself there; what it needs beside packages is not searched for.",
            details=tuple(good_runs[0].output.splitlines()[-_MOST_LINES:]),
        )
    bad_runs = _runs(trials, bad, "bad")
    if any(o.passed is False and not o.is_like(bad_runs[0].error) for o in bad_runs):
        good_runs, bad_runs = _runs(trials, good, "good", MORE), _runs(trials, bad, "bad", MORE)
    failed = trials.failure_of(bad_runs, good_runs)
    if failed is None:
        raise UsageError(
            f"Cannot search for the culprit: the command passes at the bad end ({trials.tries} of {trials.tries} times).",
            hint="Give --tries where it fails now and then.",
        )
    share_good, share_bad = (sum(map(trials.is_meant, runs)) / len(runs) for runs in (good_runs, bad_runs))
    if share_good:
        if share_bad - share_good < _APART:
            raise UsageError(
                f"Cannot search for the culprit: the command fails in {share_good:.0%} of the runs at the good end and in {share_bad:.0%} "
                "at the bad one, which is too close.",
                hint="Make the command stricter, or give more --tries.",
            )
        trials.threshold = (share_good + share_bad) / 2
    trials.limit_by(passed, failed)
    return failed


def _runs(trials: Trials, packages: PackageSet, end: str, times: int = 1) -> list[TrialOutcome]:
    """Return what came of each run of an end. ``UsageError`` where it cannot be judged."""
    runs = trials.runs_of(packages, times)
    unknown = next((outcome for outcome in runs if outcome.passed is None), None)
    if unknown:
        raise UsageError(
            f"Cannot try the {end} end: {unknown.error}.", hint="Check that its packages can be installed."
        )
    return runs


@dataclass(kw_only=True, slots=True)
class Search:
    """A search between two sets of packages: :meth:`run` does it."""

    good: PackageSet
    bad: PackageSet
    trials: Trials
    index: PackageIndex
    progress: Progress = silent
    groups: tuple[ChangeGroup, ...] = ()
    tried: dict[str, TrialOutcome] = field(default_factory=dict)

    def run(self) -> SearchResult:
        """Return which packages break the command. ``UsageError`` where the ends cannot be used."""
        failed = try_ends(self.good, self.bad, self.trials)
        for end in (self.good, self.bad):
            self.trials.read_requires(end)
        if self.good.python != self.bad.python:
            self._change_python()
        self.groups = groups_between(self.good.pins, self.bad.pins, self.trials.requires)
        count = len(changes_between(self.good.pins, self.bad.pins))
        differing = "1 package differs" if count == 1 else f"{count} packages differ"
        self._say(f"{differing}, in {counted(len(self.groups), 'group')} that can be tried apart")
        answer = find_culprits(weights(self.groups, f"{failed.output}\n{failed.error}"), self._with, failed.error)
        return SearchResult(
            good=self.good,
            bad=self.bad,
            groups=self.groups,
            guilty=tuple(self._narrowed(culprit) for culprit in answer.culprits),
            within=tuple(self.groups[number] for number in answer.within),
            explains=answer.explains,
            trials=len(self.trials.sets),
            runs=self.trials.runs,
            seconds=self.trials.seconds,
            skipped=tuple(f"{text}: {o.error}" for text, o in self.tried.items() if o.passed is None),
        )

    def _change_python(self) -> None:
        """Try the other Python first, at the good packages: with it, packages are not to blame."""
        moved = PackageSet(pins=self.good.pins, python=self.bad.python)
        outcome = self._attempt(moved, f"Python {self.bad.python} alone")
        if outcome.passed is not True:
            raise UsageError(
                f"Cannot search among the packages: with Python {self.bad.python} alone the command does not pass "
                f"({outcome.error}).",
                hint=f"Make both ends with Python {self.bad.python} to search further: Python itself breaks it.",
            )
        self.good = moved

    def _with(self, chosen: frozenset[int]) -> TrialOutcome:
        """Try the good set with some groups at the bad end."""
        members = [self.groups[number] for number in sorted(chosen)]
        unchanged = [group for number, group in enumerate(self.groups) if number not in chosen]
        text = f"{len(members)} of {len(self.groups)} groups changed"
        if len(members) <= _FEW:
            text = f"only {', '.join(group.lead.name for group in members)} changed"
        elif len(self.groups) - len(members) <= _FEW:
            text = f"all changed but {', '.join(group.lead.name for group in unchanged)}"
        pins = pins_with(members, self.good.pins)
        pins |= still_required(unchanged, self.good.pins, pins, self.trials.requires)
        pins |= still_required(members, self.bad.pins, pins, self.trials.requires)
        return self._attempt(PackageSet(pins=pins, python=self.bad.python), text)

    def _attempt(self, packages: PackageSet, text: str) -> TrialOutcome:
        outcome = self.trials.attempt(packages)
        if text not in self.tried:
            self.tried[text] = outcome
            verdict = {True: "passes", False: f"fails: {outcome.error}", None: f"skipped: {outcome.error}"}
            self._say(f"trial {len(self.trials.sets)}: {text}: {verdict[outcome.passed][:200]}")
        return outcome

    def _narrowed(self, culprit: Culprit) -> Guilty:
        """Narrow each group of a culprit to a release, the others of it at their bad versions."""
        members = [self.groups[number] for number in culprit.groups]
        steps = []
        for group in members:
            partners = [member for member in members if member is not group]
            base = PackageSet(pins=pins_with(partners, self.good.pins), python=self.good.python)
            self._say(f"between the releases of {group.lead}")
            step = narrow_releases(group, base, culprit.error, self.trials, self.index)
            steps += [step] if step else []
        return Guilty(
            groups=tuple(members),
            steps=tuple(steps),
            error=culprit.error,
            alone=culprit.alone,
            is_in_the_way=culprit.is_in_the_way,
        )

    def _say(self, text: str) -> None:
        self.progress(ProgressEvent(kind=EventKind.NOTE, step="bisect", text=text))
