"""Findings as text, SARIF and GitHub annotations; one shape, four formats, wherever findings are printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from envsmith.base.about import VERSION
from envsmith.base.json_types import JsonDict
from envsmith.base.text import clean, counted, table_cell
from envsmith.cli.console import Commands, dumps, evidence_lines
from envsmith.model.finding import Finding, Judgement
from envsmith.model.rule import Severity

if TYPE_CHECKING:
    from envsmith.project.ci.check import Located
    from envsmith.project.ci.since import Comparison

FORMATS = ("text", "json", "sarif", "github")
_COLOUR = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
# The commands of docs.github.com, "Workflow commands"; the levels of SARIF 2.1.0, section 3.27.10, are our own words.
_GITHUB = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def finding_lines(finding: Finding, *, everything: bool = False) -> list[str]:
    """Return one finding for a person: what, the symptom, what to do, on what evidence. A note only says what.

    One piece of evidence is shown unless ``everything`` is asked for.
    """
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
    return lines + evidence_lines(finding.evidence, everything=everything)


def judgement_text(judgement: Judgement, form: str, *, everything: bool = False) -> str:
    """Return the whole judgement in one of :data:`FORMATS` but ``json``, with ``everything`` all evidence."""
    if form != "text":
        return machine_text(judgement.findings, form)
    colour = {"ok": "green", "bad": "red", "unknown": "yellow"}[judgement.status]
    warnings = sum(finding.severity is Severity.WARNING for finding in judgement.findings)
    beside = f", {counted(warnings, 'warning')}" if warnings and judgement.status == "ok" else ""
    lines = [f"status: {click.style(judgement.status, fg=colour, bold=True)}{beside}"]
    for finding in judgement.findings:
        lines += finding_lines(finding, everything=everything)
    if judgement.inferred:
        lines.append("inferred: " + ", ".join(f"{k} {v}" for k, v in judgement.inferred.items()))
    if judgement.proof and judgement.status != "bad":
        lines.append(f"proof: {clean(str(judgement.proof))}")
    lines += [f"not known: {reason}" for reason in judgement.unknown]
    if judgement.repair:
        lines.append("repair (fewest components changed):")
        lines += [
            f"  {c.component}: {c.old or '(not given)'} -> {c.new or '(left out)'}" for c in judgement.repair.changes
        ]
        lines.append(f"  => {judgement.repair.cell.id}")
    return "\n".join(lines)


def machine_text(findings: Iterable[Finding], form: str) -> str:
    """Return findings as ``sarif``, or as the workflow commands of ``github``: both are shown at ``where``."""
    return dumps(_sarif(findings)) if form == "sarif" else Commands("\n".join(map(_annotation, findings)))


def _with_fix(finding: Finding) -> str:
    return f"{finding.message.rstrip('.')}. Fix: {finding.fix}" if finding.fix else finding.message


def _place(where: str | None) -> tuple[str, int | None] | None:
    """Return file and line of ``where``. Stdin (``-``) and a text inside a snapshot (``FILE: NAME``) are not files."""
    if where is None or where.startswith("-:") or where == "-" or ": " in where:
        return None
    file, colon, line = where.rpartition(":")
    return (file, int(line)) if colon and line.isdecimal() else (where, None)


def _escaped(text: str, *, value: bool = False) -> str:
    """Escape the text of a workflow command, or the ``value`` of one of its properties, as GitHub asks for."""
    text = clean(text)
    for raw, escaped in (("%", "%25"), ("\n", "%0A"), *([(":", "%3A"), (",", "%2C")] if value else [])):
        text = text.replace(raw, escaped)
    return text


def _annotation(finding: Finding) -> str:
    """Return a GitHub workflow command, shown at the line where the finding has one."""
    place = _place(finding.where)
    properties = {"file": place[0], "line": place[1]} if place else {}
    properties["title"] = f"envsmith {finding.rule}"
    text = ",".join(f"{k}={_escaped(str(v), value=True)}" for k, v in properties.items() if v is not None)
    return f"::{_GITHUB[finding.severity]} {text}::{_escaped(_with_fix(finding))}"


def _location(file: str, line: int | None) -> JsonDict:
    """Return a SARIF location. A relative path is one below the root of the sources."""
    relative = not Path(file).is_absolute()
    artifact: JsonDict = {"uri": quote(file), "uriBaseId": "%SRCROOT%"} if relative else {"uri": Path(file).as_uri()}
    region: JsonDict = {"region": {"startLine": line}} if line else {}
    return {"physicalLocation": {"artifactLocation": artifact, **region}}


def _sarif(findings: Iterable[Finding]) -> JsonDict:
    """Return a SARIF 2.1.0 log with one run.

    The rule's evidence is the help text, ``where`` the place that code scanning shows.
    """
    results: list[JsonDict] = []
    rules: dict[str, JsonDict] = {}
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
    driver: JsonDict = {"name": "envsmith", "version": VERSION, "rules": list(rules.values())}
    return {
        "version": "2.1.0",
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


# Findings of ``envsmith ci check`` in the forms that CI systems read: JSON, SARIF, JUnit, GitHub annotations, a step
# summary.


_GLYPH = {Severity.ERROR: "❌", Severity.WARNING: "⚠️", Severity.NOTE: "💡"}


def to_json(library: str, every: Sequence[Located], comparison: Comparison | None) -> str:
    """Return one object: status, findings, and the comparison with the base when there is one."""
    data: JsonDict = {
        "library": library,
        "status": "bad" if any(f.finding.severity is Severity.ERROR for f in every) else "ok",
        "findings": [f.to_json() for f in every],
    }
    if comparison is not None:
        data["since"] = comparison.to_json()
    return dumps(data)


def junit(library: str, every: Sequence[Located]) -> str:
    """Return a test case per finding, or one passing case.

    An error fails, a warning or note passes with its text in ``system-out``.
    """
    from xml.etree import ElementTree as ET  # no other format waits for it

    errors = sum(f.finding.severity is Severity.ERROR for f in every)
    suite = ET.Element(
        "testsuite", name="envsmith ci check", tests=str(max(len(every), 1)), failures=str(errors), errors="0"
    )
    for located in every:
        finding = located.finding
        case = ET.SubElement(
            suite,
            "testcase",
            classname=library,
            name=f"{finding.rule} ({located.file}:{located.line})",
            file=located.file,
        )
        text = "\n".join(
            [finding.message, *([f"fix: {finding.fix}"] if finding.fix else []), *map(str, finding.evidence)]
        )
        if finding.severity is Severity.ERROR:
            ET.SubElement(case, "failure", message=finding.message, type=finding.rule).text = text
        else:
            ET.SubElement(case, "system-out").text = f"{finding.severity.value}: {text}"
    if not every:
        ET.SubElement(suite, "testcase", classname=library, name="declared ranges agree with the version graph")
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + clean(ET.tostring(suite, encoding="unicode"))


def summary(library: str, every: Sequence[Located], comparison: Comparison | None) -> str:
    """Return Markdown for ``$GITHUB_STEP_SUMMARY``."""
    lines = [f"### envsmith: {library}", ""]
    if not every:
        lines += ["Declared ranges agree with the version graph.", ""]
    else:
        lines += ["| | where | finding | fix |", "|---|---|---|---|"]
        for located in every:
            finding = located.finding
            cells = (f"`{located.file}:{located.line}`", f"{finding.message} (`{finding.rule}`)", finding.fix or "")
            lines.append("| " + " | ".join([_GLYPH[finding.severity], *map(table_cell, cells)]) + " |")
        lines.append("")
    if comparison is not None:
        lines.append(
            f"Since `{comparison.base}`: {comparison.before} -> {comparison.after} combinations; "
            f"asks for a **{comparison.asks}** release."
        )
        lines += [*(f"- {line}" for line in comparison.differences), ""]
    return clean("\n".join(lines))
