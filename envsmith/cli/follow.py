"""``envsmith matrix follow``: from a release that appears to its cell on the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from envsmith.base.files import claim, now
from envsmith.base.text import clean
from envsmith.cli.campaign import run_jobs
from envsmith.cli.console import say
from envsmith.cli.declare import Folder, argument, choice, option, several, verb
from envsmith.errors import NetworkError
from envsmith.frameworks import FRAMEWORKS
from envsmith.knowledge.graph.location import own_matrix
from envsmith.lock.days import last_day
from envsmith.matrix.campaign.composer import Composer
from envsmith.matrix.campaign.executors import executor_of
from envsmith.matrix.campaign.newest import plan_newest, unproved
from envsmith.matrix.campaign.state import CampaignState
from envsmith.matrix.document import states
from envsmith.matrix.refresh.updates import apply, open_context, plan_refresh
from envsmith.matrix.site.page import SITE, read_page, write_all
from envsmith.model.record import merge
from envsmith.solver import default_solver


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowFlags:
    """The options of ``matrix follow``."""

    frameworks: tuple[str, ...] = argument(
        nargs=-1, required=True, metavar="FRAMEWORK...", type=click.Choice([*FRAMEWORKS])
    )
    folder: Folder = option("--state", "Folder of the runs. The same folder resumes.", default=Path("envsmith-follow"))
    tier: str = choice(["quick", "full", "framework"], "How much of the smoke test is run.", default="quick")
    sources: tuple[str, ...] = several("--source", "NAME@ARCHIVE", "Archive of a release that is on no index.")
    page: Folder | None = option("--site", "Also write the page into this folder.")


@verb(FollowFlags)
def follow(settings: FollowFlags) -> int:
    """Prove the newest release of each FRAMEWORK: from the package index to the page in one command.

    Reads the releases as `refresh --write` does, solves for the best cell with the newest one, runs it as `run` does
    unless it is proved, takes the record as `merge` does, and writes the page as `site` does. Killed at any moment, the
    same command goes on. Exit code 0 when the cells are proved, 1 when one is not.
    """
    root, page, frameworks = own_matrix(), settings.page, settings.frameworks
    if page is not None:
        claim(page, SITE)
    _refresh(root, frameworks)
    plan = plan_newest(
        frameworks, Composer.of_host(), last_day=last_day(), tier=settings.tier, sources=settings.sources
    )
    jobs = unproved(plan, _proved(root))
    for release, reason in plan.left_out:
        say(f"left out: {release}: {reason}")
    for job in plan.jobs:
        say(f"{job.id}: {'to be run' if job in jobs else 'is proved'}")
    if jobs:
        state = CampaignState((settings.folder / plan.name).absolute())
        plan = state.begin(plan)
        run_jobs(state, executor_of("local", plan, state, None), [*jobs])
        new, _existing = merge([state.records], root / "records")
        say(f"{len(new)} records taken into {root / 'records'}")
    if page is not None:
        say(f"{page}: {write_all(read_page(root), page, root)} files")
    return 1 if unproved(plan, _proved(root)) else 0


def _refresh(root: Path, frameworks: tuple[str, ...]) -> None:
    """Write the releases that the index has. Nothing may have read the graph before."""
    changes = plan_refresh(root, open_context(root), components=frameworks)
    for sentence in (sentence for change in changes.changes for sentence in change.summary):
        say(f"  {clean(sentence)}")
    apply(changes.changes)
    if changes.problems:
        raise NetworkError(
            f"Cannot read the releases of {', '.join(frameworks)}: the package index did not give everything.",
            hint="Run the same command again. It resumes.",
            details=changes.problems,
        )


def _proved(root: Path) -> set[str]:
    """Return the cells whose proof counts today."""
    cells, _expiry = states(root, default_solver().knowledge(), now().date())
    return {cell.id for cell in cells if cell.is_proved and not cell.stale}
