"""Who is to blame for collectives that were stopped, in one sentence: pure, from what the agent wrote down.

The causes are ranked: a rank that called something else than the others, then a signal, then an exception of its own,
then "connection closed by peer", which is what the innocent say. Ranks fall within 0.3 s of each other, so the order of
death proves little.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from envsmith.agent.protocol import Exit, Phase
from envsmith.launch.ranks.causes import ranks_text
from envsmith.model.record import Verdict
from envsmith.smoke.charge import Charge
from envsmith.smoke.ended_ranks import before_cases, blame_ended, is_innocent
from envsmith.smoke.events import CaseRow, HaltEvent, HaltReason, RankPlace, Rows, RowStatus
from envsmith.smoke.places import different_call, last_cases, odd_ones, place_text, rest_text, who

_ENDED = frozenset({HaltReason.EXIT, HaltReason.NURSERY, HaltReason.RAISED})


def blame_halt(halt: HaltEvent, rows: Rows, names: Sequence[str]) -> Charge:
    """Blame somebody for a run that was stopped.

    ``rows`` are all ranks' rows of it, ``names`` the cases' names in order.
    """
    if halt.reason is HaltReason.LIMITS:
        sentence = f"this machine cannot run it: {halt.detail}"
        return Charge(sentence=sentence, verdict=Verdict.NOT_RUN, code=Exit.MEMORY)
    if halt.reason in {HaltReason.IMPORT, HaltReason.CONFIGURATION}:
        return _blame_beginning(halt)
    if halt.reason is HaltReason.INTERRUPTED:
        sentence = f"the run was interrupted: {halt.detail}"
        return Charge(sentence=sentence, verdict=Verdict.NOT_RUN, code=Exit.ERROR)
    if halt.reason in _ENDED or not all(map(is_innocent, rows.raised.values())):
        # A rank that raised by itself is the cause, also where the others' wait for it was noticed first.
        return blame_ended(halt, rows, names)
    if halt.reason is HaltReason.STORE and halt.where:
        return _blame_store(halt, halt.where[0], names)
    return _blame_stall(halt, names)


def _blame_beginning(halt: HaltEvent) -> Charge:
    """Blame torch, or the plan, for ranks that were never started."""
    code = Exit.CONFIGURATION if halt.code not in {Exit.HANG, Exit.CRASH} else Exit(halt.code)
    verdict = Verdict.CRASH if code is Exit.CRASH else Verdict.ERROR
    exits = () if halt.status is None else (halt.status,)
    if halt.reason is HaltReason.IMPORT and code is Exit.CONFIGURATION:
        sentence = f"torch cannot be imported: {halt.detail}"
        return Charge(sentence=sentence, verdict=verdict, code=code, quote=halt.detail)
    return Charge(sentence=halt.detail, verdict=verdict, code=code, quote=halt.quote, exits=exits)


def _blame_store(halt: HaltEvent, waiting: RankPlace, names: Sequence[str]) -> Charge:
    sentence = f"rank 0 does not answer for {halt.silent:.0f} s: its store is silent while "
    sentence += f"{ranks_text([waiting.rank], 'r')} waits in {place_text(waiting.case, names)}"
    if halt.owner.state == "T":
        sentence += f"; rank 0 (pid {halt.owner.pid}) is stopped (SIGSTOP or a debugger)"
    return Charge(sentence=sentence, verdict=Verdict.HANG, code=Exit.HANG, case=waiting.case, ranks=(0,))


def _blame_stall(halt: HaltEvent, names: Sequence[str]) -> Charge:
    """Blame the ranks that are behind all others where no rank moved."""
    where, limit = halt.where, halt.limit
    if not where:
        return Charge(sentence=f"nothing moved for {limit:.0f} s", verdict=Verdict.HANG, code=Exit.HANG)
    case, phase = min((place.case, place.phase) for place in where)
    laggards = [place for place in where if (place.case, place.phase) == (case, phase)]
    ranks = tuple(place.rank for place in laggards)
    stopped = tuple(place.rank for place in laggards if place.state == "T")
    in_case, culprits = place_text(case, names), ranks
    if odd := different_call(where, (), case):
        ranks, call = odd
        culprits, sentence = ranks, f"{call}, in {in_case}; no rank moved for {limit:.1f} s"
    elif stopped and len(stopped) < len(where):
        ranks = culprits = stopped
        meanwhile = rest_text(where, case, stopped)
        sentence = f"{who(stopped, where)} is stopped (SIGSTOP or a debugger) in {in_case}{meanwhile}"
    elif len(laggards) == len(where):
        culprits, sentence = (), f"all ranks are stuck in {in_case}, step {phase.word}, for {limit:.1f} s"
    else:
        does = "never entered" if phase is Phase.PREP else f"is stuck (step {phase.word}) in"
        sentence = f"{who(ranks, where)} {does} {in_case}{rest_text(where, case, ranks)}"
    if stack := halt.stacks.get(ranks[0]):
        sentence += f"; {ranks_text(ranks[:1], 'r')} was in {stack[0]}"
    if halt.unkillable:
        sentence += f"; unkillable: {ranks_text(halt.unkillable, 'r')}"
    index = case if case >= 0 else None
    return Charge(sentence=sentence, verdict=Verdict.HANG, code=Exit.HANG, case=index, ranks=culprits)


def blame_unsupervised(rows: Rows, ended: Iterable[int], ranks: int, names: Sequence[str]) -> Charge | None:
    """Judge ranks that torchrun or Slurm started: no exit status was seen.

    A dead rank is one that neither ended nor raised nor was asked to end. A launcher ends what is left when one rank has
    failed, often before the others have noticed: those are no cause. Where a rank has no time left to say so, a rank
    that raised by itself, in the same case or before, still comes first.
    """
    if early := before_cases(rows):
        return early
    raised, reports = rows.raised, {row.place.rank: row for row in rows.ended}
    missing = sorted(set(range(ranks)) - set(ended) - set(reports) - set(raised))
    last = last_cases(rows.cases, range(ranks))
    own = min((row.case for row in raised.values() if not is_innocent(row)), default=None)
    missing = [rank for rank in missing if own is None or last[rank] + 1 < own]
    if missing:
        return _blame_silent(missing, last, raised, names)
    if raised:
        where = tuple(row.place for row in reports.values())
        halt = HaltEvent(run="collectives", reason=HaltReason.RAISED, where=where)
        return blame_ended(halt, rows, names)
    if not reports:
        return None
    first = min(reports.values(), key=lambda row: row.place.case)
    place = place_text(first.place.case, names)
    sentence = (
        f"the launcher ended {ranks_text(reports, 'r')} ({first.signal}) in {place}; no rank raised or died before"
    )
    return Charge(sentence=sentence, verdict=Verdict.NOT_RUN, code=Exit.ERROR, ranks=tuple(sorted(reports)))


def _blame_silent(
    missing: Collection[int], last: Mapping[int, int], raised: Mapping[int, CaseRow], names: Sequence[str]
) -> Charge:
    """Name, of the ranks of which nothing more was heard, the one that had come least far."""
    rank = min(missing, key=lambda rank: last[rank])
    case, quote = last[rank] + 1, ""
    sentence = f"{ranks_text([rank], 'r')} ended without a word in {place_text(case, names)}"
    if raised:
        quote = next(iter(raised.values())).detail[:160]
        sentence += f"; {ranks_text(raised, 'r')} raised after that: {quote}"
    sentence += "; the launcher's log has its exit status"
    return Charge(
        sentence=sentence, verdict=Verdict.CRASH, code=Exit.CRASH, case=case, ranks=(rank,), quote=quote
    )  # fmt: skip


def blame_wrong(name: str, case: int, rows: Sequence[CaseRow]) -> Charge:
    """Blame the ranks on which the values of a case were wrong, or those that called something else.

    ``rows`` are all ranks' rows of the case.
    """
    odd, theirs, common = odd_ones({row.rank: row.call for row in rows if row.call})
    wrong = [row for row in rows if row.status is RowStatus.WRONG]
    ranks = tuple(row.rank for row in wrong)
    detail = f"{ranks_text(ranks, 'r')}: {wrong[0].detail}"
    if odd:
        sentence = (
            f"{ranks_text(odd, 'r')} called {theirs} where the others called {common}, in case {case} {name}; {detail}"
        )
    else:
        sentence = f"case {case} {name} is wrong on {detail}"
    ranks = tuple(odd) or ranks
    return Charge(sentence=sentence, verdict=Verdict.WRONG, code=Exit.WRONG, case=case, ranks=ranks)
