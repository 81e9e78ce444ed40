"""The executor of GitHub Actions: a plan as ``strategy.matrix``, one cell a job; results come back through ``envsmith matrix merge``. Pure."""

from __future__ import annotations

from typing import Any

from envsmith.matrix.campaign.job import Plan

__all__ = ["listing"]


def listing(plan: Plan) -> dict[str, Any]:
    """``{"jobs": [...], "left_out": [...]}``: each job is an entry for ``include`` (its cell, the Python to set up, what a list of jobs shows).

    GitHub takes 256 entries in one matrix: who has more splits the campaign file or uses ``take:``.
    """
    jobs = [
        {
            "cell": job.id,
            "python": job.cell.components["python"],
            "torch": job.cell.components["torch"],
            "framework": job.cell.frameworks[0] if job.cell.frameworks else "",
            "expected": job.expected.value,
            "rules": " ".join(job.rules),
            "why": job.why,
        }
        for job in plan.jobs
    ]
    return {"jobs": jobs, "left_out": [list(pair) for pair in plan.left_out]}
