"""Findings as text, SARIF and GitHub annotations; one shape, four formats, wherever findings are printed."""

from __future__ import annotations

from collections.abc import Iterable

import click

from envsmith.cli.console import clean, dumps
from envsmith.model.finding import Finding, Judgement
from envsmith.model.rule import Severity

__all__ = ["FORMATS", "finding_lines", "judgement_text", "sarif"]

FORMATS = ("text", "json", "sarif", "github")
_COLOUR = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
# SARIF 2.1.0 section 3.27.10 and GitHub's workflow commands name the same three levels.
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
    if finding.fix:
        lines.append(f"  fix: {clean(finding.fix)}")
    lines += [f"  evidence: {e}" for e in finding.evidence[:3]]
    return lines


def judgement_text(judgement: Judgement, form: str) -> str:
    """The whole judgement in one of :data:`FORMATS` but ``json``."""
    if form == "sarif":
        return dumps(sarif(judgement.findings))
    if form == "github":
        return "\n".join(_annotation(f) for f in judgement.findings)
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


def _annotation(finding: Finding) -> str:
    """A GitHub workflow command; ``%``, CR and LF are escaped as GitHub asks."""
    text = _with_fix(finding)
    for raw, escaped in (("%", "%25"), ("\r", "%0D"), ("\n", "%0A")):
        text = text.replace(raw, escaped)
    return f"::{_GITHUB[finding.severity]} title=envsmith {finding.rule}::{text}"


def sarif(findings: Iterable[Finding]) -> dict[str, object]:
    """A SARIF 2.1.0 log with one run; the rule's evidence is the help text."""
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
        results.append(
            {
                "ruleId": finding.rule,
                "level": {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}[
                    finding.severity
                ],
                "message": {"text": _with_fix(finding)},
                "properties": {"components": dict(finding.components)},
            }
        )
    driver = {"name": "envsmith", "version": __version__, "rules": list(rules.values())}
    return {
        "version": "2.1.0",
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }
