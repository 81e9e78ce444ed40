"""From the evidence of a launch to a verdict: the judges in their order, the most certain first."""

from __future__ import annotations

from envsmith.ranks.blame import Blame, Cause
from envsmith.ranks.calls import aborted_in_call, different_calls
from envsmith.ranks.deaths import absent, departed, different_places, different_sizes, ended, late, own_error
from envsmith.ranks.differences import different_worlds
from envsmith.ranks.evidence import Evidence
from envsmith.ranks.stalls import stall

# A stall is judged where there is one. Of deaths the rank's own words come first, then what the recorders disagree on.
_JUDGES = (
    own_error,
    different_worlds,
    different_calls,
    aborted_in_call,
    different_sizes,
    absent,
    ended,
    different_places,
    late,
    departed,
)


def decide(evidence: Evidence) -> Blame | None:
    """Return which rank failed first, and why. ``None`` where the evidence does not say that ranks failed.

    The text of one rank says nothing of the others: it takes two, or a launcher that was watched.
    """
    if evidence.is_interrupted:
        return None
    if evidence.stalled:
        return stall(evidence)
    failed = {rank for rank, _ in evidence.errors} | {rank for rank, code in evidence.exits.items() if code}
    several = len({rank for rank, _ in evidence.errors} | set(evidence.exits)) > 1
    if not (several or (failed and evidence.launcher)):
        return None
    return next((answer for judge in _JUDGES if (answer := judge(evidence))), None)


def decide_end(standing: Blame | None, evidence: Evidence) -> Blame | None:
    """Return the verdict on a launch that failed. ``standing`` is what was said when its ranks last stood still.

    A hang stands. Of a rank that was only waited for, its own end or another's says more, if it has a cause of its own.
    """
    if standing is not None and standing.is_hang:
        return standing
    answer = decide(evidence)
    if standing is None or not standing.ranks or (answer is not None and answer.cause not in _OF_THE_WAIT):
        return answer or standing
    return standing


# What is said of ranks that gave up waiting: nothing of why they waited.
_OF_THE_WAIT = frozenset({Cause.LATE, Cause.ABSENT, Cause.UNKNOWN})
