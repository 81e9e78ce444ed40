"""The verdict on each case: from every rank's row of it, what is expected of it, and the floors of a machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from envsmith.agent.protocol import Exit
from envsmith.launch.ranks.causes import ranks_text
from envsmith.model.record import CaseOutcome, Verdict
from envsmith.smoke.bandwidth import PREFIX, Measurement
from envsmith.smoke.bandwidth_floors import below
from envsmith.smoke.blame import blame_wrong
from envsmith.smoke.charge import Charge
from envsmith.smoke.events import CaseRow, RowStatus
from envsmith.smoke.expect import Expect, Expectation
from envsmith.smoke.plan import Plan

CODES = {
    Verdict.WRONG: Exit.WRONG,
    Verdict.REGRESSED: Exit.REGRESSED,
    Verdict.HANG: Exit.HANG,
    Verdict.CRASH: Exit.CRASH,
    Verdict.ERROR: Exit.ERROR,
    Verdict.BELOW_FLOOR: Exit.SLOW,
}


def judge_cases(
    plan: Plan, rows: Sequence[CaseRow], *, backend: str, ranks: int, stopped: Charge | None
) -> tuple[tuple[CaseOutcome, ...], list[Charge]]:
    """Return what became of every case, and the charges. ``stopped`` is that of the case that ended the run."""
    by_case: dict[int, list[CaseRow]] = {}
    for row in rows:
        by_case.setdefault(row.case, []).append(row)
    outcomes: list[CaseOutcome] = []
    charges: list[Charge] = []
    lacking: Counter[int] = Counter()
    for index, case in enumerate(plan.cases):
        own = by_case.get(index, [])
        outcome = CaseOutcome(
            case=case.id, verdict=Verdict.NOT_RUN, seconds=max((r.seconds for r in own), default=None)
        )
        silent = sorted(set(range(ranks)) - {row.rank for row in own})
        if stopped and stopped.case == index:
            outcome = replace(outcome, verdict=stopped.verdict, blame=stopped.sentence)
        elif silent and (stopped or not own):
            outcome = replace(outcome, seconds=None)
        elif silent:
            lacking.update(silent)
            outcome = replace(outcome, verdict=Verdict.ERROR, blame=f"{ranks_text(silent, 'r')} reported nothing")
        else:
            outcome, charge = _judge_case(outcome, index, own, plan.expect(case.id, backend))
            charges += [charge] if charge else []
        outcomes.append(outcome)
    if lacking:
        charges.insert(0, _missing(lacking, len(plan.cases)))
    return tuple(outcomes), charges


def _missing(lacking: Counter[int], total: int) -> Charge:
    """Charge the rank whose results are missing most often."""
    rank, count = lacking.most_common(1)[0]
    addition = f" (and some of {len(lacking) - 1} more ranks)" if len(lacking) > 1 else ""
    sentence = f"{count} of the {total} results of rank {rank}{addition} are missing"
    return Charge(sentence=sentence, verdict=Verdict.ERROR, code=Exit.ERROR, ranks=(rank,), is_silence=True)


def _judge_case(
    outcome: CaseOutcome, index: int, rows: Sequence[CaseRow], line: Expectation
) -> tuple[CaseOutcome, Charge | None]:
    """Judge a case by every rank's status and the expectation."""
    first: dict[RowStatus, CaseRow] = {}
    for row in rows:
        first.setdefault(row.status, row)
    expected, name = line.expect, f"case {index} {outcome.case}"
    charge: Charge | None = None
    if RowStatus.ERROR in first:
        ranks = tuple(row.rank for row in rows if row.status is RowStatus.ERROR)
        detail = first[RowStatus.ERROR].detail
        sentence = f"{name}: {detail}"
        charge = Charge(sentence=sentence, verdict=Verdict.ERROR, code=Exit.ERROR, ranks=ranks, quote=detail)
    elif RowStatus.WRONG in first:
        charge = blame_wrong(outcome.case, index, rows)
        if expected is Expect.WRONG:
            note = f"{charge.sentence} -- known: {line.note or ''} ({line.id})"
            return replace(outcome, verdict=Verdict.WRONG, blame=note, is_known=True), None
    elif RowStatus.REFUSED in first and expected is Expect.OK:
        detail = first[RowStatus.REFUSED].detail
        sentence = f"{name} is refused, but should work: {detail}"
        charge = Charge(sentence=sentence, verdict=Verdict.REGRESSED, code=Exit.REGRESSED, quote=detail)
    elif RowStatus.REFUSED in first:
        return replace(outcome, verdict=Verdict.UNSUPPORTED), None
    elif RowStatus.SKIPPED in first:
        row = first[RowStatus.SKIPPED]
        return replace(outcome, verdict=Verdict.SKIPPED, blame=row.detail, unmet=row.unmet), None
    elif expected in {Expect.REFUSED, Expect.WRONG}:
        text = f"works, although {line.id} says {expected.value}"
        return replace(outcome, verdict=Verdict.UNEXPECTED, blame=text), None
    if charge is None:
        return replace(outcome, verdict=Verdict.PASS), None
    return replace(outcome, verdict=charge.verdict, blame=charge.sentence), charge


def held_against_floors(
    plan: Plan, cases: tuple[CaseOutcome, ...], measured: Sequence[Measurement]
) -> tuple[tuple[CaseOutcome, ...], list[Charge], list[str]]:
    """Mark the cases below a floor. Return them, a charge for each floor missed, a sentence for each not asked."""
    short = below(plan.floors, measured, nodes=plan.nodes)
    outcomes = list(cases)
    for item in (s for s in short if s.missed):
        for index, case in enumerate(plan.cases):
            inside = 0.99 * item.floor.min_bytes <= case.n * 4 <= item.floor.max_bytes
            if case.op == PREFIX + item.floor.op and inside and outcomes[index].verdict is Verdict.PASS:
                outcomes[index] = replace(outcomes[index], verdict=Verdict.BELOW_FLOOR, blame=item.sentence)
    charges = [
        Charge(sentence=item.sentence, verdict=Verdict.BELOW_FLOOR, code=Exit.SLOW) for item in short if item.missed
    ]
    return tuple(outcomes), charges, [item.sentence for item in short if not item.missed]
