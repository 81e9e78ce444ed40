"""Findings as text, SARIF and GitHub annotations; one shape, four formats, wherever findings are printed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import click

from envsmith.cli.console import clean, dumps
from envsmith.model.finding import Finding, Judgement
from envsmith.model.rule import Severity

__all__ = ["FORMATS", "annotation", "finding_lines", "judgement_text", "sarif"]

FORMATS = ("text", "json", "sarif", "github")
_COLOUR = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
# The commands of docs.github.com, "Workflow commands"; the levels of SARIF 2.1.0, section 3.27.10, are our own words.
_GITHUB = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def finding_lines(finding: Finding) -> list[str]:
    """One finding for a person: what, the symptom they see, what to do, on what evidence; a note only says what."""
    label = click.style(finding.severity.value, fg=_COLOUR[finding.severity], bold=True)
    lines = [f"{label}: {clean(finding.message)} [{finding.rule}]"]
    if finding.severity is Severity.NOTE:
        return lines
    if finding.symptom:
        lines.append(f"  symptom: {clean(finding.symptom)}")
    if finding.inferred:
        lines.append("  inferred: " + ", ".join(f"{k} {v}" for k, v in finding.inferred.items()))
    if finding.where:
        lines.append(f"  seen: {clean(finding.where)}")
    if finding.fix:
        lines.append(f"  fix: {clean(finding.fix)}")
    lines += [f"  evidence: {e}" for e in finding.evidence[:3]]
    return lines


def judgement_text(judgement: Judgement, form: str) -> str:
    """The whole judgement in one of :data:`FORMATS` but ``json``."""
    if form == "sarif":
        return dumps(sarif(judgement.findings))
    if form == "github":
        return "\n".join(annotation(f) for f in judgement.findings)
    colour = {"ok": "green", "bad": "red", "unknown": "yellow"}[judgement.status]
    lines = [f"status: {click.style(judgement.status, fg=colour, bold=True)}"]
    for finding in judgement.findings:
        lines += finding_lines(finding)
    if judgement.inferred:
        lines.append("inferred: " + ", ".join(f"{k} {v}" for k, v in judgement.inferred.items()))
    lines += [f"not known: {reason}" for reason in judgement.unknown]
    if judgement.repair:
        lines.append("repair (fewest components changed):")
        lines += [
            f"  {c.component}: {c.old or '(not given)'} -> {c.new or '(left out)'}" for c in judgement.repair.changes
        ]
        lines.append(f"  => {judgement.repair.cell.id}")
    return "\n".join(lines)


def _with_fix(finding: Finding) -> str:
    return f"{finding.message.rstrip('.')}. Fix: {finding.fix}" if finding.fix else finding.message


def _place(where: str | None) -> tuple[str, int | None] | None:
    """File and line of ``where``; ``None`` when that is no file: stdin (``-``), or a text inside a snapshot (``FILE: NAME``)."""
    if where is None or where.startswith("-:") or where == "-" or ": " in where:
        return None
    file, colon, line = where.rpartition(":")
    return (file, int(line)) if colon and line.isdecimal() else (where, None)


def _escaped(text: str, *, value: bool = False) -> str:
    """As GitHub asks for the text of a workflow command, or for the ``value`` of one of its properties."""
    for raw, escaped in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A"), *([(":", "%3A"), (",", "%2C")] if value else [])):
        text = text.replace(raw, escaped)
    return text


def annotation(finding: Finding) -> str:
    """A GitHub workflow command, shown at the line where the finding has one."""
    place = _place(finding.where)
    properties = {"file": place[0], "line": place[1]} if place else {}
    properties["title"] = f"envsmith {finding.rule}"
    shown = ",".join(f"{k}={_escaped(str(v), value=True)}" for k, v in properties.items() if v is not None)
    return f"::{_GITHUB[finding.severity]} {shown}::{_escaped(_with_fix(finding))}"


def _location(file: str, line: int | None) -> dict[str, object]:
    """A SARIF location; a relative path is one below the root of the sources."""
    relative = not Path(file).is_absolute()
    artifact = {"uri": quote(file), "uriBaseId": "%SRCROOT%"} if relative else {"uri": Path(file).as_uri()}
    region = {"region": {"startLine": line}} if line else {}
    return {"physicalLocation": {"artifactLocation": artifact, **region}}


def sarif(findings: Iterable[Finding]) -> dict[str, object]:
    """A SARIF 2.1.0 log with one run; the rule's evidence is the help text, ``where`` the place that code scanning shows."""
    from envsmith import __version__

    results = []
    rules: dict[str, dict[str, object]] = {}
    for finding in findings:
        rules.setdefault(
            finding.rule,
            {
                "id": finding.rule,
                "shortDescription": {"text": finding.message},
                "help": {"text": "\n".join(map(str, finding.evidence))},
            },
        )
        place = _place(finding.where)
        results.append(
            {
                "ruleId": finding.rule,
                "level": finding.severity.value,
                "message": {"text": _with_fix(finding)},
                "properties": {"components": dict(finding.components)},
                **({"locations": [_location(*place)]} if place else {}),
            }
        )
    driver = {"name": "envsmith", "version": __version__, "rules": list(rules.values())}
    return {
        "version": "2.1.0",
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
