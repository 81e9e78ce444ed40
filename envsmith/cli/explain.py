"""``envsmith explain``: a cell, a rule, or an upgrade."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import click

from envsmith.cli.console import dumps, evidence_lines, print_answer, print_out
from envsmith.cli.declare import argument, flag, option, several, verb
from envsmith.cli.values import parse_component, parse_platform
from envsmith.errors import UsageError
from envsmith.frameworks import EXAMPLE
from envsmith.knowledge.graph.load import components
from envsmith.model.cell import CellId
from envsmith.solver.explain import Explanation, explain_cell, explain_rule, explain_upgrade


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainFlags:
    """The options of ``explain``."""

    subject: str | None = argument(required=False, metavar="[CELL|RULE]")
    origin: str | None = option("--from", "CELL", "The same as an argument.", hidden=True)
    targets: tuple[str, ...] = several("--to", "COMPONENT[SPEC]", "What an upgrade of CELL should have; repeatable.")
    platform: str = option("PLATFORM", "For a rule: linux-64 or linux-aarch64.", default="linux-64")
    as_json: bool = flag("--json", "One JSON object.")


@verb(
    ExplainFlags,
    "envsmith explain ds0.19.8-torch2.13.0-cu130-py312",
    f"envsmith explain {EXAMPLE}-elastic-log",
    "envsmith explain ds0.14.0-torch2.3.1-cu121-py311 --to 'torch>=2.9'",
)
def explain(settings: ExplainFlags) -> int:
    """Explain each release of a CELL, what a RULE says and kills, or what an upgrade (CELL --to SPEC) would change."""
    subject = settings.origin or settings.subject
    if settings.origin is not None or settings.targets:
        if subject is None or not settings.targets or None not in {settings.origin, settings.subject}:
            raise UsageError(
                "Cannot explain an upgrade: it needs one CELL and --to COMPONENT[SPEC].",
                hint="Type for example: envsmith explain ds0.14.0-torch2.3.1-cu121-py311 --to 'torch>=2.9'.",
            )
        table = components()
        pairs = [parse_component(text, table, flag="--to") for text in settings.targets]
        answer = explain_upgrade(subject, {component.name: spec for component, spec in pairs})
    elif subject is None:
        raise UsageError(
            "Cannot explain anything: no cell and no rule is named.",
            hint=f"Name a cell (ds0.19.8-torch2.13.0-cu130-py312) or a rule ({EXAMPLE}-elastic-log).",
        )
    else:
        try:
            CellId.parse(subject)
        except ValueError:
            _refuse_component(subject)
            answer = explain_rule(subject, parse_platform(settings.platform))
        else:
            answer = explain_cell(subject)
    if settings.as_json:
        print_out(dumps(answer.to_json()))
    else:
        print_answer("\n".join(_lines(answer)))
    return 0


def _refuse_component(subject: str) -> None:
    """Refuse ``explain torch`` and ``explain torch==2.9``: the answer is a cell, which names its own reasons."""
    component = components().find(re.split(r"[=<>!~@ ]", subject, maxsplit=1)[0])
    if component is not None:
        raise UsageError(
            f"Cannot explain {subject!r}: it is a component, and envsmith explains cells and rules.",
            hint=f"Run envsmith solve {shlex.quote(subject)} for a cell with its reasons, or envsmith check "
            f"{component.name}==VERSION for what speaks against a release.",
        )


def _lines(answer: Explanation) -> list[str]:
    lines = [click.style(answer.subject, bold=True), *(f"  {sentence}" for sentence in answer.sentences)]
    if answer.members:
        lines.append("rules")
        for member in answer.members:
            lines.append(f"  {member.message} [{member.rule}]")
            lines += evidence_lines(member.evidence, indent="    ", everything=True)
    if answer.evidence:
        lines += ["evidence", *evidence_lines(answer.evidence, indent="  ", everything=True)]
    for repair in answer.repairs:
        steps = ", ".join(f"{c.component} {c.old or '(none)'} -> {c.new or '(left out)'}" for c in repair.changes)
        lines.append(f"works: {steps} => {repair.cell.id}")
    return lines
