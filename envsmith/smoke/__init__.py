"""The smoke test: proves a cell by running collectives and one step of its frameworks in it.

``plan`` and ``cases`` say what is run, ``launch`` how it gets into the cell, ``agent`` runs there, ``supervise`` talks to it, ``verdict`` and
``blame`` judge. Everything but ``agent`` and ``supervise`` is pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["LocalTarget", "Plan", "Progress", "SmokeExit", "SmokeResult", "Target", "Tier", "probe", "run"]

if TYPE_CHECKING:
    from envsmith.smoke.blame import SmokeExit
    from envsmith.smoke.launch import LocalTarget, Target
    from envsmith.smoke.plan import Plan, Tier
    from envsmith.smoke.supervise import Progress, probe, run
    from envsmith.smoke.verdict import SmokeResult

_HOME = {
    "LocalTarget": "launch",
    "Target": "launch",
    "Plan": "plan",
    "Tier": "plan",
    "Progress": "supervise",
    "probe": "supervise",
    "run": "supervise",
    "SmokeExit": "blame",
    "SmokeResult": "verdict",
}


def __getattr__(name: str) -> Any:
    """Import the public names when they are asked for."""
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(f"envsmith.smoke.{_HOME[name]}"), name)
    raise AttributeError(f"module 'envsmith.smoke' has no attribute {name!r}")
