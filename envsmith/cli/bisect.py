"""``envsmith bisect``: which package broke a command that worked."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envsmith import solver
from envsmith.base.files import now, write_whole
from envsmith.base.json_types import JsonDict
from envsmith.base.text import counted
from envsmith.cli.console import dumps, print_answer, print_out, say
from envsmith.cli.declare import (
    EXISTING_FILE,
    EXISTING_FOLDER,
    FILE,
    FOLDER,
    Section,
    argument,
    flag,
    option,
    verb,
)
from envsmith.doctor.bisect.between import Guilty, Search, SearchResult
from envsmith.doctor.bisect.changes import ChangeGroup
from envsmith.doctor.bisect.ends import Past, ends_in_time, read_end, write_requirements
from envsmith.doctor.bisect.journal import open_journal
from envsmith.doctor.bisect.release_steps import ReleaseStep
from envsmith.doctor.bisect.trials import PackageSet, Trials, check_command
from envsmith.doctor.read.lines import component_of
from envsmith.errors import EnvsmithError, UsageError
from envsmith.lock.index.index import PackageIndex, find_index
from envsmith.lock.index.interpreters import running_interpreter
from envsmith.model.finding import Finding
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
    good: str | None = _ENDS.option(
        "--good", "END|DAY", "An environment, freeze or lock with which it passes; by time a day."
    )
    bad: str | None = _ENDS.option("--bad", "END|DAY", "One with which it fails; by time a day (default: now).")
    requirements: tuple[Path, ...] = _ENDS.option(
        "-r",
        "--requirements",
        "FILE",
        "Search by time: requirements.txt or pyproject.toml as it was resolved then (repeatable).",
        multiple=True,
        type=EXISTING_FILE,
    )
    project: Path | None = _ENDS.option(
        "--project",
        "DIR",
        "Search by time: what the project in a folder requires, as it was resolved then.",
        type=EXISTING_FOLDER,
    )
    extra: tuple[str, ...] = _ENDS.option("--extra", "NAME", "With this extra of the project.", multiple=True)
    group: tuple[str, ...] = _ENDS.option(
        "--group", "NAME", "With this dependency group of the project.", multiple=True
    )
    python: str | None = _ENDS.option("--python", "3.N", "The Python of ends that name none (default: this one).")
    tries: int = _TRIALS.option(
        "--tries", "N", "Run each set N times, for a command that fails now and then.", type=int, default=1
    )
    timeout: float | None = _TRIALS.option(
        "--timeout",
        "SECONDS",
        "End a run after this long, and count it as failed (default: 5 times the slower end, 60 at least).",
        type=float,
    )
    folder: Path = _TRIALS.option(
        "--folder", "DIR", "Where trials are kept; a second run goes on.", type=FOLDER, default="envsmith-bisect"
    )
    report: Path | None = option("--report", "FILE.md", "Write a report for an issue tracker.", type=FILE)
    rule: Path | None = option("--rule", "FILE.yaml", "Write the rule that the graph lacks.", type=FILE)
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
    if settings.rule and result.guilty and not rules:
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
    return read_end(settings.good, python, trials.uv), read_end(settings.bad, python, trials.uv)


# What a search found, as text, JSON, a Markdown report for an issue, and a rule for the graph.

_MOST = 8


def known_rules(result: SearchResult) -> tuple[Finding, ...]:
    """Return the findings of the version graph at the bad end that name a culprit and that the good end does not have."""
    names = {component_of(name) for guilty in result.guilty for group in guilty.groups for name in group.names}
    before = {finding.rule for finding in _judged(result.good)}
    return tuple(f for f in _judged(result.bad) if f.rule not in before and names & set(f.components))


def as_text(result: SearchResult, rules: tuple[Finding, ...] = ()) -> str:
    """Return the answer for a terminal."""
    lines = [line for guilty in result.guilty for line in _guilty_lines(guilty)]
    if result.within:
        names = ", ".join(group.lead.name for group in result.within[:_MOST])
        unnamed = len(result.within) - _MOST
        lines.append(
            f"one of {len(result.within)} groups: {names}"
            + (f" and {unnamed} more" if unnamed > 0 else "")
            + ". The sets "
            "between them could not be judged."
        )
    if result.guilty and not result.explains:
        lines.append("Without them the command was not seen to pass: something else breaks it too.")
    lines += [f"envsmith knows it: {f.rule}, {f.message}" for f in rules[:3]]
    lines += [f"skipped: {text}" for text in result.skipped[:3]]
    if len(result.skipped) > 3:
        lines.append(f"skipped: {len(result.skipped) - 3} more")
    lines.append(
        f"{counted(result.trials, 'set')} of packages tried, {counted(result.runs, 'run')} now, {len(result.groups)} groups, "
        f"{result.seconds:.0f} s to make the environments"
    )
    return "\n".join(lines)


def as_json(result: SearchResult, rules: tuple[Finding, ...] = ()) -> JsonDict:
    """Return the answer as one object."""
    return {
        "status": status_of(result),
        "culprits": [
            {
                "packages": [_change_json(group) for group in guilty.groups],
                "steps": [_step_json(step) for step in guilty.steps],
                "error": guilty.error,
                "alone": guilty.alone,
                "in_the_way": guilty.is_in_the_way,
            }
            for guilty in result.guilty
        ],
        "within": [_change_json(group) for group in result.within],
        "explains": result.explains,
        "groups": len(result.groups),
        "positions": [[result.groups.index(group) for group in guilty.groups] for guilty in result.guilty],
        "rules": [finding.rule for finding in rules],
        "trials": result.trials,
        "runs": result.runs,
        "skipped": list(result.skipped),
        "rule": None if rules or not result.guilty else rule_of(result),
    }


def as_markdown(result: SearchResult, command: str, rules: tuple[Finding, ...] = ()) -> str:
    """Return a report for somebody's issue tracker: what breaks, how it was shown, and the two neighbouring sets."""
    parts = ["## What breaks", "", as_text(result, rules), "", "## How it was shown", "", "```console", f"$ {command}"]
    parts += [*(guilty.error for guilty in result.guilty), "```", ""]
    parts += [f"Python {result.bad.python}. These packages pass:", "", "```", *_pins(result.good), "```", ""]
    changed = [str(change) for guilty in result.guilty for group in guilty.groups for change in group.changes]
    parts += ["With these changes alone the command fails:", "", "```", *changed, "```", ""]
    return "\n".join(parts)


def rule_of(result: SearchResult) -> str:
    """Return the rule that the graph lacks, as YAML, with the trials as its evidence."""
    guilty = result.guilty[0]
    bounds = {step.name: _bound(step) for step in guilty.steps}
    bounds |= {g.lead.name: f"=={g.lead.bad}" for g in guilty.groups if g.lead.name not in bounds and g.lead.bad}
    partner = _partner(guilty, result)
    when = {**bounds, **({partner: f"=={result.bad.pins[partner]}"} if partner else {})}
    inner = ", ".join(f'{name}: "{spec}"' for name, spec in when.items())
    remedies = " or ".join(step.remedy for step in guilty.steps) or f"no {guilty.groups[0].lead.name}"
    name = "-".join(list(when)[:2])
    source = f"envsmith bisect, {result.trials} trials on Python {result.bad.python}"
    return "\n".join(
        [
            "rules:",
            f"- id: {name}",
            "  kind: conflicts",
            f"  when: {{{inner}}}",
            "  stage: import",
            f"  symptom: {_quoted(guilty.error)}",
            f"  cause: {_quoted(f'Result by trial: {_causes(guilty)}')}",
            f"  fix: {_quoted(f'Use {remedies}.')}",
            "  evidence:",
            f"  - {{kind: measured, source: {_quoted(source)}, date: {now().date().isoformat()}}}",
            "",
        ]
    )


def status_of(result: SearchResult) -> str:
    """Return ``found``, ``range`` or ``equal``."""
    if not result.groups:
        return "equal"
    return "found" if result.guilty and not result.within else "range"


def _guilty_lines(guilty: Guilty) -> Iterable[str]:
    together = " and ".join(str(group) for group in guilty.groups)
    head = "in the way of going back" if guilty.is_in_the_way else "culprit"
    yield f"{head}: {together}" + (" (only together)" if len(guilty.groups) > 1 else "")
    yield f"  error: {guilty.error}"
    for step in guilty.steps:
        if step.skipped:
            yield f"  {step.name}: passes with {step.good}, fails with {step.bad}; not to be judged: {', '.join(step.skipped[:5])}"
        else:
            yield f"  {step.name}: last good {step.good}, first bad {step.bad}"
    if guilty.alone:
        yield (
            "  confirmed: with it alone the command fails"
            if len(guilty.groups) == 1
            else "  confirmed: with them alone the command fails"
        )
    remedies = [step.remedy for step in guilty.steps]
    if remedies:
        yield f"  remedy: {' or '.join(remedies)}"


def _causes(guilty: Guilty) -> str:
    return ", ".join(f"{s.name} {s.good.version} passes and {s.bad.version} fails" for s in guilty.steps) or ", ".join(
        str(group.lead) for group in guilty.groups
    )


def _partner(guilty: Guilty, result: SearchResult) -> str | None:
    """Return the package that the error names beside the culprits: what broke it is not what shows it."""
    names = {name for group in guilty.groups for name in group.names}
    words = guilty.error.replace("-", "_").lower()
    return next((n for n in sorted(result.bad.pins) if n not in names and n.replace("-", "_") in words), None)


def _bound(step: ReleaseStep) -> str:
    operator = "<=" if step.remedy.startswith(f"{step.name}>") else ">="
    return f"{operator}{step.bad.version}"


def _change_json(group: ChangeGroup) -> JsonDict:
    lead = group.lead
    with_it = [change.name for change in group.changes[1:]]
    return {"name": lead.name, "good": lead.good, "bad": lead.bad, "with": with_it}


def _step_json(step: ReleaseStep) -> JsonDict:
    return {
        "name": step.name,
        "last_good": {"version": step.good.version, "day": step.good.day},
        "first_bad": {"version": step.bad.version, "day": step.bad.day},
        "skipped": list(step.skipped),
        "remedy": step.remedy,
    }


def _pins(packages: PackageSet) -> list[str]:
    return [f"{name}=={version}" for name, version in sorted(packages.pins.items())]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _judged(packages: PackageSet) -> tuple[Finding, ...]:
    versions = {component: v for name, v in packages.pins.items() if (component := component_of(name))}
    try:
        return tuple(solver.check({**versions, "python": packages.python}).findings)
    except EnvsmithError:
        return ()
