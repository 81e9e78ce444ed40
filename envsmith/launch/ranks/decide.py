"""From the evidence of a launch to a verdict: the judges in their order, the most certain first."""

from __future__ import annotations

import re
from dataclasses import replace
from signal import SIGTERM

from envsmith.launch.ranks.causes import Blame, Cause, at_place, ranks_text
from envsmith.launch.ranks.deaths import (
    absent,
    departed,
    different_places,
    different_sizes,
    earliest,
    ended,
    killed,
    late,
    missed,
    of_driver,
    own_error,
)
from envsmith.launch.ranks.differences import aborted_in_call, different_calls, different_worlds
from envsmith.launch.ranks.errors import follows, waited
from envsmith.launch.ranks.evidence import LaunchEvidence
from envsmith.launch.ranks.stalls import stall

# A stall is judged where there is one. Of deaths the rank's own words come first, then what the recorders disagree on.
_JUDGES = (
    own_error,
    different_worlds,
    killed,
    missed,
    different_calls,
    aborted_in_call,
    different_sizes,
    absent,
    ended,
    different_places,
    late,
    departed,
    earliest,
    of_driver,
)


def decide(evidence: LaunchEvidence) -> Blame | None:
    """Return which rank failed first, and why. ``None`` where the evidence does not say that ranks failed.

    The text of one rank says nothing of the others: it takes two, or a launcher that was watched.
    """
    if evidence.is_interrupted:
        return None
    if evidence.stalled:
        return stall(evidence)
    if not evidence.ranks:
        return of_driver(evidence)
    failed = {rank for rank, _ in evidence.errors} | {rank for rank, code in evidence.exits.items() if code}
    several = len({rank for rank, _ in evidence.errors} | set(evidence.exits)) > 1
    if not (several or (failed and evidence.launcher)):
        return None
    return next((answer for judge in _JUDGES if (answer := judge(evidence))), None)


def decide_end(standing: Blame | None, evidence: LaunchEvidence) -> Blame | None:
    """Return the verdict on a launch that failed. ``standing`` is what was said when its ranks last stood still.

    Ranks that give up waiting say nothing of why they waited, nor does the end of a rank that was waited for. An error
    that a program raised does: then the launch did not stand still for ever.
    """
    answer = decide(evidence)
    if standing is None:
        return answer
    if answer is None or answer.cause in _OF_THE_WAIT:
        return standing if standing.ranks or standing.is_hang else answer or standing
    if standing.is_hang and not (answer.cause is Cause.RAISED and answer.ranks):
        return standing
    return answer


# What is said of ranks that gave up waiting: nothing of why they waited.
_OF_THE_WAIT = frozenset({Cause.LATE, Cause.ABSENT, Cause.UNKNOWN})


# What is said of a launch where only its end is known. Dumps and reports of it know more.
_ONLY_THE_END = frozenset(
    {Cause.KILLED, Cause.LATE, Cause.ABSENT, Cause.UNKNOWN, Cause.DIFFERENT_CALLS, Cause.DIFFERENT_SHAPES}
)


def verdict(evidence: LaunchEvidence) -> Blame | None:
    """Return which rank failed first, and why, from whatever was collected."""
    answer = decide(evidence)
    if answer is not None and answer.cause not in _ONLY_THE_END:
        return answer
    judges = (_killed_for_memory, _of_standstill, _reported, lambda _: answer, _left)
    return next((each for judge in judges if (each := judge(evidence))), None)


def _killed_for_memory(evidence: LaunchEvidence) -> Blame | None:
    """Blame the rank whose process the kernel's own log names."""
    lines = [line for machine in evidence.machines for line in machine.kernel]
    for one in evidence.ranks:
        named = re.compile(rf"[Kk]illed process {one.pid} \(")
        line = next((line for line in lines if one.pid and named.search(line)), None)
        if line:
            return Blame(
                cause=Cause.OUT_OF_MEMORY,
                kind="rank-died",
                ranks=(one.rank,),
                message=f"The kernel ended rank {one.rank} (process {one.pid}) for lack of memory. What the other ranks "
                "print follows from it.",
                fix="Give the job more memory, or use less: fewer loader workers, smaller batches, no CPU offload.",
                evidence=(line,),
                quote=line,
            )
    return None


def _of_standstill(evidence: LaunchEvidence) -> Blame | None:
    """Judge dumps and stacks of ranks that waited in vain: they were taken while the launch stood still."""
    if sum(bool(one.calls or one.stacks) for one in evidence.ranks) < 2:
        return None
    if not all(waited(error) for _, error in evidence.errors):
        return None
    ranks = tuple(replace(one, exit=None, error=None) for one in evidence.ranks)
    return decide(replace(evidence, ranks=ranks, stalled=evidence.stalled or 1.0, launcher=None))


def _reported(evidence: LaunchEvidence) -> Blame | None:
    """Return what another program says of a rank: that it does not answer, or that it is behind."""
    silent = [event for event in evidence.events if event.kind == "unreachable" and event.rank is not None]
    behind = [event for event in evidence.events if event.kind == "fewer-calls" and event.rank is not None]
    rows = silent or behind
    ranks = tuple(sorted({event.rank for event in rows if event.rank is not None}))
    if not ranks:
        return None
    facts = tuple(dict.fromkeys(event.text for event in rows))[:8]
    if silent:
        return Blame(
            cause=Cause.LATE,
            ranks=ranks,
            message=f"{ranks_text(ranks)} did not answer NCCL's RAS while the others did: stopped, ended, or its host is "
            "out of reach.",
            fix="Look at the process on its host: its state (ps), its stack (py-spy dump), the kernel's log (dmesg).",
            evidence=facts,
            quote=facts[0],
        )
    return Blame(
        cause=Cause.FEWER_CALLS,
        ranks=ranks,
        message=f"{ranks_text(ranks)} had launched fewer collectives than the others when NCCL's RAS was asked.",
        fix="Ask ncclras again: if the counts stand still, look at the stack of that rank. If they rise, it is only late.",
        evidence=facts,
        quote=facts[0],
        confidence="medium",
    )


def _left(evidence: LaunchEvidence) -> Blame | None:
    """Say that a rank left, where the launcher's list holds only ranks that lost another one."""
    errors = [error for _, error in evidence.errors]
    lost = [error for error in errors if follows(error) and not waited(error)]
    if not evidence.is_listed or not lost or len(lost) < len(errors) or set(evidence.exits.values()) - {1, -SIGTERM}:
        return None
    place = lost[0].place
    return Blame(
        cause=Cause.LEFT,
        ranks=(),
        message="A rank left with exit status 0 while others were in a collective: every rank in the launcher's list of "
        f"failures only lost its connection{at_place(place)}.",
        fix="Look for a sys.exit, a return or an end of the data that only one rank meets.",
        line=lost[0].line or 1,
        quote=lost[0].error,
        confidence="medium",
    )
