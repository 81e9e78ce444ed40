"""What a campaign keeps only as long as it needs it: the wheels of a torch release, the environments."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress

from envsmith.matrix.campaign.job import Job
from envsmith.matrix.campaign.state import State

__all__ = ["forget_unneeded"]


def forget_unneeded(state: State, left: Sequence[Job]) -> None:
    """Remove the caches of torch releases that none of ``left`` has, unless somebody else is at such a cell; with nothing left, the environments."""
    gone = False
    needed = {job.cell.components["torch"] for job in left}
    with suppress(FileNotFoundError):
        for folder in sorted((state.cache / "torch").iterdir()):
            if folder.name not in needed and not _in_use(state, folder.name):
                shutil.rmtree(folder, ignore_errors=True)
                gone = True
    if gone or not left:  # an environment keeps its files on the disk, whatever becomes of the cache
        state.clear_slots()


def _in_use(state: State, torch: str) -> bool:
    plan = state.plan()
    return plan is not None and any(job.cell.components["torch"] == torch and state.claimed(job) for job in plan.jobs)
