"""What an error of a rank says: its own failure, or that another rank is gone or does not come."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from envsmith.base.text import clean
from envsmith.launch.ranks.causes import Cause
from envsmith.launch.ranks.evidence import Frame, RaisedBy, RankError, above_user, user_place

# What a rank says when another one is gone, or does not come.
_CLOSED = re.compile(
    r"closed by (?:remote )?peer|Connection reset by peer|remote process exited|ncclRemoteError|Broken pipe"
    r"|Socket closed|failed to recv, got 0 bytes|NCCL communicator was aborted|Connection refused|\bpeer rank\b"
    r"|Connection was likely closed",
    re.IGNORECASE,
)
_WAITED = re.compile(
    r"Timed out waiting \d+ms for (?:send|recv)|Watchdog caught collective operation timeout|wait timeout after \d+ms"
    r"|ran for \d+ milliseconds before timing out|failed to pass monitoredBarrier|reached monitoredBarrier, but received"
    r"|Timed out after \d+ seconds waiting for clients"
)
SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d{1,18}) vs (\d{1,18})")
# What a store says of a key that did not come. Torch's own questions have frames of torch above the program's.
_KEY = re.compile(r"wait timeout after \d+ms, keys: ")
# What an error says of its cause, the most exact first.
_CAUSES = (
    (Cause.SHM_FULL, re.compile(r"unable to allocate shared memory|No space left on device.{0,40}/dev/shm|/dev/shm.{0,80}No space left")),
    (Cause.LOADER, re.compile(r"DataLoader worker \(pid")),
    (Cause.DISK_FULL, re.compile(r"No space left on device|Disk quota exceeded|unexpected pos \d+ vs \d+")),
    (Cause.PORT, re.compile(r"address already in use|EADDRINUSE", re.IGNORECASE)),
    (
        Cause.OUT_OF_MEMORY,
        re.compile(
            r"out of memory|can't allocate memory|cannot allocate memory(?! in static TLS)|not enough memory|"
            r"MemoryError|std::bad_alloc|Unable to allocate [\d.]+ [KMGT]iB",
            re.IGNORECASE,
        ),
    ),
)  # fmt: skip
# Where collectives are raised: torch's own Python above its compiled code.
_COLLECTIVE = re.compile(r"/torch/(?:distributed|nn/parallel|autograd)/|/torch/_C/")
# What torch's compiled code raises. Whatever else a program meets is its own.
_OF_TORCH = re.compile(
    r"(?:torch\.distributed\.Dist\w+|torch\._C\.\w+|Dist(?:Backend|Network|Store)?Error|RuntimeError)\b"
)
# An error of gloo begins with the line of its own source: a library may wait for what it began in any function.
_OF_GLOO = re.compile(r"RuntimeError: \[\S{0,200}gloo/transport/")
# The traceback that a worker sends to its rank, or that ranks send to each other, which names its rank.
_ORIGINAL = "Traceback (most recent call last):"
_BY_RANK = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,5})\)")
# How Ray passes on what an actor raised.
_BY_PROCESS = re.compile(r"ray::[^\n(]{1,200}\(\) \(pid=(\d{1,9}),")
_FRAME = re.compile(r'\s{0,8}File "([^"\n]{1,400})", line (\d{1,7}), in (\S{1,200})')
_TYPED = re.compile(r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80}(?::.*)?$")
_MOST = 600


def read_error(text: str, frames: Sequence[Frame]) -> RankError:
    """Return an error of its text and its frames, innermost first. Of an error that a worker sent, it is the worker's."""
    text = clean(text)  # Ray colours what it passes on
    if _ORIGINAL in text or _BY_PROCESS.search(text):
        return _of_worker(text)
    error, further = _typed_line(text)
    if error.endswith(":") and further:
        error = f"{error} {further}"  # torch says there which keys of a checkpoint are missing
    error = error[:_MOST] or "an error without a text"
    return RankError(error=error, place=user_place(frames), raised_by=_raised_by(error, frames))


def _typed_line(text: str) -> tuple[str, str]:
    """Return the line with the type of an error, and what the next one says. A SyntaxError begins with its place."""
    lines = text.splitlines()
    number = next((number for number, line in enumerate(lines) if line[:1].strip()), len(lines))
    error, further = [*lines[number : number + 2], "", ""][:2]
    return error, further.strip()


def _of_worker(text: str) -> RankError:
    """Return the error of the innermost traceback in a text. Its last unindented line is the error."""
    by_rank, by_process = _BY_RANK.search(text), _BY_PROCESS.search(text)
    lines = text.rpartition(_ORIGINAL)[2].splitlines()
    matches = [match for line in lines if (match := _FRAME.match(line))]
    frames = [Frame(function=match[3], file=match[1], line=int(match[2])) for match in reversed(matches)]
    errors = [line for line in lines if line[:1].strip() and _TYPED.match(line)]
    error = (errors[-1] if errors else text.strip().splitlines()[0])[:_MOST]
    return replace(
        read_error(error, frames),
        worker=not (by_rank or by_process),
        by_rank=int(by_rank[1]) if by_rank else None,
        by_process=int(by_process[1]) if by_process else 0,
    )


def _raised_by(error: str, frames: Sequence[Frame]) -> RaisedBy:
    """Return whose code raised an error: that of a collective, or the program's with all that it calls."""
    if not frames:
        return RaisedBy.UNKNOWN
    above = above_user(frames)
    if _OF_GLOO.match(error) or any(_COLLECTIVE.search(frame.file) for frame in above):
        return RaisedBy.COLLECTIVE
    if above or not _OF_TORCH.match(error) or frames[0].text.startswith("raise "):
        return RaisedBy.PROGRAM
    # Python shows no frame of compiled code: a store that is asked, or a Work that is waited for.
    return RaisedBy.PROGRAM if _KEY.search(error) else RaisedBy.UNKNOWN


def alike(error: RankError) -> str:
    """Return the error without numbers, by which errors of several ranks are compared."""
    return re.sub(r"\d+", "#", error.error)


def waited(error: RankError) -> bool:
    """Tell whether it waited for another rank in vain."""
    return error.raised_by is not RaisedBy.PROGRAM and bool(_WAITED.search(error.error))


def follows(error: RankError) -> bool:
    """Tell whether the error says no more than that another rank is gone or does not come.

    What the program itself raised is its own, whatever its words, unless it was raised from such an error.
    """
    if error.root is not None:
        return follows(error.root)
    if error.raised_by is RaisedBy.PROGRAM:
        return False
    return waited(error) or says_lost(error.error) or bool(SIZES.search(error.error))


def says_lost(error: str) -> bool:
    """Tell whether an error says that another rank is gone."""
    return bool(_CLOSED.search(error))


def cause_of(error: str) -> Cause:
    """Return the cause that an error states."""
    return next((cause for cause, pattern in _CAUSES if pattern.search(error)), Cause.RAISED)


def short(error: str) -> str:
    """Return an error that is not too long for a sentence."""
    return error if len(error) <= 160 else f"{error[:159]}…"


def error_text(error: RankError) -> str:
    """Return an error for a sentence, with what it was raised from."""
    root = (
        f", raised from {short(error.root.error)}{' at ' + error.root.place if error.root.place else ''}"
        if error.root
        else ""
    )
    return f"{short(error.error)}{' in a worker' if error.worker else ''}{root}"
