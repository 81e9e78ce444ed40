"""What ranks do or are that should be the same: their collectives, their pace, their versions, variables and world."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from signal import SIGABRT

from envsmith.launch.ranks.causes import Blame, Cause, ranks_text
from envsmith.launch.ranks.evidence import (
    Call,
    Frame,
    LaunchEvidence,
    RankEvidence,
    ThreadStack,
    above_user,
    place_of,
    user_place,
)
from envsmith.launch.ranks.recorder import MOST_CALLS
from envsmith.launch.ranks.requests import minority

# Operations to which every rank gives tensors of one size. Others may differ by right (a gather's root, all_to_all).
_EQUAL = ("all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "reduce_scatter_tensor", "barrier")
# Operations to which only one rank gives tensors.
_ROOTED = ("scatter", "gather")
# How many calls before one are compared with earlier ones, to see whether it was to be expected.
_CONTEXTS = (4, 3, 2, 1)

# A rank is slow when the others wait for it in this share of a span of at least so many seconds. Less is called punctual.
_SHARE, _SPAN, _LATE = 0.4, 3.0, 0.005
_FEWEST = 15

_COLLECTIVE = re.compile(r"torch/distributed/|torch/_C/_distributed|torch/nn/parallel/distributed")
# Python shows nothing below a call into compiled code: a line that waits for a Work is the innermost one. Threads, queues
# and processes are waited for in Python's own modules.
_WORK = re.compile(r"\.(?:wait|synchronize)\(")
# Lines that need a number from the GPU. They keep a processor busy until everything that was queued there is done.
_DEVICE = re.compile(r"\.(?:item|tolist|cpu|numpy)\(|synchronize\(")

Signature = tuple[str, str, tuple[tuple[int, ...], ...], tuple[str, ...]]


@dataclass(frozen=True)
class Difference:
    """The first place at which ranks called different things. ``odd`` are those who differ, empty on a tie."""

    group: str
    sequence: int
    calls: Mapping[int, Call]
    odd: tuple[int, ...]


def around_divergence(ranks: Sequence[RankEvidence]) -> tuple[RankEvidence, ...]:
    """Return ranks with the calls around the place that the slowest of each group has come to, and their last one."""
    reached: dict[str, int] = {}
    for one in ranks:
        for group, number in {call.group: call.sequence for call in one.calls if not call.is_p2p}.items():
            reached[group] = min(number, reached.get(group, number))
    return tuple(replace(one, calls=_window(one.calls, reached)) for one in ranks)


def _window(calls: tuple[Call, ...], reached: Mapping[str, int]) -> tuple[Call, ...]:
    if len(calls) <= MOST_CALLS:
        return calls
    beyond = (
        number
        for number, call in enumerate(calls)
        if not call.is_p2p and call.sequence > reached.get(call.group, call.sequence)
    )
    start = max(0, min(next(beyond, len(calls)) + MOST_CALLS // 4, len(calls)) - MOST_CALLS)
    window = calls[start : start + MOST_CALLS]
    return window if window[-1] is calls[-1] else (*window, calls[-1])


def signature(call: Call) -> Signature:
    """Return what has to be the same on every rank of a group."""
    sizes = call.sizes if call.operation.startswith(_EQUAL) else ()
    return call.group, call.operation, sizes, () if call.operation.startswith(_ROOTED) else call.dtypes


def call_text(call: Call) -> str:
    """Return a call for people: ``all_reduce of [8] float32``."""
    sizes = ", ".join(str(list(size)) for size in call.sizes[:3])
    what = " ".join(part for part in (sizes, "/".join(dict.fromkeys(call.dtypes))) if part)
    return f"{call.operation} of {what}" if what else call.operation


def first_difference(ranks: Sequence[RankEvidence]) -> Difference | None:
    """Return the first place in the sequence of a group at which the ranks called different things."""
    different = [
        (min(call.at for call in calls.values()), place, calls)
        for place, calls in _by_place(ranks).items()
        if len({signature(call) for call in calls.values()}) > 1
    ]
    if not different:
        return None
    _, (group, sequence), calls = min(different, key=lambda row: (row[0], row[1]))
    return Difference(group=group, sequence=sequence, calls=calls, odd=_odd(ranks, calls))


def _by_place(ranks: Sequence[RankEvidence]) -> dict[tuple[str, int], dict[int, Call]]:
    """Return the collectives by group and number, and by the rank that made each."""
    table: dict[tuple[str, int], dict[int, Call]] = {}
    for one in ranks:
        for call in one.calls:
            if not call.is_p2p:
                table.setdefault((call.group, call.sequence), {})[one.rank] = call
    return table


def odd_sizes(ranks: Sequence[RankEvidence]) -> tuple[int, ...]:
    """Return the minority that gave the last collective of which every rank tells tensors of other sizes.

    For a collective to which ranks may give different sizes by right: where the library says that they did not fit.
    """
    rows = [calls for calls in _by_place(ranks).values() if len(calls) == len(ranks) > 2]
    for calls in sorted(rows, key=lambda calls: -min(call.at for call in calls.values())):
        counts = Counter((call.operation, call.sizes) for call in calls.values())
        (usual, most), *fewer = counts.most_common()
        if fewer and most > fewer[0][1]:
            return tuple(sorted(rank for rank, call in calls.items() if (call.operation, call.sizes) != usual))
    return ()


def _odd(ranks: Sequence[RankEvidence], calls: Mapping[int, Call]) -> tuple[int, ...]:
    """Return the minority, and on a tie those whose call does not follow from what they called before."""
    counts = Counter(signature(call) for call in calls.values())
    (common, most), *fewer = counts.most_common()
    if all(count < most for _, count in fewer):
        return tuple(sorted(rank for rank, call in calls.items() if signature(call) != common))
    novel = {
        signature(calls[one.rank]) for one in ranks if one.rank in calls and not is_usual(one.calls, calls[one.rank])
    }
    if len(novel) != 1:
        return ()
    return tuple(sorted(rank for rank, call in calls.items() if signature(call) in novel))


def is_usual(history: Sequence[Call], call: Call) -> bool:
    """Tell whether the calls before this one were followed by such a call before: training repeats itself."""
    rows = [signature(each) for each in history]
    place = max((number for number, each in enumerate(history) if each == call), default=len(rows))
    mine = signature(call)
    for length in _CONTEXTS:
        if place < length:
            continue
        context = rows[place - length : place]
        followers = {rows[n] for n in range(length, place) if rows[n - length : n] == context}
        if followers:
            return mine in followers
    return mine in rows[:place]


def _usual_next(history: Sequence[Call], call: Call) -> set[Signature]:
    rows = [signature(each) for each in history]
    return {after for before, after in zip(rows, rows[1:]) if before == signature(call)}


def different_calls(evidence: LaunchEvidence) -> Blame | None:
    """Blame the rank whose collective differs from that of the others at the same place in the sequence."""
    difference = first_difference(evidence.ranks)
    if difference is None:
        return None
    calls = difference.calls
    odd = difference.odd or _under_condition(evidence, calls)
    by_call: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        by_call.setdefault(call_text(call), []).append(rank)
    rows = tuple(f"{ranks_text(ranks, 'r')}: {text}" for text, ranks in by_call.items())
    place = f"collective {difference.sequence} of {_group_words(evidence, difference.group)}"
    if not odd:
        return _undecided(place, calls, rows, is_hang=bool(evidence.stalled))
    one = next(each for each in evidence.ranks if each.rank == odd[0])
    usual = next(call for rank, call in sorted(calls.items()) if rank not in odd)
    peer = next(each for each in evidence.ranks if each.rank not in odd and each.rank in calls)
    cause, words = _deviation(one, peer, calls[odd[0]], usual)
    where = calls[odd[0]].place or (user_place(one.main.frames) if one.main and one.calls[-1] == calls[odd[0]] else "")
    return Blame(
        cause=cause,
        ranks=odd,
        message=f"{ranks_text(odd)} {words}: {call_text(calls[odd[0]])} where the others call {call_text(usual)}, as {place}.",
        fix=f"Take the collective out of `if {test.condition}` at {place_of(test)}: every rank has to call it."
        if (test := _condition(one)) and where
        else _FIXES.get(
            cause, "Look for a condition on the rank around a collective, or for fewer batches on that rank."
        ),
        place=where,
        evidence=rows,
        is_hang=bool(evidence.stalled),
    )


def _under_condition(evidence: LaunchEvidence, calls: Mapping[int, Call]) -> tuple[int, ...]:
    """Return the ranks that stand under a test of the rank, where some do and others do not."""
    standing = [one for one in evidence.ranks if one.rank in calls and one.calls[-1] == calls[one.rank]]
    under = tuple(one.rank for one in standing if _condition(one))
    return under if 0 < len(under) < len(calls) == len(standing) else ()


def _condition(one: RankEvidence) -> Frame | None:
    """Return the frame of its main thread that stands under a test of the rank."""
    return next(
        (frame for frame in (one.main.frames if one.main else ()) if frame.condition and user_place([frame])), None
    )


_FIXES = {
    Cause.DIFFERENT_DTYPES: "Look at what makes the dtype on that rank: a default, an autocast, a checkpoint.",
    Cause.DIFFERENT_SHAPES: "Look at what makes the shape on that rank: its batch, its model's size, its padding.",
}


def _deviation(one: RankEvidence, peer: RankEvidence, odd: Call, usual: Call) -> tuple[Cause, str]:
    """Return what the odd rank did, by the calls that came next, or that usually come next."""
    threads = [{call.thread for call in each.calls if call.group == odd.group} for each in (one, peer)]
    if len(threads[0]) > 1 == len(threads[1]):
        return Cause.DIFFERENT_CALLS, f"calls collectives from {len(threads[0])} threads, in whatever order they come"
    cause = _cause([odd, usual])
    if cause is Cause.DIFFERENT_DTYPES:
        return cause, "gives a collective another dtype"
    after_odd, after_usual = _next(one.calls, odd), _next(peer.calls, usual)
    follows = after_usual == signature(odd) or (
        after_usual is None and signature(odd) in _usual_next(peer.calls, usual)
    )
    if follows and after_odd == signature(usual):
        return Cause.DIFFERENT_CALLS, "calls collectives in another order"
    if follows:
        return Cause.FEWER_CALLS, "leaves a collective out"
    if cause is Cause.DIFFERENT_SHAPES and odd.sizes and usual.sizes:
        what = "shape" if len(odd.sizes) == len(usual.sizes) else "number of tensors"
        return cause, f"gives a collective another {what}"
    return Cause.DIFFERENT_CALLS, "calls another collective"


def _next(history: Sequence[Call], call: Call) -> Signature | None:
    rows = [each for each in history if each.group == call.group and each.sequence == call.sequence + 1]
    return signature(rows[0]) if rows else None


def _cause(calls: Sequence[Call]) -> Cause:
    if len({call.operation for call in calls}) > 1:
        return Cause.DIFFERENT_CALLS
    if len({frozenset(call.dtypes) for call in calls}) > 1:
        return Cause.DIFFERENT_DTYPES
    return Cause.DIFFERENT_SHAPES


def _group_words(evidence: LaunchEvidence, name: str) -> str:
    for one in evidence.ranks:
        for group in one.groups:
            if group.name == name and group.description not in {"", "undefined"}:
                return "the default group" if group.description == "default_pg" else f"group {group.description}"
    return "the default group" if name in {"0", ""} else f"group {name}"


def aborted_in_call(evidence: LaunchEvidence) -> Blame | None:
    """Judge a rank that gloo or NCCL aborted inside a collective: what it received was not what it expected.

    The aborted rank leaves no recorder, at most what it said at an earlier look. Either a survivor called what does not
    follow from its earlier calls, or they all did as ever or alike, and the aborted one did not.
    """
    aborted = [one for one in evidence.ranks if one.exit and one.exit.code == -SIGABRT]
    inside = [
        one for one in aborted if one.main and (calls_collective(one.main.frames) or awaits_work(one.main.frames))
    ]
    survivors = [one for one in evidence.ranks if one.calls and one not in aborted]
    if not inside or not survivors:
        return _most_aborted(evidence, inside)
    unusual = {one.rank: call for one in survivors if (call := _unusual_call(one.calls))}
    keys = {rank: (call.operation, call.sizes, call.dtypes) for rank, call in unusual.items()}
    if len(unusual) == len(survivors) > len(aborted):  # it is new to all of them
        few = minority(keys)
        if not few and len(set(keys.values())) > 1:
            rows = tuple(f"rank {rank}: {call_text(call)}" for rank, call in unusual.items())
            return _undecided("collective", unusual, rows)
        unusual = {rank: unusual[rank] for rank in few}
    odd = [one for one in survivors if one.rank in unusual]
    blamed = tuple(one.rank for one in (odd or inside))
    if odd:
        call = unusual[odd[0].rank]
        before = _usual_sibling(odd[0].calls, call)
        cause = _cause([call, before]) if before else Cause.DIFFERENT_CALLS
        what = f"called {call_text(call)}, unlike before"
    else:
        cause = Cause.DIFFERENT_CALLS
        what = f"did not call {call_text(survivors[0].calls[-1])} as the others, but another collective, size or dtype"
    place = user_place(((odd or inside)[0].main or inside[0].main or ThreadStack(thread="", frames=())).frames)
    rows = tuple(f"rank {one.rank}: {call_text(unusual.get(one.rank, one.calls[-1]))}" for one in survivors)
    return Blame(
        cause=cause,
        ranks=blamed,
        message=f"{ranks_text(blamed)} {what}. The library aborted {ranks_text([one.rank for one in inside], 'r')} inside "
        "the collective, because what it received was not what it expected.",
        fix=_FIXES.get(
            cause, "Look for a condition on the rank around a collective, or for fewer batches on that rank."
        ),
        place=place if not odd else "",
        evidence=(*rows, *(f"rank {one.rank}: SIGABRT at {user_place(one.main.frames)}" for one in inside if one.main)),
        confidence="medium",
    )


def _undecided(place: str, calls: Mapping[int, Call], rows: tuple[str, ...], *, is_hang: bool = False) -> Blame:
    return Blame(
        cause=_cause(list(calls.values())),
        ranks=(),
        message=f"The ranks do not call the same {place}: {'; '.join(rows)}. Which of them is wrong cannot be told "
        "from that.",
        fix="Compare which collectives each rank calls, and with which tensors.",
        evidence=rows,
        confidence="medium",
        is_hang=is_hang,
    )


def _most_aborted(evidence: LaunchEvidence, inside: Sequence[RankEvidence]) -> Blame | None:
    """Blame the few that were not aborted where most were, and no recorder says more."""
    few = tuple(one.rank for one in evidence.ranks if one not in inside)
    if not few or len(inside) <= len(few):
        return None
    rows = tuple(f"rank {one.rank}: SIGABRT at {user_place(one.main.frames)}" for one in inside if one.main)
    return Blame(
        cause=Cause.DIFFERENT_CALLS,
        ranks=few,
        message=f"{ranks_text(few)} did not call the collective of the others, or gave it another size or dtype: the "
        f"library aborted {ranks_text([one.rank for one in inside], 'r')} inside it.",
        fix="Look for a condition on the rank around that collective, and for what makes the shape of its tensors.",
        evidence=rows[:8],
        confidence="medium",
    )


def _unusual_call(history: Sequence[Call]) -> Call | None:
    """Return the last call if it does not follow from earlier ones, or one of the last two that has another size than ever.

    An all_to_all may have any size, and here it did not fit. Who sent too much may be past it.
    """
    if not is_usual(history, history[-1]):
        return history[-1]
    for number in range(len(history) - 1, max(0, len(history) - 3), -1):
        sizes = {call.sizes for call in history[:number] if call.operation == history[number].operation}
        if len(sizes) == 1 and history[number].sizes not in sizes:
            return history[number]
    return None


def _usual_sibling(history: Sequence[Call], call: Call) -> Call | None:
    """Return the call that was to be expected instead of one: what followed its predecessor before."""
    rows, place = [signature(each) for each in history], history.index(call)
    numbers = range(place - 1, 0, -1)
    return next((history[number] for number in numbers if rows[number - 1] == rows[place - 1]), None)


def calls_collective(frames: Sequence[Frame]) -> bool:
    """Tell whether the program has called torch's own code of collectives."""
    return any(_COLLECTIVE.search(frame.file) for frame in above_user(frames))


def awaits_work(frames: Sequence[Frame]) -> bool:
    """Tell whether the innermost line waits for what was begun before."""
    return bool(frames) and bool(_WORK.search(frames[0].text))


def awaits_device(frames: Sequence[Frame]) -> bool:
    """Tell whether the innermost line waits for the GPU, and so for the collectives that are queued there."""
    return bool(frames) and bool(_DEVICE.search(frames[0].text))


def in_flight(one: RankEvidence) -> Call | None:
    """Return the call in which a rank waits, or nothing where its recorder has none that is open."""
    return next((call for call in reversed(one.calls) if call.ended is False), None)


def late_to_most(evidence: LaunchEvidence) -> Blame | None:
    """Blame a rank that is the last one at almost every collective, by much of the time between them."""
    table = _by_place(evidence.ranks).values()
    rows = [{rank: call.at for rank, call in calls.items() if call.at} for calls in table]
    rows = [row for row in rows if len(row) == len(evidence.ranks) > 1]
    rows = sorted(rows, key=lambda row: min(row.values()))[-200:]
    if len(rows) < _FEWEST:
        return None
    lags: dict[int, list[float]] = {}
    for row in rows:
        last = max(row, key=lambda rank: row[rank])
        lags.setdefault(last, []).append(row[last] - sorted(row.values())[-2])
    rank, mine = max(lags.items(), key=lambda pair: sum(pair[1]))
    span = max(max(row.values()) for row in rows) - min(min(row.values()) for row in rows)
    share = sum(mine) / span if span else 0.0
    count = sum(1 for lag in mine if lag > _LATE)
    if span < _SPAN or share < _SHARE or sum(mine) < 0.8 * sum(map(sum, lags.values())) or count < _FEWEST:
        return None
    return Blame(
        cause=Cause.SLOW,
        ranks=(rank,),
        message=f"Rank {rank} is slow: the others waited for it during {share:.0%} of the last {span:.1f} s.",
        fix=f"Compare the machine, the data and the load of rank {rank} with the others'.",
        evidence=(f"last by more than {_LATE * 1000:.0f} ms at {count} of {len(rows)} collectives",),
        confidence="medium",
    )


# What is a rank's own by its nature: which GPU it sees, and for which host it passes where ranks share a GPU.
_OWN = ("CUDA_VISIBLE_DEVICES", "NCCL_DEBUG_FILE", "NCCL_HOSTID")
_MOST = 5


def different_environments(ranks: Sequence[RankEvidence]) -> tuple[str, ...]:
    """Return one line for each version or variable that differs, the odd ranks first."""
    names = dict.fromkeys(name for one in ranks for name in one.environment if name not in _OWN)
    lines = []
    for name in sorted(names, key=lambda each: not each.startswith("version of ")):
        # A package that a rank has not imported yet says nothing.
        values = {
            one.rank: one.environment.get(name, "")
            for one in ranks
            if one.environment and (name in one.environment or not name.startswith("version of "))
        }
        counts = Counter(values.values())
        if len(counts) < 2:
            continue
        (common, most), (_, second), *_ = counts.most_common()
        rows = ", ".join(
            f"{ranks_text([rank for rank, value in values.items() if value == each], 'r')}: {each[:80] or 'unset'}"
            for each, _ in sorted(counts.items(), key=lambda pair: (most > second and pair[0] == common, pair[1]))
        )
        lines.append(f"{name} differs ({rows})")
    return tuple(lines[:_MOST])


def different_worlds(evidence: LaunchEvidence) -> Blame | None:
    """Blame the ranks that believe in another size of the world than the most."""
    worlds = {one.rank: one.world for one in evidence.ranks if one.world}
    counts = Counter(worlds.values())
    if len(counts) < 2:
        return None
    (common, most), (_, second), *_ = counts.most_common()
    odd = tuple(rank for rank, world in worlds.items() if world != common) if most > second else ()
    rows = tuple(f"rank {rank}: WORLD_SIZE={world}" for rank, world in sorted(worlds.items()))
    return Blame(
        cause=Cause.WORLD_SIZE,
        ranks=odd,
        message=f"The ranks do not agree on how many they are: {', '.join(rows)}.",
        fix="Give every rank the same WORLD_SIZE.",
        evidence=rows,
    )
