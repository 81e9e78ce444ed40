"""What the kernel and the tools of this machine show of ranks: states, children, memory, disks, GPUs. Nothing is sent to them."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from envsmith.agent.processes import process_state, read_text
from envsmith.base.programs import execute
from envsmith.launch.ranks.evidence import Disk, ProcessState, ThreadStack
from envsmith.launch.ranks.traces import py_spy_stacks

# How deep below a process others are looked for: a compiler stands below a driver, a shell, a builder and another shell.
_DEPTH = 8
_SHM = "/dev/shm"  # noqa: S108 - the path that every program uses
# py-spy takes 0.1 to 0.4 s. It hangs on a process that is stopped.
_SPY_SECONDS = 5.0
_TOOL_SECONDS = 10.0
# PIDFD_GET_INFO of Linux 6.13, whose exit code Linux 6.15 fills in once the process was waited for.
_GET_INFO, _INFO, _EXIT_KNOWN = 0xC040FF0B, "QQ" + "I" * 11 + "i", 1 << 3
# Which argument of a system call says until when it waits: poll, select, rt_sigtimedwait, futex, semtimedop, epoll_wait
# and their kin.
_LIMITS = {
    "x86_64": {7: 2, 23: 4, 128: 2, 202: 3, 220: 3, 232: 3, 270: 4, 271: 2, 281: 3},
    "aarch64": {22: 3, 72: 4, 73: 2, 98: 3, 137: 2, 192: 3},
}.get(os.uname().machine, {})
# What stands there for none: no address, and minus one of 32 or 64 bits.
_NO_LIMIT = frozenset({0, (1 << 32) - 1, (1 << 64) - 1})
_STAMP = re.compile(r"(?:<\d+>)?\[ *(\d{1,9}\.\d{1,9})\]")
_XID_OF = re.compile(r"NVRM: Xid.*\bpid='?(\d+)")
_TELLING = re.compile(r"NVRM: Xid|oom-kill|Out of memory|segfault at|traps: |general protection", re.IGNORECASE)


def open_process(pid: int) -> int | None:
    """Return a descriptor of a process that becomes readable at its end, or ``None`` when it is gone."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def exit_code(process: int) -> int | None:
    """Return how a process ended that is another's child, negative for a signal. ``None`` where the kernel says nothing."""
    import fcntl

    buffer = bytearray(struct.pack(_INFO, _EXIT_KNOWN, *(0,) * 13))
    try:
        fcntl.ioctl(process, _GET_INFO, buffer)
    except OSError:
        return None
    mask, *_, status = struct.unpack(_INFO, buffer)
    return os.waitstatus_to_exitcode(status) if mask & _EXIT_KNOWN else None


def program_of(pid: int) -> str:
    """Return the file that a process runs, or nothing where that may not be read."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(" (deleted)")  # an upgrade changes no process
    except OSError:
        return ""


def family_of(pid: int, depth: int = _DEPTH) -> list[int]:
    """Return the children of a process and theirs."""
    children = children_of(str(pid)) if depth else []
    return [number for child in children for number in (child, *family_of(child, depth - 1))]


def look(pid: int | str, *, depth: int = _DEPTH) -> ProcessState:
    """Return a process, or a thread of it (``7/task/8``), as the kernel shows it, with its children."""
    state, _ = process_state(pid)
    return ProcessState(
        pid=int(str(pid).rpartition("/")[2]),
        state=state,
        waits_in=read_text(f"/proc/{pid}/wchan", 64).strip("\0\n0"),
        has_limit=_has_limit(read_text(f"/proc/{pid}/syscall", 200)),
        command=" ".join(read_text(f"/proc/{pid}/cmdline", 300).replace("\0", " ").split()),
        children=tuple(look(str(child), depth=depth - 1) for child in children_of(pid)) if depth else (),
    )


def _has_limit(call: str) -> bool:
    """Tell whether a process waits in a system call that ends at a time of its own."""
    number, *arguments = call.split() or [""]
    place = _LIMITS.get(int(number)) if number.isdigit() else None
    return place is not None and int(arguments[place], 16) not in _NO_LIMIT


def wakings(pid: int | str) -> int:
    """Return how often a process or thread was given a processor."""
    return int((read_text(f"/proc/{pid}/schedstat", 100).split() or ["0"])[-1])


def children_of(pid: int | str) -> list[int]:
    """Return the children of a process, or of a thread."""
    numbers = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            numbers += [int(one) for one in read_text(f"{task}/children").split()]
    return sorted(numbers)


def threads_of_process(pid: int) -> list[int]:
    """Return the numbers of the threads of a process."""
    try:
        return sorted(int(folder.name) for folder in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def parent_of(pid: int) -> int:
    """Return the parent of a process, or 0 when it is gone."""
    fields = read_text(f"/proc/{pid}/stat", 1024).rpartition(")")[2].split()
    return int(fields[1]) if fields else 0


def disks_of(pid: int) -> tuple[Disk, ...]:
    """Return the shared memory and the working folder of a process, seen from its own root."""
    rows = []
    for path, link in ((_SHM, f"/proc/{pid}/root{_SHM}"), ("working folder", f"/proc/{pid}/cwd")):
        with suppress(OSError):
            stat = os.statvfs(link)
            rows.append(Disk(path=path, free=stat.f_bavail * stat.f_frsize, size=stat.f_blocks * stat.f_frsize))
    return tuple(rows)


def oom_kills() -> int:
    """Return how often the kernel ended a process of this one's control group for lack of memory."""
    for line in read_text("/proc/self/cgroup").splitlines():
        number, _, fields = line.partition(":")
        controllers, _, path = fields.partition(":")
        if number == "0" and not controllers:
            file = Path("/sys/fs/cgroup", path.lstrip("/"), "memory.events")
        elif "memory" in controllers.split(","):
            file = Path("/sys/fs/cgroup/memory", path.lstrip("/"), "memory.oom_control")
        else:
            continue
        for candidate in (file, file.parents[0] / file.name, Path("/sys/fs/cgroup/memory", file.name)):
            if match := re.search(r"^oom_kill (\d+)$", read_text(str(candidate)), re.MULTILINE):
                return int(match[1])
    return 0


def kernel_lines(since: float, processes: Collection[int]) -> tuple[tuple[str, ...], str]:
    """Return the telling lines of the kernel's log from ``since`` on, in seconds of its clock, and why there are none.

    A driver's line about a process that is none of ``processes`` is another program's, where the kernel's numbers are ours.
    """
    text, failure = _output(["dmesg"])
    own = processes if _counts_as_the_kernel() else None
    return parse_kernel_lines(text.splitlines()[-200:], since, own), failure


def _counts_as_the_kernel() -> bool:
    """Tell whether this process is in the first namespace of process numbers (PROC_PID_INIT_INO of the kernel)."""
    try:
        return str(Path("/proc/self/ns/pid").readlink()) == f"pid:[{0xEFFFFFFC}]"
    except OSError:
        return False


def parse_kernel_lines(lines: Iterable[str], since: float, processes: Collection[int] | None = None) -> tuple[str, ...]:
    """Return the telling lines that are not older. With ``processes`` without the Xids of others."""
    rows = [(_STAMP.match(line), line.strip()[:300]) for line in lines if _TELLING.search(line)]
    if processes is not None:
        rows = [row for row in rows if not (xid := _XID_OF.search(row[1])) or int(xid[1]) in processes]
    return tuple(line for stamp, line in rows if stamp and float(stamp[1]) >= since)[-20:]


def spy(pid: int) -> tuple[tuple[ThreadStack, ...], str]:
    """Return the stacks that py-spy reads of a process, and why it could not."""
    if not shutil.which("py-spy"):
        return (), "py-spy is not installed: the stacks of a rank that does not answer come from faulthandler"
    text, failure = _output(["py-spy", "dump", "--pid", str(pid)], seconds=_SPY_SECONDS)
    return py_spy_stacks(text), failure and f"py-spy cannot read process {pid}: {failure}"


def gpu_memory() -> Mapping[int, int]:
    """Return the bytes of GPU memory that each process holds, by pid. Empty without nvidia-smi."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits"]
    return parse_gpu_memory(_output(command)[0]) if shutil.which("nvidia-smi") else {}


def parse_gpu_memory(text: str) -> Mapping[int, int]:
    """Return the bytes by pid of nvidia-smi's table, whose second column is in MiB."""
    rows: dict[int, int] = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"\s*(\d{1,9}), (\d{1,9})\s*", line):
            rows[int(match[1])] = rows.get(int(match[1]), 0) + (int(match[2]) << 20)
    return rows


def ras_text() -> str:
    """Return what NCCL's RAS says of the communicators, or nothing where ncclras is not installed."""
    return _output(["ncclras", "-v"])[0] if shutil.which("ncclras") else ""


def _output(command: list[str], seconds: float = _TOOL_SECONDS) -> tuple[str, str]:
    """Return the output of a tool, and one line that says why there is none."""
    try:
        result = execute(command, seconds=seconds)
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} did not end within {seconds:.0f} s"
    except OSError as error:
        return "", f"{command[0]}: {error.strerror}"
    failure = next(iter(result.stderr.strip().splitlines()), "it failed") if result.returncode else ""
    return result.stdout, failure[:200]
