"""The ranks of one launch: which of them ended or stopped first, where and why, and what only follows from that."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from signal import Signals

from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, Weight
from envsmith.doctor.read.pasted import spoken
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence, EvidenceKind, Severity

EVIDENCE = Evidence(
    kind=EvidenceKind.MEASURED,
    source="outputs of torchrun 2.15 on gloo with three ranks, one fault injected into each",
    date="2026-11-22",
)
# The ids of its findings. Signatures name them as what explains their messages.
KINDS = frozenset({"rank-failed", "rank-died", "rank-left", "rank-late", "ranks-differ"})
_RANK = re.compile(r"\[?(?:default)?[Rr]ank ?(\d{1,5})\]?:?")
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Failure)\b(?::.*)?$"
)
_FRAME = re.compile(r'\s{0,8}File "(?P<file>[^"\n]{1,400})", line (?P<line>\d{1,7}), in (?P<function>\S{1,120})')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/|<frozen |^<string>")
# What a rank says when another one is gone, or does not come.
_CLOSED = re.compile(
    r"Connection closed by (?:remote )?peer|Connection reset by peer|remote process exited|ncclRemoteError|Broken pipe"
    r"|Socket closed|failed to recv, got 0 bytes|NCCL communicator was aborted"
)
_WAITED = re.compile(
    r"Timed out waiting \d+ms for (?:send|recv)|Watchdog caught collective operation timeout|wait timeout after \d+ms"
    r"|ran for \d+ milliseconds before timing out"
)
_SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d{1,18}) vs (\d{1,18})")
_STORE_KEY = re.compile(r"wait timeout after (\d{1,12})ms, keys: /default_pg/\S{0,100}/(\d{1,5})\b")
# torchrun's table of what failed, and what its agent noticed first.
_ROW = re.compile(r"rank\s*: (\d{1,5}) \(local_rank: \d+\)\s*\n\s*exitcode\s*: (-?\d{1,5}) \(pid: (\d+)\)")
_FIRST = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,5}) \(pid: (\d+)\)")
_TABLE = re.compile(r"Root Cause \(first observed failure\)")
_SIZE = re.compile(r"\b(?:world_size|size|WORLD_SIZE)[=: ]{1,3}(\d{1,5})\b")
_MOST_LINES = 100_000
# What a launcher sends to the ranks that still run after a failure.
_OF_LAUNCHER = -15


@dataclass(frozen=True, kw_only=True, slots=True)
class RankError:
    """The last error of a rank. ``place`` is ``file:line (function)`` of its last frame outside of libraries."""

    rank: int
    error: str
    place: str
    line: int

    @property
    def alike(self) -> str:
        """Return the error without numbers, by which errors of several ranks are compared."""
        return re.sub(r"\d+", "#", self.error)

    @property
    def waited(self) -> bool:
        """Tell whether it waited for another rank in vain."""
        return bool(_WAITED.search(self.error))

    @property
    def follows(self) -> bool:
        """Tell whether the error says no more than that another rank is gone or does not come."""
        return self.waited or bool(_CLOSED.search(self.error))


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """What a text says of the ranks of a launch. ``exits`` are those of the launcher's table, by rank."""

    errors: tuple[RankError, ...] = ()
    exits: Mapping[int, int] = field(default_factory=dict)
    world: int = 0
    is_listed: bool = False
    sizes: tuple[int, int] | None = None
    absent: tuple[int, int] | None = None
    line: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Blame:
    """What is said of a launch: which kind, of which rank (``None`` where the text does not say), and in which words."""

    kind: str
    rank: int | None
    message: str
    fix: str
    line: int
    quote: str
    confidence: str = "high"


def read_launch(text: str) -> Launch:
    """Return what a text says of the ranks of a launch: errors by rank, exit statuses, the size of the world."""
    lines = spoken(text)[:_MOST_LINES]
    plain = "\n".join(line for _, line in lines)
    errors = tuple(sorted(_errors(lines), key=lambda error: error.line))
    exits = {int(rank): int(status) for rank, status, _ in _ROW.findall(plain)}
    for status, rank, _ in _FIRST.findall(plain):
        exits.setdefault(int(rank), int(status))
    sizes, key = _SIZES.search(plain), _STORE_KEY.search(plain)
    stated = [int(size) for size in _SIZE.findall(plain)]
    speakers = {rank for speaker, _ in lines if (rank := _rank_of(speaker)) is not None}
    ranks = [*speakers, *exits]
    mark = sizes or key
    return Launch(
        errors=errors,
        exits=exits,
        world=max([*stated, *(rank + 1 for rank in ranks)], default=0),
        is_listed=bool(_TABLE.search(plain)),
        sizes=(int(sizes[1]), int(sizes[2])) if sizes else None,
        absent=(int(key[2]), int(key[1])) if key else None,
        line=plain.count("\n", 0, mark.start()) + 1 if mark else 0,
    )


def blame(launch: Launch) -> Blame | None:
    """Return which rank ended or stopped first, and why. ``None`` where the text does not say that ranks failed."""
    judges = (_own_error, _different_sizes, _absent, _ended, _different_places, _late, _left)
    several = len({*(error.rank for error in launch.errors), *launch.exits}) > 1
    answers = (judge(launch) for judge in judges) if several else ()
    return next(filter(None, answers), None)


def of_blame(source: str, answer: Blame) -> Diagnosed:
    """Return what is said of a launch as a finding. It warns: which rank failed is no fault of the versions."""
    finding = Finding(
        rule=answer.kind,
        severity=Severity.WARNING,
        components={},
        message=answer.message,
        evidence=(EVIDENCE,),
        fix=answer.fix,
        symptom=answer.quote[:300],
        stage="train",
    )
    return Diagnosed(
        finding=finding,
        confidence=answer.confidence,
        score=Weight.SYMPTOM + 1,
        taxonomy=Taxonomy(stage="train", group="negative", cause=answer.kind, pattern="model-or-script-fix"),
        where=f"{source}:{answer.line}",
        quote=answer.quote,
        confirmed=True,
        position=0,
    )


def _own_error(launch: Launch) -> Blame | None:
    """Blame the first rank with an error that is not another's end."""
    own = [error for error in launch.errors if not error.follows]
    if not own:
        return None
    first = own[0]
    same = [error.rank for error in own if error.alike == first.alike]
    if len(same) > 1 and len(same) == len(launch.errors):
        return None  # what every rank says is no matter of ranks
    who = f"Rank {first.rank}" if len(same) == 1 else _ranks(same)
    following = [error.rank for error in launch.errors if error.rank not in same and error.follows]
    then = f" The errors of {_ranks(following, start='')} follow from it." if following else ""
    return Blame(
        kind="rank-failed",
        rank=first.rank,
        message=f"{who} ended first, with {_short(first.error)}{_at(first.place)}.{then}",
        fix=f"Look at {first.place or 'the traceback of that rank'}: what the other ranks print is no cause.",
        line=first.line,
        quote=first.error,
    )


def _different_sizes(launch: Launch) -> Blame | None:
    """Say that one collective was given tensors of different sizes. Which rank is wrong is not in the text."""
    if launch.sizes is None:
        return None
    received, expected = launch.sizes
    places = _places(launch.errors)
    return Blame(
        kind="ranks-differ",
        rank=None,
        message=f"The ranks gave one collective tensors of different sizes: {received} bytes came where {expected} were "
        f"expected.{_standing(places)} Another shape or dtype on one rank does that, and so do different collectives.",
        fix="Print shape and dtype on every rank before that collective, and compare which collective each rank calls.",
        line=launch.line,
        quote=f"op.preamble.length <= op.nbytes. {received} vs {expected}",
        confidence="medium",
    )


def _ended(launch: Launch) -> Blame | None:
    """Blame a rank that a signal or an exit status ended without an error of Python."""
    spoke = {error.rank for error in launch.errors}
    for rank, status in sorted(launch.exits.items()):
        # Status 1 is that of a Python error, which stands in the text without its rank.
        if status in {0, 1, _OF_LAUNCHER} or rank in spoke:
            continue
        if status == -9 and _OF_LAUNCHER in launch.exits.values() and not launch.errors:
            continue  # the launcher insists where SIGTERM was not enough
        ending = f"was ended by {_signal(status)}" if status < 0 else f"ended with exit status {status}"
        return Blame(
            kind="rank-died",
            rank=rank,
            message=f"Rank {rank} {ending}, without an error of Python. What the other ranks print follows from it.",
            fix=_ADVICE.get(
                status, "Look for a sys.exit or os._exit on that rank, or run it with python -X faulthandler."
            ),
            line=launch.errors[0].line if launch.errors else 1,
            quote=f"exitcode: {status}",
        )
    return None


_ADVICE = {
    -9: "Look at `dmesg | grep -i oom` on its host: the kernel kills for memory, and so may a scheduler.",
    -11: "Run it with python -X faulthandler, which shows where: mostly binaries that do not belong together.",
    -6: "Read what it printed last (terminate called, CHECK failed): a library called abort().",
    -7: "Look at df -h /dev/shm: a full shared memory ends a process so.",
}


def _absent(launch: Launch) -> Blame | None:
    """Blame a rank that did not come to init_process_group while the store could be reached."""
    if launch.absent is None:
        return None
    rank, milliseconds = launch.absent
    return Blame(
        kind="rank-late",
        rank=rank,
        message=f"Rank {rank} did not come to init_process_group within {milliseconds / 1000:g} s: the others reached the "
        "store and waited for it. It was not started, is late, or the world is said to be larger than it is.",
        fix="Compare WORLD_SIZE with the number of processes, look at what that rank does before init_process_group, "
        "or give it a longer timeout.",
        line=launch.line,
        quote=f"wait timeout after {milliseconds}ms",
    )


def _different_places(launch: Launch) -> Blame | None:
    """Say that ranks waited at different lines: they do not issue the same collectives."""
    places = _places(launch.errors)
    if len(places) < 2 or not any(error.waited for error in launch.errors):
        return None
    (usual, _), *fewer = Counter(error.place for error in launch.errors if error.place).most_common()
    odd = [error for error in launch.errors if error.place and error.place != usual]
    is_one = len(odd) == 1 and len(fewer) == 1 and len(places[usual]) > 1
    return Blame(
        kind="ranks-differ",
        rank=odd[0].rank if is_one else None,
        message=f"The ranks waited at different places, so they do not issue the same collectives.{_standing(places)}",
        fix="Look for a condition on the rank, or on the data, around a collective: every rank has to call it.",
        line=launch.errors[0].line,
        quote=launch.errors[0].error,
        confidence="medium",
    )


def _late(launch: Launch) -> Blame | None:
    """Blame the one rank that others waited for and that said nothing until the launcher ended it."""
    waiting = [error for error in launch.errors if error.waited]
    silent = [rank for rank, status in sorted(launch.exits.items()) if status == _OF_LAUNCHER]
    silent = [rank for rank in silent if rank not in {error.rank for error in launch.errors}]
    if not waiting or len(silent) != 1:
        return None
    return Blame(
        kind="rank-late",
        rank=silent[0],
        message=f"Rank {silent[0]} did not come to the collective{_at(waiting[0].place)}: the others waited until the "
        "timeout, and it still ran when the launcher ended it. What it did is not in this text.",
        fix=f"Run py-spy dump --pid on rank {silent[0]} while it hangs (faulthandler.dump_traceback_later shows it too): "
        "a blocked data loader, a lock, a file, or work that the others do not have.",
        line=waiting[0].line,
        quote=waiting[0].error,
    )


def _left(launch: Launch) -> Blame | None:
    """Blame the one rank that is in no list of failures while all others lost it: it ended with status 0."""
    missing = set(range(launch.world)) - set(launch.exits) - {error.rank for error in launch.errors}
    if not launch.is_listed or len(missing) != 1 or not launch.errors:
        return None
    rank = missing.pop()
    return Blame(
        kind="rank-left",
        rank=rank,
        message=f"Rank {rank} left in the middle with exit status 0: it is in no list of failures, and the others lost "
        f"their connection to it{_at(launch.errors[0].place)}.",
        fix=f"Look for a sys.exit, a return or an end of the data that only rank {rank} meets.",
        line=launch.errors[0].line,
        quote=launch.errors[0].error,
    )


def _errors(lines: Iterable[tuple[str, str]]) -> Iterator[RankError]:
    """Yield the last error of each rank, with the last place in its traceback that is no library's."""
    frames: dict[int, str] = {}
    errors: dict[int, RankError] = {}
    for number, (speaker, line) in enumerate(lines, 1):
        rank = _rank_of(speaker)
        if rank is None:
            continue
        if frame := _FRAME.match(line):
            if not _LIBRARY.search(frame["file"]):
                function = "" if frame["function"] == "<module>" else f" ({frame['function']})"
                frames[rank] = f"{frame['file'].rpartition('/')[2]}:{frame['line']}{function}"
        elif _EXCEPTION.match(line):
            errors[rank] = RankError(rank=rank, error=line.strip()[:600], place=frames.get(rank, ""), line=number)
    yield from errors.values()


def _rank_of(speaker: str) -> int | None:
    match = _RANK.fullmatch(speaker)
    return int(match[1]) if match else None


def _places(errors: Iterable[RankError]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for error in errors:
        if error.place:
            places.setdefault(error.place, []).append(error.rank)
    return places


def _standing(places: Mapping[str, list[int]]) -> str:
    """Return a sentence that says which rank stood where."""
    parts = [f"{_ranks(ranks, start='')} at {place}" for place, ranks in sorted(places.items(), key=lambda p: p[1])]
    return f" They stood: {', '.join(parts)}." if parts else ""


def _ranks(ranks: Iterable[int], start: str = "R") -> str:
    numbers = sorted(ranks)
    word = f"{start or 'r'}ank{'s' if len(numbers) > 1 else ''}"
    if len(numbers) > 8:
        return f"{word} {numbers[0]} to {numbers[-1]} ({len(numbers)} of them)"
    return f"{word} {', '.join(map(str, numbers))}"


def _at(place: str) -> str:
    return f" at {place}" if place else ""


def _short(error: str) -> str:
    return error if len(error) <= 160 else f"{error[:159]}…"


def _signal(status: int) -> str:
    try:
        return Signals(-status).name
    except ValueError:
        return f"signal {-status}"
