"""``envsmith matrix run``: a campaign over many cells, resumable at any moment."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from envsmith.base.progress import ProgressEvent
from envsmith.base.text import clean
from envsmith.cli.console import dumps, print_out, say, warn
from envsmith.cli.declare import File, Folder, argument, choice, flag, option, several, verb
from envsmith.errors import InterruptedRunError, UsageError
from envsmith.knowledge.graph.load import components
from envsmith.lock.days import last_day
from envsmith.matrix.campaign.choices import read_campaign
from envsmith.matrix.campaign.climb import climb
from envsmith.matrix.campaign.composer import Composer
from envsmith.matrix.campaign.drive import Executor, Tally, drive, run_one
from envsmith.matrix.campaign.executors import executor_of
from envsmith.matrix.campaign.ground import Ground
from envsmith.matrix.campaign.job import CampaignJob, CampaignPlan, listing
from envsmith.matrix.campaign.selection import make_plan
from envsmith.matrix.campaign.state import CampaignState
from envsmith.model.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class CampaignFlags:
    """The options of ``matrix run``."""

    file: File | None = argument(required=False)
    folder: Folder = option(
        "--state",
        "The campaign's folder: plan, records, caches. The same folder resumes.",
        default=Path("envsmith-campaign"),
    )
    jobs: int | None = option("Cells at once on this machine. [default: the file's, or 1]", type=click.IntRange(1, 256))
    executor: str = choice(["local", "slurm"], "Where.", default="local")
    only: tuple[str, ...] = several("CELL", "Only this cell (repeatable).")
    plan_only: bool = flag("--plan", "Say which cells would be run, and run none.")
    here: bool = option("Run the named cell in this process (what executors call).", is_flag=True, hidden=True)
    as_json: bool = flag("--json", "With --plan: the plan as JSON. Of a run, what became of it.")


@verb(CampaignFlags)
def run(settings: CampaignFlags) -> int:
    """Run the cells of a campaign FILE as far up the evidence ladder as they come, and record each.

    Killed at any moment, the same command goes on: what has a record is not run again. Several may work in one folder.
    Without FILE the campaign in --state is resumed. Exit code 0 when every cell has a record, whatever it says. Exit
    code 1 when some worker was lost twice.
    """
    state = CampaignState(settings.folder.absolute())
    plan = state.plan()
    if settings.here:
        return _one(state, plan, settings.only)
    if settings.plan_only:
        _show_plan(_planned(settings.file), as_json=settings.as_json)
        return 0
    if plan is None:
        plan = _planned(settings.file)
    plan = state.begin(plan)
    chosen = _chosen(plan, settings.only)
    say(f"campaign {plan.name}: {len(chosen)} cells, folder {state.root}")
    tally = run_jobs(state, executor_of(settings.executor, plan, state, settings.jobs), chosen)
    say(f"{tally.done} of {tally.total} cells have a record; this run took {_span(tally.seconds)}")
    for name, why in tally.lost.items():
        warn(f"lost: {name}: {clean(why)}")
    if settings.as_json:
        lost = {name: clean(why) for name, why in tally.lost.items()}
        print_out(dumps({"cells": tally.total, "recorded": tally.done, "lost": lost, "folder": str(state.root)}))
    return 1 if tally.lost else 0


def _planned(file: Path | None) -> CampaignPlan:
    if file is None:
        raise UsageError(
            "Cannot resume a campaign: the folder has none.",
            hint="Start one with a campaign file: envsmith matrix run FILE.",
        )
    return make_plan(read_campaign(file, components()), Composer.of_host(), exclude_newer=last_day())


def _chosen(plan: CampaignPlan, only: tuple[str, ...]) -> list[CampaignJob]:
    unknown = [name for name in only if plan.job(name) is None]
    if unknown:
        raise UsageError(
            f"Cannot run {unknown[0]}: the campaign {plan.name} has no such cell.", hint="Use --plan to list its cells."
        )
    return [job for job in plan.jobs if not only or job.id in only]


def _one(state: CampaignState, plan: CampaignPlan | None, only: tuple[str, ...]) -> int:
    if plan is None or len(only) != 1:
        raise UsageError(
            "Cannot use --here: the campaign has not begun.",
            hint="Start it with envsmith matrix run FILE, then run one of its cells with --here.",
        )
    (job,) = _chosen(plan, only)

    def climbed(slot: Path) -> Record:
        return climb(job, plan, Ground(slot=slot, cache=state.cache), progress=_said)

    written = run_one(state, job, climbed)
    say(f"written: {written.name}" if written else f"{job.id}: done, or somebody is at it")
    return 0


def _said(event: ProgressEvent) -> None:
    """Print an event as a line of the job's log."""
    took = f" {event.seconds:.1f} s" if event.seconds is not None else ""
    mark = {"start": " ...", "done": " done", "failed": " failed"}.get(event.kind.value, "")
    say(clean(f"{event.step}{mark}{took} {event.text}".strip()))


def run_jobs(state: CampaignState, executor: Executor, chosen: list[CampaignJob]) -> Tally:
    """Run jobs and say what becomes of each. ``InterruptedRunError`` on Ctrl-C and SIGTERM."""

    def ended(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, ended)
    try:
        return drive(state, executor, jobs=chosen, tell=_tell)
    except KeyboardInterrupt:
        raise InterruptedRunError(
            "Cannot finish the campaign: it was interrupted. The cells that were running have no record.",
            hint="Run the same command again. It resumes the campaign.",
        ) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _tell(tally: Tally, news: str) -> None:
    seconds = tally.remaining_seconds
    estimate = f", about {_span(seconds)} left" if seconds else ""
    say(f"[{tally.done} of {tally.total}{estimate}] {clean(news)}")


def _span(seconds: float) -> str:
    minutes = int(seconds // 60) + 1
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _show_plan(plan: CampaignPlan, *, as_json: bool) -> None:
    if as_json:
        print_out(dumps(listing(plan)))
        return
    for job in plan.jobs:
        rules = f"  [{', '.join(job.rules)}]" if job.rules else ""
        print_out(f"{job.id}  {job.expected.value}{rules}")
    for combination, reason in plan.left_out:
        say(f"left out: {combination}: {reason}")
    sys.stdout.flush()
    say(f"{len(plan.jobs)} cells, {len(plan.left_out)} combinations left out")
