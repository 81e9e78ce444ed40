"""``envsmith solve``: one cell, or all, or a refusal that helps."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from envsmith.cli.console import dumps, table
from envsmith.cli.options import RequestFlags, group, option, takes
from envsmith.errors import UnsatisfiableError, UsageError

if TYPE_CHECKING:
    from envsmith.model.cell import Cell
    from envsmith.model.finding import Refusal, Repair, Solution


@dataclass(frozen=True, kw_only=True, slots=True)
class SolveFlags:
    """What ``solve`` is told."""

    request: RequestFlags = group(RequestFlags)
    every: bool = option("--all", is_flag=True, help="Every valid cell, best first.")
    limit: int | None = option("--limit", type=click.IntRange(min=1), help="With --all: stop after this many.")
    as_json: bool = option("--json", is_flag=True, help="One JSON object (with --all one object a line).")


@click.command()
@takes(SolveFlags)
def solve(settings: SolveFlags) -> int:
    """Choose one release per component, newest that is known to work first.

    Preference: newest framework, newest torch that evidence supports, the default wheel of that torch, Python 3.12.
    Exit code 1 when no cell satisfies the request; the refusal names the rules, their evidence and what to change.
    """
    from envsmith import solve

    if settings.limit is not None and not settings.every:
        raise UsageError("--limit is for --all", hint="envsmith solve --all --limit 3")
    request = settings.request.request()
    try:
        if settings.every:
            return _stream(solve.cells(request), settings.limit, as_json=settings.as_json)
        solution = solve.solve(request)
    except UnsatisfiableError as error:
        return show_refusal(error, as_json=settings.as_json)
    if settings.as_json:
        click.echo(dumps(_solution_json(solution)))
    else:
        click.echo("\n".join(_solution_lines(solution)))
    return 0


def _stream(cells: object, limit: int | None, *, as_json: bool) -> int:
    count = 0
    for cell in itertools.islice(cells, limit):  # type: ignore[call-overload]
        click.echo(dumps(cell.to_json(), compact=True) if as_json else str(cell.id))
        count += 1
    return 0 if count else 1


def _solution_json(solution: Solution) -> dict[str, object]:
    return {
        "status": "solved",
        "cell": solution.cell.to_json(),
        "why": list(solution.why),
        "alternatives": [cell.to_json() for cell in solution.alternatives],
        "warnings": [finding.to_json() for finding in solution.warnings],
    }


def cell_lines(cell: Cell) -> list[str]:
    """Return the cell as a small table under its id."""
    return [f"cell {click.style(str(cell.id), bold=True)}", table(list(cell.components.items()))]


def _solution_lines(solution: Solution) -> list[str]:
    lines = cell_lines(solution.cell)
    if solution.why:
        lines += ["why", *(f"  {sentence}" for sentence in solution.why)]
    for finding in solution.warnings:
        lines.append(f"{click.style('warning', fg='yellow')}: {finding.message} [{finding.rule}]")
    if solution.alternatives:
        lines += ["alternatives", *(f"  {cell.id}" for cell in solution.alternatives)]
    return lines


def show_refusal(error: UnsatisfiableError, *, as_json: bool) -> int:
    """Print why no cell satisfies the request, on stdout because it is the answer, and return the exit code."""
    if error.refusal is None:
        raise error
    click.echo(dumps(refusal_json(error.refusal)) if as_json else "\n".join(refusal_lines(error.refusal)))
    return error.exit_code


def refusal_json(refusal: Refusal) -> dict[str, object]:
    """Return the refusal in the shape of ``solve --json``."""
    return {
        "status": "unsatisfiable",
        "conflict": [member.to_json() for member in refusal.conflict],
        "repairs": [repair.to_json() for repair in refusal.repairs],
    }


def refusal_lines(refusal: Refusal) -> list[str]:
    """Say why not, on what evidence, and what would work."""
    lines = [f"{click.style('no cell satisfies this request', fg='red', bold=True)}, because together:"]
    for member in refusal.conflict:
        lines.append(f"  - {member.message}" + ("" if member.rule.startswith("request:") else f"  [{member.rule}]"))
        lines += [f"      {evidence}" for evidence in member.evidence[:2]]
    if refusal.repairs:
        lines.append("what works instead:")
        lines += [f"  - {_repair_line(repair)}" for repair in refusal.repairs]
    return lines


def _repair_line(repair: Repair) -> str:
    steps = ", ".join(f"{c.component} {c.old or '(any)'} -> {c.new or '(left out)'}" for c in repair.changes)
    return f"{repair.message or steps}  => {repair.cell.id}"
