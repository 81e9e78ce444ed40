"""One record through ``check``, in three rounds that know more and more; caught when a finding names what its culprit names.

``env``
    what the reporter wrote into the structured fields.
``report``
    the same, and what the doctor's readers take from the pasted report.
``culprit``
    the same, and where a component or a fact that the culprit names was left unsaid, one state inside the culprit's range. A framework whose
    release nobody told is the newest of the report's day. Where the culprit's range holds several releases, or the framework's release decides and
    nobody told it, releases of that range are tried until one is caught: the round asks whether the rule is known.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envsmith.doctor.read.lines import component_of
from envsmith.doctor.signatures import catalogue
from envsmith.doctor.stated_environment import check_environment, facts_of, findings_of
from envsmith.model.finding import Finding, Judgement
from envsmith.model.rule import Severity
from envsmith.model.version import Spec
from envsmith.solver import default_solver
from measuring.culprits import add_culprit, culprits, newest_then, ranges
from measuring.environments import Told, add_report, read_env

__all__ = ["Row", "grave", "judge", "judge_sets", "names_culprit"]

# Releases that are tried of one component when nobody told which it was.
_TRIED = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One record judged. ``env``, ``report``, ``filled`` hold the rule that caught it, or ``None``; ``how`` says what the third round filled in.

    ``error`` is true when an error caught it, ``exact`` when its rule stands for the record's cause in the taxonomy.
    """

    record: Mapping[str, Any]
    wanted: frozenset[str]
    told: Mapping[str, tuple[str, ...]]
    env: str | None
    report: str | None
    filled: str | None
    how: str
    error: bool
    exact: bool
    reason: str
    findings: tuple[Finding, ...]
    env_findings: tuple[Finding, ...]
    sets: tuple[Mapping[str, str], ...]

    @property
    def versioned(self) -> bool:
        """Whether the culprit is a matter of versions alone."""
        return bool(self.wanted) and all(name in default_solver().compiled.roles for name in self.wanted)


def judge_sets(told: Told) -> list[Judgement]:
    """``check`` on every alternative, with the facts."""
    return [check_environment(given, copy.deepcopy(told.facts), told.platform) for given in told.sets() or [{}]]


def grave(judgements: Iterable[Judgement], *, worst: bool = False) -> list[Finding]:
    """Errors and warnings, or errors alone."""
    wanted = {Severity.ERROR} if worst else {Severity.ERROR, Severity.WARNING}
    return [f for j in judgements for f in j.findings if f.severity in wanted]


def names_culprit(findings: Iterable[Finding], wanted: frozenset[str]) -> str | None:
    """The rule of the first finding that names everything the culprit names."""
    for finding in findings:
        named = {"torch" if n == "cuda" else n for n in finding.components}
        if wanted and wanted <= named:
            return finding.rule
    return None


def judge(record: Mapping[str, Any]) -> Row:
    """All three rounds."""
    wanted = culprits(record)
    told = read_env(record.get("env") or {})
    first = judge_sets(told)
    env = names_culprit(grave(first), wanted)
    report = env
    if str(record.get("env_report") or "").strip():
        add_report(told, str(record["env_report"]))
        report = names_culprit(grave(judge_sets(told)), wanted) or env
    add_culprit(told, record.get("culprit") or {})
    if "gpu" in wanted and str(record.get("stage", "")).startswith("comm") and told.facts.gpu_count is None:
        told.facts.gpu_count = max(len(told.facts.gpus), 2)  # a failure of communication needs two
    second, how = _third(told, record, wanted)
    if how == "nothing":
        filled = None
    else:
        filled = names_culprit([f for f in grave(second) if _cause(f, told) == record["cause_key"]], wanted)
        filled = filled or names_culprit(grave(second), wanted)
    return Row(
        record=record,
        wanted=wanted,
        told=told.versions,
        env=env,
        report=report,
        filled=filled,
        how=how,
        error=filled is not None and names_culprit(grave(second, worst=True), wanted) is not None,
        exact=filled is not None
        and any(_cause(f, told) == record["cause_key"] for f in grave(second) if names_culprit([f], wanted)),
        reason="" if filled else _reason(wanted, told, second),
        findings=tuple(f for j in second for f in j.findings),
        env_findings=tuple(f for j in first for f in j.findings),
        sets=tuple(told.sets()),
    )


def _third(told: Told, record: Mapping[str, Any], wanted: frozenset[str]) -> tuple[list[Judgement], str]:
    """The judgements of the third round, and what had to be filled in for them."""
    judged = judge_sets(told)
    if names_culprit(grave(judged), wanted) or not wanted:
        return judged, "culprit"
    framework = component_of(str(record.get("framework", ""))) or ""
    for name in [n for n, v in told.versions.items() if v == ("*",)] + [framework]:
        if name in default_solver().compiled.roles and told.versions.get(name, ("*",)) == ("*",):
            release = newest_then(name, record)
            told.versions[name] = (release,) if release else ("*",)
    dated = judge_sets(told)
    if _same(grave(dated), wanted, told, record):
        return dated, "newest release of the day"
    for name, version in _tries(told, record, framework):
        trial = copy.deepcopy(told)
        trial.versions[name] = (version,)
        tried = judge_sets(trial)
        if _same(grave(tried), wanted, trial, record):
            told.versions[name] = (version,)
            return tried, f"some release of {name} ({version})"
    return dated, "nothing"


def _same(findings: Sequence[Finding], wanted: frozenset[str], told: Told, record: Mapping[str, Any]) -> bool:
    """Whether a finding names the culprit and is of the record's cause: where releases are tried, a name alone may be chance."""
    return any(names_culprit([f], wanted) and _cause(f, told) == record["cause_key"] for f in findings)


def _tries(told: Told, record: Mapping[str, Any], framework: str) -> Iterator[tuple[str, str]]:
    """Releases inside the culprit's ranges, then of the framework and of the companions that it is built with, where ``env`` names none."""
    stated = read_env(record.get("env") or {}).versions
    spelt = dict(ranges({str(k): str(v) for k, v in (record.get("culprit") or {}).items()}))
    for name in dict.fromkeys([*spelt, framework, "transformer-engine", *told.versions]):
        if name not in default_solver().compiled.versions or stated.get(name, ("*",)) != ("*",):
            continue
        if told.versions.get(name) == ("none",):
            continue
        for version in _some_of(name, spelt.get(name, "")):
            yield name, version


def _some_of(name: str, text: str) -> list[str]:
    """The last release of each minor series, at most :data:`_TRIED`, inside a range where ``text`` is one; one torch for all its builds."""
    try:
        spec = Spec.parse(text) if any(c in text for c in "<>=") else None
    except ValueError:
        spec = None
    if spec is None and any(c.isdigit() for c in text):
        return []
    listed = list(dict.fromkeys(v.split("+")[0] for v in default_solver().compiled.versions[name]))
    series = {".".join(v.split(".")[:2]): v for v in listed if spec is None or spec.contains(v)}
    return list(series.values())[::-1][:_TRIED]


def _cause(finding: Finding, told: Told) -> str:
    """The cause of the study that a finding's rule stands for."""
    row = catalogue().taxonomy.get(finding.rule)
    if row is not None:
        return str(row.get("cause", ""))
    first = (told.sets() or [{}])[0]
    own = findings_of(facts_of(first, copy.deepcopy(told.facts)))
    return next((d.taxonomy.cause for d in own if d.finding.rule == finding.rule), "")


def _reason(wanted: frozenset[str], told: Told, judged: Sequence[Judgement]) -> str:
    """Why nothing caught it: nothing was named, only a note tells it, or there is no rule."""
    if not wanted:
        return "the culprit names no component and no fact"
    told_names = {"torch" if n == "cuda" else n for n, found in told.versions.items() if found != ("*",)}
    known = default_solver().compiled.roles
    if missing := sorted(n for n in wanted - told_names if n in known):
        return f"too thin: no version of {', '.join(missing)}"
    notes = [f for j in judged for f in j.findings if f.severity is Severity.NOTE]
    if rule := names_culprit(notes, wanted):
        return f"told as a note only: {rule}"
    return "no rule"
