"""The campaign that follows frameworks: the best cell of each, which has its newest release, unless it is proved."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import replace

from envsmith.errors import UsageError
from envsmith.matrix.campaign.choices import Campaign, CellChoice
from envsmith.matrix.campaign.composer import Composer
from envsmith.matrix.campaign.job import CampaignJob, CampaignPlan, CampaignSettings
from envsmith.matrix.campaign.selection import make_plan, valid_cells
from envsmith.model.version import public, version_key

# One cell at a time: its wheels, and the environment that they are linked into.
_ONE_CELL = CampaignSettings(free_disk_gib=8)


def plan_newest(
    frameworks: Sequence[str], composer: Composer, *, last_day: str, tier: str, sources: Sequence[str] = ()
) -> CampaignPlan:
    """Return a plan of the best cell with the newest release of each framework, named after its cells.

    A release without a valid cell is left out with the reason, and the one before it is taken. uv sees the packages of
    ``last_day``, or of the day of the newest release among them: a release that came today is not on the index of
    yesterday.
    """
    left_out: dict[str, str] = {}
    choices = tuple(_choice(name, composer, left_out) for name in frameworks)
    campaign = Campaign(name="follow", choices=choices, tier=tier, sources=tuple(sources), executor=_ONE_CELL)
    plan = make_plan(campaign, composer, exclude_newer=last_day)
    dates = [_date(composer, name, v) for job in plan.jobs for name, v in job.cell.components.items()]
    cells = hashlib.sha256(" ".join(job.id for job in plan.jobs).encode()).hexdigest()[:12]
    named = replace(plan, name=f"follow-{cells}", exclude_newer=max([last_day, *dates]))
    return replace(named, left_out=(*left_out.items(), *plan.left_out))


def _choice(name: str, composer: Composer, left_out: dict[str, str]) -> CellChoice:
    releases = composer.solver.knowledge().releases.get(name, ())
    final = {public(r.version): key for r in releases if (key := version_key(r.version)) and not r.yanked}
    for version in sorted((v for v in final if not final[v].is_prerelease), key=final.__getitem__, reverse=True):
        choice = CellChoice(kind="solved", where={name: (f"=={version}",)}, take=1, why="its newest release")
        if next(valid_cells(choice, composer), None) is not None:
            return choice
        left_out[f"{name} {version}"] = "no valid cell of a default build has it with a Python of this host"
    raise UsageError(f"Cannot follow {name}: no release has a valid cell here.", hint=f"Ask envsmith solve {name}.")


def _date(composer: Composer, name: str, version: str) -> str:
    compiled = composer.solver.compiled
    dates = zip(compiled.versions.get(name, ()), compiled.dates.get(name, ()), strict=False)
    return dict(dates).get(version) or ""


def unproved(plan: CampaignPlan, proved: Collection[str]) -> tuple[CampaignJob, ...]:
    """Return the jobs of ``plan`` whose cell is not among the ``proved`` ones."""
    return tuple(job for job in plan.jobs if job.id not in proved)
