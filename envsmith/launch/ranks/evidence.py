"""What the ranks of one launch left behind, as values: exits, errors, collectives, stacks, processes, machines.

Readers of files, the watcher of ``envsmith run`` and the doctor fill them in. Nothing in them is a judgement. A field
that nothing was read for has its default.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python3\.\d+/|<frozen |^<string>|<__array_function__|/run/hook/sitecustomize\.py$|\.px[di]$|\.pyx$"
)


@dataclass(frozen=True)
class ExitStatus:
    """The end of a process. ``code`` is negative for a signal, ``None`` where only the end is certain.

    ``at`` is in seconds of the epoch, 0 where unknown. ``is_clean`` tells that the script came to its end by itself.
    ``by_launcher`` tells that the launcher sent the signal, because another rank had failed.
    """

    code: int | None
    at: float = 0.0
    is_clean: bool = False
    by_launcher: bool = False


class RaisedBy(str, Enum):
    """Whose code raised an error, by the frames of its traceback."""

    PROGRAM = "program"  # the user's, and what it calls
    COLLECTIVE = "collective"  # torch's own code around a collective
    UNKNOWN = ""  # a text without its frames, or a call into compiled code


@dataclass(frozen=True)
class RankError:
    """An error that a rank raised. ``place`` is ``file:line (function)`` of its last frame outside of libraries.

    ``error`` is the line of the traceback with type and message.
    ``root`` is the first error of the chain from which it was raised. ``worker`` tells that a worker of a data loader
    or of a pool raised it and its rank only passed it on, ``by_rank`` that another rank did, ``by_process`` that the
    process of that number did. ``handled`` tells that the program caught it.
    """

    error: str
    place: str = ""
    at: float = 0.0
    thread: str = ""
    line: int = 0
    raised_by: RaisedBy = RaisedBy.UNKNOWN
    root: RankError | None = None
    worker: bool = False
    by_rank: int | None = None
    by_process: int = 0
    handled: bool = False


@dataclass(frozen=True)
class Call:
    """One entry of a flight recorder. ``sequence`` counts within its ``group``, for point-to-point calls apart.

    ``at`` is when the rank made the call, in seconds of the epoch, ``thread`` the number of the thread that made it.
    ``ended`` is ``None`` where the recorder does not say whether the call came to its end.
    """

    group: str
    sequence: int
    operation: str
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    state: str = ""
    at: float = 0.0
    ended: bool | None = None
    is_p2p: bool = False
    place: str = ""
    thread: str = ""


@dataclass(frozen=True)
class ProcessGroup:
    """A process group: its name (the one in :class:`Call`), what the program calls it, and its ranks."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Frame:
    """One frame of a stack. ``loops`` are the first and the last line of each loop that it stands in, the outermost first.

    ``text`` is the line of the program, where it was read: of the innermost frame. ``condition`` is the test of the
    innermost ``if`` around it that asks which rank this is.
    """

    function: str
    file: str
    line: int = 0
    loops: tuple[tuple[int, int], ...] = ()
    text: str = ""
    condition: str = ""


def place_of(frame: Frame) -> str:
    """Return ``file:line (function)``. The body of a module has no function."""
    function = "" if frame.function in {"<module>", ""} else f" ({frame.function})"
    return f"{frame.file.rpartition('/')[2]}:{frame.line}{function}"


def user_place(frames: Iterable[Frame]) -> str:
    """Return the place of the innermost frame that is no library's, or nothing."""
    return next((place_of(frame) for frame in frames if not LIBRARY.search(frame.file)), "")


def above_user(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Return the innermost frames, down to the first one that is no library's."""
    return frames[: next((number for number, frame in enumerate(frames) if user_place([frame])), len(frames))]


@dataclass(frozen=True)
class CallArguments:
    """What a rank asks of torch.distributed: the function, its group and its arguments, as its frame holds them.

    ``root`` is the rank that a collective names, ``peer`` the one of a send or recv, ``ranks`` those of a new group and
    ``turn`` the number of that group, ``tag`` the one of a send or recv.
    """

    operation: str
    group: str = ""
    root: int | None = None
    peer: int | None = None
    ranks: tuple[int, ...] = ()
    turn: int = 0
    tag: int = 0

    @property
    def is_send(self) -> bool:
        """Tell whether it gives, where a peer is named."""
        return "send" in self.operation

    @property
    def text(self) -> str:
        """Return it for people: ``recv from rank 2``."""
        if self.peer is not None:
            tag = f" with tag {self.tag}" if self.tag else ""
            return f"{self.operation} {'to' if self.is_send else 'from'} rank {self.peer}{tag}"
        if self.operation.removeprefix("i") == "recv":
            return f"{self.operation} from any rank"
        root = f" with root {self.root}" if self.root is not None else ""
        return f"{self.operation}{root}{f' of ranks {list(self.ranks)}' if self.ranks else ''}"


@dataclass(frozen=True)
class ThreadStack:
    """The stack of one thread, its innermost frame first.

    ``call`` is what it asks of torch.distributed, ``handles`` the error in whose ``except`` or ``finally`` it stands, ``process`` how the kernel shows the thread, ``still`` counts the looks
    in a row at which it stood at the same place. ``number`` is the one by which :class:`Call` names it. ``is_main`` is
    true of the thread that trains.
    """

    thread: str
    frames: tuple[Frame, ...]
    is_main: bool = False
    holds_gil: bool | None = None
    call: CallArguments | None = None
    handles: RankError | None = None
    still: int = 0
    number: str = ""
    process: ProcessState | None = None


class OtherEnd(str, Enum):
    """Where the other end is of what a process sleeps at: who could end the wait."""

    HERE = "here"  # with processes of this machine that can be named, or within the process itself
    ELSEWHERE = "elsewhere"  # another machine, a person at a terminal, whoever may connect
    UNKNOWN = ""


@dataclass(frozen=True)
class ProcessState:
    """A process as the kernel shows it. ``state`` is the letter of /proc (R, S, D, T, Z), ``waits_in`` its wchan.

    ``answers`` tells whether the thread of the hook answered a question in time: only who holds the GIL does not.
    ``has_limit`` tells that the call in which it sleeps ends at a time of its own, ``became`` that it runs another program
    than it did. ``cpu`` is the share of one processor that it used of late, ``wakes`` tells that it ran between two looks.
    ``holders`` are the processes at the other end of what it sleeps at.
    """

    pid: int
    state: str = ""
    waits_in: str = ""
    command: str = ""
    cpu: float | None = None
    answers: bool | None = None
    became: bool = False
    has_limit: bool = False
    wakes: bool = False
    other_end: OtherEnd = OtherEnd.UNKNOWN
    holders: tuple[ProcessState, ...] = ()
    children: tuple[ProcessState, ...] = ()


@dataclass(frozen=True)
class RankEvidence:
    """What is known of one rank. ``calls`` and ``stacks`` are the last that were read, oldest call first.

    ``environment`` holds variables and versions that may differ between ranks, ``groups`` the process groups, ``world``
    the size of the world that the rank believes in. ``error`` is its last one,
    ``way_out`` where it asked for its end: ``sys.exit('0') at train.py:77``. ``still`` counts the looks in a row at
    which its main thread stood at the same place. ``handled`` is the last error that the program caught as it left,
    ``is_leaving`` that its script is over, by its end or an error, and its process goes on.
    """

    rank: int
    host: str = ""
    pid: int = 0
    exit: ExitStatus | None = None
    error: RankError | None = None
    calls: tuple[Call, ...] = ()
    groups: tuple[ProcessGroup, ...] = ()
    stacks: tuple[ThreadStack, ...] = ()
    process: ProcessState | None = None
    gpu_bytes: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    world: int = 0
    way_out: str = ""
    still: int = 0
    handled: RankError | None = None
    is_leaving: bool = False

    @property
    def main(self) -> ThreadStack | None:
        """Return the stack of its main thread."""
        return next((stack for stack in self.stacks if stack.is_main), None)

    @property
    def place(self) -> str:
        """Return where its main thread stands in the program."""
        return user_place(self.main.frames) if self.main else ""

    @property
    def above_user(self) -> Sequence[Frame]:
        """Return what its main thread is in below that place: frames of libraries."""
        return above_user(self.main.frames) if self.main else ()

    @property
    def is_alive(self) -> bool:
        """Tell whether nothing says that it has ended."""
        return self.exit is None


@dataclass(frozen=True)
class Disk:
    """A file system that ranks write to: ``/dev/shm`` or the one of their checkpoints. ``-1`` where unknown."""

    path: str
    free: int = -1
    size: int = -1


@dataclass(frozen=True)
class LaunchHost:
    """One host. ``oom_kills`` counts what the kernel ended for lack of memory during the launch.

    ``kernel`` are telling lines of its log: Xid, out of memory, segfault.
    """

    name: str = ""
    disks: tuple[Disk, ...] = ()
    oom_kills: int = 0
    kernel: tuple[str, ...] = ()


@dataclass(frozen=True)
class LaunchEvent:
    """Something that happened, in the order of the launch: a death, a stall, an answer that stayed away.

    ``kind`` is set where another program reported it: ``unreachable`` or ``fewer-calls``.
    """

    at: float
    text: str
    rank: int | None = None
    kind: str = ""


@dataclass(frozen=True)
class LaunchEvidence:
    """All that is known of a launch. ``world`` is how many ranks it has, 0 where unknown.

    ``stalled`` is for how many seconds no rank has moved, 0 where ranks move or that is unknown. ``is_listed`` tells
    that the launcher printed which ranks failed. ``launcher`` is how it ended. ``unread`` says what was not readable.

    ``sizes`` are the bytes that a collective received and expected, where gloo printed them. ``absent`` is the rank
    that the others waited for at the store, and for how many seconds. ``line`` is where either was read.
    ``is_interrupted`` tells that somebody ended the launch on purpose. ``communicators`` is what NCCL's RAS prints.
    ``attempt`` counts how often the launcher had started its ranks before. ``driver`` is the first error of a process
    that is no rank: of who starts them.
    """

    ranks: tuple[RankEvidence, ...] = ()
    machines: tuple[LaunchHost, ...] = ()
    world: int = 0
    launcher: ExitStatus | None = None
    is_listed: bool = False
    stalled: float = 0.0
    events: tuple[LaunchEvent, ...] = ()
    sizes: tuple[int, int] | None = None
    absent: tuple[int, float] | None = None
    line: int = 0
    is_interrupted: bool = False
    communicators: str = ""
    attempt: int = 0
    driver: RankError | None = None
    unread: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[tuple[int, RankError], ...]:
        """Return the errors with their ranks, in the order in which they came."""
        pairs = [(one.rank, one.error) for one in self.ranks if one.error]
        return tuple(sorted(pairs, key=lambda pair: (pair[1].at, pair[1].line)))

    @property
    def exits(self) -> Mapping[int, int]:
        """Return the exit codes that are certain, by rank."""
        return {one.rank: one.exit.code for one in self.ranks if one.exit and one.exit.code is not None}
