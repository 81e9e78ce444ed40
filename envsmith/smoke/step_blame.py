"""The verdict on a framework's step: one that was not run, that raised, that was stopped, or that came to its end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from envsmith.agent.protocol import Phase
from envsmith.frameworks.framework import Step
from envsmith.launch.ranks.causes import ranks_text
from envsmith.model.record import StepFailure, StepOutcome, Verdict
from envsmith.smoke.ended_ranks import blame_fallen, fallen, first_fallen
from envsmith.smoke.events import Events, HaltEvent, HaltReason, RowStatus, StepRow
from envsmith.smoke.step_verdict import judge_step, words_of_framework

# How Python names an exception at the end of a traceback.
_EXCEPTION = re.compile(r"(\w+\.)*\w*(Error|Exception): ")


def outcome_of_step(step: Step, log: Events) -> StepOutcome:
    """Return what became of a step."""
    name = step.name
    note = next((note for note in log.skipped if note.step == name), None)
    if note is not None:
        return StepOutcome(name=name, verdict=Verdict.SKIPPED, detail=note.detail, unmet=note.unmet)
    own = log.rows.of_run(name)
    rows = sorted(own.steps, key=lambda row: row.rank)
    seconds = max((row.seconds for row in rows), default=None)
    halt = next((halt for halt in log.halts if halt.run == name), None)
    errors = [row for row in rows if row.status is RowStatus.ERROR]
    # A signal comes before what the others say about it.
    if errors and not (halt and fallen(halt.exits)):
        return _raised(step, errors, seconds)
    if halt:
        issued = {row.rank: row.count for row in own.flights if row.count is not None}
        return _stopped(step, halt, issued, seconds)
    if not rows:
        return StepOutcome(name=name, verdict=Verdict.NOT_RUN, detail="the run ended before this step")
    skipped = next((row for row in rows if row.status is RowStatus.SKIPPED), None)
    if skipped:
        facts = dict(skipped.facts)
        return StepOutcome(name=name, verdict=Verdict.SKIPPED, seconds=seconds, detail=skipped.detail, facts=facts)
    if silent := sorted(set(range(step.ranks)) - {row.rank for row in rows}):
        text = f"{ranks_text(silent, 'r')} of {step.ranks} reported nothing"
        return StepOutcome(name=name, verdict=Verdict.CRASH, seconds=seconds, detail=text)
    return judge_step(step, rows, seconds)


def _raised(step: Step, errors: Sequence[StepRow], seconds: float | None) -> StepOutcome:
    first, *further = dict.fromkeys(f"rank {r.rank} in {r.stage or 'the step'}: {r.detail}" for r in errors)
    quote = "\n".join(row.detail for row in errors)
    text = "; ".join([first + words_of_framework(errors[0].detail), *further])
    failure = StepFailure(error=errors[0].detail, quote=quote, in_import=errors[0].in_import)
    trace = {"trace": errors[0].trace[-2000:]}
    return StepOutcome(
        name=step.name, verdict=Verdict.ERROR, seconds=seconds, detail=text, facts=trace, failure=failure
    )  # fmt: skip


def _stopped(step: Step, halt: HaltEvent, issued: Mapping[int, int], seconds: float | None) -> StepOutcome:
    """Blame a rank in a step. There the signature is the stage in words, and ranks may stand in different ones.

    ``issued`` are the collectives that torch's flight recorder counted on each rank: of ranks that are late in the same
    stage, those with the fewest keep the others waiting.
    """
    stages = {place.rank: place.signature or "start" for place in halt.where}
    importing = {place.rank for place in halt.where if place.phase is Phase.PREP and place.signature}
    words, dead = _last_words(halt), fallen(halt.exits)
    if dead:
        rank = first_fallen(halt.exits, dead)
        charge = blame_fallen(halt, dead, place=stages.get(rank, "the step"), case=None)
        failure = StepFailure(quote=charge.quote, exits=charge.exits, in_import=rank in importing)
        verdict, detail = Verdict.CRASH, charge.sentence
    elif halt.reason in {HaltReason.DEADLINE, HaltReason.TOTAL}:
        behind = min((place.case for place in halt.where), default=0)
        late, counted = _fewest([place.rank for place in halt.where if place.case == behind], issued)
        at = stages.get(late[0], "start") if late else "start"
        frames = "; ".join(f"rank {rank} in {halt.stacks[rank][0]}" for rank in late if rank in halt.stacks)
        detail = f"no end after {halt.limit:.0f} s: rank {', '.join(map(str, late))} still in {at!r}"
        detail += (f" ({frames})" if frames else "") + counted
        has_begun = any(place.signature for place in halt.where if place.rank in late[:1])
        detail += _quoted("" if has_begun else words)
        failure, verdict = StepFailure(quote="" if has_begun else words), Verdict.HANG
    else:
        codes = ", ".join(f"rank {end.rank} with code {end.code}" for end in halt.exits)
        detail = (halt.detail or f"ended: {codes or 'nothing more is known'}") + _quoted(words)
        exits = () if halt.status is None else (halt.status,)
        failure, verdict = StepFailure(quote=f"{halt.quote}\n{words}", exits=exits), Verdict.ERROR
    return StepOutcome(name=step.name, verdict=verdict, seconds=seconds, detail=detail, failure=failure)


def _fewest(ranks: Sequence[int], issued: Mapping[int, int]) -> tuple[list[int], str]:
    """Return the ranks that issued fewer collectives than others among them, and the words. All where none did."""
    counts = {rank: issued[rank] for rank in ranks if rank in issued}
    if len(counts) < len(ranks) or len(set(counts.values())) < 2:
        return list(ranks), ""
    least, most = min(counts.values()), max(counts.values())
    return [rank for rank in ranks if counts[rank] == least], f"; {least} collectives issued, others have {most}"


def _last_words(halt: HaltEvent) -> str:
    """Return the first exception that the launcher of the ranks wrote, which may know why, or else its last line."""
    lines = halt.launcher.strip().splitlines()
    line = next((line for line in lines if _EXCEPTION.match(line)), lines[-1] if lines else "")
    return line.strip()[:300]


def _quoted(words: str) -> str:
    return f"; the launcher wrote: {words}" if words else ""
