"""What a rank says of itself: its stacks, its collectives, its process groups. The standard library only, Python >= 3.9.

The hook of ``envsmith run`` loads this file by its path, and the watch of the preflight imports it. Nothing here waits
for another rank.
"""

import contextlib
import sys
import threading
import traceback
from typing import Any


def frames(frame: Any, most: int = 60) -> list[Any]:
    """Return function, file and line of a frame and its callers."""
    rows: list[Any] = []
    while frame is not None and len(rows) < most:
        rows.append((frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return rows


def said(error: Any, trace: Any) -> Any:
    """Return the last line of an error and its frames, innermost first."""
    text = "".join(traceback.format_exception_only(type(error), error)).rstrip()
    text = text if len(text) < 4000 else text[:1000] + "\n" + text[-3000:]  # a worker's own traceback stands at its end
    stack = [(f.name, f.filename, f.lineno or 0) for f in reversed(traceback.extract_tb(trace))]
    if isinstance(error, SyntaxError) and error.filename:
        stack.insert(0, ("<module>", error.filename, error.lineno or 0))
    return {"error": text, "stack": stack[:40]}


def all_stacks() -> list[Any]:
    """Return the stack of each thread but this one."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    mine, main = threading.get_ident(), threading.main_thread().ident
    handled: Any = sys._current_exceptions()
    return [
        {
            "thread": getattr(threads.get(ident), "name", str(ident)),
            "id": getattr(threads.get(ident), "native_id", 0),
            "number": str(ident),
            "is_main": ident == main,
            "frames": frames(frame),
            "call": arguments(frame),
            "handled": handled_error(handled.get(ident)),
        }
        for ident, frame in sys._current_frames().items()
        if ident != mine
    ]


def handled_error(value: Any) -> Any:
    """Return the error that a thread handles: it stands in an ``except`` or ``finally``. Before Python 3.12 it is in a tuple."""
    error = value[1] if isinstance(value, tuple) else value
    return said(error, error.__traceback__) if error is not None else {}


def arguments(frame: Any) -> dict[str, Any]:
    """Return what the innermost function of torch.distributed was asked: its group, root, peer, ranks or turn."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith("torch/distributed/distributed_c10d.py") and code.co_name[:1] != "_":
            break
        frame = frame.f_back
    row: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        values = frame.f_locals if frame is not None else {}
        world: Any = getattr(_c10d(), "_world", None)
        for name in ("src", "dst", "group_src", "group_dst", "tag", "ranks"):
            value = values.get(name)
            if isinstance(value, int) or (name == "ranks" and isinstance(value, (list, tuple))):
                row[name] = value if isinstance(value, int) else [int(each) for each in value]
        group = values.get("group") or getattr(world, "default_pg", None)
        row["group"] = str(world.pg_names.get(group, "")) if world is not None else ""
        row["turn"] = int(getattr(world, "group_count", 0))
        row["operation"] = frame.f_code.co_name if frame is not None else ""
    return row


def _c10d() -> Any:
    return sys.modules.get("torch.distributed.distributed_c10d")


def progress() -> dict[str, int]:
    """Return the number of collectives of each process group."""
    world: Any = getattr(_c10d(), "_world", None)
    numbers = {}
    for group in list(world.pg_map) if world is not None else ():
        with contextlib.suppress(Exception):
            numbers[str(world.pg_names.get(group, ""))] = int(group._get_sequence_number_for_group())
    return numbers


def groups() -> list[Any]:
    """Return the process groups: name, description, ranks."""
    world: Any = getattr(_c10d(), "_world", None)
    rows = []
    for group, ranks in list(world.pg_group_ranks.items()) if world is not None else ():
        with contextlib.suppress(Exception):
            name = str(world.pg_names.get(group, ""))
            rows.append({"name": name, "description": str(getattr(group, "group_desc", "")), "ranks": sorted(ranks)})
    return rows


def recorder() -> bytes:
    """Return what torch's flight recorder holds, as JSON, without its stacks: those take seconds."""
    module = sys.modules.get("torch._C._distributed_c10d")
    if module is None or _c10d() is None:
        return b""
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(module, name, None)
        text = dump() if dump else b""
        text = text.encode() if isinstance(text, str) else text
        if b'"entries"' in text:
            return text
    return b""


def gpu_bytes() -> int:
    """Return the GPU memory that torch has reserved."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return int(cuda.memory_reserved()) if cuda is not None and cuda.is_initialized() else 0
