"""What a search found, as text, JSON, a Markdown report for an issue, and a rule for the graph."""

from __future__ import annotations

import json
from collections.abc import Iterable

from envsmith import solver
from envsmith.base.files import now
from envsmith.base.json_types import JsonDict
from envsmith.base.text import counted
from envsmith.doctor.bisect.between import Guilty, SearchResult
from envsmith.doctor.bisect.changes import ChangeGroup
from envsmith.doctor.bisect.release_steps import ReleaseStep
from envsmith.doctor.bisect.trials import PackageSet
from envsmith.doctor.read.lines import component_of
from envsmith.errors import EnvsmithError
from envsmith.model.finding import Finding

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
        f"{counted(result.trials, 'set')} of packages tried, {counted(result.runs, 'run')} now, {counted(len(result.groups), 'group')}, "
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
    return f"{'<=' if step.is_older else '>='}{step.bad.version}"


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
