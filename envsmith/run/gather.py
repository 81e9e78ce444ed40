"""From what the hook of each rank left, and what the watcher saw, to the evidence of a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from envsmith.ranks.evidence import Exit, ProcessState, RankError, RankEvidence, Stack, user_place
from envsmith.ranks.recorder import calls_of, frames_of, groups_of, stacks_of, stated_groups
from envsmith.ranks.traces import faulthandler_dumps
from envsmith.schema import parse_json

# The most that is read of a file that a rank wrote.
_MOST_BYTES = 8 << 20
# Seconds after the first failure from which a signal is the launcher's. The others may notice a rank's death before the
# kernel reports it, and a launcher waits before it kills.
_NEVER = float("inf")
_PATIENCE_OF_LAUNCHERS: Mapping[int | None, float] = {-15: 0.0, -9: 3.0}
# The headlines of faulthandler, by the signal that they stand for.
_FATAL = {
    "Segmentation fault": -11,
    "Aborted": -6,
    "Bus error": -7,
    "Floating-point exception": -8,
    "Illegal instruction": -4,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """The marks of one rank: its start, its errors, where it asked for its end, and whether it came to it."""

    start: Mapping[str, Any] = field(default_factory=dict)
    errors: tuple[Mapping[str, Any], ...] = ()
    way_out: Mapping[str, Any] = field(default_factory=dict)
    end: Mapping[str, Any] = field(default_factory=dict)
    groups: tuple[Mapping[str, Any], ...] = ()


def read_marks(text: str) -> Marks:
    """Parse the marks of a rank. A line that is cut off is left out."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in text.splitlines():
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.setdefault(str(row.get("mark")), []).append(row)
    return Marks(
        start=rows.get("start", [{}])[0],
        errors=tuple(rows.get("error", ())),
        way_out=rows.get("exit", [{}])[-1],
        end=rows.get("end", [{}])[-1],
        groups=tuple(rows.get("groups", [{}])[-1].get("groups", ())),
    )


def rank_evidence(
    stem: Path,
    *,
    answer: Mapping[str, Any],
    code: int | None,
    ended_at: float,
    process: ProcessState | None,
    still: int = 0,
) -> RankEvidence:
    """Return what is known of one rank: its files, its last full answer, its end and its state."""
    marks = read_marks(_text(stem.with_name(stem.name + ".marks")))
    start = {**marks.start, **{key: answer[key] for key in ("variables", "versions") if key in answer}}
    dump = _parsed(_text(stem.with_name(stem.name + ".calls"))) or answer.get("calls") or {}
    stacks, headline = _stacks(stem, answer, process, has_ended=bool(ended_at))
    status = _status(code, marks, headline) if ended_at else None
    clean = bool(marks.end) and not marks.end.get("failed") and not marks.way_out
    # A process is gone a while after its sockets: its own mark is the earlier one.
    own = [float(row["at"]) for row in (marks.way_out, marks.end) if isinstance(row.get("at"), float)]
    ended_at = min([ended_at, *own]) if ended_at else 0.0
    return RankEvidence(
        rank=int(start.get("rank", stem.name.partition("-")[0])),
        host=str(start.get("host", "")),
        pid=int(start.get("pid", 0)),
        exit=Exit(code=status, at=ended_at, is_clean=clean) if ended_at else None,
        error=None if status == 0 else _error(marks),
        calls=calls_of(dump),
        groups=stated_groups(answer.get("groups") or marks.groups) or groups_of(dump),
        stacks=stacks,
        process=process,
        gpu_bytes=int(answer.get("gpu") or 0),
        environment={
            **start.get("variables", {}),
            **{f"version of {k}": v for k, v in start.get("versions", {}).items()},
        },
        world=_number(start.get("variables", {}).get("WORLD_SIZE")),
        way_out=_way_out(marks),
        still=still,
    )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text) if text else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: object) -> int:
    return int(value) if isinstance(value, str) and value.isdigit() and len(value) < 8 else 0


def _error(marks: Marks) -> RankError | None:
    """Return the error of the main thread, or else the first one of another."""
    row = min(marks.errors, key=lambda each: each.get("thread") != "MainThread", default=None)
    if row is None:
        return None
    lines = str(row.get("error", "")).strip().splitlines()
    return RankError(
        error=(lines[0] if lines else "an error without a text")[:600],
        place=user_place(frames_of(row.get("stack"))),
        at=float(row.get("at", 0.0)),
        thread=str(row.get("thread", "")),
    )


def _way_out(marks: Marks) -> str:
    """Return where a rank asked for its end. With an error the interpreter ends it, and nobody asked."""
    row = marks.way_out
    place = user_place(frames_of(row.get("stack")))
    if not row or not place or (marks.errors and not row.get("at_once")):
        return ""
    return f"{'os._exit' if row.get('at_once') else 'sys.exit'}({row.get('status', '')}) at {place}"


def _stacks(
    stem: Path, answer: Mapping[str, Any], process: ProcessState | None, *, has_ended: bool
) -> tuple[tuple[Stack, ...], str]:
    """Return the stacks of a rank and faulthandler's headline: of its death, of its silence, or of its answer."""
    dumps = faulthandler_dumps(_text(stem.with_name(stem.name + ".stacks")))
    fatal = [dump for dump in dumps if dump[0].startswith("Fatal")]
    if has_ended:
        return (_main_first(fatal[-1][1]), fatal[-1][0]) if fatal else ((), "")
    if process and process.answers is False:
        return (_main_first(dumps[-1][1]) if dumps else ()), ""
    return stacks_of(answer), ""


def _main_first(stacks: Sequence[Stack]) -> tuple[Stack, ...]:
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
    if marks.errors:
        return 1
    wished_status = marks.way_out.get("status")
    if isinstance(wished_status, str):
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
        first = min((end.at for rank, end in ends.items() if rank != one.rank), default=_NEVER)
        return one.exit.at > first + _PATIENCE_OF_LAUNCHERS[one.exit.code]

    return tuple(
        replace(one, exit=replace(one.exit, by_launcher=True)) if one.exit and is_of_launcher(one) else one
        for one in ranks
    )
