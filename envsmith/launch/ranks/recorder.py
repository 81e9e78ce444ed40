"""What one rank says, parsed: a dump of torch's flight recorder, and the stacks and groups of its witness."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from envsmith.base.files import read_text
from envsmith.base.json_types import JsonFields, number_in, object_in, objects_in, text_in
from envsmith.base.schema import parse_json
from envsmith.errors import DataError
from envsmith.launch.ranks.errors import read_error
from envsmith.launch.ranks.evidence import (
    Call,
    CallArguments,
    Frame,
    ProcessGroup,
    RankError,
    ThreadStack,
    user_place,
)

# The last calls that are kept of one dump. Ranks are rarely further apart.
MOST_CALLS = 400
# A program that people write is smaller. What a machine wrote says nothing by its loops.
_MOST_SOURCE = 1 << 20
# How programs ask which rank they are.
_OF_RANK = re.compile(
    r"rank|is_(?:local_|global_|world_)?(?:main|master|first|zero)|is_global_zero|process_index", re.IGNORECASE
)
# The recorder names types as ATen does.
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Int": "int32",
    "Long": "int64",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
}


def calls_of(dump: JsonFields, most: int = MOST_CALLS) -> tuple[Call, ...]:
    """Return the last entries of a dump as calls, oldest first. What is not an entry is left out."""
    rows = [_call(entry) for entry in objects_in(dump, "entries")]
    return tuple(row for row in rows if row is not None)[-most:]


def _call(entry: JsonFields) -> Call | None:
    is_p2p = bool(entry.get("is_p2p"))
    sequence = entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", entry.get("seq_id"))
    operation = str(entry.get("profiling_name", ""))[:100].rpartition(":")[2]
    if not isinstance(sequence, int) or not operation:
        return None
    state = str(entry.get("state", ""))[:20]
    created = entry.get("time_created_ns")
    return Call(
        group=_group_name(entry.get("process_group")),
        sequence=sequence,
        operation=operation,
        sizes=_sizes(entry.get("input_sizes")),
        dtypes=_dtypes(entry.get("input_dtypes")),
        state=state,
        at=created / 1e9 if isinstance(created, int) else 0.0,
        ended=_has_ended(entry, state),
        is_p2p=is_p2p,
        place=user_place(_frames(entry)),
        thread=text_in(entry, "thread_id")[:20],
    )


def _has_ended(entry: JsonFields, state: str) -> bool | None:
    """Return whether the work has ended: NCCL says completed, gloo retires an entry that it leaves scheduled."""
    if state == "completed":
        return True
    retired = entry.get("retired")
    return retired if isinstance(retired, bool) else None


def _group_name(value: object) -> str:
    """Return the name of a group: the first of the name and its description."""
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return str(value[0])[:100]
    return str(value or "")[:100]


def _sizes(value: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, (list, tuple)):
        return ()
    rows = [row for row in value if isinstance(row, (list, tuple))]
    return tuple(tuple(number for number in row if isinstance(number, int)) for row in rows[:64])


def _dtypes(value: object) -> tuple[str, ...]:
    return tuple(_DTYPES.get(str(name), str(name)[:30]) for name in value[:64]) if isinstance(value, list) else ()


def _frames(entry: JsonFields) -> Iterable[Frame]:
    for frame in objects_in(entry, "frames"):
        function, file = str(frame.get("name", "")), str(frame.get("filename", ""))
        yield Frame(function=function, file=file, line=number_in(frame, "line"))


def groups_of(dump: JsonFields) -> tuple[ProcessGroup, ...]:
    """Return the process groups that NCCL's dump lists. That of gloo has none with a name."""
    rows = []
    for name, row in object_in(dump, "pg_config").items():
        if name and isinstance(row, Mapping):
            rows.append(
                ProcessGroup(
                    name=str(name)[:100], description=str(row.get("desc", ""))[:100], ranks=_ranks(row.get("ranks"))
                )
            )
    return tuple(rows)


def _ranks(value: object) -> tuple[int, ...]:
    try:
        numbers = parse_json(value) if isinstance(value, str) else value
    except ValueError:
        return ()
    return tuple(number for number in numbers if isinstance(number, int)) if isinstance(numbers, list) else ()


def stated_groups(rows: Iterable[JsonFields]) -> tuple[ProcessGroup, ...]:
    """Return the process groups that a witness lists."""
    return tuple(
        ProcessGroup(
            name=str(row.get("name", "")),
            description=str(row.get("description", "")),
            ranks=_ranks(row.get("ranks")),
        )
        for row in rows
    )


def stacks_of(answer: JsonFields) -> tuple[ThreadStack, ...]:
    """Return the stacks that a witness lists."""
    return tuple(
        ThreadStack(
            thread=str(row.get("thread", "")),
            frames=frames_of(row.get("frames")),
            is_main=bool(row.get("is_main")),
            call=_arguments(object_in(row, "call")),
            handles=_handled(object_in(row, "handled")),
            number=text_in(row, "number")[:20],
        )
        for row in objects_in(answer, "stacks")
    )


def _handled(row: JsonFields) -> RankError | None:
    return read_error(text_in(row, "error"), frames_of(row.get("stack"))) if text_in(row, "error") else None


def _arguments(row: JsonFields) -> CallArguments | None:
    """Return what a frame of torch.distributed was asked. A send, and a recv, name a peer and no root."""
    operation = text_in(row, "operation")[:60]
    if not operation:
        return None
    named = [row[name] for name in ("src", "group_src", "dst", "group_dst") if isinstance(row.get(name), int)]
    end = named[0] if named and isinstance(named[0], int) else None
    is_p2p = operation.removeprefix("i") in {"send", "recv"}
    return CallArguments(
        operation=operation,
        group=text_in(row, "group")[:100],
        root=None if is_p2p else end,
        peer=end if is_p2p else None,
        ranks=_ranks(row.get("ranks")),
        turn=number_in(row, "turn"),
        tag=number_in(row, "tag") if is_p2p else 0,
    )


def with_source(stacks: Iterable[ThreadStack]) -> tuple[ThreadStack, ...]:
    """Return stacks of faulthandler with what the programs of this machine say at their frames."""
    return tuple(
        replace(stack, frames=frames_of([[frame.function, frame.file, frame.line] for frame in stack.frames]))
        for stack in stacks
    )


def frames_of(rows: object) -> tuple[Frame, ...]:
    """Return the frames that a witness lists, with the loops that they stand in and the line of the innermost one."""
    return tuple(
        _read(Frame(function=str(row[0]), file=str(row[1]), line=int(row[2])), is_innermost=number == 0)
        for number, row in enumerate(rows if isinstance(rows, list) else ())
        if isinstance(row, list) and len(row) == 3
    )


def _read(frame: Frame, *, is_innermost: bool) -> Frame:
    """Return a frame with what the program says there."""
    is_users = bool(user_place([frame]))
    if not is_users and not is_innermost:
        return frame
    lines = _source(frame.file).splitlines()
    return replace(
        frame,
        loops=tuple(span for span in _loops_of(frame.file) if span[0] <= frame.line <= span[1]) if is_users else (),
        condition=next((test for first, last, test in _conditions_of(frame.file) if first <= frame.line <= last), "")
        if is_users
        else "",
        text=lines[frame.line - 1].strip()[:200] if is_innermost and 0 < frame.line <= len(lines) else "",
    )


@functools.lru_cache(maxsize=64)
def _source(file: str) -> str:
    """Return a program, or nothing where it cannot be read."""
    path = Path(file)
    try:
        return read_text(path, _MOST_SOURCE) if path.is_file() else ""
    except (DataError, OSError, ValueError):
        return ""


@functools.lru_cache(maxsize=64)
def _loops_of(file: str) -> tuple[tuple[int, int], ...]:
    """Return the first and last lines of the loops of a program."""
    nodes = (node for node in _nodes(file) if isinstance(node, (ast.For, ast.AsyncFor, ast.While)))
    return tuple(sorted((node.lineno, node.end_lineno or node.lineno) for node in nodes))


@functools.lru_cache(maxsize=64)
def _conditions_of(file: str) -> tuple[tuple[int, int, str], ...]:
    """Return the first and last lines of what stands under a test of the rank, and the test, the innermost first."""
    rows = []
    for node in _nodes(file):
        test = ast.unparse(node.test)[:80] if isinstance(node, ast.If) else ""
        if isinstance(node, ast.If) and _OF_RANK.search(test):
            rows += [(part[0].lineno, part[-1].end_lineno or 0, test) for part in (node.body, node.orelse) if part]
    return tuple(sorted(rows, reverse=True))


def _nodes(file: str) -> Iterable[ast.AST]:
    try:
        return ast.walk(ast.parse(_source(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
