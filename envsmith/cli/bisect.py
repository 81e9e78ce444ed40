"""``envsmith bisect``: which package broke a command that worked."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envsmith.base.files import write_whole
from envsmith.cli.console import dumps, print_answer, print_out, say
from envsmith.cli.declare import (
    ExistingFile,
    ExistingFolder,
    File,
    Folder,
    Section,
    argument,
    flag,
    option,
    verb,
)
from envsmith.doctor.bisect.between import Search
from envsmith.doctor.bisect.ends import Past, ends_in_time, read_end, write_requirements
from envsmith.doctor.bisect.journal import open_journal
from envsmith.doctor.bisect.report import as_json, as_markdown, as_text, known_rules, rule_of, status_of
from envsmith.doctor.bisect.trials import PackageSet, Trials, check_command
from envsmith.errors import UsageError
from envsmith.lock.index.index import PackageIndex, find_index
from envsmith.lock.index.interpreters import running_interpreter
from envsmith.model.version import minor_of
from envsmith.net.http import HttpClient
from envsmith.project.folder import ProjectPart

if TYPE_CHECKING:
    from envsmith.doctor.bisect.trials import PackageSet

# Exit codes of a search: found, a range only, and both ends are equal. 2 is for ends that cannot be used.
_EXIT = {"found": 0, "range": 1, "equal": 3}


# Headings of ``--help``.
_ENDS, _TRIALS = map(Section, ("Ends", "Trials"))


@dataclass(frozen=True, kw_only=True, slots=True)
class BisectFlags:
    """The options of ``bisect``."""

    command: tuple[str, ...] = argument(nargs=-1, metavar="-- COMMAND")
    good: str | None = _ENDS.option("END|DAY", "An environment, freeze or lock with which it passes; by time a day.")
    bad: str | None = _ENDS.option("END|DAY", "One with which it fails; by time a day (default: now).")
    requirements: tuple[ExistingFile, ...] = _ENDS.several(
        "-r", "FILE", "Search by time: requirements.txt or pyproject.toml as it was resolved then (repeatable)."
    )
    project: ExistingFolder | None = _ENDS.option(
        "DIR", "Search by time: what the project in a folder requires, as it was resolved then."
    )
    extra: tuple[str, ...] = _ENDS.several("NAME", "With this extra of the project.")
    group: tuple[str, ...] = _ENDS.several("NAME", "With this dependency group of the project.")
    python: str | None = _ENDS.option("3.N", "The Python of ends that name none (default: this one).")
    tries: int = _TRIALS.option("N", "Run each set N times, for a command that fails now and then.", default=1)
    timeout: float | None = _TRIALS.option(
        "SECONDS", "End a run after this long, and count it as failed (default: 5 times the slower end, 60 at least)."
    )
    folder: Folder = _TRIALS.option("DIR", "Where trials are kept; a second run goes on.", default="envsmith-bisect")
    report: File | None = option("FILE.md", "Write a report for an issue tracker.")
    rule: File | None = option("FILE.yaml", "Write the rule that the graph lacks.")
    as_json: bool = flag("--json", "One JSON object.")


@verb(
    BisectFlags,
    "envsmith bisect --good old-venv --bad new-venv -- python train.py",
    "envsmith bisect --project . --good 2025-06-01 -- pytest tests/test_train.py",
)
def bisect(settings: BisectFlags) -> int:
    """Find which package broke a command: between two environments, or between two days.

    Each trial is an environment of its own with exact packages, made in a second or two by links, and the command in
    it. The command passes with status 0, fails with any other, and asks to skip a set with 125. An interrupted search
    goes on where it was.

    Exit code 0 when the culprit is found, 1 when only a range is, 2 when the ends cannot be used, 3 when they are equal.
    """
    check_command(settings.command)
    if settings.tries < 1:
        raise UsageError("Cannot run a set fewer than one time: --tries is a count.", hint="Give --tries 1 or more.")
    index = PackageIndex(HttpClient(), find_index())
    with open_journal(settings.folder) as journal:
        trials = Trials(
            command=settings.command,
            folder=settings.folder.absolute(),
            journal=journal,
            tries=settings.tries,
            limit=settings.timeout,
        )
        good, bad = _ends(settings, trials, index)
        result = Search(good=good, bad=bad, trials=trials, index=index, progress=lambda event: say(event.text)).run()
    rules = known_rules(result)
    if settings.report:
        write_whole(settings.report, as_markdown(result, shlex.join(settings.command), rules))
        say(f"report: {settings.report}")
    if settings.rule and result.guilty and rules:
        say(f"rule: not written, because envsmith knows {', '.join(f.rule for f in rules)}")
    elif settings.rule and result.guilty:
        write_whole(settings.rule, rule_of(result))
        say(f"rule: {settings.rule}")
    if settings.as_json:
        print_out(dumps(as_json(result, rules)))
    else:
        print_answer(as_text(result, rules))
    return _EXIT[status_of(result)]


def _ends(settings: BisectFlags, trials: Trials, index: PackageIndex) -> tuple[PackageSet, PackageSet]:
    python = minor_of(settings.python) if settings.python else running_interpreter().minor
    files = [path.absolute() for path in settings.requirements]
    if settings.project:
        part = ProjectPart(extras=settings.extra, groups=settings.group)
        files.append(write_requirements(settings.project, part, python, trials.folder))
    if files:
        past = Past(files=tuple(map(str, files)), python=python, trials=trials)
        return ends_in_time(past, settings.good, settings.bad, index, say)
    if not settings.good or not settings.bad:
        raise UsageError(
            "Cannot search for the culprit: two ends are needed.",
            hint="Give --good and --bad, or -r FILE or --project DIR to search by time.",
        )
    good, bad = (read_end(each, python, trials.uv) for each in (settings.good, settings.bad))
    if good == bad:
        raise UsageError(
            "Cannot search for the culprit: both ends have the same packages.",
            hint="Look at what else changed: the code, the driver, the machine.",
        )
    return good, bad
