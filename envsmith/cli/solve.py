"""``envsmith solve``: one cell, or all, or a refusal that helps."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from envsmith.cli.console import dumps, print_answer, print_out, table
from envsmith.cli.declare import Section, group, verb
from envsmith.cli.demands import gather
from envsmith.cli.flags import RequestFlags
from envsmith.errors import UsageError
from envsmith.frameworks import EXAMPLE
from envsmith.knowledge.graph.tables import one_state
from envsmith.model.finding import UnsatisfiableError
from envsmith.solver import cells
from envsmith.solver import solve as find_cell
from envsmith.solver.words import MOST_EVIDENCE

if TYPE_CHECKING:
    from envsmith.model.cell import Cell
    from envsmith.model.finding import Conflict, Refusal, Solution


# Headings of ``--help``.
_OUTPUT = Section("Output")


@dataclass(frozen=True, kw_only=True, slots=True)
class SolveFlags:
    """The options of ``solve``."""

    request: RequestFlags = group(RequestFlags, "Request")
    every: bool = _OUTPUT.flag("--all", "Every valid cell, best first.")
    limit: int | None = _OUTPUT.option("With --all: stop after this many.", type=click.IntRange(min=1))
    as_json: bool = _OUTPUT.flag("--json", "One JSON object (with --all one object a line).")


@verb(
    SolveFlags,
    f"envsmith solve {EXAMPLE}",
    f"envsmith solve {EXAMPLE} transformers trl --driver 535.183.01 --gpu a100",
    f"envsmith solve {EXAMPLE} --torch '>=2.6,<2.10' --all --limit 3",
)
@one_state()
def solve(settings: SolveFlags) -> int:
    """Choose one release per component, newest that is known to work first.

    Preference: newest framework, newest torch that evidence supports, the default wheel of that torch, Python 3.12.
    Exit code 1 when no cell satisfies the request. The refusal names the rules, their evidence and what to change.
    """
    if settings.limit is not None and not settings.every:
        raise UsageError(
            "Cannot use --limit without --all: one cell is printed.", hint="Add --all: envsmith solve --all --limit 3."
        )
    settings.request.refuse_nothing("choose a cell", "solve")
    gathered = gather(settings.request)
    request = gathered.request()
    try:
        if settings.every:
            return _stream(cells(request), settings.limit, as_json=settings.as_json)
        solution = find_cell(request)
    except UnsatisfiableError as error:
        return show_refusal(error, as_json=settings.as_json)
    if settings.as_json:
        print_out(dumps({"status": "solved", **solution.to_json(), **gathered.inferred}))
    else:
        print_answer("\n".join(_solution_lines(solution)))
    return 0


def _stream(cells: Iterable[Cell], limit: int | None, *, as_json: bool) -> int:
    cell = None
    for cell in itertools.islice(cells, limit):
        print_out(dumps(cell.to_json(), compact=True) if as_json else str(cell.id))
    return 1 if cell is None else 0


def _solution_lines(solution: Solution) -> list[str]:
    cell = solution.cell
    lines = [f"cell {click.style(str(cell.id), bold=True)}", table(list(cell.components.items()))]
    if solution.why:
        lines += ["why", *(f"  {sentence}" for sentence in solution.why)]
    for finding in solution.warnings:
        lines.append(f"{click.style(finding.severity.value, fg='yellow')}: {finding.message} [{finding.rule}]")
    if solution.alternatives:
        lines += ["alternatives", *(f"  {each.id}" for each in solution.alternatives)]
    return lines


def show_refusal(error: UnsatisfiableError, *, as_json: bool) -> int:
    """Print why no cell satisfies the request, on stdout because it is the answer, and return the exit code."""
    if error.refusal is None:
        raise error
    if as_json:
        print_out(dumps({"status": "unsatisfiable", **error.refusal.to_json()}))
    else:
        print_answer("\n".join(refusal_lines(error.refusal)))
    return error.exit_code


def _evidence(member: Conflict) -> list[str]:
    """Return the strongest piece of evidence, with how many more there are and the command that shows them."""
    if not member.evidence:
        return []
    further = len(member.evidence) - 1
    # As many as a conflict keeps may be fewer than there are.
    number = "more" if further + 1 >= MOST_EVIDENCE else f"{further} more"
    return [f"{member.evidence[0]}" + (f" (and {number}: envsmith explain {member.rule})" if further else "")]


def refusal_lines(refusal: Refusal) -> list[str]:
    """Say why not, on what evidence, and what would work."""
    lines = [f"{click.style('no cell satisfies this request', fg='red', bold=True)}, because together:"]
    for number, conflict in enumerate((refusal.conflict, *refusal.further)):
        lines += ["and besides, because together:"] * (number > 0)
        for member in conflict:
            lines.append(f"  - {member.message}" + ("" if member.is_wish else f"  [{member.rule}]"))
            lines += [click.style(f"      {line}", dim=True) for line in _evidence(member)]
    if refusal.repairs:
        lines.append("what works instead:")
    for repair in refusal.repairs:
        steps = ", ".join(f"{c.component} {c.old or '(any)'} -> {c.new or '(left out)'}" for c in repair.changes)
        lines.append(f"  - {repair.message or steps}  => {repair.cell.id}")
    if refusal.stopped:
        lines.append("the search stopped at its limit: there may be a shorter reason, or a nearer cell")
    return lines
