"""Enough to speak for a cell: nothing that was skipped may make it pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from envsmith.agent.protocol import Exit
from envsmith.model.record import CaseOutcome, Unmet, Verdict
from envsmith.smoke.cases import RARE, can_run, quick_cases
from envsmith.smoke.charge import Charge
from envsmith.smoke.expect import Expect, Expectation
from envsmith.smoke.plan import Plan

# What torch 2.0, the oldest that the agent runs on, need not have: a newer one that lacks them is recognised by its
# expectations, not here.
_YOUNG = ("functional_", "coalesced", "bytes_all_gather")


def core(plan: Plan, backend: str, ranks: int) -> frozenset[str]:
    """Return the cases of the plan that every cell must verify, on whatever machine.

    They are those of the quick tier for this many ranks (some kilobytes each, so that no machine is too small) that the
    expectations say work on this backend, that so many ranks can run at all, and that need neither a certain GPU nor a
    torch younger than 2.0. What lies beyond (gigabytes, fp8, CUDA graphs) may be skipped.
    """
    return frozenset(
        case.id
        for case in set(quick_cases(ranks)) & set(plan.cases)
        if can_run(case, ranks)
        and case.dtype not in RARE
        and not case.op.startswith(_YOUNG)
        and _works(plan.expect(case.id, backend))
    )


def _works(line: Expectation) -> bool:
    return line.expect is Expect.OK and not line.min_sm


def too_little(plan: Plan, cases: Sequence[CaseOutcome], backend: str, ranks: int) -> Charge | None:
    """Charge a run that skipped some of its core, or everything. ``None`` means that it verified enough.

    Cases that failed or were not run are not judged here.
    """
    must = core(plan, backend, ranks)
    skipped = [case for case in cases if case.verdict is Verdict.SKIPPED]
    lacking = [case for case in skipped if case.case in must]
    if not lacking and not (cases and len(skipped) == len(cases)):
        return None
    reasons = Counter((case.blame or "no reason given", case.unmet) for case in lacking or skipped)
    ((reason, unmet), _), *_ = reasons.most_common(1)
    extent = (
        f"{len(lacking)} of the {len(must)} collective cases that every machine can run were skipped"
        if lacking
        else f"all {len(cases)} cases were skipped"
    )
    sentence = f"too little was verified: {extent}, most of them with: {reason}"
    code = Exit.MEMORY if unmet is Unmet.MEMORY else Exit.ERROR
    return Charge(sentence=sentence, verdict=Verdict.NOT_RUN, code=code)
