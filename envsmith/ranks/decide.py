"""From the evidence of a launch to a verdict: the judges in their order, the most certain first."""

from __future__ import annotations

from envsmith.ranks.blame import Blame
from envsmith.ranks.deaths import absent, departed, different_places, different_sizes, ended, late, own_error
from envsmith.ranks.evidence import Evidence

_JUDGES = (own_error, different_sizes, absent, ended, different_places, late, departed)


def decide(evidence: Evidence) -> Blame | None:
    """Return which rank failed first, and why. ``None`` where the evidence does not say that ranks failed."""
    failed = {rank for rank, _ in evidence.errors} | set(evidence.exits)
    answers = (judge(evidence) for judge in _JUDGES) if len(failed) > 1 else ()
    return next(filter(None, answers), None)
