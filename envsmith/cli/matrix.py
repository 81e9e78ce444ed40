"""``envsmith matrix``: the knowledge itself. ``refresh`` brings it up to date from the package index."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envsmith.cli.console import clean, say
from envsmith.cli.flags import matrix_option

if TYPE_CHECKING:
    from envsmith.matrix.refresh import Plan
    from envsmith.matrix.refresh_base import Progress

__all__ = ["matrix", "refresh"]


# Verb below `matrix` -> (module that holds a click command of the same name, one line for --help); imported when it is used.
VERBS: dict[str, tuple[str, str]] = {
    "refresh": (
        "envsmith.cli.matrix",
        "Read the package index and its artifacts, show what changed, write it with --write.",
    ),
    "run": ("envsmith.cli.matrix_run", "Run a campaign: climb the evidence ladder with many cells, record each."),
    "merge": ("envsmith.cli.matrix_data", "Take the records of campaigns into the matrix."),
    "list": ("envsmith.cli.matrix_data", "The cells that were run, how far each was proved, and when."),
    "show": ("envsmith.cli.matrix_data", "One cell: rungs, steps, symptom, records, and the commands for it."),
    "diff": ("envsmith.cli.matrix_data", "What changed between two matrix.json files, or since one."),
    "export": ("envsmith.cli.matrix_data", "matrix.json, CSV, a file a cell, badges, feed, tables of a README."),
    "site": (
        "envsmith.cli.matrix_site",
        "Write the static page: selector, grid, search, a page for each cell that was run.",
    ),
}


class _Verbs(click.Group):
    """Imports only the command that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        module = importlib.import_module(VERBS[cmd_name][0])
        command = getattr(module, f"{cmd_name}_", None) or getattr(module, cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{VERBS[cmd_name][0]}.{cmd_name} is not a command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])


@click.group(cls=_Verbs)
def matrix() -> None:
    """The knowledge and its proofs: refresh it from its sources, run cells, look at what is proved."""


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar with a terminal, a line a component without one."""
    if not sys.stderr.isatty() or os.environ.get("CI") or os.environ.get("TERM") == "dumb":
        seen: set[str] = set()

        def line(what: str, done: int, total: int) -> None:
            if what not in seen or (total and done == total):
                seen.add(what)
                if total:
                    say(f"{what}: {done} of {total}")

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("package index", total=None)

        def move(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield move


def _coloured(diff: str) -> str:
    """A diff as terminals show it; plain where click strips colours."""
    kinds = {"+": "green", "-": "red", "@": "cyan"}
    return "\n".join(click.style(row, fg=kinds[row[0]]) if row[:1] in kinds else row for row in diff.splitlines())


def _show(plan: Plan, root: Path) -> None:
    for change in plan.changes:
        click.echo(_coloured(clean(change.diff(root=root))))
    for change in plan.changes:
        for sentence in change.summary:
            say(f"  {clean(sentence)}")
    for problem in plan.problems:
        say(f"{click.style('warning', fg='yellow')}: {clean(problem)}")


@click.command()
@click.option(
    "--component",
    "components",
    multiple=True,
    metavar="NAME",
    help="Only this component (repeatable); torch brings NCCL, cuDNN, Triton and CUDA along.",
)
@click.option(
    "--write/--dry-run",
    default=False,
    show_default="--dry-run",
    help="Write the files, or only show what would change.",
)
@click.option(
    "--offline", is_flag=True, help="Answer from the cache only; what is not there is a problem, not a guess."
)
@click.option("--jobs", type=click.IntRange(1, 16), default=4, show_default=True, help="Requests at once.")
@click.option("--again", is_flag=True, help="Read even the artifacts that were measured already.")
@matrix_option
@click.option(
    "--checkout",
    "clones",
    multiple=True,
    metavar="NAME=FOLDER",
    help="Also read a clone of colossalai or megatron-core: what its own CI and locks say was tested (repeatable).",
)
def refresh(
    *,
    components: tuple[str, ...],
    write: bool,
    offline: bool,
    jobs: int,
    again: bool,
    folder: Path | None,
    clones: tuple[str, ...],
) -> int:
    """Read the package index and its artifacts, show what changed, and write it with --write.

    Release lists, METADATA, Python tags, and of every torch wheel the CUDA version, the NCCL, cuDNN and Triton pins, the GPU architectures, the
    C++ ABI and the glibc floor, read by range requests. The index is the one that uv or pip is configured with. What was read is kept in the
    cache, so an interrupted run continues where it stopped; a second run finds nothing to do.

    The diff goes to stdout, talk to stderr. Exit code 0 when there was nothing to do or everything was written or shown; 5 when the index, or
    some artifact, could not be read (what could be read is written all the same).
    """
    from envsmith.errors import NetworkError, UsageError
    from envsmith.graph.data import find_matrix, own_matrix
    from envsmith.matrix.refresh import apply, plan_refresh

    root = folder or (own_matrix() if write else find_matrix())
    checkouts = {}
    for word in clones:
        name, equals, place = word.partition("=")
        if not equals or not Path(place).is_dir():
            raise UsageError(f"--checkout {word}: NAME=FOLDER was expected, with a folder that is there")
        checkouts[name] = Path(place)
    with _progress() as progress:
        plan = plan_refresh(
            root, components=components, offline=offline, jobs=jobs, again=again, progress=progress, checkouts=checkouts
        )
    _show(plan, root.parent)
    read = f"{plan.requests} requests, {plan.bytes_read / 1e6:.1f} MB"
    if not plan.changes:
        say(f"nothing learned ({read})" if plan.problems else f"nothing to do ({read})")
    elif write:
        for path in apply(plan.changes):
            say(f"written: {path}")
    else:
        say(f"{len(plan.changes)} file{'s' * (len(plan.changes) > 1)} would change ({read}); write with --write")
    if plan.problems:
        raise NetworkError(
            f"{len(plan.problems)} artifact{'s' * (len(plan.problems) > 1)} could not be read",
            hint="run the same command again: it resumes",
        )
    return 0
