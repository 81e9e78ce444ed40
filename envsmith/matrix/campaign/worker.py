"""What runs one job of a campaign, on this machine or on a node: its command, and the last words of its log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envsmith.base.files import open_regular
from envsmith.base.programs import Kept
from envsmith.matrix.campaign.job import CampaignJob
from envsmith.matrix.campaign.state import CampaignState

# State, job and interpreter -> what runs the job.
Command = Callable[[CampaignState, CampaignJob, str], list[str]]


def worker_command(state: CampaignState, job: CampaignJob, python: str) -> list[str]:
    """Return what runs one job of a campaign, anywhere its folder can be seen."""
    return [python, "-m", "envsmith", "matrix", "run", "--state", str(state.root), "--only", job.id, "--here"]


def last_words(log: Path) -> str | None:
    """Return the last error of a worker's log, or its last line, or ``None`` without a log."""
    output = Kept(1 << 20)
    try:
        with open_regular(log) as file:
            while piece := file.read(1 << 16):
                output.add(piece)
    except OSError:
        return None
    lines = output.text.strip().splitlines()
    return next((line for line in reversed(lines) if line.startswith("error")), lines[-1] if lines else "")[:200]
