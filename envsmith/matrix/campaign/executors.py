"""The places where the jobs of a campaign run, by their names."""

from __future__ import annotations

from envsmith.matrix.campaign.drive import Executor
from envsmith.matrix.campaign.job import CampaignPlan
from envsmith.matrix.campaign.local import LocalExecutor
from envsmith.matrix.campaign.slurm import SlurmExecutor
from envsmith.matrix.campaign.state import CampaignState


def executor_of(name: str, plan: CampaignPlan, state: CampaignState, jobs: int | None) -> Executor:
    """Return the place where the jobs of a plan run, within its limits."""
    settings = plan.executor
    if name == "slurm":
        return SlurmExecutor(settings, plan.name, plan.ranks)
    return LocalExecutor(
        jobs=jobs or settings.jobs or 1,
        free_disk=settings.free_disk_gib << 30,
        free_memory=settings.free_memory_gib << 30,
        root=state.root,
    )
