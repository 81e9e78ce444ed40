"""A launch that stands still: who waits, for whom, and what that one does. "Hang" is said only of what cannot go on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from signal import SIGKILL

from envsmith.launch.ranks.causes import Blame, Cause, at_place, ranks_text
from envsmith.launch.ranks.deaths import departure, signal_name
from envsmith.launch.ranks.differences import (
    Signature,
    awaits_device,
    awaits_work,
    call_text,
    calls_collective,
    different_calls,
    different_worlds,
    first_difference,
    in_flight,
    is_usual,
    signature,
)
from envsmith.launch.ranks.doing import (
    STILL,
    computes,
    facts_of,
    family,
    has_task,
    holders_of,
    in_loader,
    is_stuck,
    may_go_on,
    what_it_does,
)
from envsmith.launch.ranks.errors import cause_of, error_text, follows
from envsmith.launch.ranks.evidence import (
    Call,
    Frame,
    LaunchEvidence,
    ProcessState,
    RankEvidence,
    place_of,
    user_place,
)
from envsmith.launch.ranks.requests import asking_words, odd_requests

# Ranks that leave a loop early stand at two or three places. Every pair of places is compared.
_MOST_STACKS = 32
_RENDEZVOUS = re.compile(r"rendezvous|init_process_group|_store_based_barrier|_new_process_group_helper")


def stall(evidence: LaunchEvidence) -> Blame | None:
    """Return who is waited for, and why that one does not come. ``None`` where the ranks do not stand still."""
    if not evidence.stalled:
        return None
    judges = (
        _dead,
        _raised,
        _outlived,
        _stopped,
        different_worlds,
        _left_loop,
        different_calls,
        _not_waiting,
        _different_arguments,
        _different_groups,
        _never_came,
        _all_wait,
        _all_sleep,
    )
    answer = next((answer for judge in judges if (answer := judge(evidence))), None)
    return _with_handled(answer, evidence) if answer else None


def _with_handled(answer: Blame, evidence: LaunchEvidence) -> Blame:
    """Add the error that the blamed rank has not left behind: it waits in an ``except`` or ``finally`` of the program.

    That error, and not its data, took it out of the loop of the others.
    """
    main = next((one.main for one in evidence.ranks if (one.rank,) == answer.ranks), None)
    error = main.handles if main else None
    if error is None or not error.place or error.place in answer.message:
        return answer
    return replace(
        answer,
        cause=Cause.RAISED if answer.cause is Cause.UNEVEN_DATA else answer.cause,
        kind="",
        message=f"{answer.message} It waits while it handles {error_text(error)}{at_place(error.place)}.",
        fix=f"Look at {error.place}: what the others do, that rank no longer does after its error.",
    )


def waits(one: RankEvidence) -> bool:
    """Tell whether a rank is inside a collective, or on the way into a process group."""
    if one.process and one.process.answers is False and not one.stacks:
        return False
    main = one.main
    if one.is_leaving or (one.process and one.process.became) or _imports(one):
        return False
    if main and (in_loader(one) or _is_stopped(one)):
        return False
    if main and (calls_collective(main.frames) or awaits_work(main.frames)):
        return True
    if in_flight(one) is None:
        return False
    # An asynchronous call is open while its rank does something else: only the engine of autograd waits without a frame.
    is_in_backward = any(frame.function == "_engine_run_backward" for frame in one.above_user)
    return main is None or is_in_backward or awaits_device(main.frames)


def waiting_ranks(evidence: LaunchEvidence) -> list[RankEvidence]:
    """Return the living ranks that wait, and those whose call a rank that does not wait has not made.

    On a GPU a rank waits wherever it first asks for a number: no frame shows for what.
    """
    living = _living(evidence)
    elsewhere = [one for one in living if not waits(one)]
    least: dict[str, int] = {}
    for one in elsewhere:
        for group, number in _last_calls(one).items():
            least[group] = min(number, least.get(group, number))
    late = {id(one) for one in elsewhere if not _is_ahead(one, least)}
    return [one for one in living if id(one) not in late]


def _last_calls(one: RankEvidence) -> dict[str, int]:
    """Return the number of its last collective in each group."""
    numbers: dict[str, int] = {}
    for call in one.calls:
        if not call.is_p2p:
            numbers[call.group] = max(call.sequence, numbers.get(call.group, 0))
    return numbers


def _is_ahead(one: RankEvidence, last: Mapping[str, int]) -> bool:
    """Tell whether a collective is open on a rank to which others, with these last calls of theirs, have not come."""
    call = in_flight(one)
    return call is not None and not call.is_p2p and last.get(call.group, call.sequence) < call.sequence


def _imports(one: RankEvidence) -> bool:
    """Tell whether a rank still loads modules: those of torch.distributed stand on its stack then, too."""
    return any(frame.file.startswith("<frozen importlib") for frame in one.above_user)


def _is_stopped(one: RankEvidence) -> bool:
    """Tell whether a rank is stopped. One that answers is only looked at, by a debugger or a profiler, for a moment."""
    process = one.process
    return bool(process and process.answers is not True and (process.state in {"T", "t"} or _is_frozen(process)))


def _is_frozen(process: ProcessState) -> bool:
    """Tell whether its control group is frozen, as ``docker pause`` does it."""
    return process.waits_in in {"__refrigerator", "do_freezer_trap"}


def _living(evidence: LaunchEvidence) -> list[RankEvidence]:
    return [one for one in evidence.ranks if one.is_alive]


def _members(evidence: LaunchEvidence) -> dict[str, set[int]]:
    """Return the ranks of each process group that a rank names."""
    table: dict[str, set[int]] = {}
    for one in evidence.ranks:
        for group in one.groups:
            if group.ranks and group.name not in table:
                table[group.name] = set(group.ranks)
    return table


def _awaited(evidence: LaunchEvidence) -> set[int]:
    """Return the ranks of the groups in which others wait: all, where a recorder does not tell in which it does."""
    members, everybody = _members(evidence), {one.rank for one in evidence.ranks}
    opens = {call.group if (call := in_flight(one)) else None for one in _living(evidence) if waits(one)}
    groups = [everybody if name is None else members.get(name, everybody) for name in opens]
    return set().union(*groups) if groups else everybody


def _may_end(evidence: LaunchEvidence) -> bool:
    """Tell whether ranks that all wait may go on: all of a group have come, and are slow, or a thread brings a call yet.

    A GPU has several calls in its queue. The first one of a group must end before the others.
    """
    come: dict[tuple[str, int, bool, Signature], set[int]] = {}
    members, everybody = _members(evidence), set(range(evidence.world))
    for one in _living(evidence):
        queues = {(call.group, call.is_p2p): call for call in reversed(one.calls) if call.ended is False}
        for call in queues.values():
            come.setdefault((call.group, call.sequence, call.is_p2p, signature(call)), set()).add(one.rank)
    return any(ranks >= members.get(key[0], everybody) for key, ranks in come.items()) or _is_brought(evidence)


def _is_brought(evidence: LaunchEvidence) -> bool:
    """Tell whether a thread beside one that trains is at work for the program, or may go on and made collectives before."""
    for one in _living(evidence):
        callers = {call.thread for call in one.calls if call.thread}
        for stack in one.stacks:
            process = stack.process
            if process and not stack.is_main and has_task(stack):
                is_at_work = computes(process) or process.state == "D"
                if is_at_work or (stack.number in callers and may_go_on(process)):
                    return True
    return False


def _waiting_words(evidence: LaunchEvidence, ranks: Sequence[int]) -> str:
    """Return a sentence that says in what the other ranks wait."""
    waiting = [one for one in waiting_ranks(evidence) if one.rank not in ranks]
    if not waiting:
        return ""
    call, place = in_flight(waiting[0]), waiting[0].place
    what = f" in {call_text(call)}" if call else ""
    numbers = ranks_text([one.rank for one in waiting])
    return f" {numbers} wait{'s' if len(waiting) == 1 else ''}{what}{at_place(place)}."


def _dead(evidence: LaunchEvidence) -> Blame | None:
    """Blame a rank that has ended while the others wait for it."""
    awaited = _awaited(evidence)
    ends = sorted(
        (one for one in evidence.ranks if one.exit and not one.exit.by_launcher and one.rank in awaited),
        key=lambda each: each.exit.at if each.exit else 0.0,
    )
    if not ends:
        return None
    one, last = ends[0], _last_calls(ends[0])
    if not any(waits(each) or _is_ahead(each, last) for each in _living(evidence)):
        return None
    code = one.exit.code if one.exit else None
    ending = "with status 0" if code == 0 else "without a word" if code is None else _ending(code)
    way = f", by {one.way_out}" if one.way_out else ""
    error = f", after {one.error.error[:160]}{at_place(one.error.place)}" if one.error else ""
    if one.error:
        cause = cause_of(one.error.error)
    elif code == 0:
        cause, _ = departure(one)
    else:
        cause = Cause.EXITED if (code or 0) > 0 else Cause.KILLED if code == -SIGKILL else Cause.CRASHED
    return Blame(
        cause=cause,
        ranks=(one.rank,),
        message=f"Rank {one.rank} has ended {ending}{way}{error}, and the launcher let the others go on."
        + _waiting_words(evidence, [one.rank]),
        fix="Look at why that rank ended. The others wait until the timeout of their process group.",
        place=one.error.place if one.error else one.way_out.rpartition(" at ")[2],
        is_hang=True,
    )


def _raised(evidence: LaunchEvidence) -> Blame | None:
    """Blame the rank whose error came first, where its process has not ended: it tidies up, or hangs at its end."""
    own = [
        (one.error, one)
        for one in _living(evidence)
        if one.error and one.is_leaving and not one.error.handled and not follows(one.error)
    ]
    if not own:
        return None
    error, one = min(own, key=lambda pair: pair[0].at)
    return Blame(
        cause=cause_of(error.error),
        ranks=(one.rank,),
        message=f"Rank {one.rank} has ended with {error_text(error)}{at_place(error.place)}, but its process goes on."
        + _waiting_words(evidence, [one.rank]),
        fix=f"Look at {error.place or 'the traceback of that rank'}, and end its process: the others wait until then.",
        place=error.place,
        evidence=(error.error,),
        quote=error.error,
        is_hang=True,
    )


def _outlived(evidence: LaunchEvidence) -> Blame | None:
    """Blame a rank whose script is over, and whose process waits for a thread that is no daemon."""
    one = next((each for each in _living(evidence) if each.main and _is_shutting_down(each.main.frames)), None)
    if one is None:
        return None
    threads = [stack for stack in one.stacks if not stack.is_main]
    names = ", ".join(f"{stack.thread}{at_place(user_place(stack.frames))}" for stack in threads[:3])
    return Blame(
        cause=Cause.LEFT,
        ranks=(one.rank,),
        message=f"Rank {one.rank} has come to the end of its script, and its process waits for a thread: {names}.",
        fix="Tell that thread to end, or make it a daemon.",
        evidence=facts_of(one),
        is_hang=bool(threads)
        and all(stack.still >= STILL and not (stack.process and may_go_on(stack.process)) for stack in threads),
    )


def _is_shutting_down(frames: Sequence[Frame]) -> bool:
    return bool(frames) and frames[-1].function == "_shutdown" and frames[-1].file.endswith("/threading.py")


def _ending(code: int) -> str:
    return f"by {signal_name(code)}" if code < 0 else f"with status {code}"


def _stopped(evidence: LaunchEvidence) -> Blame | None:
    """Blame ranks that do not run because somebody stopped them."""
    stopped = [one for one in _living(evidence) if _is_stopped(one)]
    if not stopped or len(stopped) == len(_living(evidence)):
        return None
    pids = ", ".join(str(one.pid) for one in stopped)
    ranks = tuple(one.rank for one in stopped)
    is_frozen = any(one.process and _is_frozen(one.process) for one in stopped)
    words = "is frozen with its control group" if is_frozen else "is stopped, by SIGSTOP or a debugger"
    return Blame(
        cause=Cause.STOPPED,
        ranks=ranks,
        message=f"{ranks_text(ranks)} (pid {pids}) {words}.{_waiting_words(evidence, ranks)}",
        fix="Thaw it, as `docker unpause` does, and look at who froze it."
        if is_frozen
        else f"Let it go on with `kill -CONT {pids.replace(',', '')}`, or end the debugger.",
        place=stopped[0].place,
        evidence=tuple(f"rank {one.rank}: state {one.process.state} in /proc" for one in stopped if one.process),
        is_hang=True,
    )


def _left_loop(evidence: LaunchEvidence) -> Blame | None:
    """Blame ranks that have come out of a loop in which the others still make the collectives that all of them made."""
    living = _living(evidence)
    stacks = {one.main.frames: one for one in living if one.main}
    if len(stacks) > _MOST_STACKS:
        return None  # they are not in one loop
    behind = {frames: loop for frames in stacks for peer in stacks if (loop := _loop_behind(frames, peer))}
    loops = {one.rank: behind[one.main.frames] for one in living if one.main and one.main.frames in behind}
    ahead = [one for one in living if one.rank in loops]
    inside = [one for one in living if one.rank not in loops]
    if not ahead or len(ahead) > len(inside) or not all(waits(one) for one in living):
        return None
    difference = first_difference(evidence.ranks)
    parted = difference.calls if difference else {}
    if any(parted.get(one.rank, one.calls[-1]) != one.calls[-1] for one in ahead if one.calls):
        return None  # their calls differ from an earlier one on
    opens = [parted.get(one.rank) or in_flight(one) for one in inside]
    if not all(call and is_usual(ahead[0].calls[:-1], call) for call in opens):
        return None  # the others make calls of their own in that loop
    ranks, place = tuple(one.rank for one in ahead), ahead[0].place
    return Blame(
        cause=Cause.UNEVEN_DATA,
        ranks=ranks,
        message=f"{ranks_text(ranks)} left the loop at {loops[ranks[0]]} after fewer rounds than the others make, and "
        f"{'waits' if len(ranks) == 1 else 'wait'}{at_place(place)}.{_waiting_words(evidence, ranks)}",
        fix="Give every rank the same number of batches: a sampler that pads or drops the last ones, or an agreed end.",
        place=place,
        evidence=tuple(f"rank {one.rank}: {one.place}" for one in living),
        is_hang=not _may_end(evidence),
    )


def _loop_behind(frames: Sequence[Frame], peer: Sequence[Frame]) -> str:
    """Return the loop of one function in which the peer stands and that a rank with these frames has behind it."""
    mine = {(frame.file, frame.function): frame for frame in frames}
    for frame in reversed(peer):
        same = mine.get((frame.file, frame.function))
        if same and same.line != frame.line:
            passed = [first for first, last in frame.loops if last < same.line]
            return place_of(replace(frame, line=passed[0])) if passed else ""
    return ""


def _not_waiting(evidence: LaunchEvidence) -> Blame | None:
    """Blame the ranks that are not in a collective while the others are."""
    living, waiting = _living(evidence), waiting_ranks(evidence)
    come = set(map(id, waiting))
    late = [one for one in living if id(one) not in come]
    if not late or not waiting:
        return None  # nobody waits for them
    awaited = _awaited(evidence)
    # Of two late ranks of which one waits for the other that other one is the first.
    holders = {holder.pid for each in late if each.process for holder in holders_of(each.process)}
    one = max(late, key=lambda each: (each.rank in awaited, each.pid in holders, is_stuck(each)))
    ranks = tuple(each.rank for each in late if each.place == one.place)
    does = what_it_does(one)
    in_thread = any(calls_collective(stack.frames) for stack in one.stacks if not stack.is_main)
    who = ranks_text(ranks) if len(ranks) == 1 else f"Each of {ranks_text(ranks, 'r')}"
    return Blame(
        cause=does.cause,
        ranks=ranks,
        message=f"{who} {does.words}{at_place(one.place)}.{_waiting_words(evidence, ranks)}",
        fix=does.fix,
        place=one.place,
        evidence=facts_of(one),
        is_hang=does.is_hang and one.rank in awaited and not (in_thread and _is_brought(evidence)),
        confidence="high" if one.main else "medium",
    )


def _different_groups(evidence: LaunchEvidence) -> Blame | None:
    """Say that ranks wait for each other in different groups, or in different collectives."""
    open_calls = {one.rank: (one, call) for one in _living(evidence) if (call := in_flight(one))}
    if len({call.group for _, call in open_calls.values()}) < 2:
        return None
    novel = [rank for rank, (one, call) in open_calls.items() if not is_usual(one.calls, call)]
    counts: dict[str, list[int]] = {}
    for rank, (_, call) in sorted(open_calls.items()):
        counts.setdefault(call.group, []).append(rank)
    fewest = min(counts.values(), key=len)
    is_minority = all(len(ranks) > len(fewest) for ranks in counts.values() if ranks is not fewest)
    odd = tuple(fewest) if is_minority else tuple(novel) if len(novel) == 1 else ()
    rows = tuple(f"rank {rank}: {call_text(call)}, group {call.group}" for rank, (_, call) in open_calls.items())
    may_end = _may_end(evidence)
    who = (
        f"{ranks_text(odd)} waits in another process group than the others"
        if odd
        else ("The ranks wait for each other in different process groups")
    )
    return Blame(
        cause=Cause.DIFFERENT_GROUPS,
        ranks=odd,
        message=f"{who}: {'; '.join(rows)}.",
        fix="Call the collectives of all groups in the same order on every rank.",
        place=open_calls[odd[0]][0].place if odd else "",
        evidence=rows,
        confidence="high" if odd and not may_end else "medium",
        is_hang=not may_end,
    )


def _never_came(evidence: LaunchEvidence) -> Blame | None:
    """Blame the rank that is not where the process group is made."""
    living = _living(evidence)
    inside = [one for one in living if one.main and any(_RENDEZVOUS.search(f.function) for f in one.main.frames)]
    missing = sorted(set(range(evidence.world)) - {one.rank for one in evidence.ranks})
    # Ranks of other hosts are not missing: only a launch of one host is complete here.
    if not inside or not missing or inside[0].environment.get("LOCAL_WORLD_SIZE") != str(evidence.world):
        return None
    waiting = [one.rank for one in inside]
    twice = next((rank for rank in waiting if waiting.count(rank) > 1), None)
    because = "" if twice is None else f", because {waiting.count(twice)} processes have RANK={twice}"
    return Blame(
        cause=Cause.ABSENT,
        ranks=tuple(missing),
        message=f"{ranks_text(missing)} did not start{because}: the world is said to have {evidence.world} ranks. "
        f"{ranks_text(sorted(set(waiting)))} wait in "
        f"{place_of(inside[0].main.frames[0]) if inside[0].main else 'init_process_group'}.",
        fix="Compare WORLD_SIZE with the number of processes that were started."
        if twice is None
        else "Give every process its own RANK.",
        is_hang=True,
    )


def _all_wait(evidence: LaunchEvidence) -> Blame | None:
    """Say where everybody stands when nobody can be blamed."""
    standing: dict[str, list[int]] = {}
    calls: dict[str, Call | None] = {}
    for one in _living(evidence):
        place = one.place or "an unknown place"
        standing.setdefault(place, []).append(one.rank)
        calls.setdefault(place, in_flight(one))
    if not any(waits(one) for one in _living(evidence)):
        return None  # they import, compile or compute
    inside = {place: f" in {call_text(call)}" if call else "" for place, call in calls.items()}
    rows = tuple(f"{ranks_text(ranks, 'r')}{inside[place]} at {place}" for place, ranks in standing.items())
    is_part = evidence.world > len(evidence.ranks)
    elsewhere = (
        f" Only {len(evidence.ranks)} of {evidence.world} ranks are in this evidence, and all of them wait: who does not "
        "come may be on another host."
        if is_part
        else ""
    )
    odd = _odd_places(evidence, standing) or _behind(evidence)
    is_split, words = len(standing) > 1, _split_words(odd)
    lone = [one for one in _living(evidence) if one.rank in odd]
    if lone and all(map(_waits_for_a_peer, lone)):
        words = f"A send or recv has no partner, in which {ranks_text(odd, 'r')} {'waits' if len(odd) == 1 else 'wait'}"
        peers = {one.main.call.peer for one in lone if one.main and one.main.call and one.main.call.peer is not None}
        odd = tuple(sorted({*odd, *peers})) if peers else ()
    makers = [one for one in _living(evidence) if _makes_group(one)]
    asks_for_odd = any(one.main.call and set(one.main.call.ranks) & set(odd) for one in makers if one.main)
    if asks_for_odd and not any(one.rank in odd for one in makers):
        words += f", which make a process group with {'it' if len(odd) == 1 else 'them'}"
    makes_group = asks_for_odd or any(one.rank in odd for one in makers)
    return Blame(
        cause=Cause.DIFFERENT_GROUPS if makes_group else Cause.DIFFERENT_CALLS if is_split else Cause.UNKNOWN,
        ranks=odd,
        message=f"{words if is_split else _together_words(evidence)}: {'; '.join(rows)}."
        + ("" if odd or not is_split else " Which of them is wrong cannot be told from that.")
        + elsewhere,
        fix="Read what the other hosts say: `doctor --from` takes their folders of --evidence together."
        if is_part
        else "Look for a condition on the rank around a collective."
        if is_split
        else "Look at the network between the ranks, and at the kernel's log: no rank is missing.",
        place=next((place for place, ranks in standing.items() if odd and tuple(ranks) == odd), ""),
        evidence=rows,
        confidence="medium",
        is_hang=is_split and not is_part and not _may_end(evidence),
    )


def _together_words(evidence: LaunchEvidence) -> str:
    """Return in what ranks wait that stand at one place: each in the same call, as far as their recorders tell."""
    opens = [in_flight(one) for one in _living(evidence)]
    if opens[0] and len({call and (call.group, call.sequence, call.is_p2p) for call in opens}) == 1:
        return f"Every rank has come to {call_text(opens[0])}, and it does not end"
    return "All ranks wait at one place"


def _all_sleep(evidence: LaunchEvidence) -> Blame | None:
    """Say where every rank sleeps and none is in a collective. They may still wake up."""
    living = _living(evidence)
    if not living or not all(is_stuck(one) and one.main and one.process and _sleeps(one.process) for one in living):
        return None
    rows = tuple(f"rank {one.rank}: {place_of(one.main.frames[0])}" for one in living if one.main and one.main.frames)
    is_locked = any("file_baton.py" in row for row in rows)
    return Blame(
        cause=Cause.BLOCKED,
        ranks=(),
        message=f"Every rank sleeps{at_place(living[0].place)}, and none is in a collective"
        f"{': they wait for a lock file of torch.utils.cpp_extension' if is_locked else ''}.",
        fix="Delete the file `lock` in TORCH_EXTENSIONS_DIR if no process compiles there: who made it was killed."
        if is_locked
        else "Look at that place: a lock or a file that another process holds, or a sleep.",
        place=living[0].place,
        evidence=rows[:8],
        confidence="medium",
    )


def _sleeps(process: ProcessState) -> bool:
    return process.state == "S" and not any(map(computes, (process, *family(process.children))))


def _different_arguments(evidence: LaunchEvidence) -> Blame | None:
    """Blame the rank that asks a collective for another root, or that waits for a peer which does not wait for it."""
    requests = {one.rank: one.main.call for one in _living(evidence) if one.main and one.main.call and waits(one)}
    if len(requests) < 2 or len(requests) < len(_living(evidence)):
        return None
    texts = {rank: call.text for rank, call in sorted(requests.items())}
    if len({call.group for call in requests.values()}) > 1:
        texts = {rank: f"{text} in group {requests[rank].group}" for rank, text in texts.items()}
    rows = tuple(f"rank {rank}: {text}" for rank, text in texts.items())
    turns = {one.rank: call.sequence for one in _living(evidence) if (call := in_flight(one))}
    odd = odd_requests(requests, turns)
    novel = tuple(one.rank for one in _living(evidence) if (call := in_flight(one)) and not is_usual(one.calls, call))
    if odd and len({requests[rank].group for rank in requests}) > 1 and 0 < len(novel) <= len(odd):
        odd = novel  # the others are in groups as ever
    if not odd:
        return None
    first = next(one for one in evidence.ranks if one.rank == odd[0])
    place = first.place
    # Of its own group a rank that waits may well be behind.
    elsewhere = [
        one
        for one in _living(evidence)
        if one.rank not in odd and requests[one.rank].group != requests[first.rank].group
    ]
    missed = next((in_flight(peer) for peer in elsewhere if _is_ahead(peer, _last_calls(first))), None)
    words = asking_words(odd, requests, texts)
    if missed:
        words = f"{ranks_text(odd)} left out {call_text(missed)}, and {'waits' if len(odd) == 1 else 'wait'}"
    is_maker = requests[odd[0]].operation == "new_group"
    return Blame(
        cause=Cause.DIFFERENT_GROUPS if is_maker else Cause.FEWER_CALLS if missed else Cause.DIFFERENT_CALLS,
        ranks=odd,
        message=f"{words}{at_place(place)}: {'; '.join(rows)}.",
        fix="Give every rank the same root, the same order of groups, and each send its recv.",
        place=place,
        evidence=rows[:8],
        is_hang=not _is_brought(evidence),
    )


def _waits_for_a_peer(one: RankEvidence) -> bool:
    """Tell whether a rank waits for one other rank. Gloo's recorder has no send or recv: nothing in it is open then."""
    if one.main and one.main.call and one.main.call.peer is not None:
        return True
    call = in_flight(one)
    in_torch = one.main is not None and calls_collective(one.main.frames)
    return call.is_p2p if call else bool(one.calls) and not in_torch


def _split_words(odd: Sequence[int]) -> str:
    if not odd:
        return "The ranks wait for each other at different places"
    return f"{ranks_text(odd)} {'waits' if len(odd) == 1 else 'wait'} at another place than the others"


def _odd_places(evidence: LaunchEvidence, standing: Mapping[str, list[int]]) -> tuple[int, ...]:
    """Return the minority by place, and on a tie those whose last call is not open or does not follow from earlier ones."""
    fewest, *larger = sorted(standing.values(), key=len)
    if not larger:
        return ()
    if len(fewest) < len(larger[0]):
        return tuple(fewest)
    as_ever = {one.rank for one in _living(evidence) if (call := in_flight(one)) and is_usual(one.calls, call)}
    odd = tuple(one.rank for one in _living(evidence) if one.rank not in as_ever)
    return odd if as_ever else ()


def _makes_group(one: RankEvidence) -> bool:
    """Tell whether a rank waits for the others to make a process group with it."""
    return any(frame.function in {"new_group", "_new_group_with_tag"} for frame in one.above_user)


def _behind(evidence: LaunchEvidence) -> tuple[int, ...]:
    """Return the minority that has called fewer collectives of a group than the others."""
    last: dict[int, int] = {}
    for one in _living(evidence):
        numbers = [call.sequence for call in one.calls if call.group == _main_group(evidence) and not call.is_p2p]
        if numbers:
            last[one.rank] = max(numbers)
    most = max(last.values(), default=0)
    behind = tuple(sorted(rank for rank, number in last.items() if number < most))
    return behind if 0 < len(behind) * 2 < len(last) else ()


def _main_group(evidence: LaunchEvidence) -> str:
    counts: dict[str, int] = {}
    for one in evidence.ranks:
        for call in one.calls:
            counts[call.group] = counts.get(call.group, 0) + 1
    return max(counts, key=lambda name: counts[name], default="")
