"""A launch in which ranks ended: who was first, by errors, exit codes, and what the kernel says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from signal import SIGBUS, SIGKILL, SIGTERM, Signals
from typing import TypeVar

from envsmith.launch.ranks.causes import Blame, Cause, at_place, ranks_text
from envsmith.launch.ranks.differences import call_text, is_usual, odd_sizes
from envsmith.launch.ranks.errors import SIZES, alike, cause_of, error_text, follows, short, waited
from envsmith.launch.ranks.evidence import Disk, LaunchEvidence, RaisedBy, RankError, RankEvidence, user_place

_Value = TypeVar("_Value")
# What a monitored barrier says of those that did not come to it.
_MISSED = re.compile(r"\bRanks? (\d{1,6}(?:, \d{1,6})*) failed to pass monitoredBarrier in (\d{1,12}) ms")
_NO_GROUP = re.compile(r"process group has not been initialized|Invalid process group", re.IGNORECASE)
STORE_KEY = re.compile(r"wait timeout after (\d{1,12})ms, keys: /default_pg/\S{0,100}/(\d{1,5})\b")
# Seconds by which a rank's own error may be later than that of a collective which it ended.
_ABOUT = 1.0
# What torch.save says where a write failed before.
_CUT_OFF = re.compile(r"unexpected pos \d+ vs \d+")
# What others send to a process. Whatever else ends it comes from itself.
_FROM_OUTSIDE = frozenset({-SIGKILL, -SIGTERM})
_ADVICE = {
    -9: "Look at `dmesg | grep -i oom` on its host: the kernel kills for memory, and so may a scheduler.",
    -11: "Run it with python -X faulthandler, which shows where: mostly binaries that do not belong together.",
    -6: "Read what it printed last (terminate called, CHECK failed): a library called abort().",
    -15: "Look at who sent SIGTERM: a scheduler, a time limit, a person, or a program that watches memory.",
    -7: "Look at df -h /dev/shm: a full shared memory ends a process so.",
}
_CAUSE_ADVICE = {
    Cause.SHM_FULL: "Give the container more shared memory (--shm-size=1g or --ipc=host), or use fewer workers.",
    Cause.DISK_FULL: "Free space on the disk that it writes to.",
    Cause.PORT: "Choose another port (--master-port, or --rdzv-endpoint with port 0), or end who has this one.",
    Cause.OUT_OF_MEMORY: "Look at the memory of that rank: its batch, its workers, its limits (ulimit -v, the cgroup).",
    Cause.LOADER: "Look at what a worker of the data loader does on that rank. Try num_workers=0 for a traceback.",
}
# /dev/shm with less than this left is named as the cause of a bus error (a mapping of it that cannot be filled).
SMALL_SHM = 64 << 20


def own_error(evidence: LaunchEvidence) -> Blame | None:
    """Blame the first rank with an error that is not another's end."""
    errors = evidence.errors
    silent = _first_silent_end(evidence)
    own = [
        (rank if error.by_rank is None else error.by_rank, error)
        for rank, error in errors
        if not follows(error) and not 0 < silent < error.at
    ]
    if not own:
        return None
    # What a program raised says more than what a collective of torch did about the same time.
    own.sort(key=lambda pair: pair[1].at + (_ABOUT if pair[1].raised_by is RaisedBy.COLLECTIVE else 0.0))
    rank, first = own[0]
    same = sorted({number for number, error in own if alike(error) == alike(first)})
    if len(same) > 1 and len(same) == len(errors):
        return _every_rank(evidence, same, first)
    who = f"Rank {rank}" if len(same) == 1 else ranks_text(same)
    following = [number for number, error in errors if number not in same and follows(error)]
    then = f" The errors of {ranks_text(following, start='r')} follow from it." if following else ""
    cause = cause_of(first.error)
    look = f"Look at {first.place or 'the traceback of that rank'}: what the other ranks print is no cause."
    because = ""
    if _NO_GROUP.search(first.error) and any(one.calls for one in evidence.ranks if one.rank == rank):
        because = " It had called collectives before: it destroyed its process group while the others went on."
        look = f"Look for a destroy_process_group that rank {rank} reaches before {first.place or 'that place'}."
    return Blame(
        cause=cause,
        kind="rank-failed",
        ranks=(rank,),
        message=f"{who} ended first, with {error_text(first)}{at_place(first.place)}.{because}"
        f"{_meaning(first.error)}{then}",
        fix=_CAUSE_ADVICE.get(cause, look),
        place=first.place,
        evidence=(first.error,),
        line=first.line,
        quote=first.error,
    )


def of_driver(evidence: LaunchEvidence) -> Blame | None:
    """Return the error of who started the ranks: where none was seen, or where it passes on one that no rank told."""
    error = evidence.driver
    if error is None or (evidence.ranks and not error.by_process):
        return None
    clause = "no rank that was seen has one" if evidence.ranks else "no rank was seen before"
    cause = cause_of(error.error)
    return Blame(
        cause=cause,
        ranks=(),
        message=f"The command itself ended with {error_text(error)}{at_place(error.place)}, and {clause}.",
        fix=_CAUSE_ADVICE.get(cause, f"Look at {error.place or 'the traceback of the command'}."),
        place=error.place,
        evidence=(error.error,),
        quote=error.error,
    )


def _meaning(error: str) -> str:
    """Return what an error stands for that does not say it."""
    return " That is what a full disk does to torch.save." if _CUT_OFF.search(error) else ""


def _every_rank(evidence: LaunchEvidence, ranks: list[int], first: RankError) -> Blame | None:
    """Return what every rank says: no matter of ranks, and no news for who reads the launcher's own text."""
    if evidence.launcher is None:
        return None
    cause = cause_of(first.error)
    return Blame(
        cause=cause,
        kind="rank-failed",
        ranks=tuple(ranks),
        message=f"{ranks_text(ranks)} ended alike, with {short(first.error)}{at_place(first.place)}.",
        fix=_CAUSE_ADVICE.get(cause, f"Look at {first.place or 'the traceback'}: every rank meets it."),
        place=first.place,
        evidence=(first.error,),
        quote=first.error,
    )


def _first_silent_end(evidence: LaunchEvidence) -> float:
    """Return when the first rank ended without a word, or 0. What the others raise after that follows from it."""
    return min((one.exit.at for one in evidence.ranks if one.exit and _is_silent(one) and one.exit.at), default=0.0)


def _is_silent(one: RankEvidence) -> bool:
    """Tell whether a rank ended badly, without an error and by nobody's wish."""
    if one.exit is None or one.error or _is_of_launcher(one):
        return False
    if one.exit.code is None:
        return bool(one.exit.at) and not one.exit.is_clean
    if one.exit.is_clean and one.exit.code in _FROM_OUTSIDE:
        return False  # its script was over: no signal from outside made it the first
    return one.exit.code not in {0, 1} or (one.exit.code == 1 and bool(one.way_out))


def different_sizes(evidence: LaunchEvidence) -> Blame | None:
    """Say that one collective was given tensors of different sizes. Which rank is wrong only recorders tell."""
    stated = evidence.sizes or _in_errors(evidence, sizes_in)
    if stated is None:
        return None
    received, expected = stated
    odd = odd_sizes(evidence.ranks)
    who = f"{ranks_text(odd)} gave another size. " if odd else ""
    return Blame(
        cause=Cause.DIFFERENT_SHAPES,
        ranks=odd,
        message=f"{who}The ranks gave one collective tensors of different sizes: {received} bytes came where {expected} were "
        f"expected.{_standing(_places(evidence))} Another shape or dtype on one rank does that, and so do different "
        "collectives.",
        fix="Print shape and dtype on every rank before that collective, and compare which collective each rank calls.",
        line=evidence.line,
        quote=f"op.preamble.length <= op.nbytes. {received} vs {expected}",
        confidence="medium",
    )


def absent_in(text: str) -> tuple[int, float] | None:
    """Return the rank that a store was asked for in vain, and for how many seconds."""
    match = STORE_KEY.search(text)
    return (int(match[2]), int(match[1]) / 1000) if match else None


def sizes_in(text: str) -> tuple[int, int] | None:
    """Return the bytes that a collective received and expected, where gloo printed them."""
    match = SIZES.search(text)
    return (int(match[1]), int(match[2])) if match else None


def absent(evidence: LaunchEvidence) -> Blame | None:
    """Blame a rank that did not come to init_process_group while the store could be reached."""
    stated = evidence.absent or _in_errors(evidence, absent_in)
    if stated is None:
        return None
    rank, seconds = stated
    return Blame(
        cause=Cause.ABSENT,
        ranks=(rank,),
        message=f"Rank {rank} did not come to init_process_group within {seconds:g} s: the others reached the "
        "store and waited for it. It was not started, is late, or the world is said to be larger than it is.",
        fix="Compare WORLD_SIZE with the number of processes, look at what that rank does before init_process_group, "
        "or give it a longer timeout.",
        line=evidence.line,
        quote=f"wait timeout after {seconds * 1000:.0f}ms",
    )


def missed(evidence: LaunchEvidence) -> Blame | None:
    """Blame the ranks that a monitored barrier names, unless one of them has ended in a way that says more."""
    match, place = next(
        ((match, error.place) for _, error in evidence.errors if (match := _MISSED.search(error.error))), (None, "")
    )
    if match is None:
        return None
    ranks = tuple(int(number) for number in match[1].split(", "))
    if any(_is_silent(one) for one in evidence.ranks if one.rank in ranks):
        return None
    return Blame(
        cause=Cause.LATE,
        ranks=ranks,
        message=f"{ranks_text(ranks)} did not come to the monitored barrier{at_place(place)} within "
        f"{int(match[2]) / 1000:g} s. What the other ranks print follows from it.",
        fix=f"Look for a condition around that barrier, and at what {ranks_text(ranks, 'r')} did instead: every rank has "
        "to call it.",
        place=_place_of_error(evidence, ranks[0]),
        quote=match[0],
    )


def _place_of_error(evidence: LaunchEvidence, rank: int) -> str:
    return next((error.place for number, error in evidence.errors if number == rank), "")


def ended(evidence: LaunchEvidence) -> Blame | None:
    """Blame a rank that a signal or an exit status ended without an error of Python."""
    if set(evidence.exits.values()) == {-SIGTERM} and not any(_is_of_launcher(one) for one in evidence.ranks):
        return None  # somebody ended them all
    spoke = {rank for rank, _ in evidence.errors}
    insisted = any(one.exit and _is_of_launcher(one) for one in evidence.ranks) and not spoke
    for one in sorted(evidence.ranks, key=lambda each: (each.exit.at if each.exit else 0.0, each.rank)):
        status = one.exit.code if one.exit else None
        # Status 1 is that of a Python error, which stands in a text without its rank.
        if not _is_silent(one):
            continue
        if status is None:
            return _without_a_word(one)
        if status == -SIGKILL and insisted and not (one.exit and one.exit.at):
            continue  # the launcher insists where SIGTERM was not enough
        if len(evidence.ranks) > 1 and {each.way_out for each in evidence.ranks} == {one.way_out} != {""}:
            return _all_left(evidence, one.way_out)
        return _of_status(evidence, one, status)
    return None


def _all_left(evidence: LaunchEvidence, way_out: str) -> Blame:
    place = way_out.rpartition(" at ")[2]
    ranks = tuple(one.rank for one in evidence.ranks)
    return Blame(
        cause=Cause.EXITED,
        kind="rank-died",
        ranks=ranks,
        message=f"{ranks_text(ranks)} ended alike, by {way_out}.",
        fix=f"Look at {place}, and at what the ranks printed before: every rank meets it.",
        place=place,
    )


def killed(evidence: LaunchEvidence) -> Blame | None:
    """Blame a rank that somebody, or the kernel, ended first: no difference between calls does that."""
    answer = ended(evidence)
    return answer if answer and answer.cause in {Cause.KILLED, Cause.OUT_OF_MEMORY} else None


def _without_a_word(one: RankEvidence) -> Blame:
    return Blame(
        cause=Cause.KILLED,
        kind="rank-died",
        ranks=(one.rank,),
        message=f"Rank {one.rank} ended without a word, as after SIGKILL. What the other ranks print follows from it.",
        fix=_ADVICE[-SIGKILL],
        evidence=("no error, no exit and no end in its marks, and the kernel does not say how it ended",),
        confidence="medium",
    )


def _of_status(evidence: LaunchEvidence, one: RankEvidence, status: int) -> Blame:
    cause = Cause.EXITED if status > 0 else Cause.KILLED if status in {-SIGKILL, -SIGTERM} else Cause.CRASHED
    ending = f"was ended by {signal_name(status)}" if status < 0 else f"ended with exit status {status}"
    because, fix, facts = "", _ADVICE.get(status, ""), [f"exitcode: {status}"]
    machine = next((each for each in evidence.machines if not one.host or each.name == one.host), None)
    if status == -SIGKILL and machine and machine.oom_kills:
        cause, because = Cause.OUT_OF_MEMORY, " The kernel ended it for lack of memory."
        facts.append(f"oom_kill of the control group rose by {machine.oom_kills}")
        fix = _CAUSE_ADVICE[cause]
    elif status == -SIGBUS and machine and (disk := _full_shm(machine.disks)):
        cause, because = Cause.SHM_FULL, f" {disk.path} is full ({disk.size >> 20} MiB in all)."
        facts.append(f"{disk.path}: {disk.free >> 20} of {disk.size >> 20} MiB free")
        fix = _CAUSE_ADVICE[cause]
    first = next((error.line for _, error in evidence.errors), 1)
    place = one.way_out.rpartition(" at ")[2] or _last_place(one)
    return Blame(
        cause=cause,
        kind="rank-died",
        ranks=(one.rank,),
        message=f"Rank {one.rank} {ending}{at_place(place)}, without an error of Python.{because} What the other ranks "
        "print follows from it.",
        fix=fix or "Look for a sys.exit or os._exit on that rank, or run it with python -X faulthandler.",
        place=place,
        evidence=tuple(facts),
        line=first,
        quote=f"exitcode: {status}",
    )


def different_places(evidence: LaunchEvidence) -> Blame | None:
    """Say that ranks waited at different lines: they do not issue the same collectives."""
    errors = evidence.errors
    places = _places(evidence)
    if len(places) < 2 or not any(waited(error) for _, error in errors):
        return None
    (usual, _), *fewer = Counter(error.place for _, error in errors if error.place).most_common()
    odd = [rank for rank, error in errors if error.place and error.place != usual]
    is_one = len(odd) == 1 and len(fewer) == 1 and len(places[usual]) > 1
    who = f"Rank {odd[0]} waited at another place than the others" if is_one else "The ranks waited at different places"
    return Blame(
        cause=Cause.DIFFERENT_CALLS,
        ranks=(odd[0],) if is_one else (),
        message=f"{who}, so they do not issue the same collectives.{_standing(places)}",
        fix="Look for a condition on the rank, or on the data, around a collective: every rank has to call it.",
        place=dict(errors)[odd[0]].place if is_one else "",
        line=errors[0][1].line,
        quote=errors[0][1].error,
        confidence="medium",
    )


def late(evidence: LaunchEvidence) -> Blame | None:
    """Blame who did not come to a collective before others gave up, or the one that said nothing until the launcher ended it."""
    spoke = {rank for rank, _ in evidence.errors}
    waiting = [(rank, error) for rank, error in evidence.errors if waited(error)]
    silent = [one.rank for one in evidence.ranks if one.exit and _is_of_launcher(one) and one.rank not in spoke]
    if not waiting:
        return None
    rank, error = waiting[0]
    if ranks := _came_after(evidence, rank, error.at):
        words = "came to the collective{} only after others had given up waiting for it"
        fix = f"Look at what {ranks_text(ranks, 'r')} did before it, or give the process group a longer timeout."
    elif len(silent) == 1:
        ranks = tuple(silent)
        words = (
            "did not come to the collective{}: the others waited until the timeout, and it still ran when the launcher "
            "ended it. What it did is not in this text"
        )
        fix = (
            f"Run py-spy dump --pid on rank {silent[0]} while it hangs (faulthandler.dump_traceback_later shows it too): "
            "a blocked data loader, a lock, a file, or work that the others do not have."
        )
    else:
        return None
    return Blame(
        cause=Cause.LATE,
        ranks=ranks,
        message=f"{ranks_text(ranks)} {words.format(at_place(error.place))}.",
        fix=fix,
        line=error.line,
        quote=error.error,
    )


def _came_after(evidence: LaunchEvidence, rank: int, at: float) -> tuple[int, ...]:
    """Return the ranks that made the last call of a rank after it had given up on it."""
    last = next((one.calls[-1] for one in evidence.ranks if one.rank == rank and one.calls), None)
    return tuple(
        one.rank
        for one in evidence.ranks
        for call in one.calls
        if last and (call.group, call.sequence, call.is_p2p) == (last.group, last.sequence, False) and call.at > at > 0
    )


def departed(evidence: LaunchEvidence) -> Blame | None:
    """Blame a rank that ended with status 0 before the others lost it, or ended badly without a word."""
    losses = [error.at for _, error in evidence.errors if error.at]
    losses += [one.exit.at for one in evidence.ranks if one.exit and one.exit.code == 1 and not one.error]
    early = [
        one for one in evidence.ranks if one.exit and one.exit.code == 0 and 0 < one.exit.at < min(losses, default=0.0)
    ]
    if not early:
        return _unlisted(evidence)
    if further := _further_calls(evidence, early):
        return further
    one = min(early, key=lambda each: each.exit.at if each.exit else 0.0)
    cause, words = departure(one)
    return Blame(
        cause=cause,
        ranks=(one.rank,),
        message=f"Rank {one.rank} {words} with exit status 0, and the others "
        f"{'lost their connection to it' if evidence.errors else 'ended badly after that'}.",
        fix=f"Look for a sys.exit, a return or an end of the data that only rank {one.rank} meets.",
        place=one.way_out.rpartition(" at ")[2],
        evidence=(f"rank {one.rank}: {one.way_out or 'the script came to its end'}", *_call_counts(evidence)),
    )


def _further_calls(evidence: LaunchEvidence, early: Sequence[RankEvidence]) -> Blame | None:
    """Blame the few that call something which the others, who have come to the end of their script, do not."""
    lost = [one for one in evidence.ranks if one.error and one.calls]
    if not lost or len(lost) > len(early) or not all(one.exit and one.exit.is_clean for one in early):
        return None
    call, error = lost[0].calls[-1], lost[0].error
    if len(lost) == len(early) and is_usual(lost[0].calls, call):
        return None  # it does as ever: the others had less to do
    ranks, place = tuple(one.rank for one in lost), error.place if error else ""
    return Blame(
        cause=Cause.DIFFERENT_CALLS,
        ranks=ranks,
        message=f"{ranks_text(ranks)} called more collectives than the others: {call_text(call)}{at_place(place)}. "
        f"{ranks_text([one.rank for one in early])} had come to the end of their script.",
        fix=f"Look at {place or 'that call'}: a condition on the rank around a collective, or a function that every rank "
        "has to call.",
        place=place,
        evidence=_call_counts(evidence),
    )


def departure(one: RankEvidence) -> tuple[Cause, str]:
    """Return why a rank that ended with status 0 did so: it asked for its end, or its script was over."""
    if one.way_out:
        because = f" and after {error_text(one.handled)}{at_place(one.handled.place)}" if one.handled else ""
        return Cause.LEFT, f"left in the middle, by {one.way_out}{because},"
    if one.exit and one.exit.is_clean:
        return Cause.UNEVEN_DATA, "came to the end of its script before the others"
    return Cause.LEFT, "left in the middle"


def _call_counts(evidence: LaunchEvidence) -> tuple[str, ...]:
    counts = {one.rank: sum(not call.is_p2p for call in one.calls) for one in evidence.ranks if one.calls}
    return tuple(f"rank {rank}: {count} collectives in its recorder" for rank, count in sorted(counts.items()))


def _unlisted(evidence: LaunchEvidence) -> Blame | None:
    """Blame the one rank that is in no list of failures while all others lost it."""
    errors = evidence.errors
    missing = set(range(evidence.world)) - set(evidence.exits) - {rank for rank, _ in errors}
    if not evidence.is_listed or len(missing) != 1 or not errors:
        return None
    rank, first = missing.pop(), errors[0][1]
    return Blame(
        cause=Cause.LEFT,
        ranks=(rank,),
        message=f"Rank {rank} left in the middle with exit status 0: it is in no list of failures, and the others lost "
        f"their connection to it{at_place(first.place)}.",
        fix=f"Look for a sys.exit, a return or an end of the data that only rank {rank} meets.",
        line=first.line,
        quote=first.error,
    )


def _is_of_launcher(one: RankEvidence) -> bool:
    """Tell whether the launcher ended it: SIGTERM is what it sends to the ranks that still run after a failure.

    Of a launch that was watched the time says who sent it, and ``by_launcher`` is certain.
    """
    return bool(one.exit and (one.exit.by_launcher or (one.exit.code == -SIGTERM and not one.exit.at)))


def _full_shm(disks: Iterable[Disk]) -> Disk | None:
    return next((disk for disk in disks if disk.path == "/dev/shm" and 0 <= disk.free < SMALL_SHM), None)  # noqa: S108


def _in_errors(evidence: LaunchEvidence, read: Callable[[str], _Value | None]) -> _Value | None:
    return next(filter(None, (read(error.error) for _, error in evidence.errors)), None)


def _last_place(one: RankEvidence) -> str:
    main = next((stack for stack in one.stacks if stack.is_main), None)
    return user_place(main.frames) if main else ""


def _places(evidence: LaunchEvidence) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for rank, error in evidence.errors:
        if error.place:
            places.setdefault(error.place, []).append(rank)
    return places


def _standing(places: Mapping[str, list[int]]) -> str:
    """Return a sentence that says which rank stood where."""
    parts = [f"{ranks_text(ranks, 'r')} at {place}" for place, ranks in sorted(places.items(), key=lambda p: p[1])]
    return f" They stood: {', '.join(parts)}." if parts else ""


def signal_name(status: int) -> str:
    """Return the name of the signal in a negative exit code."""
    try:
        return Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def earliest(evidence: LaunchEvidence) -> Blame | None:
    """Return the earliest error where nothing says who was first. It names no rank: the error may only follow from another."""
    errors = [(rank, error) for rank, error in evidence.errors if not error.handled] or list(evidence.errors)
    if not errors or evidence.launcher is None:
        return None
    rank, first = errors[0]
    further = f" {len(errors) - 1} more came after it." if len(errors) > 1 else ""
    return Blame(
        cause=Cause.UNKNOWN,
        kind="rank-failed",
        ranks=(),
        message=f"The earliest error is that of rank {rank}: {error_text(first)}{at_place(first.place)}.{further} It may "
        "follow from what another rank did, of which there is no evidence.",
        fix="Look at what the ranks printed before that, and at the ranks of other hosts.",
        place=first.place,
        evidence=(first.error,),
        line=first.line or 1,
        quote=first.error,
        confidence="low",
    )
