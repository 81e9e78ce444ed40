"""The executor of GitHub Actions: a plan as ``strategy.matrix``, one cell a job; results come back through ``envsmith matrix merge``. Pure."""

from __future__ import annotations

from typing import Any

from envsmith.errors import UsageError
from envsmith.matrix.campaign.job import Plan

__all__ = ["MOST", "include"]

# What GitHub takes in one `strategy.matrix`.
MOST = 256


def include(plan: Plan) -> dict[str, Any]:
    """``{"include": [...]}``: each entry names its cell, the Python to set up, and what a list of jobs shows.

    ``UsageError`` when there are more cells than one matrix takes.
    """
    if len(plan.jobs) > MOST:
        raise UsageError(
            f"campaign {plan.name}: {len(plan.jobs)} cells; a matrix of GitHub Actions takes {MOST}",
            hint="use `take:` or split the campaign file",
        )
    entries = [
        {
            "cell": job.id,
            "python": job.cell.components["python"],
            "torch": job.cell.components["torch"],
            "framework": job.cell.frameworks[0] if job.cell.frameworks else "",
            "expected": job.expected.value,
            "rules": " ".join(job.rules),
        }
        for job in plan.jobs
    ]
    return {"include": entries}
