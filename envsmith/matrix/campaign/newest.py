"""The campaign that follows frameworks: the best cell of each, which has its newest release, unless it is proved."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace

from envsmith.matrix.campaign.job import Job, Plan, Settings
from envsmith.matrix.campaign.selection import Campaign, Choice, Composer, make_plan

# One cell at a time: its wheels, and the environment that they are linked into.
_ONE_CELL = Settings(free_disk_gib=8)


def plan_newest(
    frameworks: Sequence[str], composer: Composer, *, last_day: str, tier: str, sources: Sequence[str] = ()
) -> Plan:
    """Return a plan of the best cell of each framework, named after its cells.

    uv sees the packages of ``last_day``, or of the day of the newest release among them: a release that came today is
    not on the index of yesterday.
    """
    choices = [Choice(kind="solved", where={name: ("*",)}, take=1, why="its newest release") for name in frameworks]
    campaign = Campaign(name="follow", choices=tuple(choices), tier=tier, sources=tuple(sources), executor=_ONE_CELL)
    plan = make_plan(campaign, composer, exclude_newer=last_day)
    dates = [_date(composer, name, v) for job in plan.jobs for name, v in job.cell.components.items()]
    cells = hashlib.sha256(" ".join(job.id for job in plan.jobs).encode()).hexdigest()[:12]
    return replace(plan, name=f"follow-{cells}", exclude_newer=max([last_day, *dates]))


def _date(composer: Composer, name: str, version: str) -> str:
    compiled = composer.solver.compiled
    dates = zip(compiled.versions.get(name, ()), compiled.dates.get(name, ()), strict=False)
    return dict(dates).get(version) or ""


def unproved(plan: Plan, proved: Collection[str]) -> tuple[Job, ...]:
    """Return the jobs of ``plan`` whose cell is not among the ``proved`` ones."""
    return tuple(job for job in plan.jobs if job.id not in proved)
