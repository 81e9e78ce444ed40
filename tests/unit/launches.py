"""Evidence of small launches, for the tests of the judges."""

from __future__ import annotations

from envsmith.launch.ranks.evidence import (
    Call,
    ExitStatus,
    Frame,
    LaunchEvidence,
    ProcessState,
    RankError,
    RankEvidence,
    ThreadStack,
)

TRAIN = "/home/user/train.py"
TORCH = "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
CLOSED = "RuntimeError: [/gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:5: Connection reset by peer"


def calls(
    *operations: str, group: str = "0", open_last: bool = False, size: int = 8, gap: float = 0.1, late: float = 0.0
):
    """Return the calls of one rank: each operation may name a size (``all_reduce/3``) and a dtype (``all_reduce/3/float64``)."""
    rows = []
    for number, text in enumerate(operations, 1):
        operation, *details = text.split("/")
        sizes = ((int(details[0]) if details else size,),) if operation != "barrier" else ()
        rows.append(
            Call(
                group=group,
                sequence=number,
                operation=operation,
                sizes=sizes,
                dtypes=(details[1] if len(details) > 1 else "float32",) if sizes else (),
                at=100 + number * gap + late,
                ended=not (open_last and number == len(operations)),
            )
        )
    return tuple(rows)


def stack(line: int, *, inside: str = "", file: str = TORCH) -> tuple[ThreadStack, ...]:
    """Return the stacks of a rank that stands at a line of train.py, perhaps inside a function of a library."""
    frames = [Frame(function=inside, file=file, line=1)] if inside else []
    return (
        ThreadStack(thread="MainThread", frames=(*frames, Frame(function="step", file=TRAIN, line=line)), is_main=True),
    )


def waiting(rank: int, *operations: str, line: int = 26) -> RankEvidence:
    """Return a rank that waits in its last collective."""
    return RankEvidence(
        rank=rank,
        calls=calls(*operations, open_last=True),
        stacks=stack(line, inside="all_reduce"),
        process=ProcessState(pid=rank, state="S", cpu=0.0, answers=True),
        still=8,
    )


def late(
    rank: int, *operations: str, line: int = 15, state: str = "S", still: int = 8, **process: object
) -> RankEvidence:
    """Return a rank that is not in a collective."""
    facts = {"cpu": 0.0, "answers": True, **process}
    return RankEvidence(
        rank=rank,
        calls=calls(*operations),
        stacks=stack(line),
        process=ProcessState(pid=rank, state=state, **facts),
        still=still,
    )


def ended(
    rank: int, code: int | None, at: float = 10.0, error: str = "", *operations: str, **facts: object
) -> RankEvidence:
    """Return a rank that has ended."""
    return RankEvidence(
        rank=rank,
        exit=ExitStatus(code=code, at=at, is_clean=code == 0),
        error=RankError(error=error, at=at) if error else None,
        calls=calls(*operations),
        **facts,
    )


def stalled(*ranks: RankEvidence) -> LaunchEvidence:
    """Return a launch that stands still."""
    return LaunchEvidence(ranks=ranks, world=len(ranks), stalled=300.0, launcher=ExitStatus(code=None))


def failed(*ranks: RankEvidence, **facts: object) -> LaunchEvidence:
    """Return a launch that has ended with status 1."""
    return LaunchEvidence(ranks=ranks, world=len(ranks), launcher=ExitStatus(code=1, at=20.0), **facts)
