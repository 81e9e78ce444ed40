"""What a rank does that the others wait for, and whether it may come. What nobody can see may."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envsmith.launch.ranks.causes import Cause, at_place
from envsmith.launch.ranks.errors import cause_of, short
from envsmith.launch.ranks.evidence import (
    Frame,
    OtherEnd,
    ProcessState,
    RankEvidence,
    ThreadStack,
    place_of,
    user_place,
)

# Looks in a row at which a thread must stand at the same place before it is called stuck. Two are no proof.
STILL = 5
# Less of a processor than this is sleep.
_ASLEEP = 0.1
# Where the kernel waits for a process of this machine, where for whoever is at the other end, and where for a time.
_FOR_OTHERS = re.compile(r"pipe|fifo|wait_for_partner|flock|locks|fcntl_setlk|futex|do_wait$")
_ELSEWHERE = re.compile(r"sock|inet|skb|poll|select|wait_woken")
_TIMED = re.compile(r"nanosleep|hrtimer|timerfd")
# What Python shows of a lock: the innermost frame is in the module that waits for it, or it is a line that asks for one.
_LOCKS = re.compile(r"threading\.py|queue\.py|multiprocessing/(?:synchronize|queues|connection|pool)\.py|filelock")
_ASKS_FOR_LOCK = re.compile(r"\b(?:acquire|wait|join|get|put|result)\(|^\s*(?:async )?with\b")
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)/")
_LOADER = re.compile(r"torch/utils/data/(?:dataloader|_utils)")
_LOADER_FIX = (
    "Look at what a worker of the data loader does on that rank: a file, a lock, a download. Try num_workers=0, and give "
    "the loader a timeout."
)


class Doing:
    """What a late rank does. ``is_hang`` tells that nothing which can be seen may end it."""

    def __init__(self, cause: Cause, words: str, fix: str, *, is_hang: bool) -> None:
        self.cause, self.words, self.fix, self.is_hang = cause, words, fix, is_hang


def what_it_does(one: RankEvidence) -> Doing:
    """Return what a rank does that is not in a collective."""
    process = one.process or ProcessState(pid=one.pid)
    place = one.place or "the place above"
    if process.became:
        return Doing(
            Cause.LEFT,
            f"has become another program ({process.command[:80]})",
            "Look for an exec on that rank: its process no longer runs the script.",
            is_hang=True,
        )
    if one.is_leaving:
        words = "has come to the end of its script and has not ended"
        return Doing(Cause.LEFT, words, "Look at what it does at its end: atexit, threads, destructors.", is_hang=True)
    if process.answers is False and process.state == "D":
        return Doing(
            Cause.BLOCKED,
            f"waits in the kernel for a disk or a driver ({process.waits_in or 'state D'})",
            "Look at the kernel's log, and at the file system that it uses.",
            is_hang=not process.wakes,
        )
    if process.answers is False:
        return Doing(
            Cause.GIL_HELD,
            "keeps Python's lock (the GIL) and lets no other thread run",
            f"Look at {place}: a call into compiled code that neither ends nor gives the lock back.",
            is_hang=not may_go_on(process),
        )
    doing = _asleep(one, process, place)
    error = one.error
    if error and not error.handled and error.thread not in {"", "MainThread"}:
        lost = f"lost its thread {error.thread} to {short(error.error)}{at_place(error.place)}"
        if not doing.is_hang:
            return Doing(doing.cause, f"has {lost}, and {doing.words}", doing.fix, is_hang=False)
        fix = f"Look at {error.place or 'that thread'}: the main thread waits for what it no longer does."
        return Doing(cause_of(error.error), f"has {lost}, and waits", fix, is_hang=True)
    if not in_loader(one):
        return doing
    if not _waits_for_worker(one):
        return Doing(Cause.LOADER, f"is in its data loader and {doing.words}", _LOADER_FIX, is_hang=doing.is_hang)
    workers = family(process.children)
    own = {one.pid, process.pid, *(worker.pid for worker in workers)}
    return Doing(
        Cause.LOADER,
        f"waits for a worker of its data loader{_workers(process)}",
        _LOADER_FIX,
        is_hang=is_stuck(one) and not any(_works(worker, own) for worker in workers),
    )


def _asleep(one: RankEvidence, process: ProcessState, place: str) -> Doing:
    is_asleep = process.state in {"S", "D", "I"} and (process.cpu is None or process.cpu < _ASLEEP)
    if not is_asleep or not is_stuck(one):
        words = "computes, or waits for a processor, and has not come to the collective"
        return Doing(Cause.BUSY, words, f"Look at {place}: work that the other ranks do not have.", is_hang=False)
    frame = one.main.frames[0] if one.main and one.main.frames else None
    if helper := _helper(one, process):
        words, is_hang = helper[0], helper[1] and not may_go_on(process)
        return Doing(
            Cause.BLOCKED if is_hang else Cause.BUSY,
            f"waits for {words} and has not come to the collective",
            f"Look at {place}: the rank does not come before that ends.",
            is_hang=is_hang,
        )
    where = f" in {place_of(frame)}" if frame and not user_place([frame]) else ""
    kernel = f" (kernel: {process.waits_in})" if process.waits_in else ""
    holder = next(iter(holders_of(process)), None)
    other_end = f", where process {holder.pid} ({holder.command[:60]}) has the other end," if holder else ""
    is_for_others = bool(_FOR_OTHERS.search(process.waits_in)) or process.other_end is not OtherEnd.UNKNOWN
    words, hint = (
        ("is blocked", "a lock, a pipe, a socket or a file that another process does not release")
        if is_for_others and not _wakes_up(process)
        else ("sleeps", "the others wait until it wakes up")
    )
    return Doing(
        Cause.BLOCKED,
        f"{words}{where}{kernel}{other_end} and has not come to the collective",
        f"Look at {place}: {hint}.",
        is_hang=not may_go_on(process) and _is_closed(process, frame),
    )


# Where a file, a pipe or a socket is waited for, and no memory or child: somebody has its other end.
_FILES = re.compile(r"pipe|unix|lock|setlk|woken|sock|inet|poll|select")


def holders_of(process: ProcessState) -> tuple[ProcessState, ...]:
    """Return the processes that hold the lock or the other end of what a process waits for."""
    return process.holders if _FILES.search(process.waits_in) else ()


def is_stuck(one: RankEvidence) -> bool:
    """Tell whether its main thread stood at one place for long enough."""
    return one.still >= STILL


# What the letters of /proc say of a process that is not simply asleep or at work.
_STATES = {"T": "is stopped", "t": "is stopped", "Z": "has ended", "D": "waits for the disk"}
# What stands below a task of a pool, and below an event loop.
_POOL, _LOOP = ("thread.py", "run"), ("base_events.py", "run_forever")
# What Python shows of a process that waits for another one.
_CHILD = re.compile(r"subprocess\.py|multiprocessing/(?:process|popen_\w+|connection)\.py")


def _is_closed(process: ProcessState, frame: Frame | None) -> bool:
    """Tell whether all who could end its wait are seen. Compiled code may wait for threads of its own."""
    if not _FOR_OTHERS.search(process.waits_in):
        return process.other_end is OtherEnd.HERE
    is_python_lock = frame is None or not frame.text or bool(_ASKS_FOR_LOCK.search(frame.text))
    return "futex" not in process.waits_in or is_python_lock or bool(frame and _LOCKS.search(frame.file))


def _helper(one: RankEvidence, process: ProcessState) -> tuple[str, bool] | None:
    """Return the child or the thread that a rank waits for, in words, and whether it stands still as well.

    What holds for a rank holds for what it waits for: who computes, sleeps for a time or hears from elsewhere may come.
    """
    frames = one.above_user
    if process.children and (process.waits_in == "do_wait" or any(_CHILD.search(frame.file) for frame in frames)):
        child = process.children[0]
        is_live = may_go_on(process) or any(map(may_go_on, family(process.children)))
        does = _STATES.get(child.state) or ("goes on" if is_live else "stands still")
        command = f" ({child.command[:60]})" if child.command else ""
        return f"its child {child.pid}{command}, which {does},", not is_live
    is_own = process.other_end is OtherEnd.HERE and not process.holders
    if not is_own and not any(_LOCKS.search(frame.file) for frame in frames) and "futex" not in process.waits_in:
        return None
    if busy := _busy_child(process):
        return f"what its child {busy.pid} ({busy.command[:60]}) computes,", False
    threads = [stack for stack in one.stacks if not stack.is_main and (has_task(stack) or _is_fed(stack))]
    live = [stack for stack in threads if stack.still < STILL or (stack.process and may_go_on(stack.process))]
    served = _packages(frames) & {name for each in one.stacks if not each.is_main for name in _packages(each.frames)}
    if served and not live:
        return f"what {min(served)} brings in threads of its own", False
    if not threads:
        return None
    stack = (live or threads)[0]
    if not live and stack.call:
        return f"its thread {stack.thread}, which waits in {stack.call.text} for ranks that do not come,", True
    at = at_place(user_place(stack.frames))
    does = "waits for a lock itself" if not live else "is" if at else "goes on"
    return f"its thread {stack.thread}, which {does}{at},", not live


def has_task(stack: ThreadStack) -> bool:
    """Tell whether a thread does what the program gave it, in its own code, in a pool or in an event loop with a timer."""
    functions = {(frame.file.rpartition("/")[2], frame.function) for frame in stack.frames}
    is_timed = bool(stack.process and _wakes_up(stack.process))
    return bool(user_place(stack.frames)) or _POOL in functions or (is_timed and _LOOP in functions)


def _is_fed(stack: ThreadStack) -> bool:
    """Tell whether a library's thread waits for somebody who may go on. One that wakes up by a clock has no such task."""
    process = stack.process
    is_known = process is not None and process.other_end is not OtherEnd.UNKNOWN
    return is_known and process is not None and not _wakes_up(process) and may_go_on(process)


def _packages(frames: Sequence[Frame]) -> set[str]:
    """Return the packages in which frames are. What one waits for in a package, a thread of that package may bring."""
    return {match[1] for frame in frames if (match := _PACKAGE.search(frame.file))}


def _busy_child(process: ProcessState) -> ProcessState | None:
    """Return a child or grandchild that computes: a pool, a loader or a thread may wait for it."""
    return next(filter(computes, family(process.children)), None)


def in_loader(one: RankEvidence) -> bool:
    """Tell whether the main thread is in torch's data loader."""
    return any(_LOADER.search(frame.file) for frame in one.above_user)


def _waits_for_worker(one: RankEvidence) -> bool:
    return any(frame.function == "_try_get_data" for frame in one.above_user)


def _works(worker: ProcessState, own: set[int]) -> bool:
    """Tell whether a worker of a loader is at a task. Without one it waits for its rank, with a time limit, again and again."""
    if computes(worker) or worker.state == "D" or _TIMED.search(worker.waits_in):
        return True
    strangers = [holder for holder in family(worker.holders) if holder.pid not in own]
    return worker.other_end is OtherEnd.ELSEWHERE or any(map(may_go_on, strangers))


def _workers(process: ProcessState) -> str:
    """Return what the kernel says of the workers that are not simply asleep."""
    odd = [child for child in process.children if child.state in _STATES]
    if not odd and (busy := _busy_child(process)):
        return f": worker {busy.pid} computes"
    return f": worker {odd[0].pid} {_STATES[odd[0].state]}" if odd else ""


def computes(process: ProcessState) -> bool:
    """Tell whether a process or thread uses a processor, or waits for one."""
    return process.state == "R" or (process.cpu or 0.0) >= _ASLEEP


def family(children: Sequence[ProcessState]) -> list[ProcessState]:
    """Return processes with their children and theirs."""
    return [each for child in children for each in (child, *family(child.children))]


def _wakes_up(process: ProcessState) -> bool:
    """Tell whether it sleeps for a time, or waits with a time limit."""
    return process.has_limit or bool(_TIMED.search(process.waits_in))


def may_go_on(process: ProcessState) -> bool:
    """Tell whether a process or thread computes, sleeps for a time, or waits for a disk, another machine or one that may."""
    if computes(process) or process.state == "D" or _wakes_up(process):
        return True
    if process.state not in {"S", "I"} or process.other_end is OtherEnd.HERE:
        return process.state in {"S", "I"} and any(map(may_go_on, family(process.holders)))
    return process.other_end is OtherEnd.ELSEWHERE or bool(_ELSEWHERE.search(process.waits_in))


def facts_of(one: RankEvidence) -> tuple[str, ...]:
    """Return what the kernel and the looks say of a rank, a line each."""
    process, rows = one.process, []
    if process:
        cpu = "" if process.cpu is None else f", {process.cpu:.0%} of a processor"
        rows.append(f"rank {one.rank}: state {process.state}{cpu}, kernel {process.waits_in or 'running'}")
    if one.still > 1:
        rows.append(f"rank {one.rank}: the same place at {one.still} looks in a row")
    if one.main:
        rows += [f"rank {one.rank}: {place_of(frame)}" for frame in one.main.frames[:5]]
    return tuple(rows)
