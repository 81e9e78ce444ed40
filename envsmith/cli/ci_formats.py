"""Findings of ``envsmith ci check`` in the forms that CI systems read: JSON, SARIF, JUnit, GitHub annotations, a step summary."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from envsmith.ci.check import Located
from envsmith.ci.since import Comparison
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity

__all__ = ["junit", "sarif", "summary", "to_json", "workflow_commands"]

_GLYPH = {Severity.ERROR: "❌", Severity.WARNING: "⚠️", Severity.NOTE: "💡"}


def to_json(library: str, found: Sequence[Located], comparison: Comparison | None) -> str:
    """One object: status, findings, and the comparison with the base when there is one."""
    data: dict[str, object] = {
        "library": library,
        "status": "bad" if any(f.finding.severity is Severity.ERROR for f in found) else "ok",
        "findings": [f.to_json() for f in found],
    }
    if comparison is not None:
        data["since"] = comparison.to_json()
    return json.dumps(data, indent=2, ensure_ascii=False)


def _at_its_line(located: Located) -> Finding:
    return dataclasses.replace(located.finding, where=f"{located.file}:{located.line}")


def sarif(found: Sequence[Located]) -> str:
    """SARIF 2.1.0 with a place for every result; code scanning shows them at the line."""
    from envsmith.cli.findings import sarif as plain

    return json.dumps(plain(map(_at_its_line, found)), indent=2, ensure_ascii=False)


def workflow_commands(found: Sequence[Located]) -> str:
    """Workflow commands that GitHub shows at the lines."""
    from envsmith.cli.findings import annotation

    return "\n".join(annotation(_at_its_line(located)) for located in found)


def junit(library: str, found: Sequence[Located]) -> str:
    """A test case per finding: an error fails, a warning or note passes with its text in ``system-out``; one passing case when there is none."""
    errors = sum(f.finding.severity is Severity.ERROR for f in found)
    suite = ET.Element(
        "testsuite", name="envsmith ci check", tests=str(max(len(found), 1)), failures=str(errors), errors="0"
    )
    for located in found:
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
    if not found:
        ET.SubElement(suite, "testcase", classname=library, name="declared ranges agree with the version graph")
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode")


def summary(library: str, found: Sequence[Located], comparison: Comparison | None) -> str:
    """Markdown for ``$GITHUB_STEP_SUMMARY``."""
    lines = [f"### envsmith: {library}", ""]
    if not found:
        lines += ["Declared ranges agree with the version graph.", ""]
    else:
        lines += ["| | where | finding | fix |", "|---|---|---|---|"]
        for located in found:
            finding = located.finding
            cells = (f"`{located.file}:{located.line}`", f"{finding.message} (`{finding.rule}`)", finding.fix or "")
            lines.append(
                "| "
                + " | ".join([_GLYPH[finding.severity], *(c.replace("|", "\\|").replace("\n", " ") for c in cells)])
                + " |"
            )
        lines.append("")
    if comparison is not None:
        lines.append(
            f"Since `{comparison.base}`: {comparison.before} -> {comparison.after} combinations; asks for a **{comparison.asks}** release."
        )
        for word, values in (("no longer possible", comparison.lost), ("now possible", comparison.gained)):
            lines += [f"- {word}: {name} {', '.join(listed)}" for name, listed in values.items()]
        lines += [f"- communication API: {what}" for what in comparison.breaks]
        lines.append("")
    return "\n".join(lines)
