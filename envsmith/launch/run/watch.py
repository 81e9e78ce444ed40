"""The watch over one launch: what moves, since when nothing does, what is asked then, and the verdict at the end."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL, SIGTERM

from envsmith.base.files import open_regular
from envsmith.base.json_types import JsonFields, number_in, object_in, objects_in, texts_in
from envsmith.base.schema import parse_object
from envsmith.launch.ranks.causes import Blame, Cause
from envsmith.launch.ranks.decide import decide, decide_end
from envsmith.launch.ranks.differences import around_divergence, late_to_most
from envsmith.launch.ranks.evidence import (
    Disk,
    ExitStatus,
    LaunchEvent,
    LaunchEvidence,
    LaunchHost,
    ProcessState,
    RankError,
    RankEvidence,
    ThreadStack,
)
from envsmith.launch.ranks.recorder import calls_of, groups_of, stacks_of, stated_groups, with_source
from envsmith.launch.ranks.traces import faulthandler_dumps
from envsmith.launch.run.connection import Ranks, WatchedRank
from envsmith.launch.run.ends import OtherEnds
from envsmith.launch.run.host import disks_of, gpu_memory, kernel_lines, oom_kills, open_process, ras_text, spy
from envsmith.launch.run.launcher import Launcher
from envsmith.launch.run.marks import Marks, read_marks

# How many looks, and how far apart, before anything is said of a stall.
_LOOKS, _BETWEEN = 7, 1.0
# How many there may be while no rank answers.
_MOST_LOOKS = 20
# How long a rank that is asked may take: the recorder's dump takes 0.1 s, on a busy machine ten times that.
_PATIENCE = 3.0
# A turn of the watch takes a quarter of a second. After more than this it was not given a processor.
_OWN_PAUSE = 3.0
# How many times the longest pause from which a launch went on by itself a stall must last.
_FACTOR = 5.0
# Imports and the first compilation take as long as they take: before the first collective it is longer.
_BEFORE_FIRST = 3.0
_MOST_EVENTS = 1000


@dataclass(frozen=True)
class WatchSettings:
    """``stall`` in seconds: nothing is said before. ``stops`` asks the launcher to end after a hang."""

    stall: float = 300.0
    beat: float = 5.0
    stops: bool = False


class LaunchWatch:
    """One launch under watch. ``say`` gets each verdict, with its evidence, when it is due."""

    def __init__(
        self,
        launcher: Launcher,
        ranks: Ranks,
        settings: WatchSettings,
        say: Callable[[Blame | None, LaunchEvidence], None],
    ) -> None:
        self.launcher, self.ranks, self.settings, self.say = launcher, ranks, settings, say
        self.began = self.moved_at = self.asked_at = time.monotonic()
        self.booted_for = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.longest_pause, self.oom_before = 0.0, oom_kills()
        self.disks: dict[str, Disk] = {}
        self.events: list[LaunchEvent] = []
        self.unread: set[str] = set()
        self.has_asked_dying = self.has_looked = self.has_judged = self.has_stopped = False
        self.looks = 0
        self.has_begun, self.judged_at = False, 0.0
        self.blame: Blame | None = None
        self.stalled_at: Blame | None = None  # what was said of a stall that lasts

    def run(self) -> int:
        """Watch until the launcher ends. Return how it ended."""
        handle = open_process(self.launcher.pid)
        beat = min(self.settings.beat, max(1.0, self.settings.stall / 3))
        seen_at = time.monotonic()
        while self.launcher.poll() is None:
            seen_at = self._without_pause(seen_at)
            before, attempt = self._state(), self.ranks.attempt
            if self.ranks.step(0.25, handle):
                self._went_on(*before, beat)
            if self.ranks.attempt > attempt:
                self._judge_attempt(attempt)
            self.ranks.settle()
            now = time.monotonic()
            if self.looks:
                self._look_again(now)
            elif now - self.asked_at >= beat:
                self.asked_at = now
                self.ranks.ask("progress")
                self._measure_disks()
            if not self.looks and not self.has_judged and self._is_stalled(now):
                self._look_again(now)
        self._finish(handle)
        return self.launcher.status or 0

    def _without_pause(self, seen_at: float) -> float:
        """Return the time. While the watch itself was stopped, with its launch or by a busy machine, nothing stood still."""
        now = time.monotonic()
        if now - seen_at > _OWN_PAUSE:
            self.moved_at += now - seen_at
        return now

    def _judge_attempt(self, number: int) -> None:
        """Judge the ranks that the launcher has ended, because it has started them again."""
        rows = around_divergence(with_launcher_ends(self._rows(self.ranks.former, time.monotonic())))
        evidence = replace(self.evidence(stalled=0.0), ranks=rows, launcher=ExitStatus(code=None))
        blame = decide_end(self.stalled_at, evidence)
        self.stalled_at, self.has_begun = None, False
        text = blame.message if blame else "The evidence does not say which rank was first."
        self.events.append(LaunchEvent(at=time.time(), text=f"attempt {number}: {text}", kind="attempt"))
        self.say(blame, replace(evidence, events=tuple(self.events), attempt=number))

    def _state(self) -> tuple[set[int], dict[int, Mapping[str, int]]]:
        """Return the processes that have ended, and how many collectives each one has called."""
        progress: dict[int, Mapping[str, int]] = {rank.pid: dict(rank.progress) for rank in self.ranks.all}
        return {rank.pid for rank in self.ranks.all if rank.ended_at}, progress

    def _went_on(self, dead: set[int], progress: Mapping[int, Mapping[str, int]], beat: float) -> None:
        """Note that something moved, and ask the survivors of a death what they do, before the launcher ends them."""
        now, had_begun = time.monotonic(), self.has_begun
        fresh = [rank for rank in self.ranks.all if rank.ended_at and rank.pid not in dead]
        for rank in fresh:
            self._note(f"rank {rank.rank} ended", rank.rank)
        if fresh:
            self._measure_disks()
        if fresh and not self.has_asked_dying:
            self.has_asked_dying = True
            self.ranks.ask("all")
        moved = {rank.rank for rank in self.ranks.all if progress.get(rank.pid) != dict(rank.progress)}
        if moved:
            self.has_begun = any(number > 0 for rank in self.ranks.all for number in rank.progress.values())
        if self.stalled_at and not moved <= set(self.stalled_at.ranks):
            self.stalled_at = None  # it went on by itself: others than the late one, which may come after they gave up
        if had_begun:
            # What is asked every few seconds moved at any time since the last answer.
            self.longest_pause = max(self.longest_pause, now - self.moved_at - beat)
        self.moved_at, self.looks, self.has_looked, self.has_judged = now, 0, False, False

    def _measure_disks(self) -> None:
        """Keep the least space that was free: a full shared memory is empty again when who filled it has ended."""
        for disk in disks_of(next((rank.pid for rank in self.ranks.living), os.getpid())):
            least = self.disks.get(disk.path, disk)
            self.disks[disk.path] = min(least, disk, key=lambda each: each.free)

    def _is_stalled(self, now: float) -> bool:
        """Tell whether to look at the ranks: early, for those that disagree, and again when the stall is long by itself."""
        is_due = self._is_long(now) if self.has_looked else now - self.moved_at >= self._limit(self.settings.stall)
        return is_due and bool(self.ranks.living) and not self.has_stopped

    def _is_long(self, now: float) -> bool:
        limit = max(self.settings.stall, _FACTOR * self.longest_pause)
        return now - self.moved_at >= self._limit(limit)

    def _limit(self, seconds: float) -> float:
        return seconds if self.has_begun else seconds * _BEFORE_FIRST

    def _look_again(self, now: float) -> None:
        """Look at every rank once a second, several times. Then judge, once for each stall."""
        if self.looks and now - self.asked_at < _BETWEEN:
            return
        self.asked_at = now
        self.looks += 1
        for rank in self.ranks.living:
            rank.measure()
        if self.looks <= _LOOKS:
            self.ranks.ask("all" if self.looks in {1, _LOOKS} else "stacks")
            return
        if self.looks <= _MOST_LOOKS and self._all_are_silent():
            return  # no rank keeps Python's lock for all of them: the machine is slow
        evidence = self.evidence(stalled=now - self.moved_at)
        blame = decide(evidence)
        self.looks, self.has_looked = 0, True
        if not self._is_long(now) and not (blame and blame.is_lasting):
            return
        self.has_judged, self.judged_at = True, time.time()
        self.blame = self.stalled_at = blame
        if self.blame and not self.has_begun and self.blame.cause is not Cause.STOPPED:
            self.blame = self.stalled_at = replace(self.blame, is_hang=False)
        self._note(f"no rank has moved for {evidence.stalled:.0f} s", None)
        if self.blame or self.has_begun:
            self.say(self.blame, evidence)
        if self.settings.stops and self.blame and self.blame.is_hang and self.blame.confidence == "high":
            self._note("the launcher was asked to end", None)
            self.has_stopped = True
            self.launcher.send(SIGTERM)

    def _all_are_silent(self) -> bool:
        """Tell whether several ranks run, and none has answered in time."""
        now = time.monotonic()
        silent = [rank for rank in self.ranks.living if rank.talk and rank.silent_for(now) >= _PATIENCE]
        return len(silent) > 1 and len(silent) == len(self.ranks.living)

    def _note(self, text: str, rank: int | None) -> None:
        if len(self.events) < _MOST_EVENTS:
            self.events.append(LaunchEvent(at=time.time(), text=text, rank=rank))

    def _finish(self, handle: int | None) -> None:
        """Take in what came last, and judge how the ranks ended."""
        if self.has_stopped:
            self.ranks.end()
        until = time.monotonic() + 1.0
        while self.ranks.living and time.monotonic() < until:
            self.ranks.step(0.05, None)
        self.ranks.settle()
        if handle is not None:
            os.close(handle)
        evidence = self.evidence(stalled=0.0)
        failed = bool(self.launcher.status) or any(code for code in evidence.exits.values())
        late = self.stalled_at.ranks if self.stalled_at else ()
        if any(call.at > self.judged_at for one in evidence.ranks if one.rank not in late for call in one.calls):
            self.stalled_at = None  # it went on after what was said of the stall
        # Who ends well went on, however long it stood still.
        of_success = self.stalled_at if self.has_stopped else late_to_most(evidence)
        blame = decide_end(self.stalled_at, evidence) if failed else of_success
        if failed or blame:
            self.blame = blame
            self.say(blame, evidence)

    def evidence(self, stalled: float) -> LaunchEvidence:
        """Return all that is known now."""
        now = time.monotonic()
        self.ranks.find_silent()
        errors = drivers_errors(self.ranks.folder)
        rows = with_drivers_errors(self._rows(self.ranks.all, now), errors)
        on_gpu = gpu_memory()
        rows = [replace(row, gpu_bytes=on_gpu.get(row.pid, row.gpu_bytes)) for row in rows]
        self._measure_disks()
        lines, failure = kernel_lines(self.booted_for, {row.pid for row in rows})
        if failure:
            self.unread.add(f"the kernel's log cannot be read: {failure}")
        status = self.launcher.status
        return LaunchEvidence(
            ranks=around_divergence(with_launcher_ends(rows)),
            attempt=self.ranks.attempt,
            machines=(
                LaunchHost(
                    name=socket.gethostname(),
                    disks=tuple(self.disks.values()),
                    oom_kills=max(0, oom_kills() - self.oom_before),
                    kernel=lines,
                ),
            ),
            world=max([row.world for row in rows], default=0),
            launcher=ExitStatus(code=status, at=time.time() if status is not None else 0.0),
            stalled=stalled,
            events=tuple(self.events),
            communicators=ras_text() if stalled and any(row.gpu_bytes for row in rows) else "",
            is_interrupted=bool(self.launcher.signals),
            driver=min(errors, key=lambda error: error.at, default=None),
            unread=tuple(sorted(self.unread)),
        )

    def _rows(self, ranks: Iterable[WatchedRank], now: float) -> list[RankEvidence]:
        ordered = sorted(ranks, key=lambda each: each.rank)
        answers, ends = comparable([rank.answer for rank in ordered]), OtherEnds()
        return [self._rank(rank, answer, now, ends) for rank, answer in zip(ordered, answers)]

    def _rank(self, rank: WatchedRank, answer: JsonFields, now: float, ends: OtherEnds) -> RankEvidence:
        process = None if rank.ended_at else self.ranks.look_at(rank, now, _PATIENCE, ends)
        row = rank_evidence(
            rank.stem,
            answer={} if process and process.became else answer,
            code=rank.code,
            ended_at=rank.ended_at,
            process=process,
            still=rank.still,
        )
        if process and row.stacks and not process.became:
            threads = {number_in(each, "id"): each for each in objects_in(rank.answer, "stacks")}
            states = self.ranks.threads_of(rank, ends)
            numbers = {str(each.get("thread")): number for number, each in threads.items()}
            row = replace(
                row, stacks=tuple(_with_state(stack, states.get(numbers.get(stack.thread, 0))) for stack in row.stacks)
            )
            row = with_training_thread(row)
        if process and process.answers is False and process.state not in {"T", "t"}:
            stacks, failure = spy(rank.pid)
            if failure:
                self.unread.add(failure)
            row = replace(row, stacks=stacks or row.stacks)
        return row


def comparable(answers: Sequence[JsonFields]) -> list[JsonFields]:
    """Return what ranks answered, without their variables unless each has named its own.

    A rank that ended before it was asked never said which variables its program sets. All are compared by those of
    their start then.
    """
    if all(texts_in(answer, "variables") for answer in answers):
        return list(answers)
    return [{key: value for key, value in answer.items() if key != "variables"} for answer in answers]


def _with_state(stack: ThreadStack, state: tuple[int, ProcessState] | None) -> ThreadStack:
    return replace(stack, still=state[0], process=state[1]) if state else stack


def with_training_thread(one: RankEvidence) -> RankEvidence:
    """Return a rank whose main thread is the one that made most of its calls, where a program trains in another one."""
    counts = Counter(call.thread for call in one.calls if call.thread)
    number = counts.most_common(1)[0][0] if counts else ""
    thread = next((stack for stack in one.stacks if number and stack.number == number), None)
    if thread is None or thread.is_main or one.process is None:
        return one
    stacks = tuple(replace(stack, is_main=stack is thread) for stack in one.stacks)
    own = one.process
    process = thread.process and replace(
        thread.process, command=own.command, children=own.children, answers=own.answers
    )
    return replace(one, stacks=stacks, still=thread.still, process=process or own)


# From what the hook of each rank left, and what the watcher saw, to the evidence of a launch.

# The most that is read of a file that a rank wrote, and of its recorder.
_MOST_BYTES, _MOST_ENTRIES = 8 << 20, 4000
# Seconds after the first failure from which a signal is the launcher's. The others may notice a rank's death before the
# kernel reports it, and a launcher waits before it kills.
_NEVER = float("inf")
_MOST_DRIVERS = 64
_PATIENCE_OF_LAUNCHERS: Mapping[int | None, float] = {-SIGTERM: 0.0, -SIGKILL: 3.0}
# The headlines of faulthandler, by the signal that they stand for.
_FATAL = {
    "Segmentation fault": -11,
    "Aborted": -6,
    "Bus error": -7,
    "Floating-point exception": -8,
    "Illegal instruction": -4,
}


def rank_evidence(
    stem: Path,
    *,
    answer: JsonFields,
    code: int | None,
    ended_at: float,
    process: ProcessState | None,
    still: int = 0,
) -> RankEvidence:
    """Return what is known of one rank: its files, its last full answer, its end and its state."""
    marks = read_marks(_text(stem.with_name(stem.name + ".marks")))
    variables = texts_in(answer, "variables") or marks.start.variables
    versions = texts_in(answer, "versions") or marks.start.versions
    dump = parse_object(_text(stem.with_name(stem.name + ".calls"))) or object_in(answer, "calls")
    stacks, headline = _stacks(stem, answer, process, has_ended=bool(ended_at))
    status = _status(code, marks, headline) if ended_at else None
    clean = (
        marks.end is not None
        and not marks.end.has_failed
        and not (marks.way_out and marks.way_out.place)
        and not marks.errors
    )
    # A process is gone a while after its sockets: its own mark is the earlier one, unless a signal came after it.
    own = [mark.at for mark in (marks.way_out, marks.end) if mark and mark.at]
    if ended_at and (status is None or status >= 0):
        ended_at = min([ended_at, *own])
    return RankEvidence(
        rank=int(stem.name.partition("-")[0]) if marks.start.rank is None else marks.start.rank,
        host=marks.start.host,
        pid=marks.start.pid,
        exit=ExitStatus(code=status, at=ended_at, is_clean=clean) if ended_at else None,
        error=None if ended_at and status == 0 else _error(marks),
        handled=next((error for error in reversed(marks.errors) if error.handled), None),
        is_leaving=not ended_at and (marks.end is not None or any(_ends(error) for error in marks.errors)),
        calls=calls_of(dump, _MOST_ENTRIES),
        groups=stated_groups(objects_in(answer, "groups")) or marks.groups or groups_of(dump),
        stacks=stacks,
        process=process,
        gpu_bytes=number_in(answer, "gpu"),
        environment={**variables, **{f"version of {name}": version for name, version in versions.items()}},
        world=_number(variables.get("WORLD_SIZE")),
        way_out=_way_out(marks),
        still=still,
    )


def drivers_errors(folder: Path) -> list[RankError]:
    """Return the errors of processes that are no ranks: of who starts them, or passes on what one raised."""
    texts = [_text(path) for path in sorted(folder.glob("driver-*.marks"))[:_MOST_DRIVERS]]
    return [error for text in texts for error in read_marks(text).errors]


def with_drivers_errors(ranks: Sequence[RankEvidence], errors: Sequence[RankError]) -> list[RankEvidence]:
    """Give a rank without an error the one that the driver of the launch passed on, with the rank's process in it."""
    by_process = {error.by_process: error for error in reversed(errors) if error.by_process}
    return [one if one.error else replace(one, error=by_process.get(one.pid)) for one in ranks]


def _is_root(end: ExitStatus, at: float) -> bool:
    """Tell whether an end is one that no launcher brings about, and no later than a launcher's patience after ``at``.

    Under load the ends of many ranks are seen in one go.
    """
    return (
        end.code is not None
        and end.code < 0
        and end.code != -SIGTERM
        and end.at < at + _PATIENCE_OF_LAUNCHERS[-SIGKILL]
    )


def _text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _number(value: object) -> int:
    return int(value) if isinstance(value, str) and value.isdigit() and len(value) < 8 else 0


def _error(marks: Marks) -> RankError | None:
    """Return the first error of the main thread, or else of another. What was handled counts where nothing else ended it."""
    return min(marks.errors, key=lambda each: (each.handled, each.thread != "MainThread"), default=None)


def _ends(error: RankError) -> bool:
    return error.thread in {"", "MainThread"} and not error.handled


def _way_out(marks: Marks) -> str:
    """Return where a rank asked for its end. With an error the interpreter ends it, and nobody asked."""
    mark = marks.way_out
    if not mark or not mark.place or (any(map(_ends, marks.errors)) and not mark.at_once):
        return ""
    return f"{'os._exit' if mark.at_once else 'sys.exit'}({mark.status}) at {mark.place}"


def _stacks(
    stem: Path, answer: JsonFields, process: ProcessState | None, *, has_ended: bool
) -> tuple[tuple[ThreadStack, ...], str]:
    """Return the stacks of a rank and faulthandler's headline: of its death, of its silence, or of its answer."""
    dumps = faulthandler_dumps(_text(stem.with_name(stem.name + ".stacks")))
    fatal = [dump for dump in dumps if dump[0].startswith("Fatal")]
    if has_ended:
        return (_main_first(with_source(fatal[-1][1])), fatal[-1][0]) if fatal else ((), "")
    if process and process.answers is False:
        return (_main_first(dumps[-1][1]) if dumps else ()), ""
    return stacks_of(answer), ""


def _main_first(stacks: Sequence[ThreadStack]) -> tuple[ThreadStack, ...]:
    """Put the thread first that the signal met: its stack is the place of a crash."""
    current = next((stack for stack in stacks if stack.holds_gil), None)
    if current is None or not current.frames:
        return tuple(stacks)
    marked = [replace(stack, is_main=stack is current) for stack in stacks]
    return tuple(sorted(marked, key=lambda stack: not stack.is_main))


def _status(code: int | None, marks: Marks, headline: str) -> int | None:
    """Return the exit code of the kernel, or what the rank's own files say where the kernel says nothing."""
    if code is not None:
        return code
    for words, status in _FATAL.items():
        if words in headline:
            return status
    if any(map(_ends, marks.errors)):
        return 1
    wished_status = marks.way_out.status if marks.way_out else ""
    if wished_status:
        return int(wished_status) if wished_status.lstrip("-").isdigit() else 0 if wished_status == "None" else 1
    return 0 if marks.end else None


def with_launcher_ends(ranks: Sequence[RankEvidence]) -> tuple[RankEvidence, ...]:
    """Mark the ends that the launcher caused: SIGTERM or SIGKILL after another rank had ended badly.

    A launcher acts on ends. An error does not count: the others may notice a lost rank before it has ended.
    """
    ends = {one.rank: one.exit for one in ranks if one.exit and one.exit.code not in {0, None}}

    def is_of_launcher(one: RankEvidence) -> bool:
        if one.exit is None or one.exit.code not in _PATIENCE_OF_LAUNCHERS:
            return False
        peers = [end for rank, end in ends.items() if rank != one.rank]
        if one.exit.code == -SIGTERM and any(_is_root(end, one.exit.at) for end in peers):
            return True
        return one.exit.at > min((end.at for end in peers), default=_NEVER) + _PATIENCE_OF_LAUNCHERS[one.exit.code]

    return tuple(
        replace(one, exit=replace(one.exit, by_launcher=True)) if one.exit and is_of_launcher(one) else one
        for one in ranks
    )
