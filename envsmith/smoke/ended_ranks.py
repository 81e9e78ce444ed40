"""Who is to blame where ranks ended: before the first case, by a signal, or by an error that they raised."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence

from envsmith.agent.processes import describe_exit, fell
from envsmith.agent.protocol import Exit
from envsmith.launch.ranks.causes import Cause, ranks_text
from envsmith.launch.ranks.deaths import SMALL_SHM
from envsmith.launch.ranks.errors import cause_of, says_lost
from envsmith.model.record import Verdict
from envsmith.smoke.charge import Charge
from envsmith.smoke.events import CaseRow, FailedRow, HaltEvent, ManifestRow, ProcessEnd, Rows
from envsmith.smoke.nccl_text import explained
from envsmith.smoke.places import different_call, place_text, who

# What torch and NCCL say of a rank that does not come.
_LATE = re.compile(r"timed? ?out|remote process", re.IGNORECASE)
# Errors of a machine that has no room for the run.
_NO_ROOM = frozenset({Cause.OUT_OF_MEMORY, Cause.DISK_FULL, Cause.SHM_FULL})


def blame_ended(halt: HaltEvent, rows: Rows, names: Sequence[str]) -> Charge:
    """Blame a rank that ended or raised. ``names`` are the cases' names in order."""
    if early := before_cases(rows):
        return early
    dead, raised = fallen(halt.exits), rows.raised
    at = {row.rank: row.case for row in raised.values()} | {place.rank: place.case for place in halt.where}
    case = min([at.get(rank, -1) for rank in (*dead, *raised)], default=-1)
    if odd := different_call(halt.where, rows.cases, case):
        ranks, call = odd
        verdict, code = (Verdict.CRASH, Exit.CRASH) if dead else (Verdict.ERROR, Exit.ERROR)
        sentence = f"{call}, in {place_text(case, names)}; {_symptom(dead, raised)}"
        return Charge(
            sentence=sentence, verdict=verdict, code=code, case=case, ranks=ranks, exits=tuple(code for _, code in sorted(dead.items())),
            quote="\n".join(row.detail for _, row in sorted(raised.items())[:1]),
        )  # fmt: skip
    if dead:
        rank = first_fallen(halt.exits, dead)
        phase = next((place.phase.word for place in halt.where if place.rank == rank), "")
        case = at.get(rank, -1)
        return blame_fallen(halt, dead, place=f"{place_text(case, names)} (step {phase})", case=case)
    if raised:
        return _blame_raise(halt, raised, at, names)
    ended = {end.rank: end.code or 0 for end in halt.exits}
    codes = ", ".join(f"rank {rank} with code {ended[rank]}" for rank in sorted(ended))
    sentence = f"ranks ended early: {codes}" if codes else "the process that starts ranks ended"
    ranks = tuple(sorted(ended))
    return Charge(sentence=sentence, verdict=Verdict.CRASH, code=Exit.CRASH, case=case, ranks=ranks)


def is_innocent(row: CaseRow | FailedRow) -> bool:
    """Tell whether a rank that raised only says that it lost another one."""
    return says_lost(row.detail) or bool(_LATE.search(row.detail))


def before_cases(rows: Rows) -> Charge | None:
    """Blame a rank for what happened before the first case, if anything did."""
    mismatch = next((row for row in rows.manifests if row.mismatch), None)
    if mismatch:
        return _blame_manifest(mismatch)
    first = min(rows.failed, key=is_innocent, default=None)
    if first is None:
        return None
    rank, detail, cause = first.rank, first.detail, cause_of(first.detail)
    if cause is Cause.PORT:
        code = Exit.CONFIGURATION
        sentence = f"rank {rank} cannot open the store: its port is taken by another process ({detail[:160]})"
    else:
        code = Exit.MEMORY if cause in _NO_ROOM else Exit.ERROR
        sentence = f"rank {rank} failed at stage {first.stage}, before the first case: {explained(detail)}"
    return Charge(sentence=sentence, verdict=Verdict.ERROR, code=code, ranks=(rank,), quote=detail)


def _blame_manifest(row: ManifestRow) -> Charge:
    ranks = sorted({rank for odd in row.mismatch.values() for rank in odd})
    parts = []
    for key, odd in row.mismatch.items():
        values = row.values.get(key, {})
        theirs = "/".join(sorted({values.get(rank, "?") for rank in odd}))
        common = "/".join(sorted({value for rank, value in values.items() if rank not in odd}))
        parts.append(f"{key} {theirs} instead of {common}" if values else f"{key} differs")
    sentence = f"{ranks_text(ranks, 'r')} of the group does not match the others: {'; '.join(parts)}; no case was run"
    return Charge(sentence=sentence, verdict=Verdict.ERROR, code=Exit.MISMATCH, ranks=tuple(ranks))


def _symptom(dead: Mapping[int, int], raised: Mapping[int, CaseRow]) -> str:
    sentences = [f"rank {rank} was {describe_exit(code)}" for rank, code in sorted(dead.items())]
    sentences += [f"rank {rank} raised {row.detail[:120]}" for rank, row in sorted(raised.items())][:1]
    return ", ".join(sentences)


def fallen(exits: Sequence[ProcessEnd]) -> Mapping[int, int]:
    """Return the ranks that a signal ended, or that ended without a word, with their codes."""
    return {end.rank: end.code for end in exits if end.code is not None and fell(end.code)}


def first_fallen(exits: Sequence[ProcessEnd], dead: Mapping[int, int]) -> int:
    """Return the rank that died first.

    C++ aborts on an exception that a dying peer caused: any other signal comes first. Of ranks that ended without a
    word it is the earliest, because their launcher ends the others.
    """
    ended = {end.rank: end.at for end in exits}
    silent = {rank: ended.get(rank, 0.0) for rank, code in dead.items() if code == Exit.CRASH}
    return min(dead, key=lambda rank: (dead[rank] == -signal.SIGABRT, silent.get(rank, 0.0), rank))


def blame_fallen(halt: HaltEvent, dead: Mapping[int, int], *, place: str, case: int | None) -> Charge:
    """Blame the rank that died first. ``place`` is where it was, in words."""
    rank = first_fallen(halt.exits, dead)
    status, code = dead[rank], Exit.CRASH
    sentence, quote = f"{who([rank], halt.where)} was {describe_exit(status)} in {place}", ""
    output = halt.output.get(rank, "").strip().splitlines()
    if status == -signal.SIGBUS and halt.shm_free_bytes < SMALL_SHM:
        code = Exit.MEMORY
        sentence += f": /dev/shm is full ({halt.shm_bytes >> 20} MiB in all)"
        sentence += "; give the container more (--shm-size=1g or --ipc=host)"
    elif status in (-signal.SIGKILL, Exit.CRASH) and halt.oom_kills > 0:
        code = Exit.MEMORY
        sentence += ": the kernel ended it for lack of memory"
    elif status == -signal.SIGABRT and output:
        quote = output[-1][:200]
        sentence += f": {quote}"
    return Charge(
        sentence=sentence, verdict=Verdict.CRASH, code=code, case=case, ranks=(rank,), quote=quote, exits=(status,)
    )


def _blame_raise(halt: HaltEvent, raised: Mapping[int, CaseRow], at: Mapping[int, int], names: Sequence[str]) -> Charge:
    rank = min(raised, key=lambda rank: (is_innocent(raised[rank]), at[rank], rank))
    row = raised[rank]
    code = Exit.MEMORY if cause_of(row.detail) in _NO_ROOM else Exit.ERROR
    peers = [peer for peer in raised if peer != rank and is_innocent(raised[peer])]
    after = f"; {ranks_text(peers, 'r')} lost the connection after that" if peers and not is_innocent(row) else ""
    sentence = f"{who([rank], halt.where)} raised in {place_text(row.case, names)}: {explained(row.detail)}{after}"
    return Charge(
        sentence=sentence, verdict=Verdict.ERROR, code=code, case=row.case, ranks=(rank,), quote=row.detail
    )  # fmt: skip
