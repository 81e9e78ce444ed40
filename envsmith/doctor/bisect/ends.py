"""The ends of a search: exact packages of an environment or a file, or what requirements meant before and after an upload."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from envsmith.base.files import read_text as read_file
from envsmith.base.files import write_whole
from envsmith.base.interpreter import python_in
from envsmith.doctor.bisect.outcome import TrialOutcome
from envsmith.doctor.bisect.release_steps import resolve
from envsmith.doctor.bisect.search import narrow
from envsmith.doctor.bisect.trials import PackageSet, Trials
from envsmith.doctor.facts import Draft
from envsmith.doctor.read import clean, read_text
from envsmith.errors import LockError, NetworkError, UsageError
from envsmith.lock.index.index import PackageIndex
from envsmith.lock.index.uv import Uv
from envsmith.model.project_name import normal_name
from envsmith.model.version import minor_of
from envsmith.project.folder import ProjectPart, read_folder

# The farthest that is looked back for a moment at which the command passed: about four years.
_FARTHEST = dt.timedelta(weeks=256)
_SECOND = dt.timedelta(seconds=1)


_LOCK = "lock.json"
_HINT = "Give a virtual environment, the output of pip freeze, pylock.toml, uv.lock, or the folder of a cell."


def read_end(source: str, python: str, uv: Uv) -> PackageSet:
    """Return the packages of an environment, of a cell's folder or of a file. ``UsageError`` where none is pinned.

    ``python`` is the minor version for a file that names none.
    """
    path = Path(source)
    if (path / "pyvenv.cfg").is_file():
        return _of_environment(path, uv)
    if path.is_dir() and (path / _LOCK).is_file():
        path = path / _LOCK
    if not path.is_file():
        raise UsageError(f"Cannot read {source}: it is neither an environment nor a file.", hint=_HINT)
    return _of_file(path, python)


def _of_environment(path: Path, uv: Uv) -> PackageSet:
    answer = uv.check(
        ["pip", "freeze", "--python", str(python_in(path.absolute()))], work=f"list the packages of {path}"
    )
    pins: dict[str, str] = {}
    unpinned: list[str] = []
    for line in answer.stdout.splitlines():
        name, equals, version = line.partition("==")
        if equals:
            pins[normal_name(name)] = version.strip()
        elif line.strip():
            unpinned.append(line.strip())
    # A project that is installed from its folder is the user's own code: it is the same at both ends.
    addresses = [line for line in unpinned if not line.startswith("-e")]
    if addresses:
        raise UsageError(
            f"Cannot make the environment {path} again: {addresses[0]} was not installed from an index.",
            hint="Leave it out: give the output of pip freeze without it, and put its folder on PYTHONPATH.",
        )
    config = read_file(path / "pyvenv.cfg")
    stated = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+[\d.]*)", config, re.MULTILINE)
    if not stated or not pins:
        raise UsageError(f"Cannot read {path}: it is not an environment with packages.", hint=_HINT)
    return PackageSet(pins=pins, python=minor_of(stated[1]))


def _of_file(path: Path, python: str) -> PackageSet:
    text = read_file(path, failure=UsageError)
    draft = Draft()
    read_text(clean(text), draft, path.name)
    facts = draft.done()
    pins: dict[str, str] = {normal_name(name): version for name, version in facts.distributions.items()}
    pins |= _exact(text)
    if not pins:
        raise UsageError(f"Cannot read {path}: it pins no package.", hint=_HINT)
    stated = facts.components.get("python")
    return PackageSet(pins=pins, python=minor_of(stated.version) if stated else python)


def _exact(text: str) -> dict[str, str]:
    """Return the pins of a requirements file as they stand, local parts and all."""
    pins: dict[str, str] = {}
    for line in text.splitlines():
        try:
            requirement = Requirement(line.split(" #")[0].split(" --hash")[0].rstrip("\\ "))
        except InvalidRequirement:
            continue
        specifiers = list(requirement.specifier)
        if len(specifiers) == 1 and specifiers[0].operator == "==" and not specifiers[0].version.endswith("*"):
            pins[normal_name(requirement.name)] = specifiers[0].version
    return pins


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

    def attempt(self, moment: dt.datetime) -> TrialOutcome:
        """Return what came of the packages of a moment."""
        return self._of(moment, self.trials.attempt)

    def failure(self, moment: dt.datetime) -> TrialOutcome:
        """Return how the packages of a moment fail, and search for that from now on."""

        def learn(packages: PackageSet) -> TrialOutcome:
            runs = self.trials.runs_of(packages)
            return self.trials.failure_of(runs) or runs[0]

        return self._of(moment, learn)

    def _of(self, moment: dt.datetime, run: Callable[[PackageSet], TrialOutcome]) -> TrialOutcome:
        packages = self.at(moment)
        if packages is None:
            return TrialOutcome(passed=None, error="uv finds no set of packages")
        self.trials.exclude_newer = _text(moment)
        try:
            return run(packages)
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


def ends_in_time(
    past: Past, good: str | None, bad: str | None, index: PackageIndex, say: Callable[[str], None]
) -> tuple[PackageSet, PackageSet]:
    """Search by time, and return the packages just before and just after the upload that broke the command."""
    until = _day(bad) if bad else dt.datetime.now(dt.timezone.utc).replace(microsecond=0)
    failed = past.failure(until)
    if failed.passed is not False:
        raise UsageError(
            f"Cannot search: with the packages of {until.date()} the command does not fail"
            + (f" ({failed.error})." if failed.error else "."),
            hint="Give the day on which it fails with --bad.",
        )
    since = _day(good) if good else step_back(past, until)
    say(f"by time: between {since.date()} and {until.date()}")
    before, after, moment, count = narrow_time(past, since, until, failed.error, index)
    say(f"by time: of {count} uploads the one of {moment:%Y-%m-%d %H:%M} UTC is the first with which it fails")
    return before, after


def _day(text: str) -> dt.datetime:
    try:
        return parse_moment(text)
    except ValueError:
        raise UsageError(
            f"Cannot read the day {text[:40]!r}: it is not written as 2026-11-21.",
            hint="Give days with -r or --project, and environments or files without them.",
        ) from None


def write_requirements(project: Path, part: ProjectPart, python: str, folder: Path) -> Path:
    """Write what a project requires into a file that uv resolves, and return it. ``DataError`` where nothing can be read."""
    listed = read_folder(project, part).refuse_problems()
    for spec, where in listed.python:
        if not SpecifierSet(spec).contains(python):
            raise UsageError(
                f"Cannot search with Python {python}: {where} requires {spec}.", hint="Give another one with --python."
            )
    limits, wish = folder / "limits.txt", folder / "requirements.in"
    write_whole(limits, "".join(f"{each.requirement}\n" for each in listed.demands if each.is_bound))
    lines = [f"{each.requirement}\n" for each in listed.demands if not each.is_bound]
    write_whole(wish, "".join([f"-c {limits.name}\n", *lines]))
    return wish
