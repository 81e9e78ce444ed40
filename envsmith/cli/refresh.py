"""``envsmith matrix refresh``: what the package index says now, shown as a diff, written with ``--write``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envsmith.base.text import clean, counted
from envsmith.cli.console import live_terminal, print_out, say, warn
from envsmith.cli.declare import ExistingFolder, flag, option, several, verb
from envsmith.cli.flags import matrix_option
from envsmith.errors import NetworkError
from envsmith.knowledge.graph.location import find_matrix, own_matrix
from envsmith.matrix.refresh.gaps import plan_gaps
from envsmith.matrix.refresh.measured_names import plan_names
from envsmith.matrix.refresh.updates import apply, open_context, plan_refresh

if TYPE_CHECKING:
    from envsmith.matrix.refresh.shared import Progress, RefreshRun
    from envsmith.matrix.refresh.updates import RefreshPlan


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show a bar with a terminal, a line a component without one."""
    if not live_terminal():
        announced: set[str] = set()

        def line(what: str, count: int, total: int) -> None:
            if what not in announced or (total and count == total):
                announced.add(what)
                if total:
                    say(f"{what}: {count} of {total}")

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("package index", total=None)

        def move(what: str, count: int, total: int) -> None:
            bar.update(task, description=what, completed=count, total=total or None)

        yield move


def _coloured(diff: str) -> str:
    """Return a diff as terminals show it, plain where click strips colours."""
    kinds = {"+": "green", "-": "red", "@": "cyan"}
    return "\n".join(click.style(row, fg=kinds[row[0]]) if row[:1] in kinds else row for row in diff.splitlines())


def _show(plan: RefreshPlan, root: Path) -> None:
    for change in plan.changes:
        print_out(_coloured(clean(change.diff(root=root))))
    for change in plan.changes:
        for sentence in change.summary:
            say(f"  {clean(sentence)}")
    for problem in (*plan.left_out, *plan.problems):
        warn(f"{click.style('warning', fg='yellow')}: {clean(problem)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RefreshFlags:
    """The options of ``matrix refresh``."""

    components: tuple[str, ...] = several(
        "--component", "NAME", "Only this component (repeatable); torch brings NCCL, cuDNN, Triton and CUDA along."
    )
    write: bool = option(
        "--write/--dry-run", "Write the files, or only show what would change.", default=False, show_default="--dry-run"
    )
    offline: bool = flag("Answer from the cache only; what is not there is a problem, not a guess.")
    jobs: int = option("Requests at once.", type=click.IntRange(1, 16), default=4)
    again: bool = flag("Read even the artifacts that were measured already.")
    names: bool = flag("Measure matrix/names instead: which release of a package has which name.")
    folder: ExistingFolder | None = matrix_option()

    def context(self, root: Path, progress: Progress) -> RefreshRun:
        """Return what reads the package index for the knowledge in a folder."""
        return open_context(root, offline=self.offline, jobs=self.jobs, again=self.again, progress=progress)


@verb(RefreshFlags)
def refresh(settings: RefreshFlags) -> int:
    """Read the package index and its artifacts, show what changed, and write it with --write.

    Release lists, METADATA, Python tags, and of every torch wheel the CUDA version, the NCCL, cuDNN and Triton pins,
    the GPU architectures, the C++ ABI and the glibc floor, read by range requests. The index is the one that uv or pip
    is configured with. What was read is kept in the cache, so an interrupted run continues where it stopped. A second
    run finds nothing to do. With --names it reads the sources of every final release of the packages in
    matrix/names/packages.yaml, and --component names one of those.

    The diff goes to stdout, talk to stderr. Exit code 0 when there was nothing to do or everything was written or
    shown, 5 when the index, or some artifact, could not be read (what could be read is written all the same).
    """
    root = settings.folder or (own_matrix() if settings.write else find_matrix())
    if settings.names:
        return _refresh_names(root, settings)
    with _progress() as progress:
        context = settings.context(root, progress)
        plan = plan_refresh(root, context, components=settings.components)
    _show(plan, root.parent)
    read = f"{plan.requests} requests, {plan.bytes_read / 1e6:.1f} MB"
    if not plan.changes:
        say(f"nothing learned ({read})" if plan.problems else f"nothing to do ({read})")
    elif settings.write:
        for path in apply(plan.changes):
            say(f"written: {path}")
    else:
        say(f"{counted(len(plan.changes), 'file')} would change ({read}); write with --write")
    _refuse(plan.problems)
    return 0


def _refresh_names(root: Path, settings: RefreshFlags) -> int:
    with _progress() as progress:
        context = settings.context(root, progress)
        changes = plan_names(root / "names", context, settings.components, context.cache / "names")
        written = apply(changes) if settings.write else []
        rules = plan_gaps(root, context.today)  # they follow from the names that were written
        written += apply(rules) if settings.write else []
    changes += rules
    for sentence in (sentence for change in changes for sentence in change.summary):
        say(f"  {clean(sentence)}")
    for path in written:
        say(f"written: {path}")
    if not changes:
        say("nothing learned" if context.problems else "nothing to do")
    elif not settings.write:
        say(f"{len(changes)} files would change; write with --write")
    for problem in (*context.left_out, *context.problems):
        warn(f"{click.style('warning', fg='yellow')}: {clean(problem)}")
    _refuse(context.problems)
    return 0


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise NetworkError(
            f"Cannot read {counted(len(problems), 'artifact')}: the package index did not give them.",
            hint="Run the same command again. It resumes.",
        )
