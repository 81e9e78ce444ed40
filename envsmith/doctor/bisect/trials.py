"""A trial: an environment with exactly the packages of a set, and the command in it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement

from envsmith.base.files import read_bounded, read_text, write_whole
from envsmith.base.interpreter import python_in
from envsmith.base.json_types import JsonDict, JsonFields, number_in, seconds_in, text_in
from envsmith.base.programs import ending_orphans, execute
from envsmith.doctor.bisect.changes import Pins
from envsmith.doctor.bisect.journal import Journal, key_of
from envsmith.doctor.bisect.outcome import UNUSABLE, TrialOutcome, outcome_of
from envsmith.errors import BuildError, ContentError, EngineError, LockError, UsageError
from envsmith.lock.index.interpreters import find_interpreter
from envsmith.lock.index.metadata import active, parse_metadata
from envsmith.lock.index.uv import Uv
from envsmith.model.cell import Platform
from envsmith.model.project_name import normal_name

# Seconds: a run may take five times as long as the slower end, and a minute at least.
_PATIENCE, _SLOWER = 60.0, 5.0
# Seconds that the ends themselves may take.
_FIRST_LIMIT = 3600.0
# How many times as many runs a set has that showed nothing but noise, and ends whose failures differ.
MORE = 4
# Characters of an output that are kept: a traceback of a training framework is about 8,000 long.
_KEPT = 20_000
_METADATA = 4 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageSet:
    """What a trial is made of: exact versions by canonical name, and the minor version of Python."""

    pins: Pins
    python: str


@dataclass(kw_only=True, slots=True)
class Trials:
    """Runs a command in one environment after the other, each made anew at one path, and keeps what came of it.

    ``tries`` is how often a set is run: it fails where the share of failures with ``error``, that of the bad end, is
    above ``threshold``, and with a threshold of 0 at the first such failure. Other failures of a set that passes too are
    ``noise``, which no package explains. ``limit`` is how many seconds a run may take. ``sets`` are those that were asked
    about, ``runs`` counts what was not in the journal, ``seconds`` adds up the making of environments.
    """

    command: tuple[str, ...]
    folder: Path
    journal: Journal
    uv: Uv = field(default_factory=Uv)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    tries: int = 1
    threshold: float = 0.0
    error: str = ""
    noise: set[str] = field(default_factory=set)
    limit: float | None = None
    exclude_newer: str | None = None
    runs: int = 0
    seconds: float = 0.0
    sets: set[str] = field(default_factory=set)
    _installed: PackageSet | None = None
    _requires: dict[tuple[str, str], dict[str, Requirement]] = field(default_factory=dict)

    def attempt(self, packages: PackageSet) -> TrialOutcome:
        """Return what comes of a set: a failure as at the bad end, or its pass, or else the failure that it shows most."""
        outcomes: list[TrialOutcome] = []
        for number in range(self.tries * MORE):
            if number >= self.tries and not all(map(self._is_noise, outcomes)):
                break
            outcome = self._once(packages, number)
            outcomes.append(outcome)
            if outcome.passed is None or (self.threshold == 0.0 and self.is_meant(outcome)):
                return outcome
        failures, passed = [o for o in outcomes if self.is_meant(o)], [o for o in outcomes if o.passed]
        if len(failures) / len(outcomes) > self.threshold:
            return failures[0]
        if not passed:
            return self._usual(outcomes)
        self.noise |= {outcome.error for outcome in outcomes if outcome.passed is False and outcome not in failures}
        return passed[0]

    def is_meant(self, outcome: TrialOutcome) -> bool:
        """Tell whether it failed as the bad end does: in any way while that is not known."""
        return outcome.passed is False and (not self.error or outcome.is_like(self.error))

    def _is_noise(self, outcome: TrialOutcome) -> bool:
        is_known = any(outcome.is_like(error) for error in self.noise)
        return outcome.passed is False and is_known and not self.is_meant(outcome)

    def runs_of(self, packages: PackageSet, times: int = 1) -> list[TrialOutcome]:
        """Run a set ``times`` as often as ``tries`` says, and return what came of each run."""
        return [self._once(packages, number) for number in range(self.tries * times)]

    def failure_of(self, bad: Sequence[TrialOutcome], good: Sequence[TrialOutcome] = ()) -> TrialOutcome | None:
        """Return how the bad end fails, ``None`` where it does not, and search for that from now on.

        It is the failure that its runs show most. What the good end shows as well is taken only where there is no other.
        """
        self.noise |= {outcome.error for outcome in good if outcome.passed is False}
        failed = [outcome for outcome in bad if outcome.passed is False]
        if not failed:
            return None
        failure = self._usual(failed)
        self.error = failure.error
        return failure

    def _usual(self, failed: Sequence[TrialOutcome]) -> TrialOutcome:
        """Return the most frequent failure, noise only where there is nothing else."""
        own = [outcome for outcome in failed if not any(outcome.is_like(error) for error in self.noise)] or failed
        return max(own, key=lambda each: sum(outcome.is_like(each.error) for outcome in own))

    def limit_by(self, *outcomes: TrialOutcome) -> None:
        """Set how long a run may take from how long the two ends took."""
        if self.limit is None:
            self.limit = max(_PATIENCE, _SLOWER * max(outcome.seconds for outcome in outcomes))

    def requires(self, name: str, version: str) -> Mapping[str, Requirement]:
        """Return what a release that was installed in a trial requires. Nothing where it was not."""
        return self._requires.get((name, version), {})

    def read_requires(self, packages: PackageSet) -> None:
        """Install a set where that was not done, and keep what its packages require of one another."""
        if self._installed != packages:
            self._install(packages)
        for path in self._site(packages).glob("*.dist-info/METADATA"):
            metadata = parse_metadata(read_bounded(path, _METADATA), path.parent.name)
            requires = active(metadata.requires, python=packages.python, platform=Platform.host())
            name = next((n for n in packages.pins if n == normal_name(metadata.name)), None)
            if name:
                self._requires[name, packages.pins[name]] = requires

    def _once(self, packages: PackageSet, number: int) -> TrialOutcome:
        key = key_of(packages.pins, packages.python, self.command, platform.machine(), number)
        if number == 0:
            self.sets.add(key)
        row = self.journal.get(key)
        if row is None:
            row = self._run(packages)
            self.journal.add(key, row)
        return _outcome(row)

    def _run(self, packages: PackageSet) -> JsonDict:
        """Make the environment, run the command, and return the row of the journal."""
        self.runs += 1
        start = time.monotonic()
        try:
            if self._installed != packages:
                self._install(packages)
        except (LockError, BuildError, ContentError) as error:
            return {"status": None, "error": error.message, "seconds": 0.0, "output": ""}
        self.seconds += time.monotonic() - start
        environment = self.folder / "venv"
        variables = {k: v for k, v in self.environ.items() if k not in {"PYTHONHOME", "PYTHONDONTWRITEBYTECODE"}} | {
            "VIRTUAL_ENV": str(environment),
            "PATH": f"{environment / 'bin'}{os.pathsep}{self.environ.get('PATH', os.defpath)}",
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),
        }
        start = time.monotonic()
        limit = self.limit or _FIRST_LIMIT
        try:
            with ending_orphans():
                finished = execute(self.command, seconds=limit, env=variables)
        except subprocess.TimeoutExpired:
            return {"status": -9, "error": f"no end after {limit:.0f} s", "seconds": limit, "output": ""}
        except OSError as error:
            raise UsageError(f"Cannot run {self.command[0]}: {error.strerror}.", hint="Check the command.") from None
        if finished.returncode in UNUSABLE:
            raise UsageError(
                f"Cannot run the command: it ended with exit status {finished.returncode}, which says that it was not "
                "found or may not be run.",
                hint="Try the command by itself first.",
                details=tuple(finished.stderr.splitlines()[-3:]),
            )
        seconds = time.monotonic() - start
        errors = finished.stderr[-_KEPT:]
        outcome = outcome_of(finished.returncode, finished.stdout[-_KEPT:] + errors, seconds, errors)
        return {
            "status": finished.returncode,
            "error": outcome.error,
            "seconds": round(seconds, 2),
            "output": outcome.output,
        }

    def _install(self, packages: PackageSet) -> None:
        """Make the environment anew at the same path. Bytecode stays, but for packages that are not the same."""
        interpreter = find_interpreter(packages.python, self.environ)
        if interpreter is None:
            raise EngineError(
                f"Cannot find Python {packages.python}: this host does not have it.",
                hint=f"Install it with uv python install {packages.python}.",
            )
        self._forget_bytecode(packages)
        self._installed = None
        environment, file = self.folder / "venv", self.folder / "requirements.txt"
        text = "".join(f"{name}=={version}\n" for name, version in sorted(packages.pins.items()))
        write_whole(file, text, durable=False)
        work = "make the environment of a trial"
        self.uv.check(["venv", "--clear", "--python", interpreter.path, str(environment)], work=work)
        newest = ["--exclude-newer", self.exclude_newer] if self.exclude_newer else []
        python = str(python_in(environment))
        self.uv.check(["pip", "install", "--no-deps", "--python", python, "-r", str(file), *newest], work=work)
        self._installed = packages

    def _forget_bytecode(self, packages: PackageSet) -> None:
        """Remove the bytecode of what changes: it is told from its source by size and second only."""
        bytecode, before = self.folder / "bytecode", self._installed
        if before is None or before.python != packages.python:
            shutil.rmtree(bytecode, ignore_errors=True)
            return
        site = self._site(before)
        for name, version in before.pins.items():
            if packages.pins.get(name) != version:
                for top in _top_levels(site, name):
                    compiled = bytecode / str(site.absolute()).lstrip("/") / top
                    shutil.rmtree(compiled, ignore_errors=True)
                    for file in compiled.parent.glob(f"{top.removesuffix('.py')}.*.pyc"):
                        with suppress(OSError):
                            file.unlink()

    def _site(self, packages: PackageSet) -> Path:
        return self.folder / "venv" / "lib" / f"python{packages.python}" / "site-packages"


def check_command(command: tuple[str, ...]) -> None:
    """Refuse a command that would not run in the environments of the trials."""
    if not command:
        raise UsageError(
            "Cannot search for the culprit: no command is given.",
            hint="Write it after --, for example -- python train.py.",
        )
    program = Path(command[0])
    if program.is_absolute() and program.name.startswith("python"):
        raise UsageError(
            f"Cannot search with {program}: it is one interpreter, and each trial has its own.",
            hint=f"Write python instead of {program}.",
        )


def _outcome(row: JsonFields) -> TrialOutcome:
    """Read a row of the journal. The verdict is made of it anew each time."""
    if row.get("status") is None:
        return TrialOutcome(passed=None, error=str(row.get("error", "")))
    outcome = outcome_of(number_in(row, "status"), text_in(row, "output"), seconds_in(row, "seconds"))
    if outcome.passed is False and row.get("error"):
        return TrialOutcome(passed=False, error=str(row["error"]), output=outcome.output, seconds=outcome.seconds)
    return outcome


def _top_levels(site: Path, name: str) -> Iterator[str]:
    """Yield the first part of each path that an installed distribution records."""
    for record in site.glob("*.dist-info/RECORD"):
        if normal_name(record.parent.name.partition("-")[0]) == name:
            lines = read_text(record, errors="replace").splitlines()
            yield from {line.partition(",")[0].partition("/")[0] for line in lines if line}
