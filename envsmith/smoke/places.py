"""Where ranks were when a run was stopped, in words, and which of them called something else than the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from envsmith.agent.protocol import Phase, Startup
from envsmith.agent.world import most_common
from envsmith.launch.ranks.causes import ranks_text
from envsmith.smoke.events import CaseRow, HaltEvent, RankPlace, RowStatus

_STAGES: Mapping[int, str] = {
    Startup.START: "starting",
    Startup.STORE: "connecting to the store",
    Startup.MANIFEST: "comparing manifests",
    Startup.GROUP: "making the process group",
    Startup.SUBGROUPS: "making the subgroups",
    Startup.BUDGET: "agreeing on the memory budget",
}
_WAITING = {
    Phase.PREP: "had not entered it",
    Phase.ENTERED: "waited inside it",
    Phase.ISSUED: "waited for the device in it",
    Phase.SYNCED: "had its result",
    Phase.VERIFIED: "had verified it",
    Phase.DONE: "were done with it",
    Phase.RAISED: "had raised in it",
}


def place_text(case: int, names: Sequence[str]) -> str:
    """Return a case, or the stage before the first one."""
    if case < 0:
        return _STAGES.get(case, "before the first case")
    if case < len(names):
        return f"case {case} {names[case]}"
    return "the end, after the last case"


def who(ranks: Sequence[int], where: Iterable[RankPlace]) -> str:
    """Return ranks with their pids, where those are known."""
    pids = [str(place.pid) for place in where if place.rank in ranks and place.pid]
    return ranks_text(ranks, "r") + (f" (pid {', '.join(pids)})" if pids else "")


def rest_text(where: Iterable[RankPlace], case: int, ranks: Sequence[int]) -> str:
    """Say what the others did meanwhile: ``; ranks 0, 1, 3 waited inside it for 3.0 s``."""
    waiting = [place for place in where if place.rank not in ranks and place.case == case]
    if not waiting:
        return ""
    waited = min(place.age for place in waiting)
    waiting_ranks = ranks_text([place.rank for place in waiting], "r")
    return f"; {waiting_ranks} {_WAITING[waiting[0].phase]} for {waited:.1f} s"


def odd_ones(values: Mapping[int, str]) -> tuple[list[int], str, str]:
    """Return the ranks whose value is not the most common one, an odd value, and the common value."""
    if len(set(values.values())) < 2:
        return [], "", ""
    common = most_common([values[rank] for rank in sorted(values)])
    odd = [rank for rank in sorted(values) if values[rank] != common]
    return odd, values[odd[0]], common


def different_call(
    where: Sequence[RankPlace], rows: Iterable[CaseRow], case: int
) -> tuple[tuple[int, ...], str] | None:
    """Return the ranks that called something else in a case, and the sentence, or nothing where all called the same."""
    calls = {row.rank: row.call for row in rows if row.case == case and row.call}
    for place in where:
        if place.case == case and place.signature and place.phase is not Phase.PREP:
            calls.setdefault(place.rank, place.signature)
    odd, theirs, common = odd_ones(calls)
    return (tuple(odd), f"{who(odd, where)} called {theirs} where the others called {common}") if odd else None


def last_cases(rows: Iterable[CaseRow], ranks: Iterable[int]) -> dict[int, int]:
    """Return the last case that each rank finished, or -1 for none."""
    last = dict.fromkeys(ranks, -1)
    for row in rows:
        if row.rank in last:
            last[row.rank] = max(last[row.rank], row.case)
    return last


def refreshed(halt: HaltEvent, rows: Iterable[CaseRow]) -> HaltEvent:
    """Return a halt whose places, reported four times a second, agree with the rows.

    Who finished a case is in the next.
    """
    finished = [row for row in rows if row.status is not RowStatus.ERROR]
    last = last_cases(finished, [place.rank for place in halt.where])
    where = [
        replace(place, case=last[place.rank] + 1, phase=Phase.PREP, signature="")
        if last[place.rank] >= place.case
        else place
        for place in halt.where
    ]
    return replace(halt, where=tuple(where))
