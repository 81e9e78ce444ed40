"""The smoke-test agent: one file, run by the cell's own interpreter; it needs the standard library and torch, nothing else.

How it is started (envsmith is never installed in the cell):

    python -I -B -c BOOTSTRAP supervise     source and plan on stdin, JSON lines on stdout (see smoke/launch.py)
    python agent.py --plan PLAN.json        the same without an outer parent
    torchrun … agent.py --plan PLAN.json    every process is a rank; so with srun and mpirun (see `discover`)

`supervise` has three kinds of processes. The *supervisor* never imports torch: it starts ranks, watches a table of progress in
shared memory, judges deadlines, collects evidence and ends exactly the processes that it started. The *nursery* is its
child: it imports torch once and forks ranks, which costs 1.5 s for four ranks instead of 6 s. The *ranks* run the cases.

Events are facts, not opinions: who was where when something stopped. The judgement is made outside (smoke/verdict.py).

Works with Python >= 3.9 and torch >= 2.0: names that moved between releases are looked up, never imported.
"""

# The cell's packages are not installed where this file is checked.
# mypy: disable-error-code="import-not-found,no-any-return"

from __future__ import annotations

import contextlib
import ctypes
import datetime
import faulthandler
import functools
import hashlib
import inspect
import json
import mmap
import os
import platform
import re
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Optional

PROTOCOL = 1

# The steps of a case, written to shared memory before each is taken.
STEPS = ("prep", "entered", "issued", "synced", "verified", "done", "raised")
PREP, ENTERED, ISSUED, SYNCED, VERIFIED, DONE, RAISED = range(7)

# What a rank does before its first case stands where a case number stands, so that one table tells all.
STAGES = {-6: "start", -5: "store", -4: "manifest", -3: "group", -2: "subgroups", -1: "budget"}
START, STORE, MANIFEST, GROUP, SUBGROUPS, BUDGET = -6, -5, -4, -3, -2, -1
FINISHED = 1 << 30

# Exit codes of a rank and of the agent. 6 is never chosen by a rank: a crash is a signal.
OK, ERROR, CONFIGURATION, MISMATCH, WRONG, HANG, CRASH, REGRESSED, MEMORY = range(9)

MAX_RANKS = 1024
POISON = 0x5A
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# The variables that change how a collective runs; they stand in every manifest.
TELLING = ("NCCL_", "TORCH_", "GLOO_", "CUDA_", "UCX_", "FI_", "DS_", "RCCL_", "HSA_")
ALSO_TELLING = ("LD_LIBRARY_PATH", "LD_PRELOAD", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
PER_RANK = {"NCCL_HOSTID", "NCCL_DEBUG_FILE", "CUDA_VISIBLE_DEVICES"}
DISTRIBUTIONS = (
    "torch", "numpy", "triton", "deepspeed", "megatron-core", "colossalai", "transformer-engine", "flash-attn", "apex",
    "transformers", "pydantic", "ninja", "nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu11",
    "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cuda-runtime-cu11", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime",
)  # fmt: skip


class Skip(Exception):
    """The case cannot be asked of this torch or machine; every rank comes to the same answer."""


class Wrong(Exception):
    """A value, a guard zone or an input is not what it must be."""


# --------------------------------------------------------------------------------------------------------------------
# Small things
# --------------------------------------------------------------------------------------------------------------------


def one_line(error: BaseException, limit: int = 300) -> str:
    """`RuntimeError: first line of its message`, and what caused it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' | '.join(lines[:2])}"[:limit]


def read_text(path: str, limit: int = 1 << 16) -> str:
    """The file's first characters, or nothing when it cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read(limit)
    except OSError:
        return ""


def tail_text(path: str, limit: int = 3000) -> str:
    """The file's last characters: what a dead rank said last."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def prctl(option: int, value: int) -> None:
    """Linux only; elsewhere orphans are prevented by the supervisor alone."""
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def process_state(pid: int) -> tuple[str, int]:
    """The kernel's letter for the process (R, S, T stopped, D, Z) and the clock ticks it has used; `("", 0)` when it is gone."""
    text = read_text(f"/proc/{pid}/stat", 1024)
    fields = text.rpartition(")")[2].split()
    return (fields[0], int(fields[11]) + int(fields[12])) if len(fields) > 12 else ("", 0)


def process_started(pid: int) -> int:
    """When the process began, in clock ticks since boot: with it a pid is exact. 0 when it is gone."""
    fields = read_text(f"/proc/{pid}/stat", 1024).rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else 0


# How many times its limit something may take that only waits for a processor or the disk: a machine that others use as well is slow, not broken.
PATIENCE = 4.0


def of_session(pid: int) -> list[int]:
    """The processes whose session is `pid`: a rank and what it started (a compiler)."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = read_text(f"/proc/{name}/stat", 1024).rpartition(")")[2].split()
            if len(fields) > 3 and int(fields[3]) == pid:
                found.append(int(name))
    return found


def starved(pids: Iterable[int], waited: float, samples: int = 10) -> bool:
    """Whether one of the processes wants to run, or waits for the disk, and has had less than half of the time that has gone by.

    What hangs sleeps or is stopped; what loops for ever on a machine that is free has had more than half.
    """
    known = list(pids)
    for _ in range(samples):
        states = [process_state(pid) for pid in known]
        if any(state in ("R", "D") and ticks < 0.5 * waited * os.sysconf("SC_CLK_TCK") for state, ticks in states):
            return True
        time.sleep(0.03)
    return False


def busy() -> str:
    """How busy the machine is, for whoever reads that something took too long."""
    try:
        return f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} processors"
    except OSError:
        return "load not known"


def process_space() -> str:
    """In which space of pids we are: two processes with the same one can see, and end, each other."""
    try:
        return f"{read_text('/proc/sys/kernel/random/boot_id').strip()}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


class Log:
    """JSON lines, each written at once by one system call: a killed rank leaves its history."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.lock = threading.Lock()

    def write(self, row: Mapping[str, object]) -> None:
        data = json.dumps(row, separators=(",", ":"), default=str).encode() + b"\n"
        with self.lock:
            while data:
                data = data[os.write(self.fd, data) :]


class Board:
    """Who is where: a table in shared memory that outlives every rank. One writer per slot; eight-byte stores are whole.

    A slot is (case, step, monotonic nanoseconds, pid) and the signature of the call that the rank is about to make.
    """

    SLOT = 320
    HEAD = 64
    WORDS = 4

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, self.HEAD + self.SLOT * MAX_RANKS)

    def clear(self) -> None:
        self.memory[:] = bytes(len(self.memory))
        for rank in range(MAX_RANKS):
            struct.pack_into("q", self.memory, self._at(rank), START)

    def _at(self, rank: int) -> int:
        return self.HEAD + self.SLOT * rank

    def mark(self, rank: int, case: int, step: int) -> None:
        struct.pack_into("qqq", self.memory, self._at(rank), case, step, time.monotonic_ns())

    def sign(self, rank: int, text: str) -> None:
        data = text.encode()[: self.SLOT - 8 * self.WORDS - 1]
        start = self._at(rank) + 8 * self.WORDS
        self.memory[start : self._at(rank) + self.SLOT] = data.ljust(self.SLOT - 8 * self.WORDS, b"\0")

    def row(self, rank: int) -> tuple[int, int, float, str]:
        """Case, step, seconds since the last mark, signature."""
        at = self._at(rank)
        case, step, at_ns = struct.unpack_from("qqq", self.memory, at)
        text = bytes(self.memory[at + 8 * self.WORDS : at + self.SLOT]).split(b"\0", 1)[0].decode(errors="replace")
        age = (time.monotonic_ns() - at_ns) / 1e9 if at_ns else 0.0
        return case, step, age, text

    @property
    def port(self) -> int:
        return int(struct.unpack_from("q", self.memory, 0)[0])

    @port.setter
    def port(self, value: int) -> None:
        struct.pack_into("q", self.memory, 0, value)

    @property
    def dump(self) -> bool:
        """Set by the supervisor when every rank shall write down what it knows."""
        return bool(struct.unpack_from("q", self.memory, 8)[0])

    @dump.setter
    def dump(self, value: bool) -> None:
        struct.pack_into("q", self.memory, 8, int(value))


# --------------------------------------------------------------------------------------------------------------------
# What the machine is
# --------------------------------------------------------------------------------------------------------------------


def nvml_gpus() -> tuple[list[dict[str, object]], str]:
    """GPUs and driver version through NVML, which creates no CUDA context: `([], "")` where there is no driver."""
    try:
        lib = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return [], ""
    if lib.nvmlInit_v2() != 0:
        return [], ""
    try:
        buffer = ctypes.create_string_buffer(96)
        driver = buffer.value.decode() if lib.nvmlSystemGetDriverVersion(buffer, 96) == 0 else ""
        count = ctypes.c_uint(0)
        lib.nvmlDeviceGetCount_v2(ctypes.byref(count))
        return [_nvml_gpu(lib, index) for index in range(count.value)], driver
    finally:
        lib.nvmlShutdown()


def _nvml_gpu(lib: Any, index: int) -> dict[str, object]:
    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    handle = ctypes.c_void_p()
    gpu: dict[str, object] = {"index": index}
    if lib.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
        return gpu
    text = ctypes.create_string_buffer(96)
    if lib.nvmlDeviceGetName(handle, text, 96) == 0:
        gpu["name"] = text.value.decode(errors="replace")
    if lib.nvmlDeviceGetUUID(handle, text, 96) == 0:
        gpu["uuid"] = text.value.decode(errors="replace")
    memory = Memory()
    if lib.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
        gpu["memory_bytes"] = memory.total
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    if lib.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) == 0:
        gpu["arch"] = f"sm_{major.value}{minor.value}"
    return gpu


def memory_limit() -> tuple[int, int]:
    """Bytes of memory in all and available now, for this process: the machine's or its control group's, whichever is less.

    A group's usage counts the page cache, which the kernel gives back: what of it is not in use is available, as on the machine itself.
    """
    info = dict(re.findall(r"(\w+):\s+(\d+) kB", read_text("/proc/meminfo")))
    total, free = int(info.get("MemTotal", 0)) * 1024, int(info.get("MemAvailable", 0)) * 1024
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, used = read_text(limit_file).strip(), read_text(used_file).strip()
        if limit.isdigit() and used.isdigit() and int(limit) < total:
            kept = re.search(
                r"^(?:total_)?inactive_file (\d+)$", read_text(os.path.dirname(limit_file) + "/memory.stat"), re.M
            )
            taken = int(used) - (int(kept[1]) if kept else 0)
            total, free = int(limit), max(0, min(free, int(limit) - taken))
    return total, free


def oom_kills() -> int:
    """How many processes of this control group the kernel has killed for memory."""
    found = re.search(r"^oom_kill (\d+)", read_text("/sys/fs/cgroup/memory.events"), re.MULTILINE)
    return int(found[1]) if found else 0


def shm_bytes() -> tuple[int, int]:
    """Size and free bytes of /dev/shm; zeros where there is none."""
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return 0, 0
    return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail


def host_facts() -> dict[str, object]:
    """What an environment's failure is most often blamed on, before anything runs. No host name, no user name."""
    total, free = memory_limit()
    shm_size, shm_free = shm_bytes()
    gpus, driver = nvml_gpus()
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', read_text("/etc/os-release"), re.MULTILINE))
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpus": len(affinity(0)) if affinity else os.cpu_count() or 1,
        "memory_bytes": total, "memory_free_bytes": free, "shm_bytes": shm_size, "shm_free_bytes": shm_free,
        "memlock_bytes": _limit(resource.RLIMIT_MEMLOCK), "open_files": _limit(resource.RLIMIT_NOFILE),
        "kernel": platform.release(), "machine": platform.machine(), "os": release.get("PRETTY_NAME", ""),
        "container": os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"),
        "driver": driver, "gpus": gpus,
    }  # fmt: skip


def _limit(which: int) -> object:
    soft = resource.getrlimit(which)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else soft


def installed_versions() -> dict[str, str]:
    """What the cell's metadata says of the packages that matter."""
    from importlib import metadata

    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except (metadata.PackageNotFoundError, ValueError, TypeError):
            continue
    return found


def loaded_facts() -> dict[str, object]:
    """What is really loaded, asked of the loaded things; the caller has imported torch. Creates no CUDA context."""
    import torch

    facts: dict[str, object] = {
        "python": platform.python_version(), "glibc": " ".join(platform.libc_ver()), "torch": str(torch.__version__),
        "torch_git": getattr(torch.version, "git_version", None), "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None), "cxx11_abi": bool(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", False)),
        "installed": installed_versions(), "arch_list": _arch_list(torch), "numpy": _numpy_version(),
    }  # fmt: skip
    import torch.distributed as dist

    facts["distributed"] = dist.is_available()
    for name in ("gloo", "nccl", "mpi", "ucc", "xccl"):
        probe = getattr(dist, f"is_{name}_available", None)
        facts[f"has_{name}"] = bool(probe and probe())
    facts.update(_cuda_libraries(torch))
    return facts


def _numpy_version() -> Optional[str]:
    try:
        import numpy
    except ImportError:
        return None
    return str(numpy.__version__)


def _arch_list(torch: Any) -> list[str]:
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return (flags() or "").split() if flags else []


def _cuda_libraries(torch: Any) -> dict[str, object]:
    """NCCL as torch reports it and as the loaded library says; cuDNN's runtime version."""
    facts: dict[str, object] = {}
    try:
        version = torch.cuda.nccl.version()
        facts["nccl"] = ".".join(map(str, version)) if isinstance(version, tuple) else str(version)
    except Exception:  # a build without NCCL
        facts["nccl"] = None
    if facts["nccl"]:
        facts["nccl_runtime"] = _nccl_runtime()
    try:
        facts["cudnn"] = torch.backends.cudnn.version() if torch.version.cuda else None
    except Exception as error:
        facts["cudnn"] = one_line(error)
    return facts


def _nccl_runtime() -> Optional[str]:
    """The version of the libnccl that is mapped into this process, when it is a library of its own."""
    found = re.search(r"(/\S*libnccl\.so\S*)", read_text("/proc/self/maps", 1 << 22))
    if not found:
        return None
    number = ctypes.c_int(0)
    if ctypes.CDLL(found[1]).ncclGetVersion(ctypes.byref(number)) != 0:
        return None
    value = number.value
    return (
        f"{value // 10000}.{value // 100 % 100}.{value % 100}"
        if value >= 10000
        else f"{value // 1000}.{value // 100 % 10}.{value % 100}"
    )


def cuda_probe() -> dict[str, object]:
    """What CUDA says when it is really started; run in a process of its own, because a context does not survive a fork."""
    import torch

    facts: dict[str, object] = {"available": False, "count": 0}
    try:
        facts["count"] = torch.cuda.device_count()
        facts["available"] = torch.cuda.is_available()
        if facts["available"]:
            torch.zeros(1, device="cuda").add_(1).item()  # is there a kernel for this architecture?
            facts["free"] = [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]
            facts["arch"] = [
                "sm_%d%d" % torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())
            ]
    except Exception as error:
        facts["available"] = False
        facts["error"] = one_line(error)
    return facts


# --------------------------------------------------------------------------------------------------------------------
# The nursery: imports torch once, forks ranks
# --------------------------------------------------------------------------------------------------------------------


class Lines:
    """Whole JSON lines out of a non-blocking socket or file."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        *whole, self.rest = (self.rest + data).split(b"\n")
        for line in whole:
            if line.strip():
                yield json.loads(line)


# The frameworks that steps may find imported, by the beginning of the step's kind: modules, and what must stand in the environment before.
PRELOAD: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "megatron": (
        ("megatron.core", "megatron.core.models.gpt.gpt_model", "megatron.core.models.gpt.gpt_layer_specs", "megatron.core.pipeline_parallel"),
        # Megatron's fused functions go through torch.compile, which takes minutes on the CPU and proves nothing there.
        {"TORCHDYNAMO_DISABLE": "1"},
    ),
    "deepspeed": (("deepspeed",), {"DS_ACCELERATOR": "cpu"}),
    "colossalai": (("colossalai", "colossalai.booster.plugin", "transformers.models.llama.modeling_llama"), {}),
}  # fmt: skip
COUNTERS: list["Counter"] = []
HIDDEN: list[str] = []  # the toolkit that `hide_toolkit` took out of sight


def hide_toolkit() -> None:
    """Let torch see no CUDA toolkit in this process, as on most hosts without a GPU.

    megatron-core 0.15 compiles for CUDA while it is imported where there is a toolkit, and without a GPU torch has no architecture to name.
    """
    try:
        from torch.utils import cpp_extension
    except ImportError:  # it needs setuptools; who has none cannot compile either
        return
    if cpp_extension.CUDA_HOME is not None:
        HIDDEN.append(str(cpp_extension.CUDA_HOME))
        cpp_extension.CUDA_HOME = None


def preload(kind: str) -> str:
    """Import a framework once for all steps of its kind, on the CPU only. Nothing when that went well; otherwise why each rank must import it."""
    modules, env = PRELOAD[kind]
    os.environ.update(env, CUDA_VISIBLE_DEVICES="")
    import importlib

    import torch

    if kind == "megatron":
        hide_toolkit()
    counter = Counter(torch)
    counter.install()
    COUNTERS.append(counter)
    for name in modules:
        importlib.import_module(name)
    with contextlib.suppress(Exception):
        # Every optimizer imports it when it is made: some seconds and 800 modules more in each rank.
        importlib.import_module("torch._dynamo")
    threads = len(os.listdir("/proc/self/task"))
    return f"{threads} threads after the import of {kind}: it cannot be forked" if threads > 1 else ""


def nursery_main(sock: socket.socket, board: Board, framework: str = "") -> NoReturn:
    """Serve until the supervisor's end of the socket closes. Never returns; never touches CUDA."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    out = Log(sock.fileno())
    try:
        started = time.monotonic()
        import torch
        import torch.distributed  # noqa: F401

        torch.set_num_threads(1)
        why_not = preload(framework) if framework else ""
        if why_not:
            raise RuntimeError(why_not)
        out.write({"ready": loaded_facts(), "seconds": time.monotonic() - started})
    except BaseException as error:
        out.write({"failed": one_line(error, 600), "trace": traceback.format_exc()[-3000:]})
        os._exit(CONFIGURATION)
    _serve(sock, out, board)
    os._exit(OK)


def _serve(sock: socket.socket, out: Log, board: Board) -> None:
    """Fork a rank per request, report its pid, later its exit status."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    lines = Lines()
    alive: set[int] = set()
    watched: list[Any] = [sock, wake_read]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
            for pid, status in list(_reap(alive)):
                alive.discard(pid)
                out.write({"exit": pid, "status": status})
        if sock in ready:
            data = sock.recv(1 << 16)
            if not data:
                break
            for request in lines.feed(data):
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for fd in (wake_read, wake_write, sock.fileno()):
                        os.close(fd)
                    child_main(request, board)
                alive.add(pid)
                out.write({"pid": pid, "name": request["name"], "rank": request["rank"]})
    for pid in alive:
        _kill_group(pid, signal.SIGKILL)


def _reap(alive: Iterable[int]) -> Iterator[tuple[int, int]]:
    for pid in list(alive):
        try:
            done, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue
        if done:
            yield pid, (-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def child_main(request: Mapping[str, Any], board: Board) -> NoReturn:
    """A forked child becomes a rank in a session of its own, so that its helpers can be ended with it."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(request["output"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    log = Log(os.open(request["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600))
    code = ERROR
    try:
        if request["name"] == "cuda-probe":
            log.write({"cuda": cuda_probe()})
            code = OK
        else:
            with open(request["job"]) as file:
                job = json.load(file)
            job["rank"] = request["rank"]
            code = rank_main(job, board, log)
    except BaseException as error:
        log.write(
            {
                "row": "failed",
                "rank": request["rank"],
                "detail": one_line(error),
                "trace": traceback.format_exc()[-3000:],
            }
        )
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


# --------------------------------------------------------------------------------------------------------------------
# A rank
# --------------------------------------------------------------------------------------------------------------------


def rank_main(job: dict[str, Any], board: Board, log: Log) -> int:
    """Everything a rank does, whoever started it; returns its exit code."""
    rank = job["rank"]
    board.mark(rank, START, PREP)
    stack = open(job["stack"] % rank, "w") if job.get("stack") else sys.stderr
    faulthandler.enable(file=stack, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    os.environ.update(job.get("env", {}))
    os.environ.update(job.get("rank_env", [{}] * (rank + 1))[rank])
    warnings.simplefilter("ignore")
    threading.Thread(target=_evidence, args=(rank, board, log), daemon=True).start()
    return run_cases(job, board, log) if job["kind"] == "collectives" else run_step(job, board, log)


def _evidence(rank: int, board: Board, log: Log) -> None:
    """Wait for the supervisor's flag, then write down the last entries of torch's flight recorder."""
    while not board.dump:
        time.sleep(0.05)
    try:
        entries = flight_entries()
        if entries is None:
            return
        keep = (
            "collective_seq_id",
            "p2p_seq_id",
            "op_id",
            "profiling_name",
            "state",
            "input_sizes",
            "input_dtypes",
            "pg_name",
            "process_group",
        )
        log.write(
            {
                "row": "flight",
                "rank": rank,
                "entries": [{k: e[k] for k in keep if k in e} for e in entries[-3:]],
                "count": len(entries),
            }
        )
    except Exception as error:
        log.write({"row": "flight", "rank": rank, "detail": one_line(error)})


def flight_entries() -> Optional[list[dict[str, Any]]]:
    """What torch's flight recorders hold; `None` where this torch has none that can be read as JSON.

    A build with CUDA has one for NCCL and one for everything else, and torch 2.15 one per backend (`_dump_fr_trace_json` answers for gloo
    unless it is told another name). Whichever has entries is the one that the group used.
    """
    from torch._C import _distributed_c10d as c10d

    nccl, general = getattr(c10d, "_dump_nccl_trace_json", None), getattr(c10d, "_dump_fr_trace_json", None)
    asks = [nccl] if nccl else []
    if general:
        asks.append(general)
        if "backend" in (general.__doc__ or "").partition("->")[0]:
            asks += [functools.partial(general, backend=name) for name in ("nccl", "nccl2", "nccl-legacy")]
    for ask in asks:
        with contextlib.suppress(Exception):
            entries = json.loads(ask()).get("entries", [])
            if entries:
                return list(entries)
    return [] if asks else None


def seconds(value: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=value)


def stored(store: Any, key: str) -> bool:
    """Is there such a key? The store of torch before 2.3 has no `check`; waiting a moment for the key tells the same."""
    if hasattr(store, "check"):
        return bool(store.check([key]))
    try:
        store.wait([key], datetime.timedelta(milliseconds=2))
    except Exception:
        return False
    return True


def open_store(job: Mapping[str, Any], board: Optional[Board]) -> Any:
    """The TCP store of the run. Rank 0 lets the kernel choose a port unless the plan names one, and tells it through the board."""
    import torch.distributed as dist

    rank, world, limit = job["rank"], job["world"], seconds(job["timeouts"]["init"])
    host, port = job.get("master") or "127.0.0.1", int(job.get("port") or 0)
    if rank == 0:
        store = dist.TCPStore(host, port, world, True, limit, wait_for_workers=False)
        if board is not None:
            board.port = store.port
        return store
    deadline = time.monotonic() + job["timeouts"]["init"]
    while board is not None and not port:
        port = board.port
        if time.monotonic() > deadline:
            raise RuntimeError("rank 0 opened no store")
        time.sleep(0.002)
    return dist.TCPStore(host, port, world, False, limit, wait_for_workers=False)


def manifest(job: Mapping[str, Any], facts: Mapping[str, object]) -> dict[str, object]:
    """What must agree between ranks, and what may differ, apart."""
    env = {k: v for k, v in os.environ.items() if k.startswith(TELLING) or k in ALSO_TELLING}
    files = {}
    for path in ("/etc/nccl.conf", os.path.expanduser("~/.nccl.conf")):
        text = read_text(path)
        if text:
            files[os.path.basename(path)] = hashlib.sha256(text.encode()).hexdigest()
    version_keys = ("python", "torch", "torch_git", "cuda", "nccl", "nccl_runtime", "cudnn", "numpy", "installed")
    return {
        "must": {**{k: facts.get(k) for k in version_keys}, "cases": job["digest"], "world": job["world"], "backend": job["backend"], "agent": PROTOCOL},
        "should": {**{k: v for k, v in sorted(env.items()) if k not in PER_RANK}, **files, "image": job.get("image")},
        "own": {**{k: v for k, v in env.items() if k in PER_RANK}, "device": job.get("device"),
                "pid": os.getpid(), "started": process_started(os.getpid()), "space": process_space()},
    }  # fmt: skip


def compare_manifests(
    mine: Mapping[str, Any], all_of_them: Sequence[Mapping[str, Any]], part: str
) -> dict[str, list[int]]:
    """Keys of `part` on which ranks differ, each with the ranks that are not in the majority (rank 0's side wins a tie)."""
    found = {}
    for key in sorted({k for m in all_of_them for k in m[part]}):
        values = [json.dumps(m[part].get(key), sort_keys=True) for m in all_of_them]
        if len(set(values)) > 1:
            common = max(dict.fromkeys(values), key=values.count)
            found[key] = [rank for rank, value in enumerate(values) if value != common]
    return found


def agree(job: Mapping[str, Any], store: Any, log: Log) -> tuple[bool, list[dict[str, Any]]]:
    """Exchange manifests through the store, before any group exists; false when ranks must not talk to each other."""
    facts = loaded_facts()
    fault = job.get("fault") or {}
    if fault.get("kind") == "version" and fault.get("rank") == job["rank"]:
        facts["torch"] = fault.get("value", "0.0.0")
    mine = manifest(job, facts)
    store.set(f"manifest/{job['rank']}", json.dumps(mine, sort_keys=True))
    others = [json.loads(store.get(f"manifest/{rank}")) for rank in range(job["world"])]
    bad, odd = compare_manifests(mine, others, "must"), compare_manifests(mine, others, "should")
    if job["rank"] == 0 or bad:
        differing = {
            key: {str(rank): others[rank]["must"].get(key) for rank in range(job["world"])}
            for key in bad
            if key != "installed"
        }
        log.write(
            {
                "row": "manifest",
                "rank": job["rank"],
                "mismatch": bad,
                "values": differing,
                "warnings": odd,
                "manifest": mine,
            }
        )
    return not bad, others


def group_layouts(world: int) -> dict[str, list[list[int]]]:
    """The groups that cases may name: every rank of a listed group runs the case, the others pass."""
    everyone = list(range(world))
    return {
        "pairs": [everyone[i : i + 2] for i in range(0, world - world % 2, 2)],
        "stride": [everyone[p::2] for p in (0, 1) if len(everyone[p::2]) > 1] if world > 2 else [],
        "head": [everyone[:-1]] if world > 2 else [],
        "tail": [everyone[1:]] if world > 2 else [],
        "alone": [[0]],
    }


class World:
    """What the cases of one rank share: torch, the device, the groups."""

    def __init__(self, job: Mapping[str, Any], board: Board, log: Log) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.job, self.board, self.log = torch, dist, job, board, log
        self.rank, self.size, self.backend = job["rank"], job["world"], job["backend"]
        devices = job.get("devices")
        self.device = torch.device("cuda", devices[self.rank]) if devices else torch.device("cpu")
        self.cuda = self.device.type == "cuda"
        self.groups: dict[str, tuple[Any, list[int]]] = {}
        self.store: Any = None
        self.free = 0

    def init_group(self, store: Any, prefix: str = "group") -> None:
        """`device_id` is always passed where torch knows it: torch 2.15 guesses a device otherwise, and guesses alike on every rank."""
        kwargs: dict[str, Any] = {}
        known = inspect.signature(self.dist.init_process_group).parameters
        if self.cuda:
            self.torch.cuda.set_device(self.device)
            if "device_id" in known:
                kwargs["device_id"] = self.device
        self.dist.init_process_group(
            self.backend, store=self.dist.PrefixStore(prefix, store), rank=self.rank, world_size=self.size,
            timeout=seconds(self.job["timeouts"]["group"]), **kwargs,
        )  # fmt: skip

    def open_groups(self, names: Iterable[str]) -> None:
        """Every rank creates every group in the same order; it keeps the one it is in."""
        self.groups["world"] = (self.dist.group.WORLD, list(range(self.size)))
        layouts = group_layouts(self.size)
        for name in sorted(set(names) - {"world"}):
            for ranks in layouts.get(name, []):
                group = self.dist.new_group(ranks, timeout=seconds(self.job["timeouts"]["group"]))
                if self.rank in ranks:
                    self.groups[name] = (group, ranks)

    def sync(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize(self.device)

    def implementation(self) -> str:
        return implementation_of(self.dist, self.device)


def implementation_of(dist: Any, device: Any) -> str:
    """torch 2.15 has two engines behind the name nccl; older ones have one."""
    ask = getattr(dist, "get_backend_impl", None)
    try:
        if ask:
            return type(ask()).__name__
        return type(dist.group.WORLD._get_backend(device)).__name__
    except Exception:
        return str(dist.get_backend())


def free_bytes(world: World) -> int:
    """What this rank may use: of the GPU its share, of the host its share of what is available now."""
    if world.cuda:
        sharing = list(world.job["devices"]).count(world.device.index)
        free, total = world.torch.cuda.mem_get_info(world.device)
        reserve = min(total // 16, 4 << 30) + (1 << 30)
        return max(0, free - reserve) // sharing
    return int(memory_limit()[1] * 0.6) // world.size


_KEPT: list[Any] = []


def run_cases(job: dict[str, Any], board: Board, log: Log) -> int:
    """The collective cases on one rank. Stops at the first raise that the others do not share: a broken group breaks every later case."""
    rank = job["rank"]
    board.mark(rank, STORE, PREP)
    try:
        store = open_store(job, board)
        board.mark(rank, MANIFEST, PREP)
        same, everyone = agree(job, store, log)
        job["peers"] = [one["own"] for one in everyone]
        if not same:
            return MISMATCH
        board.mark(rank, GROUP, PREP)
        world = World(job, board, log)
        # Kept until the process ends by os._exit: up to torch 2.7 the destructor of a gloo group can wait for ever for its own threads.
        _KEPT.append(world)
        world.store = store
        world.init_group(store)
        board.mark(rank, SUBGROUPS, PREP)
        world.open_groups(case.get("group", "world") for case in job["cases"])
        board.mark(rank, BUDGET, PREP)
        store.set(f"free/{rank}", str(free_bytes(world)))
        frees = [int(store.get(f"free/{r}")) for r in range(world.size)]
    except Exception as error:
        log.write(
            {
                "row": "failed",
                "rank": rank,
                "stage": STAGES.get(board.row(rank)[0], "?"),
                "detail": one_line(error, 600),
                "trace": traceback.format_exc()[-3000:],
            }
        )
        return ERROR
    if rank == 0:
        log.write({"row": "group", "implementation": world.implementation(), "free": frees})
    world.free = min(frees)
    for index, case in enumerate(job["cases"]):
        if not run_case(world, index, case, frees):
            return ERROR
    board.mark(rank, FINISHED, DONE)
    log.write({"row": "finished", "rank": rank})
    try:
        world.dist.destroy_process_group()
    except Exception as error:
        log.write({"row": "note", "rank": rank, "detail": f"destroy_process_group: {one_line(error)}"})
    return OK


def run_case(world: World, index: int, case: dict[str, Any], frees: Sequence[int]) -> bool:
    """One case on this rank, one row in its log; false when nothing may follow it."""
    board, rank = world.board, world.rank
    board.sign(rank, "")
    board.mark(rank, index, PREP)
    started = time.perf_counter()
    row: dict[str, Any] = {"row": "case", "rank": rank, "case": index}
    kit: Optional[Kit] = None
    try:
        fault = _fault_here(world, index, case)
        kit = Kit(world, index, _altered(case, fault), fault)
        kit.fit(frees)
        if kit.member:
            if fault:
                inject_before(fault, world)
            OPERATIONS[case["op"]](kit)
            kit.guards()
        row["status"] = "ok"
    except Skip as reason:
        row.update(status="skipped", detail=str(reason))
    except Wrong as error:
        row.update(status="wrong", detail=str(error))
    except Exception as error:
        row.update(status="error", detail=one_line(error, 500))
        if _everyone_raised(world, index, kit) and _canary(kit):
            row["status"] = "refused"
        else:
            row["trace"] = traceback.format_exc()[-1500:]
    board.mark(rank, index, DONE)
    row["ms"] = round((time.perf_counter() - started) * 1000, 3)
    if kit is not None and kit.signature:
        row["sig"] = kit.signature
    if kit is not None and kit.measured:
        row["measured"] = kit.measured
    world.log.write(row)
    return row["status"] != "error"


def _everyone_raised(world: World, index: int, kit: Optional[Kit]) -> bool:
    """A refusal is told from an accident by its symmetry: every member of the group raised in the same case, within a second."""
    world.board.mark(world.rank, index, RAISED)
    if kit is None or world.job.get("direct"):
        return False
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        rows = [world.board.row(rank)[:2] for rank in kit.ranks]
        if all(case > index or (case == index and step in (RAISED, DONE)) for case, step in rows):
            return True
        time.sleep(0.002)
    return False


def _canary(k: Optional[Kit]) -> bool:
    """After a refusal the group must still work, or what follows would be its cascade."""
    assert k is not None
    try:
        probe = k.torch.full((3,), float(k.world.rank + 1), device=k.world.device)
        k.dist.all_reduce(probe, group=k.group)
        k.world.sync()
        return bool((probe.cpu() == sum(rank + 1 for rank in k.ranks)).all())
    except Exception:
        return False


# --------------------------------------------------------------------------------------------------------------------
# Faults, for the tests of the blame. They come with the plan; no variable of the environment can set one.
# --------------------------------------------------------------------------------------------------------------------

ALTERING = ("op", "shape", "dtype", "redop", "root")


def _fault_here(world: World, index: int, case: Mapping[str, Any]) -> Optional[dict[str, Any]]:
    fault = world.job.get("fault")
    if fault and fault.get("rank") == world.rank and fault.get("case") in (index, case["id"]):
        return dict(fault)
    return None


def _altered(case: dict[str, Any], fault: Optional[Mapping[str, Any]]) -> dict[str, Any]:
    """The call as the faulty rank makes it."""
    if not fault or fault["kind"] not in ALTERING:
        return case
    key = {"shape": "n"}.get(fault["kind"], fault["kind"])
    return {**case, key: fault["value"]}


def inject_before(fault: Mapping[str, Any], world: Any) -> None:
    """Do what a broken rank does, for real."""
    kind = fault["kind"]
    if kind == "hang":
        time.sleep(1e6)
    elif kind == "late":
        time.sleep(float(fault["value"]))
    elif kind == "raise":
        raise RuntimeError("injected: this rank raises")
    elif kind in ("segv", "kill", "stop", "abort"):
        os.kill(
            os.getpid(),
            {"segv": signal.SIGSEGV, "kill": signal.SIGKILL, "stop": signal.SIGSTOP, "abort": signal.SIGABRT}[kind],
        )
    elif kind == "oom":
        soft = int(read_text("/proc/self/statm").split()[0]) * mmap.PAGESIZE + (64 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (soft, resource.getrlimit(resource.RLIMIT_AS)[1]))
        world.torch.zeros(1 << 30)
    elif kind == "shm":
        _fill_shm()


def _fill_shm() -> None:
    """Map more of /dev/shm than it has, and write to all of it: the kernel answers with SIGBUS, as it does to NCCL."""
    path = f"/dev/shm/envsmith-{os.getpid()}"
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    os.unlink(path)
    size = shm_bytes()[1] + (1 << 20)
    if size > 1 << 28:
        raise RuntimeError("the fault 'shm' is for a small /dev/shm only")
    os.ftruncate(fd, size)
    memory = mmap.mmap(fd, size)
    for offset in range(0, size, mmap.PAGESIZE):
        memory[offset] = 1


# --------------------------------------------------------------------------------------------------------------------
# The kit of a case: inputs that depend on rank and index, poisoned outputs, guard zones, exact expectations
# --------------------------------------------------------------------------------------------------------------------


class Kit:
    """One case on one rank. Operations build buffers with `input`, `output`, call with `issue`, compare with `expect`."""

    GUARD = 64  # elements before and after every buffer

    def __init__(self, world: World, index: int, case: Mapping[str, Any], fault: Optional[Mapping[str, Any]]) -> None:
        self.world, self.torch, self.dist, self.index, self.case = world, world.torch, world.dist, index, case
        self.fault = fault
        self.n, self.redop, self.mode = int(case.get("n", 0)), str(case.get("redop", "sum")), str(case.get("mode", ""))
        dtype = getattr(self.torch, case.get("dtype", "float32"), None)
        if dtype is None:
            raise Skip(f"torch {self.torch.__version__} has no dtype {case.get('dtype')}")
        self.dtype = dtype
        if case.get("group", "world") != "world" and not group_layouts(world.size).get(case["group"]):
            raise Skip(f"there is no group {case['group']} of {world.size} rank{'s' if world.size > 1 else ''}")
        named = world.groups.get(case.get("group", "world"))
        self.member = named is not None
        self.group: Any = named[0] if named else None
        self.ranks: list[int] = named[1] if named else []
        self.size = len(self.ranks)
        self.me = self.ranks.index(world.rank) if self.member else -1
        self.root = int(case.get("root", 0))
        if self.member and self.root >= self.size:
            raise Skip(f"root {self.root} is not in a group of {self.size}")
        if case.get("min_ranks", 1) > world.size:
            raise Skip(f"needs {case['min_ranks']} ranks, the run has {world.size}")
        expected = case.get("expected", {}).get(world.backend, {})
        if expected.get("expect") == "avoid":
            raise Skip(expected.get("note") or "avoided")
        minimum = expected.get("min_sm")
        if (
            minimum
            and world.cuda
            and self.torch.cuda.get_device_capability(world.device) < (minimum // 10, minimum % 10)
        ):
            raise Skip(f"needs sm_{minimum}")
        self.signature = ""
        self.measured: dict[str, Any] = {}
        self._zones: list[tuple[Any, int, int, str]] = []
        self._frozen: list[tuple[Any, Any, str]] = []

    # -- budget ------------------------------------------------------------------------------------------------------

    def fit(self, frees: Sequence[int]) -> None:
        """Skip, on every rank alike, what the poorest rank has no room for; never shrink a case silently."""
        width = self.world.size + 1 if self.case["op"] in WIDE else 1
        itemsize = self.torch.empty(0, dtype=self.dtype).element_size()
        # Three buffers (sent, received, due); the large operations keep one and the backend's scratch is another.
        bytes_needed = self.n * itemsize * (2 if self.case["op"].startswith("large_") else 3 * width)
        if bytes_needed > min(frees):
            poorest = frees.index(min(frees))
            raise Skip(
                f"memory: needs {bytes_needed / 2**30:.1f} GiB, smallest rank {poorest} has {min(frees) / 2**30:.1f} GiB"
            )

    # -- values ------------------------------------------------------------------------------------------------------

    def pattern(self, rank: int, n: Optional[int] = None, start: int = 0) -> Any:
        """The data of `rank` (number in the group), on the host: small integers, exact in every dtype, that depend on rank and index."""
        torch, n = self.torch, self.n if n is None else n
        i = torch.arange(start, start + n, dtype=torch.int64)
        if self.dtype == torch.bool:
            return (i + 3 * rank) % 5 < 2
        if self.redop == "product" and self.case["op"] in REDUCING:
            values = (i + rank) % 2 + 1 if self.world.size <= 6 else (i + rank) % 16 // 15 + 1
        elif self.case["op"] in REDUCING:
            values = (3 * i + 5 * rank) % max(2, min(11, 120 // max(self.world.size, 1))) + 1
        else:
            values = (i + 31 * rank) % (7 if "float8" in str(self.dtype) else 113) + 1
        if self.dtype.is_complex:
            return torch.complex(values.to(torch.float64), ((i + rank) % 3).to(torch.float64)).to(self.dtype)
        return values.to(torch.float32).to(self.dtype) if "float8" in str(self.dtype) else values.to(self.dtype)

    def reduced(self, parts: Optional[Sequence[Any]] = None) -> Any:
        """The reduction of every rank's pattern (or of `parts`), computed here, exactly."""
        torch = self.torch
        parts = [self.pattern(r) for r in range(self.size)] if parts is None else parts
        if self.dtype == torch.bool:
            fold: Callable[[Any, Any], Any] = {
                "sum": torch.logical_or, "max": torch.logical_or, "bor": torch.logical_or, "product": torch.logical_and,
                "min": torch.logical_and, "band": torch.logical_and, "bxor": torch.logical_xor, "avg": torch.logical_or,
            }[self.redop]  # fmt: skip
        else:
            fold = {
                "sum": torch.add, "avg": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum,
                "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
            }[self.redop]  # fmt: skip
        exact = (
            torch.bool
            if self.dtype == torch.bool
            else torch.complex128
            if self.dtype.is_complex
            else torch.float64
            if self.dtype.is_floating_point
            else torch.int64
        )
        total = parts[0].to(exact)
        for part in parts[1:]:
            total = fold(total, part.to(exact))
        return (total / self.size if self.redop == "avg" else total).to(self.dtype)

    @property
    def op(self) -> Any:
        """The ReduceOp; `Skip` when this torch has none of that name."""
        found = getattr(self.dist.ReduceOp, self.redop.upper(), None)
        if found is None:
            raise Skip(f"torch {self.torch.__version__} has no ReduceOp.{self.redop.upper()}")
        return found

    @property
    def src(self) -> int:
        """The root's number in the world."""
        return int(self.ranks[self.root])

    def single(self, new: str, old: str) -> Callable[..., Any]:
        """A collective under its new name (torch 2.13) or the old one."""
        return getattr(self.dist, new, None) or getattr(self.dist, old)

    # -- buffers -----------------------------------------------------------------------------------------------------

    def _buffer(self, n: int, what: str) -> Any:
        torch, guard = self.torch, self.GUARD + (1 if self.mode == "odd" else 0)
        whole = torch.empty(n + 2 * guard, dtype=self.dtype, device=self.world.device)
        self._bytes(whole).fill_(POISON)
        self._zones.append((whole, guard, n, what))
        return whole[guard : guard + n]

    def input(self, values: Any, *, frozen: bool = True) -> Any:
        """A guarded copy of `values` on the device; a frozen one must be unchanged at the end."""
        buffer = self._buffer(values.numel(), "input")
        buffer.copy_(values)
        if frozen:
            self._frozen.append((buffer, values, "input"))
        return buffer

    def output(self, n: Optional[int] = None) -> Any:
        """A guarded buffer full of poison, so that an element that nobody wrote is seen."""
        return self._buffer(self.n if n is None else n, "output")

    def _bytes(self, tensor: Any) -> Any:
        torch = self.torch
        if tensor.dtype.is_complex:
            tensor = torch.view_as_real(tensor)
        return tensor.view(torch.uint8)

    # -- the call ----------------------------------------------------------------------------------------------------

    def issue(self, call: Callable[[], Any]) -> Any:
        """Enter, issue, synchronise; the signature is what this rank is really about to call."""
        board, rank = self.world.board, self.world.rank
        c = self.case
        self.signature = (
            f"{c['op']}[{c.get('dtype', '')},{c.get('redop', '')},{self.n},root={self.root},{c.get('group', 'world')}]"
        )
        board.sign(rank, self.signature)
        board.mark(rank, self.index, ENTERED)
        work = call()
        board.mark(rank, self.index, ISSUED)
        if self.mode == "async" and work is not None and hasattr(work, "wait"):
            work.wait()
        self.world.sync()
        board.mark(rank, self.index, SYNCED)
        return work

    @property
    def later(self) -> bool:
        return self.mode == "async"

    # -- the comparison ----------------------------------------------------------------------------------------------

    def expect(self, got: Any, want: Any, what: str = "") -> None:
        """Bitwise; says how many elements differ and the first of them."""
        if self.fault and self.fault["kind"] == "wrong" and got.numel():
            self._bytes(got.view(-1)[got.numel() // 2 :][:1])[..., 0] ^= 1  # one bit of one element
        if got.numel() != want.numel():
            raise Wrong(f"{what or 'result'} has {got.numel()} elements, {want.numel()} were due")
        if not want.numel():
            return
        have, due = got.detach().to("cpu").contiguous().view(-1), want.contiguous().view(-1)
        if self.torch.equal(self._bytes(have), self._bytes(due)) or self._same_truth(have, due):
            return
        if self._close_enough(have, due):
            return
        width = self._bytes(due).numel() // due.numel()
        unequal = (self._bytes(have).view(-1, width) != self._bytes(due).view(-1, width)).any(1).nonzero().view(-1)
        first = int(unequal[0])
        poisoned = bool((self._bytes(have).view(-1, width)[first] == POISON).all())
        raise Wrong(
            f"{what + ': ' if what else ''}read {self._show(have, first)} where {self._show(due, first)} was due at element {first} "
            f"({len(unequal)} of {due.numel()} wrong{', never written' if poisoned else ''})"
        )

    def _same_truth(self, have: Any, due: Any) -> bool:
        """Gloo adds booleans as bytes (true + true = 2, `bool_bytes` looks at that); here they are compared as truth values."""
        if self.dtype != self.torch.bool or have.dtype != self.torch.bool:
            return False
        raw = self._bytes(have)
        return bool((((raw != 0) == due) & (raw != POISON)).all())

    def _show(self, tensor: Any, index: int) -> str:
        value = tensor[index]
        return str(value.to(self.torch.float32).item() if "float8" in str(tensor.dtype) else value.item())

    def _close_enough(self, have: Any, due: Any) -> bool:
        """An average over a number of ranks that is no power of two is rounded once or twice, at the library's choice."""
        if self.redop != "avg" or not (self.size & (self.size - 1)) or not self.dtype.is_floating_point:
            return False
        eps = float(self.torch.finfo(self.dtype).eps)
        return bool(((have.double() - due.double()).abs() <= 2 * eps * due.double().abs()).all())

    def guards(self) -> None:
        """Nothing beside a buffer was written, and no input was changed."""
        for whole, guard, n, what in self._zones:
            raw = self._bytes(whole).view(-1)
            width = raw.numel() // max(whole.numel(), 1)
            edge = guard * width
            if not (bool((raw[:edge] == POISON).all()) and bool((raw[edge + n * width :] == POISON).all())):
                raise Wrong(f"the guard zone beside the {what} buffer was written")
        for buffer, values, what in self._frozen:
            if not self.torch.equal(self._bytes(buffer.to("cpu").contiguous()), self._bytes(values.contiguous())):
                raise Wrong(f"the {what} was changed by an out-of-place operation")


# --------------------------------------------------------------------------------------------------------------------
# Operations
# --------------------------------------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[Kit], None]] = {}
REDUCING: set[str] = set()
WIDE: set[str] = set()


def operation(
    *, reducing: bool = False, wide: bool = False
) -> Callable[[Callable[[Kit], None]], Callable[[Kit], None]]:
    """Register under the function's name. `reducing`: values stay small; `wide`: buffers are as large as the group."""

    def register(function: Callable[[Kit], None]) -> Callable[[Kit], None]:
        OPERATIONS[function.__name__] = function
        if reducing:
            REDUCING.add(function.__name__)
        if wide:
            WIDE.add(function.__name__)
        return function

    return register


@operation(reducing=True)
def all_reduce(k: Kit) -> None:
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=k.group, async_op=k.later))
    k.expect(t, k.reduced())


@operation(reducing=True)
def reduce(k: Kit) -> None:
    """What the other ranks' tensors hold afterwards is nobody's business."""
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.reduce(t, k.src, k.op, group=k.group, async_op=k.later))
    if k.me == k.root:
        k.expect(t, k.reduced())


@operation()
def broadcast(k: Kit) -> None:
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.broadcast(t, k.src, group=k.group, async_op=k.later))
    k.expect(t, k.pattern(k.root))


@operation(wide=True)
def all_gather(k: Kit) -> None:
    outs = [k.output() for _ in range(k.size)]
    t = k.input(k.pattern(k.me))
    k.issue(lambda: k.dist.all_gather(outs, t, group=k.group, async_op=k.later))
    for r, out in enumerate(outs):
        k.expect(out, k.pattern(r), f"part of rank {r}")


@operation(wide=True)
def all_gather_single(k: Kit) -> None:
    call = k.single("all_gather_single", "all_gather_into_tensor")
    out = k.output(k.n * k.size)
    if k.mode == "in":
        t = out[k.me * k.n : (k.me + 1) * k.n]
        t.copy_(k.pattern(k.me))
    else:
        t = k.input(k.pattern(k.me))
    k.issue(lambda: call(out, t, group=k.group, async_op=k.later))
    k.expect(out, k.torch.cat([k.pattern(r) for r in range(k.size)]))


@operation(wide=True)
def gather(k: Kit) -> None:
    outs = [k.output() for _ in range(k.size)] if k.me == k.root else None
    t = k.input(k.pattern(k.me))
    k.issue(lambda: k.dist.gather(t, outs, k.src, group=k.group, async_op=k.later))
    for r, out in enumerate(outs or ()):
        k.expect(out, k.pattern(r), f"part of rank {r}")


@operation(wide=True)
def scatter(k: Kit) -> None:
    parts = [k.input(k.pattern(r)) for r in range(k.size)] if k.me == k.root else None
    out = k.output()
    k.issue(lambda: k.dist.scatter(out, parts, k.src, group=k.group, async_op=k.later))
    k.expect(out, k.pattern(k.me))


def _chunks(k: Kit) -> tuple[list[Any], list[Any]]:
    """What this rank sends to each, and what it receives from each."""
    whole = [k.pattern(r, k.n * k.size) for r in range(k.size)]
    mine = slice(k.me * k.n, (k.me + 1) * k.n)
    return [whole[k.me][r * k.n : (r + 1) * k.n] for r in range(k.size)], [w[mine] for w in whole]


@operation(reducing=True, wide=True)
def reduce_scatter(k: Kit) -> None:
    sent, due = _chunks(k)
    out, parts = k.output(), [k.input(part) for part in sent]
    k.issue(lambda: k.dist.reduce_scatter(out, parts, k.op, group=k.group, async_op=k.later))
    k.expect(out, k.reduced(due))


@operation(reducing=True, wide=True)
def reduce_scatter_single(k: Kit) -> None:
    call = k.single("reduce_scatter_single", "reduce_scatter_tensor")
    sent, due = _chunks(k)
    t = k.input(k.torch.cat(sent), frozen=k.mode != "in")
    out = t[k.me * k.n : (k.me + 1) * k.n] if k.mode == "in" else k.output()
    k.issue(lambda: call(out, t, k.op, group=k.group, async_op=k.later))
    k.expect(out, k.reduced(due))


@operation(wide=True)
def all_to_all(k: Kit) -> None:
    sent, due = _chunks(k)
    outs, parts = [k.output() for _ in range(k.size)], [k.input(part) for part in sent]
    k.issue(lambda: k.dist.all_to_all(outs, parts, group=k.group, async_op=k.later))
    for r, out in enumerate(outs):
        k.expect(out, due[r], f"part of rank {r}")


@operation(wide=True)
def all_to_all_single(k: Kit) -> None:
    sent, due = _chunks(k)
    t, out = k.input(k.torch.cat(sent)), k.output(k.n * k.size)
    k.issue(lambda: k.dist.all_to_all_single(out, t, group=k.group, async_op=k.later))
    k.expect(out, k.torch.cat(due))


@operation(wide=True)
def all_to_all_uneven(k: Kit) -> None:
    """Expert parallelism: a different count to every rank, some of them zero."""

    def count(a: int, b: int) -> int:
        return (a + 2 * b) % 3 * k.n

    give, take = [count(k.me, r) for r in range(k.size)], [count(r, k.me) for r in range(k.size)]
    t, out = k.input(k.pattern(k.me, sum(give))), k.output(sum(take))
    k.issue(lambda: k.dist.all_to_all_single(out, t, take, give, group=k.group, async_op=k.later))
    due = []
    for r in range(k.size):
        start = sum(count(r, s) for s in range(k.me))
        due.append(k.pattern(r, count(r, k.me), start))
    k.expect(out, k.torch.cat(due))


@operation()
def send_recv(k: Kit) -> None:
    """A ring: even ranks send first, odd ones receive first."""
    _alone(k)
    out, t = k.output(), k.input(k.pattern(k.me))
    after, before = k.ranks[(k.me + 1) % k.size], k.ranks[(k.me - 1) % k.size]

    def ring() -> None:
        if k.me % 2 == 0:
            k.dist.send(t, after, group=k.group)
            k.dist.recv(out, before, group=k.group)
        else:
            k.dist.recv(out, before, group=k.group)
            k.dist.send(t, after, group=k.group)

    k.issue(ring)
    k.expect(out, k.pattern((k.me - 1) % k.size))


def _alone(k: Kit) -> None:
    if k.size < 2:
        raise Skip("needs two ranks in the group")


@operation()
def isend_irecv(k: Kit) -> None:
    _alone(k)
    out, t = k.output(), k.input(k.pattern(k.me))

    def both() -> None:
        works = [
            k.dist.irecv(out, k.ranks[(k.me + 1) % k.size], group=k.group),
            k.dist.isend(t, k.ranks[(k.me - 1) % k.size], group=k.group),
        ]
        for work in works:
            work.wait()

    if k.world.backend == "nccl":
        raise Skip("NCCL orders sends and receives; use batch_isend_irecv")
    k.issue(both)
    k.expect(out, k.pattern((k.me + 1) % k.size))


@operation()
def batch_isend_irecv(k: Kit) -> None:
    """Pipeline parallelism: both directions at once."""
    _alone(k)
    up, down, t = k.output(), k.output(), k.input(k.pattern(k.me))
    after, before = k.ranks[(k.me + 1) % k.size], k.ranks[(k.me - 1) % k.size]
    p2p = k.dist.P2POp
    ops = [p2p(k.dist.isend, t, after, k.group), p2p(k.dist.irecv, up, before, k.group)]
    if k.size > 2:
        ops += [p2p(k.dist.isend, t, before, k.group), p2p(k.dist.irecv, down, after, k.group)]

    def batch() -> None:
        for work in k.dist.batch_isend_irecv(ops):
            work.wait()

    k.issue(batch)
    k.expect(up, k.pattern((k.me - 1) % k.size), "from the rank before")
    if k.size > 2:
        k.expect(down, k.pattern((k.me + 1) % k.size), "from the rank after")


@operation()
def tags(k: Kit) -> None:
    """Two messages between neighbours, received in the opposite order of their sending."""
    _alone(k)
    peer = k.me ^ 1
    if peer >= k.size:
        k.issue(lambda: None)
        return
    one, two = k.output(), k.output()
    a, b = k.input(k.pattern(k.me)), k.input(k.pattern(k.me, start=7))

    def exchange() -> None:
        works = [
            k.dist.isend(a, k.ranks[peer], group=k.group, tag=11),
            k.dist.isend(b, k.ranks[peer], group=k.group, tag=12),
        ]
        works.append(k.dist.irecv(two, k.ranks[peer], group=k.group, tag=12))
        works.append(k.dist.irecv(one, k.ranks[peer], group=k.group, tag=11))
        for work in works:
            work.wait()

    k.issue(exchange)
    k.expect(one, k.pattern(peer), "tag 11")
    k.expect(two, k.pattern(peer, start=7), "tag 12")


@operation(wide=True)
def any_source(k: Kit) -> None:
    """Rank 0 takes what comes; the sender's number comes with it."""
    _alone(k)
    outs = [k.output() for _ in range(k.size - 1)]
    t = k.input(k.pattern(k.me))
    senders: list[int] = []

    def take() -> None:
        if k.me == 0:
            senders.extend(k.dist.recv(out, group=k.group) for out in outs)
        else:
            k.dist.send(t, k.ranks[0], group=k.group)

    k.issue(take)
    k.dist.barrier(group=k.group)  # or the next case's message would be taken for this one's
    if k.me == 0:
        if sorted(senders) != k.ranks[1:]:
            raise Wrong(f"received from {sorted(senders)}, due from {k.ranks[1:]}")
        for sender, out in zip(senders, outs):
            k.expect(out, k.pattern(k.ranks.index(sender)), f"from rank {sender}")


def _meet(k: Kit, barrier: Callable[[], Any]) -> None:
    """A barrier is proved by what is known after it: nobody leaves before all have entered."""
    key = f"meet/{k.index}"
    k.world.store.add(f"{key}/{k.world.rank}", 1)  # unlike `set`, answered before it returns
    k.issue(barrier)
    if not all(k.world.store.add(f"{key}/{r}", 0) for r in k.ranks):
        raise Wrong("left the barrier before every rank had entered it")


@operation()
def barrier(k: Kit) -> None:
    kwargs = {"device_ids": [k.world.device.index]} if k.world.cuda else {}
    _meet(k, lambda: k.dist.barrier(group=k.group, async_op=k.later, **kwargs))


@operation()
def monitored_barrier(k: Kit) -> None:
    _meet(k, lambda: k.dist.monitored_barrier(group=k.group, timeout=seconds(k.world.job["timeouts"]["group"])))


def _thing(rank: int) -> dict[str, Any]:
    """An object whose pickle has a different length on every rank."""
    return {"rank": rank, "text": "x" * (7 * rank + 1), "list": list(range(rank))}


def _same(got: object, want: object) -> None:
    if got != want:
        raise Wrong(f"read {str(got)[:120]} where {str(want)[:120]} was due")


@operation()
def all_gather_object(k: Kit) -> None:
    got: list[Any] = [None] * k.size
    k.issue(lambda: k.dist.all_gather_object(got, _thing(k.me), group=k.group))
    _same(got, [_thing(r) for r in range(k.size)])


@operation()
def gather_object(k: Kit) -> None:
    got: Optional[list[Any]] = [None] * k.size if k.me == k.root else None
    k.issue(lambda: k.dist.gather_object(_thing(k.me), got, k.src, group=k.group))
    if k.me == k.root:
        _same(got, [_thing(r) for r in range(k.size)])


@operation()
def broadcast_object_list(k: Kit) -> None:
    got = [_thing(k.me), k.me]
    k.issue(lambda: k.dist.broadcast_object_list(got, k.src, group=k.group))
    _same(got, [_thing(k.root), k.root])


@operation()
def scatter_object_list(k: Kit) -> None:
    got: list[Any] = [None]
    things = [_thing(r) for r in range(k.size)] if k.me == k.root else None
    k.issue(lambda: k.dist.scatter_object_list(got, things, k.src, group=k.group))
    _same(got, [_thing(k.me)])


@operation()
def send_object_list(k: Kit) -> None:
    _alone(k)
    if not hasattr(k.dist, "send_object_list"):
        raise Skip(f"torch {k.torch.__version__} has no send_object_list")
    peer = k.me ^ 1
    if peer >= k.size:
        k.issue(lambda: None)
        return
    got: list[Any] = [None]

    def exchange() -> None:
        if k.me % 2 == 0:
            k.dist.send_object_list([_thing(k.me)], k.ranks[peer], group=k.group)
            k.dist.recv_object_list(got, k.ranks[peer], group=k.group)
        else:
            k.dist.recv_object_list(got, k.ranks[peer], group=k.group)
            k.dist.send_object_list([_thing(k.me)], k.ranks[peer], group=k.group)

    k.issue(exchange)
    _same(got, [_thing(peer)])


@operation(reducing=True)
def overlap16(k: Kit) -> None:
    """Sixteen reductions in flight, waited for in the opposite order."""
    ts = [k.input(k.pattern(k.me, start=j), frozen=False) for j in range(16)]

    def all_at_once() -> None:
        works = [k.dist.all_reduce(t, k.op, group=k.group, async_op=True) for t in ts]
        for work in reversed(works):
            work.wait()

    k.issue(all_at_once)
    for j, t in enumerate(ts):
        k.expect(t, k.reduced([k.pattern(r, start=j) for r in range(k.size)]), f"tensor {j}")


@operation(reducing=True)
def coalesced(k: Kit) -> None:
    """Four reductions in one launch, as DDP and FSDP do."""
    manager = getattr(k.dist.distributed_c10d, "_coalescing_manager", None)
    if manager is None or "reqs" in inspect.signature(manager).parameters:
        raise Skip(f"torch {k.torch.__version__} has no coalescing manager of the present form")
    ts = [k.input(k.pattern(k.me, start=j), frozen=False) for j in range(4)]

    def together() -> None:
        # No device: that is for backends without an operation for several tensors, and NCCL and gloo have one.
        with manager(group=k.group):
            for t in ts:
                k.dist.all_reduce(t, k.op, group=k.group)

    k.issue(together)
    for j, t in enumerate(ts):
        k.expect(t, k.reduced([k.pattern(r, start=j) for r in range(k.size)]), f"tensor {j}")


def _functional(k: Kit, name: str) -> tuple[Any, Any, str]:
    """The raw operator, its wait and the group's name: `torch.distributed._functional_collectives` would import dynamo (2 s)."""
    namespace = getattr(k.torch.ops, "_c10d_functional", None)
    if namespace is None or not hasattr(namespace, name) or not hasattr(k.group, "group_name"):
        raise Skip(f"torch {k.torch.__version__} has no operator _c10d_functional.{name}")
    try:
        k.torch._C._distributed_c10d._resolve_process_group(k.group.group_name)
    except Exception:
        raise Skip(f"torch {k.torch.__version__} does not register its groups for functional operators") from None
    return getattr(namespace, name), namespace.wait_tensor, k.group.group_name


@operation(reducing=True)
def functional_all_reduce(k: Kit) -> None:
    call, wait, name = _functional(k, "all_reduce")
    t = k.input(k.pattern(k.me))
    out: list[Any] = []
    k.issue(lambda: out.append(wait(call(t, k.redop, name))))
    k.expect(out[0], k.reduced())


@operation(wide=True)
def functional_all_gather(k: Kit) -> None:
    call, wait, name = _functional(k, "all_gather_into_tensor")
    t = k.input(k.pattern(k.me))
    out: list[Any] = []
    k.issue(lambda: out.append(wait(call(t, k.size, name))))
    k.expect(out[0], k.torch.cat([k.pattern(r) for r in range(k.size)]))


@operation(reducing=True, wide=True)
def functional_reduce_scatter(k: Kit) -> None:
    call, wait, name = _functional(k, "reduce_scatter_tensor")
    sent, due = _chunks(k)
    t = k.input(k.torch.cat(sent))
    out: list[Any] = []
    k.issue(lambda: out.append(wait(call(t, k.redop, k.size, name))))
    k.expect(out[0], k.reduced(due))


@operation(wide=True)
def functional_all_to_all(k: Kit) -> None:
    call, wait, name = _functional(k, "all_to_all_single")
    sent, due = _chunks(k)
    t = k.input(k.torch.cat(sent))
    out: list[Any] = []
    k.issue(lambda: out.append(wait(call(t, [k.n] * k.size, [k.n] * k.size, name))))
    k.expect(out[0], k.torch.cat(due))


@operation()
def functional_broadcast(k: Kit) -> None:
    call, wait, name = _functional(k, "broadcast")
    t = k.input(k.pattern(k.me))
    out: list[Any] = []
    k.issue(lambda: out.append(wait(call(t, k.root, name))))
    k.expect(out[0], k.pattern(k.root))


@operation(wide=True)
def bytes_all_gather(k: Kit) -> None:
    """A dtype that the backend does not know travels as bytes (float8 in FSDP and ZeRO++)."""
    call = k.single("all_gather_single", "all_gather_into_tensor")
    t, out = k.input(k.pattern(k.me)), k.output(k.n * k.size)
    k.issue(lambda: call(out.view(k.torch.uint8), t.view(k.torch.uint8), group=k.group))
    k.expect(out, k.torch.cat([k.pattern(r) for r in range(k.size)]))


# -- memory layout ---------------------------------------------------------------------------------------------------


def _column(k: Kit, values: Any) -> tuple[Any, Any]:
    """A column of a two-column matrix: every second element is a neighbour that must not change."""
    base = k.torch.full((max(k.n, 1), 2), 100, dtype=k.dtype, device=k.world.device)
    base[: k.n, 0] = values.to(k.world.device)
    return base, base[: k.n, 0]


def _neighbours(k: Kit, base: Any) -> None:
    if not bool((base[:, 1] == 100).all()):
        raise Wrong("the elements between those of a strided tensor were overwritten")


@operation(reducing=True)
def strided_all_reduce(k: Kit) -> None:
    base, t = _column(k, k.pattern(k.me))
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=k.group))
    k.expect(t, k.reduced())
    _neighbours(k, base)


@operation()
def strided_broadcast(k: Kit) -> None:
    base, t = _column(k, k.pattern(k.me))
    k.issue(lambda: k.dist.broadcast(t, k.src, group=k.group))
    k.expect(t, k.pattern(k.root))
    _neighbours(k, base)


@operation(reducing=True)
def strided_reduce(k: Kit) -> None:
    base, t = _column(k, k.pattern(k.me))
    k.issue(lambda: k.dist.reduce(t, k.src, k.op, group=k.group))
    if k.me == k.root:
        k.expect(t, k.reduced())
        _neighbours(k, base)


@operation(wide=True)
def strided_all_gather(k: Kit) -> None:
    call = k.single("all_gather_single", "all_gather_into_tensor")
    _, t = _column(k, k.pattern(k.me))
    out = k.output(k.n * k.size)
    k.issue(lambda: call(out, t, group=k.group))
    k.expect(out, k.torch.cat([k.pattern(r) for r in range(k.size)]))


@operation(wide=True)
def strided_scatter(k: Kit) -> None:
    parts = [_column(k, k.pattern(r))[1] for r in range(k.size)] if k.me == k.root else None
    base, out = _column(k, k.pattern(k.me) * 0)
    k.issue(lambda: k.dist.scatter(out, parts, k.src, group=k.group))
    k.expect(out, k.pattern(k.me))
    _neighbours(k, base)


@operation(wide=True)
def strided_gather(k: Kit) -> None:
    columns = [_column(k, k.pattern(r) * 0) for r in range(k.size)] if k.me == k.root else []
    _, t = _column(k, k.pattern(k.me))
    k.issue(lambda: k.dist.gather(t, [c[1] for c in columns] or None, k.src, group=k.group))
    for r, (base, out) in enumerate(columns):
        k.expect(out, k.pattern(r), f"part of rank {r}")
        _neighbours(k, base)


@operation()
def strided_send_recv(k: Kit) -> None:
    """Every rank sends first, so that a refusal is everybody's."""
    _alone(k)
    _, t = _column(k, k.pattern(k.me))
    out = k.output()

    def ring() -> None:
        works = [
            k.dist.isend(t, k.ranks[(k.me + 1) % k.size], group=k.group),
            k.dist.irecv(out, k.ranks[(k.me - 1) % k.size], group=k.group),
        ]
        for work in works:
            work.wait()

    if k.world.backend == "nccl":
        raise Skip("NCCL orders sends and receives; use batch_isend_irecv")
    k.issue(ring)
    k.expect(out, k.pattern((k.me - 1) % k.size))


@operation(reducing=True)
def transposed_all_reduce(k: Kit) -> None:
    """Dense but not row-major, as a channels-last or transposed weight is."""
    rows = k.pattern(k.me, 12).view(3, 4).to(k.world.device)
    t = rows.t()
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=k.group))
    k.expect(t.t(), k.reduced([k.pattern(r, 12) for r in range(k.size)]))


@operation(reducing=True)
def sparse_all_reduce(k: Kit) -> None:
    torch = k.torch
    index = torch.tensor([[k.me, k.size + 1]])
    t = torch.sparse_coo_tensor(index, torch.tensor([k.me + 1.0, 2.0], dtype=k.dtype), (k.size + 3,)).to(k.world.device)
    k.issue(lambda: k.dist.all_reduce(t, group=k.group))
    due = torch.zeros(k.size + 3, dtype=k.dtype)
    for r in range(k.size):
        due[r] += r + 1
        due[k.size + 1] += 2
    k.expect(t.to_dense(), due)


@operation(reducing=True)
def bool_bytes(k: Kit) -> None:
    """A boolean tensor holds bytes 0 and 1 and nothing else after a reduction, or whoever reads the bytes is misled."""
    t = k.input(
        k.torch.ones(k.n, dtype=k.dtype), frozen=False
    )  # true on every rank, so that two of them meet everywhere
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=k.group))
    largest = int(k._bytes(t.to("cpu")).max())
    if largest > 1:
        raise Wrong(f"a true element is stored as the byte {largest}: true for torch, not for who reads the bytes")


# A multiple of every period that `pattern` can have, so that each piece of a large buffer holds the same values.
CHUNK = 113 * 27720 * 5


def _pieces(k: Kit) -> Iterator[slice]:
    for start in range(0, k.n, CHUNK):
        yield slice(start, min(start + CHUNK, k.n))


def _filled(k: Kit) -> Any:
    t = k.torch.empty(k.n, dtype=k.dtype, device=k.world.device)
    values = k.pattern(k.me, min(CHUNK, k.n)).to(k.world.device)
    for piece in _pieces(k):
        t[piece] = values[: piece.stop - piece.start]
    return t


def _compare_pieces(k: Kit, t: Any, due: Any) -> None:
    for piece in _pieces(k):
        k.expect(t[piece], due[: piece.stop - piece.start], f"piece at {piece.start}")


@operation()
def large_broadcast(k: Kit) -> None:
    """More bytes than a 32-bit count holds; made and compared in pieces, so that only the buffer itself is large."""
    t = _filled(k)
    k.issue(lambda: k.dist.broadcast(t, k.src, group=k.group))
    _compare_pieces(k, t, k.pattern(k.root, min(CHUNK, k.n)))


@operation(reducing=True)
def large_all_reduce(k: Kit) -> None:
    t = _filled(k)
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=k.group))
    _compare_pieces(k, t, k.reduced([k.pattern(r, min(CHUNK, k.n)) for r in range(k.size)]))


@operation(reducing=True)
def not_finite(k: Kit) -> None:
    """NaN and infinity arrive; a library that drops them hides a diverged training."""
    torch = k.torch
    values = k.pattern(k.me)
    values[k.me] = float("nan")
    values[k.size + k.me] = float("inf")
    t = k.input(values, frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=k.group))
    got = t.to("cpu")
    if not bool(torch.isnan(got[: k.size]).all()):
        raise Wrong("a NaN was lost")
    if not bool(torch.isinf(got[k.size : 2 * k.size]).all()):
        raise Wrong("an infinity was lost")
    k.expect(got[2 * k.size :], k.reduced()[2 * k.size :])


@operation(reducing=True)
def repeatable(k: Kit) -> None:
    """Two runs on the same random numbers give the same bits, and every rank the same bits: replicas must not drift apart."""
    torch = k.torch
    generator = torch.Generator().manual_seed(17 + k.me)
    values = torch.randn(k.n, generator=generator).to(k.dtype)
    one, two = k.input(values, frozen=False), k.input(values, frozen=False)

    def twice() -> None:
        k.dist.all_reduce(one, k.op, group=k.group)
        k.dist.all_reduce(two, k.op, group=k.group)

    k.issue(twice)
    k.expect(two, one.to("cpu"), "second run")
    digest = torch.tensor(
        list(hashlib.sha256(bytes(k._bytes(one.to("cpu").contiguous()).tolist())).digest()), dtype=torch.uint8
    )
    outs = [torch.zeros(32, dtype=torch.uint8, device=k.world.device) for _ in range(k.size)]
    k.dist.all_gather(outs, digest.to(k.world.device), group=k.group)
    differing = [r for r, out in enumerate(outs) if not torch.equal(out.to("cpu"), digest)]
    if differing:
        raise Wrong(f"ranks {differing} hold other bits than rank {k.me} after all_reduce")


@operation(reducing=True)
def premul_sum(k: Kit) -> None:
    make = getattr(k.dist, "_make_nccl_premul_sum", None) or getattr(
        k.dist.distributed_c10d, "_make_nccl_premul_sum", None
    )
    if make is None:
        raise Skip(f"torch {k.torch.__version__} has no premultiplied sum")
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, make(2.0), group=k.group))
    k.expect(t, k.reduced([2 * k.pattern(r) for r in range(k.size)]))


# -- ways to make a group --------------------------------------------------------------------------------------------


@operation(reducing=True)
def device_mesh(k: Kit) -> None:
    """A 2-D mesh: sums along each dimension."""
    if k.world.size < 4 or k.world.size % 2:
        raise Skip(f"a 2-D mesh needs an even number of ranks from four on, the run has {k.world.size}")
    try:
        from torch.distributed.device_mesh import init_device_mesh
    except ImportError:
        raise Skip(f"torch {k.torch.__version__} has no device mesh")
    cached = getattr(k.world, "mesh", None)
    mesh = cached or init_device_mesh(k.world.device.type, (2, k.world.size // 2))
    k.world.mesh = mesh  # type: ignore[attr-defined]
    for dim in (0, 1):
        group = mesh.get_group(dim)
        ranks = k.dist.get_process_group_ranks(group)
        t = k.input(k.pattern(k.me), frozen=False)
        k.issue(lambda: k.dist.all_reduce(t, k.op, group=group))
        k.expect(t, k.reduced([k.pattern(r) for r in ranks]), f"dimension {dim}")


@operation(reducing=True)
def new_subgroups(k: Kit) -> None:
    if k.world.size % 2:
        raise Skip("needs an even number of ranks")
    mine, _ = k.dist.new_subgroups(group_size=2)
    ranks = (
        k.dist.get_process_group_ranks(mine)
        if hasattr(k.dist, "get_process_group_ranks")
        else [k.me // 2 * 2, k.me // 2 * 2 + 1]
    )
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=mine))
    k.expect(t, k.reduced([k.pattern(r) for r in ranks]))
    k.dist.destroy_process_group(mine)


@operation(reducing=True)
def split_group(k: Kit) -> None:
    """NCCL's own split of a communicator; needs a group that is bound to a device."""
    split = getattr(k.dist, "split_group", None)
    if split is None or not k.world.cuda:
        raise Skip("splitting a group needs a group that is bound to a device")
    if k.world.size % 2:
        raise Skip("needs an even number of ranks")
    pairs = [[r, r + 1] for r in range(0, k.world.size, 2)]
    mine = split(split_ranks=pairs)
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=mine))
    k.expect(t, k.reduced([k.pattern(r) for r in pairs[k.me // 2]]))


@operation(reducing=True)
def new_group_again(k: Kit) -> None:
    """Groups come and go in a long training; one more is made, used and destroyed."""
    group = k.dist.new_group(list(range(k.world.size)), timeout=seconds(k.world.job["timeouts"]["group"]))
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=group))
    k.expect(t, k.reduced())
    k.dist.destroy_process_group(group)


@operation(reducing=True)
def reinit(k: Kit) -> None:
    """Destroy the world and make it again: what an elastic restart does. Must be the last case."""
    k.dist.destroy_process_group()
    k.world.init_group(k.world.store, f"again{k.index}")
    k.world.open_groups([])
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, k.op))
    k.expect(t, k.reduced())


# -- GPU only --------------------------------------------------------------------------------------------------------


@operation(reducing=True)
def compute_overlap(k: Kit) -> None:
    """The reduction runs beside a matrix product on another stream; both results are right."""
    torch = k.torch
    if not k.world.cuda:
        raise Skip("needs a GPU: overlap with another stream")
    a = torch.ones(256, 256, device=k.world.device)
    t = k.input(k.pattern(k.me), frozen=False)
    side = torch.cuda.Stream(k.world.device)
    product: list[Any] = []

    def both() -> None:
        work = k.dist.all_reduce(t, k.op, group=k.group, async_op=True)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            product.append(a @ a)
        work.wait()
        torch.cuda.current_stream().wait_stream(side)

    k.issue(both)
    if not bool((product[0] == 256).all()):
        raise Wrong("the matrix product beside the reduction is wrong")
    k.expect(t, k.reduced())


@operation(reducing=True)
def cuda_graph(k: Kit) -> None:
    """Capture the reduction once, replay it on fresh data three times."""
    torch = k.torch
    if not k.world.cuda:
        raise Skip("needs a GPU: CUDA graph")
    t = k.input(k.pattern(k.me), frozen=False)
    k.dist.all_reduce(t, k.op, group=k.group)  # a communicator is made outside of a capture
    k.world.sync()
    graph = torch.cuda.CUDAGraph()
    # What other threads of this process ask of CUDA meanwhile must not spoil the capture: torch's watchdog, and who reads its flight recorder.
    known = inspect.signature(torch.cuda.graph).parameters
    mode = {"capture_error_mode": "thread_local"} if "capture_error_mode" in known else {}
    with torch.cuda.graph(graph, **mode):
        k.dist.all_reduce(t, k.op, group=k.group)
    for start in (0, 5, 9):
        t.copy_(k.pattern(k.me, start=start))
        k.world.sync()
        k.issue(graph.replay)
        k.expect(t, k.reduced([k.pattern(r, start=start) for r in range(k.size)]), f"replay on data {start}")


@operation(reducing=True)
def symmetric_memory(k: Kit) -> None:
    torch = k.torch
    if not k.world.cuda:
        raise Skip("needs a GPU: symmetric memory")
    try:
        import torch.distributed._symmetric_memory as symm
    except ImportError:
        raise Skip(f"torch {torch.__version__} has no symmetric memory")
    if not hasattr(symm, "empty") or not hasattr(symm, "rendezvous"):
        raise Skip(f"torch {torch.__version__} has no symm_mem.empty")
    # Several ranks on one GPU: `sharing_env` asks torch to allow it; one that does not know the variable refuses on every rank.
    t = symm.empty(k.n, dtype=k.dtype, device=k.world.device)
    if "enable_symm_mem_for_group" in vars(symm):  # older releases need it, 2.13 calls it deprecated
        symm.enable_symm_mem_for_group(k.group.group_name)
    symm.rendezvous(t, k.group.group_name)
    t.copy_(k.pattern(k.me))
    k.world.sync()
    k.dist.barrier(group=k.group, device_ids=[k.world.device.index])
    out: list[Any] = []
    k.issue(lambda: out.append(torch.ops.symm_mem.one_shot_all_reduce(t, "sum", k.group.group_name)))
    k.expect(out[0], k.reduced())


# --------------------------------------------------------------------------------------------------------------------
# Bandwidth: the same operations with a clock. Sizes are counted as nccl-tests counts them (the whole buffer of a gather or a scatter)
# --------------------------------------------------------------------------------------------------------------------

CPU_LIMIT = 64 << 20  # bytes; beyond this gloo over loopback measures the memory of the host
# Ranks that share a GPU: over sockets a large buffer takes minutes and measures loopback; in one memory it measures nothing that training has.
SHARING_LIMITS = {"hostid": CPU_LIMIT, "multi-rank": 2 << 30}


def measured(k: Kit, call: Callable[[], Any]) -> None:
    """Warm up, then time every call: CUDA events on a GPU; on a CPU the wall clock from a barrier on. Microseconds go into the row."""
    size = k.n * k.torch.empty(0, dtype=k.dtype).element_size()
    rounds = 50 if size <= 1 << 20 else 20
    for _ in range(5 if size <= 1 << 24 else 2):
        call()
    k.world.sync()
    times = _on_gpu(k, call, rounds) if k.world.cuda else _on_cpu(k, call, rounds)
    k.measured = {"bytes": size, "us": [round(t, 2) for t in times]}


def _on_gpu(k: Kit, call: Callable[[], Any], rounds: int) -> list[float]:
    marks = [k.torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    k.world.sync()
    return [before.elapsed_time(after) * 1e3 for before, after in zip(marks, marks[1:])]


def _on_cpu(k: Kit, call: Callable[[], Any], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        k.dist.barrier(group=k.group)
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e6)
    return times


def _buffers(k: Kit) -> tuple[Any, Any]:
    """The whole buffer and this rank's share of one; `Skip` where it cannot be shared out or would measure something else."""
    size = k.n * k.torch.empty(0, dtype=k.dtype).element_size()
    if not k.world.cuda and size > CPU_LIMIT:
        raise Skip(f"on a CPU nothing beyond {CPU_LIMIT >> 20} MiB is measured")
    sharing = str(k.world.job.get("sharing") or "")
    if sharing and size > SHARING_LIMITS[sharing]:
        raise Skip(f"ranks that share a GPU ({sharing}) measure nothing beyond {SHARING_LIMITS[sharing] >> 20} MiB")
    if k.n % k.size:
        raise Skip(f"{k.n} elements cannot be shared out among {k.size} ranks")
    whole = k.torch.ones(k.n, dtype=k.dtype, device=k.world.device)
    return whole, k.torch.ones(k.n // k.size, dtype=k.dtype, device=k.world.device)


def _timed(k: Kit, make: Callable[[Any, Any], Callable[[], Any]]) -> None:
    whole, share = _buffers(k)
    k.issue(lambda: measured(k, make(whole, share)))


@operation()
def bw_all_reduce(k: Kit) -> None:
    # The largest of equal values: a sum would grow with every round.
    _timed(k, lambda whole, share: lambda: k.dist.all_reduce(whole, k.dist.ReduceOp.MAX, group=k.group))


@operation()
def bw_reduce(k: Kit) -> None:
    _timed(k, lambda whole, share: lambda: k.dist.reduce(whole, k.ranks[0], k.dist.ReduceOp.MAX, group=k.group))


@operation()
def bw_broadcast(k: Kit) -> None:
    _timed(k, lambda whole, share: lambda: k.dist.broadcast(whole, k.ranks[0], group=k.group))


@operation()
def bw_all_gather_single(k: Kit) -> None:
    gather_into = k.single("all_gather_single", "all_gather_into_tensor")
    _timed(k, lambda whole, share: lambda: gather_into(whole, share, group=k.group))


@operation()
def bw_reduce_scatter_single(k: Kit) -> None:
    scatter_from = k.single("reduce_scatter_single", "reduce_scatter_tensor")
    _timed(k, lambda whole, share: lambda: scatter_from(share, whole, k.dist.ReduceOp.MAX, group=k.group))


@operation()
def bw_all_to_all_single(k: Kit) -> None:
    def make(whole: Any, share: Any) -> Callable[[], Any]:
        received = k.torch.empty_like(whole)
        return lambda: k.dist.all_to_all_single(received, whole, group=k.group)

    _timed(k, make)


@operation()
def bw_send_recv(k: Kit) -> None:
    """Every rank sends to the next and receives from the one before, as sendrecv_perf does."""

    def make(whole: Any, share: Any) -> Callable[[], Any]:
        received = k.torch.empty_like(whole)
        after, before = k.ranks[(k.me + 1) % k.size], k.ranks[(k.me - 1) % k.size]
        both = [k.dist.P2POp(k.dist.isend, whole, after), k.dist.P2POp(k.dist.irecv, received, before)]
        return lambda: [work.wait() for work in k.dist.batch_isend_irecv(both)]

    _timed(k, make)


# --------------------------------------------------------------------------------------------------------------------
# What a framework really issued, and the CPU where it asks for a GPU by name
# --------------------------------------------------------------------------------------------------------------------

# One word per operation: torch renamed some, and the point-to-point ones differ in who waits, not in what is sent.
CANONICAL = {
    "all_gather_into_tensor": "all_gather_single", "_all_gather_base": "all_gather_single", "_allgather_base": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single", "all_gather_into_tensor_coalesced": "all_gather_single",
    "reduce_scatter_tensor": "reduce_scatter_single", "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single", "isend": "send", "irecv": "recv", "recv_any_source": "recv",
    "allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all", "alltoall_base": "all_to_all_single",
    "all_to_all_base": "all_to_all_single", "allreduce_coalesced": "all_reduce", "all_reduce_coalesced": "all_reduce",
}  # fmt: skip
COUNTED = (
    "all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "all_gather_single", "_all_gather_base",
    "all_gather_coalesced", "gather", "gather_single", "scatter", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single",
    "_reduce_scatter_base", "all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv", "barrier", "monitored_barrier",
)  # fmt: skip
# Made of tensor operations, which count as well.
COUNTED_OBJECTS = (
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list", "recv_object_list",
)  # fmt: skip


class Counter:
    """The collectives that a framework issues: torch.distributed's functions, wrapped before the framework is imported.

    Only the outermost call counts (a deprecated name that calls its successor is one call). `bytes` adds up the largest buffer of every call,
    a list of tensors being one buffer. What C++ issues by itself (the gradient buckets of DistributedDataParallel) passes by here and is in
    torch's flight recorder, where this torch has one for the backend.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.calls: dict[str, list[int]] = {}
        self.here = threading.local()

    def install(self) -> None:
        dist = self.torch.distributed
        for name in (*COUNTED, *COUNTED_OBJECTS):
            original = getattr(dist.distributed_c10d, name, None)
            if original is None:
                continue
            wrapped = self._wrapped(name, original, outermost=name not in COUNTED_OBJECTS)
            for module in (dist.distributed_c10d, dist):
                # The same object in both: P2POp compares the function that it is given with its own.
                if getattr(module, name, None) is original:
                    setattr(module, name, wrapped)

    def _wrapped(self, name: str, original: Callable[..., Any], outermost: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if getattr(self.here, "deep", False):
                return original(*args, **kwargs)
            row = self.calls.setdefault(CANONICAL.get(name, name), [0, 0])
            row[0] += 1
            row[1] += max((self._size(a) for a in (*args, *kwargs.values())), default=0)
            self.here.deep = outermost
            try:
                return original(*args, **kwargs)
            finally:
                self.here.deep = False

        return counted

    def _size(self, value: Any) -> int:
        if isinstance(value, self.torch.Tensor):
            return int(value.numel() * value.element_size())
        return sum(self._size(v) for v in value) if isinstance(value, (list, tuple)) else 0

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """For what the test itself has to say to the other ranks."""
        self.here.deep = True
        try:
            yield
        finally:
            self.here.deep = False

    def counts(self) -> dict[str, dict[str, int]]:
        return {name: {"count": row[0], "bytes": row[1]} for name, row in sorted(self.calls.items())}

    @staticmethod
    def recorded() -> Optional[dict[str, int]]:
        """What torch's flight recorder holds, by name; `None` where it has none for this backend."""
        try:
            entries = flight_entries() or []
        except Exception:
            return None
        found: dict[str, int] = {}
        for entry in entries:
            name = str(entry.get("profiling_name", "")).rpartition(":")[2].split(" ")[0]
            name = CANONICAL.get(name, name)
            found[name] = found.get(name, 0) + 1
        return dict(sorted(found.items())) or None


@contextlib.contextmanager
def cpu_for_cuda(s: "Stage", package: str) -> Iterator[dict[str, int]]:
    """Megatron asks for the current GPU by name even where every tensor could live on the CPU: give it the CPU, and note every place that asked.

    `torch.cuda.current_device()` answers `cpu`, a tensor asked for on `cuda` is made on the CPU, streams and events wait for nothing. No more is replaced:
    layers, schedules, dispatchers and collectives are the framework's own. Yields {file:line of the framework: how often}; on a GPU nothing is done.
    """
    asked: dict[str, int] = {}
    if s.cuda:
        yield asked
        return
    torch = s.torch
    cpu = torch.device("cpu")

    def note() -> None:
        frame: Any = sys._getframe(1)
        while frame is not None and f"/{package}/" not in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None:
            place = f"{frame.f_code.co_filename.rpartition(f'/{package}/')[2]}:{frame.f_lineno}"
            asked[place] = asked.get(place, 0) + 1

    def is_cuda(value: Any) -> bool:
        if isinstance(value, torch.device):
            return bool(value.type == "cuda")
        return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))

    class OnTheCpu(torch.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if func is torch.Tensor.cuda:
                note()
                return args[0]
            if func is not torch.device and (any(map(is_cuda, args)) or is_cuda(kwargs.get("device"))):
                note()
                args = tuple(cpu if is_cuda(a) else a for a in args)
                if is_cuda(kwargs.get("device")):
                    kwargs["device"] = cpu
            return func(*args, **kwargs)

    def current_device() -> Any:
        note()
        return cpu

    class InOrder:
        """A stream or an event of a device that does one thing after the other: there is nothing to wait for."""

        def __init__(self, *_args: Any, **_kwargs: Any) -> None:
            note()

        def __getattr__(self, name: str) -> Any:
            if name not in ("wait_stream", "wait_event", "record_event", "record", "wait", "synchronize", "query"):
                raise AttributeError(name)
            return lambda *_args, **_kwargs: InOrder() if name == "record_event" else True

    replaced = {
        "current_device": current_device, "synchronize": InOrder, "Stream": InOrder, "Event": InOrder, "current_stream": InOrder,
        "default_stream": InOrder, "stream": contextlib.nullcontext,
    }  # fmt: skip
    kept = {name: getattr(torch.cuda, name) for name in replaced}
    for name, stand_in in replaced.items():
        setattr(torch.cuda, name, stand_in)
    try:
        with OnTheCpu():
            yield asked
    finally:
        for name, original in kept.items():
            setattr(torch.cuda, name, original)


# --------------------------------------------------------------------------------------------------------------------
# Framework steps: a few training steps each, judged by their losses against a reference computed without any collective
# --------------------------------------------------------------------------------------------------------------------

STEP_KINDS: dict[str, Callable[["Stage"], dict[str, Any]]] = {}
TRAIN_STEPS = 5


def step_kind(name: str) -> Callable[[Callable[["Stage"], dict[str, Any]]], Callable[["Stage"], dict[str, Any]]]:
    def register(function: Callable[["Stage"], dict[str, Any]]) -> Callable[["Stage"], dict[str, Any]]:
        STEP_KINDS[name] = function
        return function

    return register


class Stage:
    """What a framework step sees: who it is, the device, and where to say how far it has come."""

    def __init__(self, job: Mapping[str, Any], board: Board) -> None:
        import torch

        self.torch, self.job, self.board = torch, job, board
        self.rank, self.size, self.step = job["rank"], job["world"], job["step"]
        devices = job.get("devices")
        self.device = torch.device("cuda", devices[self.rank]) if devices else torch.device("cpu")
        self.cuda = self.device.type == "cuda"
        if self.cuda:
            torch.cuda.set_device(self.device)
        self.at = 0
        self.counter = COUNTERS[0] if COUNTERS else Counter(torch)
        if not COUNTERS:
            self.counter.install()

    def enter(self, what: str) -> None:
        """Said before it is done, so that a hang has a name."""
        self.board.sign(self.rank, what)
        self.board.mark(self.rank, self.at, ENTERED)
        self.at += 1
        fault = self.job.get("fault") or {}
        if fault.get("rank") == self.rank and fault.get("at") == what:
            inject_before(fault, self)

    # -- the toy problem, the same for every data-parallel engine -----------------------------------------------------

    def model(self) -> Any:
        nn = self.torch.nn
        self.torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def optimizer(self, model: Any) -> Any:
        return self.torch.optim.AdamW(model.parameters(), lr=1e-2)

    def batch(self, rank: int) -> tuple[Any, Any]:
        x = self.torch.randn(4, 16, generator=self.torch.Generator().manual_seed(100 + rank))
        return x, x.sum(1, keepdim=True)

    def reference(self) -> list[float]:
        """This rank's losses under plain data parallelism, computed here alone: the mean of all ranks' losses has the averaged gradient."""
        model = self.model()
        optimizer, batches, losses = self.optimizer(model), [self.batch(r) for r in range(self.size)], []
        for _ in range(TRAIN_STEPS):
            each = [((model(x) - y) ** 2).mean() for x, y in batches]
            losses.append(float(each[self.rank].item()))
            optimizer.zero_grad()
            (sum(each) / self.size).backward()
            optimizer.step()
        return losses

    def init_group(self) -> None:
        dist = self.torch.distributed
        dist.init_process_group(self.job["backend"], timeout=seconds(self.job["timeouts"]["group"]))

    def bind_device(self) -> None:
        """Whoever makes the group, this test or a framework: on a GPU `init_process_group` is told the rank's device, where torch knows `device_id`.

        Without it torch 2.15 guesses a device, and on several ranks the same one.
        """
        dist = self.torch.distributed
        original = dist.init_process_group
        if not self.cuda or "device_id" not in inspect.signature(original).parameters:
            return

        @functools.wraps(original)
        def bound(*args: Any, **kwargs: Any) -> Any:
            backend = str(args[0] if args else kwargs.get("backend") or "nccl")
            if "nccl" in backend and kwargs.get("device_id") is None:
                kwargs["device_id"] = self.device
            return original(*args, **kwargs)

        dist.init_process_group = dist.distributed_c10d.init_process_group = bound

    def train(
        self, forward: Callable[[Any], Any], backward: Callable[[Any], None], step: Callable[[], None]
    ) -> list[float]:
        x, y = (t.to(self.device) for t in self.batch(self.rank))
        losses = []
        for i in range(TRAIN_STEPS):
            self.enter(f"train step {i}")
            loss = ((forward(x).float() - y) ** 2).mean()
            backward(loss)
            step()
            losses.append(float(loss.item()))
        return losses


def run_step(job: Mapping[str, Any], board: Board, log: Log) -> int:
    """One framework step on one rank; one row says what came of it."""
    started = time.monotonic()
    stage = Stage(job, board)
    stage.bind_device()
    row: dict[str, Any] = {"row": "step", "rank": job["rank"], "step": job["run"]}
    try:
        row.update(status="ok", **STEP_KINDS[stage.step["kind"]](stage))
    except Skip as reason:
        row.update(status="skipped", detail=str(reason))
    except Exception as error:
        row.update(_stopped(stage, error, board.row(job["rank"])[3]))
    row["seconds"] = round(time.monotonic() - started, 3)
    row["collectives"] = stage.counter.counts()
    recorded = stage.counter.recorded() if row["status"] == "ok" else None
    if recorded:
        row["recorded"] = recorded
    log.write(row)
    dist = sys.modules["torch"].distributed
    if row["status"] == "ok" and dist.is_initialized():
        stage.enter("destroy_process_group")
        try:
            dist.destroy_process_group()
        except Exception as error:
            log.write({"row": "note", "rank": job["rank"], "detail": f"destroy_process_group: {one_line(error)}"})
    board.mark(job["rank"], FINISHED, DONE)
    return OK if row["status"] != "error" else ERROR


def _stopped(stage: Stage, error: Exception, doing: str) -> dict[str, object]:
    """What a raise says: that this machine has no GPU, where the step knows such words and has none; otherwise that the step failed.

    Either way with the innermost line outside of the standard library (and of torch, where there is one), so that a record names the code and not only the words.
    """
    told, trace = str(stage.step.get("told") or ""), traceback.format_exc()[-4000:]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages/" in frame.filename]
    places = [f"{frame.filename.rpartition('site-packages/')[2]}:{frame.lineno}" for frame in frames]
    place = next((p for p in reversed(places) if not p.startswith("torch/")), places[-1] if places else "")
    if not told or stage.cuda or not re.search(told, f"{type(error).__name__}: {error}"):
        return {"status": "error", "detail": one_line(error, 600), "trace": trace, "stage": doing}
    facts = {"needs a GPU": {"error": one_line(error), "at": place, "while": doing}}
    return {"status": "skipped", "detail": f"needs a GPU: {one_line(error, 160)} ({place})", "facts": facts}


def told_version(module: Any) -> str:
    """What a framework says of itself; megatron-core before 0.7 says nothing."""
    return str(getattr(module, "__version__", "not told"))


def _parameters_digest(stage: Stage, model: Any) -> str:
    """The bits of all parameters: replicas must agree."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(bytes(parameter.detach().to("cpu").contiguous().view(stage.torch.uint8).view(-1).tolist()))
    return digest.hexdigest()[:16]


@step_kind("ddp")
def step_ddp(s: Stage) -> dict[str, Any]:
    """The control: torch's own data parallelism; `engine` chooses one of torch 2.15's two NCCL engines."""
    if s.step.get("engine"):
        os.environ["TORCH_DIST_USE_NCCL2"] = {"legacy": "0", "2": "1"}[s.step["engine"]]
    s.enter("init_process_group")
    s.init_group()
    s.enter("DistributedDataParallel")
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(s.model().to(s.device), device_ids=[s.device.index] if s.cuda else None)
    optimizer = s.optimizer(model)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    losses = s.train(model, lambda loss: loss.backward(), step)
    facts = {
        "parameters": _parameters_digest(s, model),
        "implementation": implementation_of(s.torch.distributed, s.device),
    }
    return {"losses": losses, "reference": s.reference(), "facts": facts}


@step_kind("fsdp2")
def step_fsdp2(s: Stage) -> dict[str, Any]:
    """The second control: fully sharded, all_gather and reduce_scatter."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise Skip(f"torch {s.torch.__version__} has no torch.distributed.fsdp.fully_shard")
    from torch.distributed.device_mesh import init_device_mesh

    s.enter("init_process_group")
    s.init_group()
    s.enter("fully_shard")
    model = s.model().to(s.device)
    mesh = init_device_mesh(s.device.type, (s.size,))
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = s.optimizer(model)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return {"losses": s.train(model, lambda loss: loss.backward(), step), "reference": s.reference(), "facts": {}}


@step_kind("deepspeed-zero")
def step_deepspeed_zero(s: Stage) -> dict[str, Any]:
    """ZeRO through `deepspeed.initialize` with torch's optimizer, so that no optimizer kernel is compiled."""
    s.enter("import deepspeed")
    import deepspeed

    s.enter("deepspeed.init_distributed (compiles its shared-memory op on the CPU)")
    deepspeed.init_distributed()
    s.enter("deepspeed.initialize")
    dtype = s.step.get("dtype", "float32")
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "steps_per_print": 1000,
        # 1.0 is the default from 0.19.3 on and changes every loss.
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": s.step["stage"]}, "zero_allow_untested_optimizer": True,
    }  # fmt: skip
    if dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
    model = s.model()
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), optimizer=s.optimizer(model), config=config
    )
    kind = getattr(s.torch, dtype)
    losses = s.train(lambda x: engine(x.to(kind)), engine.backward, engine.step)
    facts = {
        "version": told_version(deepspeed),
        "optimizer": type(optimizer).__name__,
        "accelerator": deepspeed.accelerator.get_accelerator().device_name(),
        "backend": s.torch.distributed.get_backend(),
        **_deepspeed_ops(),
    }
    return {"losses": losses, "reference": s.reference(), "facts": facts}


def _deepspeed_ops() -> dict[str, object]:
    """Which ops came compiled with the package, and which were compiled here when they were first used."""
    try:
        from deepspeed.git_version_info import installed_ops

        facts: dict[str, object] = {"ops installed": sorted(name for name, there in installed_ops.items() if there)}
    except Exception as error:
        facts = {"ops installed": one_line(error, 120)}
    folder = os.environ.get("TORCH_EXTENSIONS_DIR", "")
    built = [file[:-3] for _, _, files in os.walk(folder) for file in files if file.endswith(".so")] if folder else []
    facts["ops compiled here"] = sorted(set(built))
    return facts


@step_kind("deepspeed-moe")
def step_deepspeed_moe(s: Stage) -> dict[str, Any]:
    """A mixture-of-experts layer, its experts spread over the ranks: all_to_all there and back."""
    s.enter("import deepspeed")
    import deepspeed
    from deepspeed.moe.layer import MoE

    s.enter("deepspeed.init_distributed (compiles its shared-memory op on the CPU)")
    deepspeed.init_distributed()
    s.enter("deepspeed.moe.layer.MoE")
    torch = s.torch
    torch.manual_seed(0)

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(16, 16)
            # Capacity for every token, so that none is dropped and the count must be conserved.
            self.moe = MoE(
                hidden_size=16,
                expert=torch.nn.Linear(16, 16),
                num_experts=s.size,
                ep_size=s.size,
                k=1,
                capacity_factor=float(s.size),
                min_capacity=4,
                use_rts=False,
            )
            self.last = torch.nn.Linear(16, 1)

        def forward(self, x: Any) -> Any:
            out, _, self.counts = self.moe(self.first(x))
            return self.last(out)

    model = Net()
    s.enter("deepspeed.initialize")
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split

    groups = split({"params": list(model.parameters()), "name": "all"})
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "steps_per_print": 1000,
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
    }
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=groups, optimizer=optimizer, config=config)
    losses = s.train(engine, engine.backward, engine.step)
    tokens = int(torch.as_tensor(engine.module.counts).sum().item())
    if tokens != 4:
        raise Wrong(f"{tokens} tokens reached an expert, 4 were sent")
    return {"losses": losses, "facts": {"version": told_version(deepspeed), "tokens": tokens}}


def _megatron(s: Stage, **kwargs: int) -> Any:
    s.enter("import megatron.core")
    if not s.cuda:
        os.environ.update(PRELOAD["megatron"][1])
        hide_toolkit()
    import megatron.core
    from megatron.core import parallel_state

    s.enter("init_process_group")
    s.init_group()
    s.enter("initialize_model_parallel")
    parallel_state.initialize_model_parallel(**kwargs)
    if s.cuda:
        from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

        model_parallel_cuda_manual_seed(123)
    else:
        from megatron.core.tensor_parallel import random

        make = getattr(random, "initialize_rng_tracker", None)  # 0.4 has none
        if make is not None and "inference_rng_tracker" in inspect.signature(make).parameters:
            if hasattr(random, "partial"):  # 0.11 would derive its class from a functools.partial
                random.partial = lambda tracker, **_: tracker
            make(inference_rng_tracker=True)  # keeps no CUDA random state; dropout is off
    return megatron.core


def _megatron_facts(s: Stage, core: Any, asked: Mapping[str, int], **more: object) -> dict[str, object]:
    facts: dict[str, object] = {"version": told_version(core), "backend": s.torch.distributed.get_backend(), **more}
    if HIDDEN:
        facts["toolkit"] = f"{HIDDEN[0]}, out of sight: there is no GPU to compile for"
    if asked:
        facts["stand-in"] = "asked for the current GPU by name; was given the CPU, without CUDA's random state"
        facts["asked for CUDA at"] = dict(sorted(asked.items()))
    return facts


@step_kind("megatron-tp")
def step_megatron_tp(s: Stage) -> dict[str, Any]:
    """ColumnParallelLinear, gelu, RowParallelLinear across all ranks, against the same two layers whole."""
    parallel = bool(s.step.get("sequence_parallel"))
    if not parallel:  # these layers ask for no GPU then
        return _megatron_two_layers(s, parallel, {})
    with cpu_for_cuda(s, "megatron") as asked:
        return _megatron_two_layers(s, parallel, asked)


def _megatron_two_layers(s: Stage, parallel: bool, asked: Mapping[str, int]) -> dict[str, Any]:
    core = _megatron(s, tensor_model_parallel_size=s.size)
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch = s.torch
    s.enter("ColumnParallelLinear, RowParallelLinear")
    config = TransformerConfig(
        num_layers=1, hidden_size=16, num_attention_heads=4, use_cpu_initialization=not s.cuda, sequence_parallel=parallel,
        tensor_model_parallel_size=s.size,
    )  # fmt: skip
    init = torch.nn.init.xavier_normal_
    column = ColumnParallelLinear(16, 32, config=config, init_method=init, bias=True, gather_output=False)
    row = RowParallelLinear(
        32, 16, config=config, init_method=init, bias=True, input_is_parallel=True, skip_bias_add=False
    )
    torch.manual_seed(0)
    whole = [torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)]
    x = torch.randn(6 - 6 % s.size, 2, 16)
    y = x.flip(-1)
    part = slice(s.rank * 32 // s.size, (s.rank + 1) * 32 // s.size)
    with torch.no_grad():
        column.weight.copy_(whole[0].weight[part])
        column.bias.copy_(whole[0].bias[part])
        row.weight.copy_(whole[1].weight[:, part])
        row.bias.copy_(whole[1].bias)
    reference = _two_layers(
        s, x, y, torch.nn.ModuleList(whole), lambda h: whole[1](torch.nn.functional.gelu(whole[0](h))), "reference"
    )
    layers = torch.nn.ModuleList([column, row]).to(s.device)
    x, y = x.to(s.device), y.to(s.device)
    if parallel:
        x, y = x.chunk(s.size)[s.rank], y.chunk(s.size)[s.rank]
    losses = _two_layers(s, x, y, layers, lambda h: row(torch.nn.functional.gelu(column(h)[0]))[0], "train", parallel)
    facts = _megatron_facts(s, core, asked, weight=list(column.weight.shape))
    return {"losses": losses, "reference": reference, "facts": facts}


def _two_layers(
    s: Stage, x: Any, y: Any, layers: Any, forward: Callable[[Any], Any], what: str, parallel: bool = False
) -> list[float]:
    """Losses of a few steps of SGD; under sequence parallelism the loss of the whole is the mean of the parts."""
    torch, losses = s.torch, []
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.05)
    for i in range(TRAIN_STEPS):
        s.enter(f"{what} step {i}")
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(forward(x), y)
        (loss / s.size if parallel else loss).backward()
        if parallel:
            with s.counter.unseen():
                torch.distributed.all_reduce(layers[1].bias.grad)  # only added to this rank's part of the sequence
                loss = loss.detach() / s.size
                torch.distributed.all_reduce(loss)
        optimizer.step()
        losses.append(float(loss.item()))
    return losses


@step_kind("megatron-gpt")
def step_megatron_gpt(s: Stage) -> dict[str, Any]:
    """A GPT of two layers on mock tokens; `tp`, `pp`, `cp`, `ep`, `sequence_parallel` choose how it is spread.

    The weights depend on the parameters' names only, so that every spread starts from the same model and must give the same losses.
    """
    with cpu_for_cuda(s, "megatron") as asked:
        try:
            return _megatron_gpt(s, asked)
        except NameError as error:
            if "te_" not in str(error):
                raise
            # 0.14 to 0.16 name a function of Transformer Engine in the router whether or not it was imported.
            raise Skip(f"this megatron-core needs Transformer Engine for a mixture of experts: {one_line(error, 120)}")


def _megatron_gpt(s: Stage, asked: Mapping[str, int]) -> dict[str, Any]:
    torch = s.torch
    tp, pp, cp, ep = (int(s.step.get(key, 1)) for key in ("tp", "pp", "cp", "ep"))
    sequence = bool(s.step.get("sequence_parallel"))
    sizes = {"pipeline_model_parallel_size": pp, "context_parallel_size": cp, "expert_model_parallel_size": ep}
    core = _megatron(s, tensor_model_parallel_size=tp, **{k: v for k, v in sizes.items() if v > 1})
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    s.enter("GPTModel")
    experts = int(s.step.get("experts", 0))
    mixture: dict[str, Any] = {}
    if experts:
        mixture = {
            "num_moe_experts": experts, "moe_token_dispatcher_type": "alltoall", "moe_router_load_balancing_type": "none", "moe_router_topk": 1,
            "add_bias_linear": False, "moe_router_pre_softmax": True,
        }  # fmt: skip
        known = inspect.signature(TransformerConfig).parameters
        mixture = {key: value for key, value in mixture.items() if key in known}
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=2, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True, pipeline_dtype=torch.float32, hidden_dropout=0.0,
        attention_dropout=0.0, tensor_model_parallel_size=tp, sequence_parallel=sequence, **sizes, **mixture,
    )  # fmt: skip
    if experts and not s.cuda:
        _splits_as_on_a_gpu()
    first, last = _stages_of_pipeline()
    spec = _gpt_spec(s, experts, needs_te=cp > 1, sequence=sequence)
    model = GPTModel(
        config=config, transformer_layer_spec=spec, vocab_size=128, max_sequence_length=32, pre_process=first, post_process=last
    )  # fmt: skip
    _fill_by_name(s, model, tp)
    model = model.to(s.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for i in range(TRAIN_STEPS):
        s.enter(f"train step {i}")
        optimizer.zero_grad()
        loss = _gpt_through_pipeline(s, model, pp) if pp > 1 else _gpt_step(s, model, cp)
        _average_gradients(s, model, cp)
        optimizer.step()
        losses.append(loss)
    return {"losses": losses, "facts": _megatron_facts(s, core, asked, tp=tp, pp=pp, cp=cp, ep=ep)}


def _splits_as_on_a_gpu() -> None:
    """The dispatcher brings the sizes of its pieces to the host when they are on a GPU, as numbers; on the CPU it leaves them tensors, which
    all_to_all_single refuses."""
    from megatron.core.transformer.moe import token_dispatcher

    if hasattr(token_dispatcher, "maybe_move_tensor_to_cpu"):
        token_dispatcher.maybe_move_tensor_to_cpu = lambda tensor, as_numpy=False, record_stream=False: (
            tensor.numpy() if as_numpy and hasattr(tensor, "numpy") else tensor
        )


def _stages_of_pipeline() -> tuple[bool, bool]:
    from megatron.core import parallel_state

    return bool(parallel_state.is_pipeline_first_stage()), bool(parallel_state.is_pipeline_last_stage())


def _gpt_spec(s: Stage, experts: int, needs_te: bool, sequence: bool) -> Any:
    """Megatron's own layers; Transformer Engine's where only they can do it (context parallelism, a layer norm under sequence parallelism)."""
    from megatron.core.models.gpt import gpt_layer_specs

    if needs_te or sequence:
        try:
            import transformer_engine.pytorch  # noqa: F401
        except ImportError as error:
            what = "context parallelism" if needs_te else "sequence parallelism of a whole layer"
            raise Skip(
                f"Megatron has {what} only in Transformer Engine's layers, which cannot be imported: {one_line(error, 120)}"
            )
        return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(num_experts=experts or None)
    return gpt_layer_specs.get_gpt_layer_local_spec(num_experts=experts or None, moe_grouped_gemm=False)


def _fill_by_name(s: Stage, model: Any, tp: int) -> None:
    """Matrices from a generator seeded by their global name: the same model however it is cut. Vectors keep zeros and ones."""
    from megatron.core import parallel_state

    torch = s.torch
    shard = parallel_state.get_tensor_model_parallel_rank()
    layers = model.decoder.layers
    expert_rank = parallel_state.get_expert_model_parallel_rank()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                continue
            name = re.sub(r"layers\.(\d+)\.", lambda m: f"layers.{layers[int(m[1])].layer_number - 1}.", name)
            local = re.search(r"local_experts\.(\d+)\.", name)
            if local:
                count = len(
                    {m[1] for m in (re.search(r"local_experts\.(\d+)\.", n) for n, _ in model.named_parameters()) if m}
                )
                name = name.replace(local[0], f"local_experts.{int(local[1]) + expert_rank * count}.")
            axis = parameter.partition_dim if tp > 1 and getattr(parameter, "tensor_model_parallel", False) else -1
            shape = [n * tp if i == axis else n for i, n in enumerate(parameter.shape)]
            seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
            whole = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.1
            parameter.copy_(whole.chunk(tp, axis)[shard] if axis >= 0 else whole)


def _gpt_batch(s: Stage) -> dict[str, Any]:
    torch = s.torch
    tokens = torch.randint(0, 128, (2, 32), generator=torch.Generator().manual_seed(7)).to(s.device)
    positions = torch.arange(32, device=s.device).unsqueeze(0).expand(2, -1)
    mask = torch.triu(torch.ones(1, 1, 32, 32, dtype=torch.bool, device=s.device), 1)
    return {"tokens": tokens, "labels": tokens.roll(-1, 1), "position_ids": positions, "attention_mask": mask}


def _gpt_step(s: Stage, model: Any, cp: int) -> float:
    """Forward and backward of the whole batch, or of this context-parallel rank's piece of it."""
    torch, batch = s.torch, _gpt_batch(s)
    mask = None if cp > 1 else batch["attention_mask"]
    if cp > 1:
        # Two chunks a rank, one from each end: every rank has the same share of the causal triangle (Megatron's own layout).
        pieces = torch.tensor([s.rank, 2 * cp - 1 - s.rank], device=s.device)
        for key in ("tokens", "labels", "position_ids"):
            shape = (2, 2 * cp, 32 // (2 * cp))
            batch[key] = batch[key].reshape(shape).index_select(1, pieces).reshape(2, -1)
    loss = model(batch["tokens"], batch["position_ids"], mask, labels=batch["labels"]).float().mean()
    loss.backward()
    told = loss.detach().clone()
    if cp > 1:
        with s.counter.unseen():
            torch.distributed.all_reduce(told)
        told /= cp
    return float(told.item())


def _gpt_through_pipeline(s: Stage, model: Any, stages: int) -> float:
    """One forward-and-backward of Megatron's 1F1B schedule over two microbatches; every rank learns the last stage's loss."""
    from megatron.core.pipeline_parallel import get_forward_backward_func

    torch, batch = s.torch, _gpt_batch(s)
    micro = iter([{k: v if k == "attention_mask" else v[i : i + 1] for k, v in batch.items()} for i in range(2)])

    def forward(pieces: Any, module: Any) -> tuple[Any, Any]:
        piece = next(pieces)
        out = module(piece["tokens"], piece["position_ids"], piece["attention_mask"], labels=piece["labels"])

        def loss(output: Any) -> tuple[Any, dict[str, Any]]:
            value = output.float().mean()
            return value, {"loss": value.detach().clone()}

        return out, loss

    told = get_forward_backward_func()(
        forward_step_func=forward, data_iterator=micro, model=[model], num_microbatches=2, seq_length=32, micro_batch_size=1, forward_only=False,
    )  # fmt: skip
    loss = torch.stack([row["loss"] for row in told]).mean() if told else torch.zeros((), device=s.device)
    with s.counter.unseen():
        torch.distributed.broadcast(loss, src=stages - 1)
    return float(loss.item())


def _average_gradients(s: Stage, model: Any, cp: int) -> None:
    """Over the ranks that hold the same parameter; an expert's gradient is summed by its tokens already."""
    from megatron.core import parallel_state

    dist = s.torch.distributed
    group = parallel_state.get_data_parallel_group(**({"with_context_parallel": True} if cp > 1 else {}))
    copies = dist.get_world_size(group)
    if copies == 1:
        return
    for parameter in model.parameters():
        if parameter.grad is None:
            continue
        if getattr(parameter, "allreduce", True):
            dist.all_reduce(parameter.grad, group=group)
        parameter.grad /= copies


@step_kind("megatron-context")
def step_megatron_context(s: Stage) -> dict[str, Any]:
    """Attention over a sequence that is cut between the ranks, by Megatron's all-to-all exchange (sequence for heads and back).

    The whole-layer form of context parallelism is in Transformer Engine; this exchange is Megatron's own and needs no GPU.
    """
    with cpu_for_cuda(s, "megatron") as asked:
        core = _megatron(s, tensor_model_parallel_size=1, context_parallel_size=s.size)
        from megatron.core import parallel_state

        try:
            from megatron.core.ssm import mamba_context_parallel as exchange

            there, back = exchange._all_to_all_cp2hp, exchange._all_to_all_hp2cp
        except (ImportError, AttributeError) as error:
            raise Skip(
                f"megatron-core {core.__version__} has no exchange of sequence for heads: {one_line(error, 120)}"
            )
        group = parallel_state.get_context_parallel_group()
        s.enter("attention")
        reference = _attention_losses(s, slice(None), lambda t: t, lambda t: t)
        piece = slice(s.rank * 8, (s.rank + 1) * 8)
        losses = _attention_losses(s, piece, lambda t: there(t, group), lambda t: back(t, group))
        return {"losses": losses, "reference": reference, "facts": _megatron_facts(s, core, asked, cp=s.size)}


def _attention_losses(s: Stage, piece: slice, there: Callable[[Any], Any], back: Callable[[Any], Any]) -> list[float]:
    """One causal attention layer of eight-wide heads over `8 * ranks` positions; `piece` is this rank's part of them."""
    torch, width = s.torch, 8 * s.size
    torch.manual_seed(0)
    inward, outward = torch.nn.Linear(16, 3 * width).to(s.device), torch.nn.Linear(width, 16).to(s.device)
    x = torch.randn(8 * s.size, 2, 16).to(s.device)
    y = x.roll(1, 0)
    layers = torch.nn.ModuleList([inward, outward])
    optimizer, losses, alone = torch.optim.SGD(layers.parameters(), lr=0.5), [], piece == slice(None)
    for i in range(TRAIN_STEPS):
        s.enter(f"{'reference' if alone else 'train'} step {i}")
        optimizer.zero_grad()
        q, k, v = (there(t.contiguous()) for t in inward(x[piece]).chunk(3, -1))
        heads = [t.reshape(t.shape[0], 2, -1, 8).permute(1, 2, 0, 3) for t in (q, k, v)]
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        out = outward(back(mixed.permute(2, 0, 1, 3).reshape(q.shape).contiguous()))
        loss = torch.nn.functional.mse_loss(out, y[piece])
        loss.backward()
        told = loss.detach().clone()
        if not alone:
            with s.counter.unseen():
                for parameter in layers.parameters():
                    torch.distributed.all_reduce(parameter.grad)
                    parameter.grad /= s.size
                torch.distributed.all_reduce(told)
            told /= s.size
        optimizer.step()
        losses.append(float(told.item()))
    return losses


@step_kind("colossalai")
def step_colossalai(s: Stage) -> dict[str, Any]:
    """A Booster with the plugin that the step names."""
    colossalai = _colossalai_launched(s)
    from colossalai.booster import Booster, plugin as plugins

    s.enter(f"Booster({s.step['plugin']})")
    precision = s.step.get("precision", "bf16")
    kwargs: dict[str, dict[str, Any]] = {
        "TorchDDPPlugin": {}, "TorchFSDPPlugin": {},
        "LowLevelZeroPlugin": {"stage": s.step.get("stage", 1), "precision": precision, "initial_scale": 1.0},
        "GeminiPlugin": {"precision": precision, "initial_scale": 1.0},
    }  # fmt: skip
    model = s.model()
    optimizer = s.optimizer(model)
    if s.step.get("optimizer"):
        from colossalai.nn import optimizer as optimizers

        optimizer = getattr(optimizers, s.step["optimizer"])(model.parameters(), lr=1e-2)
    booster = Booster(plugin=getattr(plugins, s.step["plugin"])(**kwargs[s.step["plugin"]]))
    model, optimizer, *_ = booster.boost(model, optimizer, criterion=lambda out, y: ((out.float() - y) ** 2).mean())

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    losses = s.train(model, lambda loss: booster.backward(loss, optimizer), step)
    facts = _colossalai_facts(s, colossalai, {}, s.step["plugin"])
    return {"losses": losses, "reference": s.reference(), "facts": facts}


@step_kind("colossalai-3d")
def step_colossalai_3d(s: Stage) -> dict[str, Any]:
    """HybridParallelPlugin on a two-layer Llama of random weights: `tp`, `pp` and `zero` choose the three dimensions."""
    colossalai = _colossalai_launched(s)
    s.enter("import transformers")
    import transformers  # noqa: F401
    from colossalai.booster import plugin  # noqa: F401

    with cpu_for_cuda(s, "colossalai") as asked:
        return _colossalai_3d(s, colossalai, asked)


def _colossalai_3d(s: Stage, colossalai: Any, asked: Mapping[str, int]) -> dict[str, Any]:
    from colossalai.booster import Booster
    from colossalai.booster.plugin import HybridParallelPlugin
    from transformers import LlamaConfig, LlamaForCausalLM

    torch = s.torch
    tp, pp, zero = (int(s.step.get(key, default)) for key, default in (("tp", 1), ("pp", 1), ("zero", 0)))
    more: dict[str, object] = {}
    if pp > 1 and not s.cuda:
        more = _names_of_hccl(torch.distributed)
    s.enter("HybridParallelPlugin")
    precision = s.step.get("precision", "fp32")
    options: dict[str, Any] = {
        "tp_size": tp,
        "pp_size": pp,
        "zero_stage": zero,
        "precision": precision,
        "enable_all_optimization": False,
    }
    options.update({"num_microbatches": 2} if pp > 1 else {}, initial_scale=1.0)
    booster = Booster(plugin=HybridParallelPlugin(**options))
    torch.manual_seed(0)
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=128, max_position_embeddings=32, use_cache=False, **shape))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(0, 128, (2, 32), generator=torch.Generator().manual_seed(7)).to(s.device)
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
    reference = _llama_reference(s, model, batch)
    s.enter("booster.boost")
    model, optimizer, criterion, *_ = booster.boost(model, optimizer, criterion=lambda outputs, _: outputs.loss)
    losses = []
    for i in range(TRAIN_STEPS):
        s.enter(f"train step {i}")
        if pp > 1:
            told = booster.execute_pipeline(iter([batch]), model, criterion, optimizer, return_loss=True)["loss"]
            loss = told.detach().clone() if told is not None else torch.zeros((), device=s.device)
            with s.counter.unseen():
                torch.distributed.broadcast(loss, src=s.size - 1)
        else:
            loss = model(**batch).loss
            booster.backward(loss, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.item()))
    facts = _colossalai_facts(s, colossalai, asked, "HybridParallelPlugin", tp=tp, pp=pp, zero=zero, **more)
    return {"losses": losses, "reference": reference, "facts": facts}


def _names_of_hccl(dist: Any) -> dict[str, object]:
    """Colossal-AI's pipeline asks torch for two names of Huawei's backend wherever the group is not NCCL's; torch itself has neither.

    They are given the only true answers, and the record says so: without them every pipeline on gloo ends with an AttributeError
    (`_check_for_nccl_hccl_backend` in pipeline/p2p.py, read in 0.5.0).
    """
    given = []
    if not hasattr(dist.Backend, "HCCL"):
        dist.Backend.HCCL = "hccl"
        given.append("torch.distributed.Backend.HCCL")
    if not hasattr(dist, "is_hccl_available"):
        dist.is_hccl_available = lambda: False
        given.append("torch.distributed.is_hccl_available")
    return {"given, as Colossal-AI asks for them off NCCL": given} if given else {}


def _llama_reference(s: Stage, model: Any, batch: Mapping[str, Any]) -> list[float]:
    """The same model trained here alone."""
    import copy

    alone, losses = copy.deepcopy(model).to(s.device), []
    optimizer = s.torch.optim.AdamW(alone.parameters(), lr=1e-2)
    for i in range(TRAIN_STEPS):
        s.enter(f"reference step {i}")
        loss = alone(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.item()))
    return losses


def _colossalai_launched(s: Stage) -> Any:
    s.enter("import colossalai")
    import colossalai

    s.enter("colossalai.launch_from_torch")
    if "config" in inspect.signature(colossalai.launch_from_torch).parameters:  # before 0.4.0
        colossalai.launch_from_torch(config={})
    else:
        colossalai.launch_from_torch()
    return colossalai


def _colossalai_facts(
    s: Stage, colossalai: Any, asked: Mapping[str, int], plugin: str, **more: object
) -> dict[str, object]:
    from colossalai.accelerator import get_accelerator

    facts: dict[str, object] = {
        "version": told_version(colossalai), "plugin": plugin, "accelerator": get_accelerator().name,
        "backend": s.torch.distributed.get_backend(), **more,
    }  # fmt: skip
    if asked:
        facts["stand-in"] = "asked for the current GPU by name; was given the CPU"
        facts["asked for CUDA at"] = dict(sorted(asked.items()))
    return facts


# --------------------------------------------------------------------------------------------------------------------
# Limits, looked at before a rank is started
# --------------------------------------------------------------------------------------------------------------------

# DeepSpeed's shared-memory op maps 2 x 1 MiB + 2 x 32 MiB per rank (csrc/cpu/comm/shm.cpp, `struct allreduce_workspace`).
DEEPSPEED_SHM = 66 << 20
# NCCL wants 1 GiB of /dev/shm in a container (its own troubleshooting guide); with less than this no pair of ranks has a segment.
NCCL_SHM, NCCL_SHM_FLOOR = 1 << 30, 33 << 20
# What a CUDA context with its kernels takes before the first tensor, and what the quick tier and NCCL's buffers take with it.
GPU_FLOOR, GPU_ROOM = 512 << 20, 2 << 30


def open_files_needed(ranks: int, groups: int) -> int:
    """Descriptors of one rank: Python, torch, logs and store, then for each group a connection to every other rank and gloo's own.

    Measured on torch 2.13 with the quick tier (three groups): 4 ranks fail with 40 and run with 44, 8 ranks fail with 48 and run with 56.
    """
    return 24 + groups * (ranks + 4)


def limit_findings(
    host: Mapping[str, Any], plan: Mapping[str, Any], placement: Mapping[str, Any], cuda: Mapping[str, Any]
) -> list[dict[str, str]]:
    """What of this machine is too small for the run: `error` when it cannot work, `warning` when training will suffer, `note` otherwise."""
    found = [
        *_open_files(host, plan, placement),
        *_shared_memory(host, plan, placement),
        *_memory(host, placement, cuda),
    ]
    memlock = host.get("memlock_bytes")
    if placement["backend"] == "nccl" and isinstance(memlock, int) and memlock < 1 << 30:
        found.append(
            _limit_finding(
                "memlock", "note", f"memlock is limited to {memlock >> 10} KiB: InfiniBand cannot register its buffers",
                "ulimit -l unlimited, docker run --ulimit memlock=-1, in Slurm PropagateResourceLimits or LimitMEMLOCK=infinity of slurmd",
            )
        )  # fmt: skip
    return found


def _limit_finding(limit: str, severity: str, message: str, fix: str) -> dict[str, str]:
    return {"limit": limit, "severity": severity, "message": message, "fix": fix}


def _open_files(host: Mapping[str, Any], plan: Mapping[str, Any], placement: Mapping[str, Any]) -> list[dict[str, str]]:
    files, ranks = host.get("open_files"), int(placement["ranks"])
    if not isinstance(files, int):
        return []
    groups = len({case.get("group", "world") for case in plan.get("cases", ())} | {"world"})
    fix = "ulimit -n 65536, docker run --ulimit nofile=65536, in systemd LimitNOFILE=65536"
    need = open_files_needed(ranks, groups)
    if files < need:
        text = f"{files} open files are allowed, a rank of {ranks} with {groups} groups needs about {need}"
        return [_limit_finding("open files", "error", text, fix)]
    if placement["backend"] == "nccl" and files < 4096:
        text = f"only {files} open files are allowed; NCCL opens hundreds per rank when it trains"
        return [_limit_finding("open files", "warning", text, fix)]
    return []


def _shared_memory(
    host: Mapping[str, Any], plan: Mapping[str, Any], placement: Mapping[str, Any]
) -> list[dict[str, str]]:
    size, free = int(host.get("shm_bytes") or 0), int(host.get("shm_free_bytes") or 0)
    fix = "docker run --shm-size=1g or --ipc=host; in Kubernetes an emptyDir with medium: Memory on /dev/shm"
    nccl = placement["backend"] == "nccl"
    if not size:
        return [_limit_finding("/dev/shm", "warning", "there is no /dev/shm", fix)] if nccl else []
    deepspeed = max(
        (int(s.get("ranks", 2)) for s in plan.get("steps", ()) if str(s.get("kind", "")).startswith("deepspeed")),
        default=0,
    )
    if not nccl and free < deepspeed * DEEPSPEED_SHM:
        text = (
            f"/dev/shm has {free >> 20} MiB free of {size >> 20}: DeepSpeed's op for the CPU takes {DEEPSPEED_SHM >> 20} MiB for each of {deepspeed} "
            "ranks, and a rank that cannot have it is killed by SIGBUS"
        )
        return [_limit_finding("/dev/shm", "error", text, fix)]
    alone = int(placement["ranks"]) == 1  # has nobody to share a segment with
    if nccl and not alone and free < NCCL_SHM_FLOOR and placement["env"].get("NCCL_SHM_DISABLE") != "1":
        return [
            _limit_finding(
                "/dev/shm",
                "error",
                f"/dev/shm has {free >> 20} MiB free of {size >> 20}: NCCL cannot make its segments",
                fix,
            )
        ]
    if host.get("container") and size < NCCL_SHM:
        return [
            _limit_finding(
                "/dev/shm",
                "warning" if nccl else "note",
                f"the container's /dev/shm is {size >> 20} MiB; NCCL wants 1 GiB",
                fix,
            )
        ]
    return []


def _memory(host: Mapping[str, Any], placement: Mapping[str, Any], cuda: Mapping[str, Any]) -> list[dict[str, str]]:
    found = []
    free, ranks = int(host.get("memory_free_bytes") or 0), int(placement["ranks"])
    if 0 < free < ranks * (128 << 20):
        text = f"{free >> 20} MiB of memory are available for {ranks} ranks"
        found.append(_limit_finding("memory", "warning", text, "fewer ranks (--ranks), or a larger memory limit"))
    devices = placement.get("devices") or []
    for device in sorted(set(devices)):
        sharing = list(devices).count(device)
        frees = cuda.get("free") or []
        if device >= len(frees):
            continue
        share = int(frees[device]) // sharing
        if share < GPU_ROOM:
            severity = "error" if share < GPU_FLOOR else "warning"
            text = (
                f"GPU {device} has {int(frees[device]) >> 20} MiB free for {sharing} rank{'s' if sharing > 1 else ''}"
            )
            text += ": not enough for a CUDA context" if severity == "error" else ""
            found.append(
                _limit_finding(
                    "GPU memory",
                    severity,
                    text,
                    "end what else runs there (nvidia-smi), or choose another GPU (CUDA_VISIBLE_DEVICES)",
                )
            )
    return found


# --------------------------------------------------------------------------------------------------------------------
# The supervisor
# --------------------------------------------------------------------------------------------------------------------


def _kill_group(pid: int, number: int) -> None:
    """The rank and what it started: its process group carries its pid. Never anything else."""
    for send in (os.killpg, os.kill):
        try:
            send(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


class Interrupted(Exception):
    """The outer parent went away, or somebody asked us to end."""


class Rank:
    """A rank as its supervisor sees it."""

    def __init__(self, rank: int, log: str) -> None:
        self.rank, self.pid, self.log, self.lines = rank, 0, log, Lines()
        self.code: Optional[int] = None
        self.ended_at = 0.0
        self.offset = 0
        self.ticks = -1
        self.laggard_since = 0.0

    @property
    def alive(self) -> bool:
        return self.code is None


class Supervisor:
    """Starts the nursery, runs one job after the other, watches, and leaves nothing behind."""

    def __init__(self, plan: dict[str, Any], out: Log, *, watch_stdin: bool) -> None:
        self.plan, self.out, self.watch_stdin = plan, out, watch_stdin
        self.board = Board()
        self.directory = tempfile.mkdtemp(prefix="envsmith-smoke-")
        self.sock: Optional[socket.socket] = None
        self.nursery = 0
        self.lines = Lines()
        self.by_pid: dict[int, Rank] = {}
        self.ranks: list[Rank] = []
        self.run = ""
        self.facts: dict[str, Any] = {}
        self.stop: Optional[str] = None
        self.started = time.monotonic()
        self.marks: dict[str, float] = {}
        self.codes: list[int] = []
        self.oom = oom_kills()
        self.cuda: dict[str, Any] = {}
        self.preloaded = ""
        self.not_preloaded: set[str] = set()
        self.looked, self.wanting = 0.0, False

    def emit(self, event: str, **fields: object) -> None:
        self.out.write({"event": event, **fields})

    # -- the whole ---------------------------------------------------------------------------------------------------

    def main(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.emit(
            "hello",
            protocol=PROTOCOL,
            pid=os.getpid(),
            python=platform.python_version(),
            executable=os.path.basename(sys.executable),
        )
        try:
            self._prepare_environment()
            self._start_nursery()
            host = host_facts()
            self.emit("host", **host)
            if not self._await_nursery():
                return self._bye()
            placement = self._place(host)
            if placement is None or not self._within_limits(host, placement):
                return self._bye()
            if self.plan.get("cases"):
                self._collectives(placement)
            for step in self.plan.get("steps", []):
                if self.stop:
                    break
                self._step(step, placement)
        except Interrupted as reason:
            self._end_ranks("interrupted", str(reason))
            self.codes.append(ERROR)
        return self._bye()

    def _signalled(self, number: int, _frame: object) -> None:
        self.stop = f"signal {signal.Signals(number).name}"

    def _prepare_environment(self) -> None:
        """Only what must stand before torch is loaded. Threads would fight: the ranks share the processors.

        torch 2.4 to 2.6 start a pool of compilers with a thread when inductor is imported (not with one "thread"): such a process cannot be forked.
        """
        os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "/usr/bin:/bin")])
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"):
            os.environ.setdefault(name, "1")
        os.environ.update(self.plan.get("env", {}))

    def _start_nursery(self, framework: str = "") -> None:
        ours, theirs = socket.socketpair()
        self.board.clear()
        self.nursery = os.fork()
        if self.nursery == 0:
            ours.close()
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            nursery_main(theirs, self.board, framework)
        theirs.close()
        ours.setblocking(False)
        self.sock = ours
        self.lines = Lines()

    def _await_nursery(self) -> bool:
        began, limit = time.monotonic(), self.plan["timeouts"]["import"]
        while not self.facts:
            alive = self._listen(0.05)
            if self.facts:
                break
            waited = time.monotonic() - began
            late = waited > limit and not self._may_wait([self.nursery], waited, limit)
            if not alive or late:
                self._import_failed(waited if alive else 0.0)
                return False
        if self.facts.get("failed"):
            self.emit(
                "halt", run="import", reason="import", detail=self.facts["failed"], trace=self.facts.get("trace", "")
            )
            self.codes.append(CONFIGURATION)
            return False
        self.marks["import"] = self.facts["seconds"]
        self.emit("loaded", **self.facts["ready"])
        return True

    def _may_wait(self, pids: Sequence[int], waited: float, limit: float) -> bool:
        """Past its limit, but only for want of a processor: up to `PATIENCE` limits."""
        return bool(self.plan.get("patience", True)) and waited < PATIENCE * limit and starved(pids, waited)

    def _import_failed(self, late: float) -> None:
        """`late` are the seconds that it was waited for; none: it ended by itself."""
        code = 0
        if late:
            _kill_group(self.nursery, signal.SIGKILL)
        try:
            status = os.waitpid(self.nursery, 0)[1]
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        except ChildProcessError:
            pass
        self.nursery = 0
        self.emit(
            "halt",
            run="import",
            reason="import",
            detail=f"`import torch` did not end within {late:.0f} s ({busy()})"
            if late
            else f"`import torch` ended the interpreter ({describe_exit(code)})",
        )
        self.codes.append(HANG if late else CRASH)

    # -- where the ranks go ------------------------------------------------------------------------------------------

    def _place(self, host: Mapping[str, Any]) -> Optional[dict[str, Any]]:
        """Backend, number of ranks, devices, variables, and the sentence that says so."""
        ready = self.facts["ready"]
        wanted = self.plan["backend"]
        cuda: dict[str, Any] = {"available": False, "count": 0}
        # A driver may be there without the library that lists its GPUs (WSL, some containers).
        present = host["gpus"] or any(map(os.path.exists, ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")))
        if ready.get("cuda") and (present or wanted == "nccl"):
            cuda = self._ask_cuda()
        usable = bool(cuda["available"]) and bool(ready.get("has_nccl"))
        backend = wanted if wanted != "auto" else ("nccl" if usable else "gloo")
        if not ready.get("distributed") or not ready.get(f"has_{backend}"):
            self._refuse(f"this torch is built without {backend}")
            return None
        if backend == "nccl" and not cuda["available"]:
            self._refuse(
                f"the plan asks for NCCL, but CUDA is not usable here: {cuda.get('error', 'no GPU is visible')}"
            )
            return None
        ranks = int(self.plan["ranks"])
        placement: dict[str, Any] = {
            "backend": backend,
            "ranks": ranks,
            "devices": None,
            "env": {},
            "rank_env": [{} for _ in range(ranks)],
        }
        if backend == "nccl":
            placement = place_nccl(
                ranks,
                int(cuda["count"]),
                str(ready.get("nccl_runtime") or ready.get("nccl") or "0"),
                self.plan,
                self.directory,
            )
        else:
            placement["sentence"] = f"{_ranks(ranks)} on the CPU (gloo over the loopback interface)"
            if "GLOO_SOCKET_IFNAME" not in os.environ:
                placement["env"]["GLOO_SOCKET_IFNAME"] = "lo"
        placement["env"].update(evidence_env(self.directory, backend, str(ready["torch"])))
        if wanted == "auto" and host["gpus"] and backend == "gloo":
            placement["sentence"] += (
                f"; GPUs are present but not usable: {cuda.get('error') or 'this torch has no CUDA or no NCCL'}"
            )
        self.cuda = cuda
        self.emit(
            "placement", cuda=cuda, **{k: placement[k] for k in ("backend", "ranks", "devices", "sentence", "env")}
        )
        return placement

    def _within_limits(self, host: Mapping[str, Any], placement: Mapping[str, Any]) -> bool:
        """Told first; what cannot work is not started. A fault that fills a limit on purpose is past this."""
        findings = limit_findings(host, self.plan, placement, self.cuda)
        self.emit("limits", findings=findings)
        errors = [f for f in findings if f["severity"] == "error"]
        if errors:
            self.emit("halt", run="placement", reason="limits", detail=f"{errors[0]['message']} ({errors[0]['fix']})")
            self.codes.append(MEMORY)
        return not errors

    def _ask_cuda(self) -> dict[str, Any]:
        ranks = self._spawn("cuda-probe", 1, {})
        deadline = time.monotonic() + self.plan["timeouts"]["init"] + self.plan["timeouts"]["first"]
        answer: dict[str, Any] = {"available": False, "count": 0, "error": "CUDA did not answer"}
        while ranks[0].alive and time.monotonic() < deadline:
            self._listen(0.02)
        for row in self._rows(ranks[0]):
            answer = row.get("cuda", answer)
        if ranks[0].alive:
            _kill_group(ranks[0].pid, signal.SIGKILL)
        elif ranks[0].code:
            answer["error"] = f"the process that asked CUDA ended: {describe_exit(ranks[0].code)}"
        return answer

    def _refuse(self, why: str) -> None:
        self.emit("halt", run="placement", reason="configuration", detail=why)
        self.codes.append(CONFIGURATION)

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _job(self, name: str, kind: str, placement: Mapping[str, Any], **more: object) -> dict[str, Any]:
        return {
            "kind": kind, "run": name, "world": placement["ranks"], "backend": placement["backend"], "devices": placement["devices"],
            "env": placement["env"], "rank_env": placement["rank_env"], "sharing": placement.get("sharing", ""), "timeouts": self.plan["timeouts"], "digest": self.plan.get("digest", ""),
            "stack": os.path.join(self.directory, f"{_slug(name)}.%d.stack"), "fault": self.plan.get("fault"), "image": self.plan.get("image"), **more,
        }  # fmt: skip

    def _collectives(self, placement: Mapping[str, Any]) -> None:
        began = time.monotonic()
        job = self._job(
            "collectives",
            "collectives",
            placement,
            cases=self.plan["cases"],
            port=self.plan.get("port"),
            master=self.plan.get("master"),
        )
        self._spawn("collectives", placement["ranks"], job)
        limits = self.plan["timeouts"]
        total = limits["tier"] + (2 * limits["first"] if placement["backend"] == "nccl" else 0.0)
        halted = self._watch(lambda case: self._case_deadline(case, placement), total)
        self.marks["collectives"] = time.monotonic() - began
        if not halted:
            self._exits_event()

    def _case_deadline(self, case: int, placement: Mapping[str, Any]) -> float:
        limits = self.plan["timeouts"]
        if case < 0:
            # NCCL makes its communicator, and CUDA its context, when the group is made: `device_id` is always passed.
            return float(limits["init"] + (limits["first"] if placement["backend"] == "nccl" else 0.0))
        if case < len(self.plan["cases"]):
            own = self.plan["cases"][case].get("deadline")
            if own:
                return float(own)
        first = placement["backend"] == "nccl" and self._is_first(case)
        return float(limits["first"] if first else limits["case"])

    def _is_first(self, case: int) -> bool:
        """The first NCCL operation of a group makes its communicator, and loads kernels."""
        cases = self.plan["cases"]
        if case >= len(cases):
            return False
        key = (cases[case].get("group", "world"), cases[case]["op"], cases[case].get("dtype"))
        return all((c.get("group", "world"), c["op"], c.get("dtype")) != key for c in cases[:case])

    def _step(self, step: Mapping[str, Any], placement: Mapping[str, Any]) -> None:
        name = step["name"]
        if step.get("skip"):
            self.emit("step", step=name, status="skipped", detail=step["skip"])
            return
        if step.get("needs") == "gpu" and placement["backend"] != "nccl" and not step.get("told"):
            self.emit("step", step=name, status="skipped", detail=step.get("why", "needs a GPU"))
            return
        ranks = int(step.get("ranks", 2))
        if placement["devices"] is not None and ranks > placement["ranks"]:
            self.emit(
                "step", step=name, status="skipped", detail=f"needs {ranks} ranks, {placement['ranks']} are placed"
            )
            return
        with socket.socket() as reserved:
            # Bound but not listening: nobody is given this port, and the store may still listen on it.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("", 0))
            mine = {
                **placement,
                "ranks": ranks,
                "devices": placement["devices"][:ranks] if placement["devices"] else None,
            }
            mine["env"] = {**placement["env"], **self._step_env(placement, reserved.getsockname()[1], ranks)}
            mine["rank_env"] = [
                {
                    **placement["rank_env"][r],
                    "RANK": str(r),
                    "LOCAL_RANK": str(mine["devices"][r] if mine["devices"] else r),
                }
                for r in range(ranks)
            ]
            began = time.monotonic()
            if placement["backend"] != "nccl":
                self._preload(str(step["kind"]))
            if not self._nursery_alive():
                return
            fault = self.plan.get("fault")
            self._spawn(
                name,
                ranks,
                self._job(
                    name, "step", mine, step=dict(step), fault=fault if fault and fault.get("step") == name else None
                ),
            )
            limit = float(step.get("deadline", 120))
            halted = self._watch(lambda case: limit, limit)
            self.marks[name] = time.monotonic() - began
            if halted:
                self._drop_locks()
            else:
                self._exits_event()

    def _drop_locks(self) -> None:
        """A rank that was ended while it compiled leaves torch's lock file, and the next step's ranks would wait for it until their own deadline."""
        for folder, _, files in os.walk(os.path.join(self.directory, "torch_extensions_dir")):
            if "lock" in files:
                os.unlink(os.path.join(folder, "lock"))

    def _step_env(self, placement: Mapping[str, Any], port: int, ranks: int) -> dict[str, str]:
        env = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
        }
        if placement["backend"] != "nccl":
            env.update(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="")
        # A home directory may not exist or not be writable, and what a run compiles must not outlive it unless the caller says where.
        for name in ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            if name not in os.environ:
                env[name] = os.path.join(self.directory, name.lower())
        return env

    def _preload(self, kind: str) -> None:
        """A nursery that has the step's framework imported already: every rank is a process of its own still, without its seconds of import.

        Where that does not go (the import fails, is late, or leaves threads behind) the ranks import it themselves, and say how it ends.
        """
        framework = next((name for name in PRELOAD if kind.startswith(name)), "")
        alike = sum(
            str(step["kind"]).startswith(framework)
            for step in self.plan["steps"]
            if step.get("needs") != "gpu" or step.get("told")
        )
        if framework == self.preloaded or framework in self.not_preloaded or (framework and alike < 3):
            return
        self._end_nursery()
        self.facts, self.preloaded = {}, framework
        self._start_nursery(framework)
        began, limit = time.monotonic(), 2 * self.plan["timeouts"]["import"]  # torch, and then the framework
        while not self.facts and self._listen(0.05):
            waited = time.monotonic() - began
            if waited > limit and not self._may_wait([self.nursery], waited, limit):
                break
        why_not = "" if self.facts.get("ready") else str(self.facts.get("failed") or "the import did not end")
        self.emit("preload", framework=framework, detail=why_not, took=self.facts.get("seconds", 0.0))
        if why_not:
            self.not_preloaded.add(framework)
            self.preloaded = ""
            if self.nursery:
                _kill_group(self.nursery, signal.SIGKILL)
            self._end_nursery()

    def _end_nursery(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None
        if self.nursery:
            until = time.monotonic() + 2.0
            while time.monotonic() < until:
                if os.waitpid(self.nursery, os.WNOHANG)[0]:
                    self.nursery = 0
                    return
                time.sleep(0.01)
            os.kill(self.nursery, signal.SIGKILL)
            os.waitpid(self.nursery, 0)
            self.nursery = 0

    def _nursery_alive(self) -> bool:
        self._listen(0)
        if self.sock is not None:
            return True
        self.facts = {}
        self._start_nursery()
        return self._await_nursery()

    def _spawn(self, name: str, ranks: int, job: Mapping[str, Any]) -> list[Rank]:
        self.board.clear()
        self.run, self.ranks, self.by_pid = name, [], {}
        base = os.path.join(self.directory, _slug(name))
        with open(base + ".json", "w") as file:
            json.dump(job, file)
        assert self.sock is not None
        for rank in range(ranks):
            self.ranks.append(Rank(rank, f"{base}.{rank}.jsonl"))
            request = {
                "name": name,
                "rank": rank,
                "job": base + ".json",
                "log": f"{base}.{rank}.jsonl",
                "output": f"{base}.{rank}.out",
            }
            self.sock.sendall(json.dumps(request).encode() + b"\n")
        deadline = time.monotonic() + self.plan["timeouts"]["init"]
        while any(not r.pid for r in self.ranks) and self._listen(0.05) and time.monotonic() < deadline:
            pass
        return self.ranks

    # -- watching ----------------------------------------------------------------------------------------------------

    def _listen(self, wait: float) -> bool:
        """Take what the nursery says; false when it is gone. Raises `Interrupted` when we are to end."""
        if self.stop:
            raise Interrupted(self.stop)
        sources: list[Any] = [self.sock] if self.sock else []
        if self.watch_stdin:
            sources.append(0)
        try:
            ready, _, _ = select.select(sources, [], [], wait)
        except InterruptedError:
            return True
        if 0 in ready and not os.read(0, 1 << 12):
            raise Interrupted("the outer parent closed our input")
        if self.sock in ready and self.sock is not None:
            try:
                data = self.sock.recv(1 << 16)
            except (BlockingIOError, ConnectionResetError):
                data = b""
            if not data:
                self.sock.close()
                self.sock = None
                return False
            for message in self.lines.feed(data):
                self._heard(message)
        return self.sock is not None

    def _heard(self, message: Mapping[str, Any]) -> None:
        if "ready" in message or "failed" in message:
            self.facts = dict(message)
        elif "pid" in message:
            self.ranks[message["rank"]].pid = message["pid"]
            self.by_pid[message["pid"]] = self.ranks[message["rank"]]
        elif message.get("exit") in self.by_pid:
            rank = self.by_pid[message["exit"]]
            rank.code, rank.ended_at = message["status"], time.monotonic()

    def _rows(self, rank: Rank) -> list[dict[str, Any]]:
        try:
            with open(rank.log, "rb") as file:
                file.seek(rank.offset)
                data = file.read()
        except OSError:
            return []
        rank.offset += len(data)
        return list(rank.lines.feed(data))

    def _forward(self) -> None:
        for rank in self.ranks:
            for row in self._rows(rank):
                self.emit("row", run=self.run, **row)

    def _watch(self, deadline_of: Callable[[int], float], total: float) -> bool:
        """Until every rank has ended; true when something had to be ended."""
        began, first = time.monotonic(), None
        while True:
            alive = self._listen(0.02)
            self._forward()
            positions = {r.rank: self.board.row(r.rank) for r in self.ranks}
            if first is None and self.run == "collectives" and all(p[0] >= 0 for p in positions.values()):
                first = time.monotonic() - began
                self.marks["rendezvous"] = first
            bad = [r for r in self.ranks if r.code not in (None, OK)]
            if bad:
                self._linger()
                self._halt("exit", positions)
                return True
            if not any(r.alive for r in self.ranks):
                self._forward()
                return False
            if not alive:
                self._halt("nursery", positions)
                return True
            late = self._late(positions, deadline_of)
            if late:
                self._halt("deadline", positions, **late)
                return True
            waited = time.monotonic() - began
            if waited > total and not self._wanting(self.ranks, waited, total):
                self._halt("total", positions, limit=total)
                return True

    def _wanting(self, ranks: Sequence[Rank], waited: float, total: float) -> bool:
        """Past its limit: whether one of the ranks, or what it started, still only waits for its turn. Looked at once a second."""
        if time.monotonic() >= self.looked + 1.0:
            pids = [pid for rank in ranks if rank.alive and rank.pid for pid in of_session(rank.pid)]
            self.wanting = self._may_wait(pids, waited, total)
            self.looked = time.monotonic()
        return self.wanting

    def _linger(self) -> None:
        """Ranks fall within 0.3 s of each other; wait that long so that the cause is among the dead."""
        until = time.monotonic() + 0.35
        while time.monotonic() < until and any(r.alive for r in self.ranks):
            self._listen(0.02)

    def _late(
        self, positions: Mapping[int, tuple[int, int, float, str]], deadline_of: Callable[[int], float]
    ) -> Optional[dict[str, Any]]:
        """The ranks that are behind all others, when they have been so for longer than their deadline."""
        behind = min(positions[r.rank][:2] for r in self.ranks if r.alive)
        laggards = [r for r in self.ranks if r.alive and positions[r.rank][:2] == behind]
        age = min(positions[r.rank][2] for r in laggards)
        limit = deadline_of(behind[0])
        if age <= limit:
            for rank in laggards:
                rank.ticks = -1
            return None
        return (
            {"limit": limit, "laggards": [r.rank for r in laggards]}
            if age > PATIENCE * limit or not (self._starved(laggards) or self._wanting(laggards, age, limit))
            else None
        )

    def _starved(self, laggards: Sequence[Rank]) -> bool:
        """A rank that waits for a processor is slow, not stuck: give it up to four deadlines. A stuck gloo rank sleeps."""
        working = False
        for rank in laggards:
            state, ticks = process_state(rank.pid)
            if state == "R" and (rank.ticks < 0 or ticks - rank.ticks <= 50):
                working = True
            if rank.ticks < 0:
                rank.ticks = ticks
        return working and self.plan.get("patience", True)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _halt(self, reason: str, positions: Mapping[int, tuple[int, int, float, str]], **more: object) -> None:
        """Write down who is where, take every rank's stack, end what is left, tell."""
        where = []
        for rank in self.ranks:
            case, step, age, signature = positions[rank.rank]
            state = process_state(rank.pid)[0] if rank.alive and rank.pid else ""
            where.append(
                {
                    "rank": rank.rank,
                    "case": case,
                    "step": STEPS[step],
                    "age": round(age, 3),
                    "signature": signature,
                    "state": state,
                    "pid": rank.pid,
                }
            )
        exits = [
            {"rank": r.rank, "code": r.code, "at": round(r.ended_at - self.started, 3)}
            for r in self.ranks
            if not r.alive
        ]
        leftover = self._end_ranks_only()
        self._forward()
        shm_size, shm_free = shm_bytes()
        self.emit(
            "halt", run=self.run, reason=reason, where=where, exits=exits, stacks=self._stacks(), output=self._outputs(), unkillable=leftover,
            oom_kills=oom_kills() - self.oom, shm_bytes=shm_size, shm_free_bytes=shm_free, **more,
        )  # fmt: skip
        self.codes.append(
            HANG if reason in ("deadline", "total") else CRASH if any((e["code"] or 0) < 0 for e in exits) else ERROR
        )

    def _stack_path(self, rank: int) -> str:
        return os.path.join(self.directory, f"{_slug(self.run)}.{rank}.stack")

    def _stacks(self) -> dict[str, list[str]]:
        """The innermost frames of each rank's main thread, as faulthandler wrote them."""
        found = {}
        for rank in self.ranks:
            text = read_text(self._stack_path(rank.rank))
            block = text.rpartition("Current thread")[2] or text.rpartition("Thread 0x")[2]
            frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', block)
            if frames:
                found[str(rank.rank)] = [
                    f"{function} ({os.path.basename(file)}:{line})" for file, line, function in frames[:8]
                ]
        return found

    def _outputs(self) -> dict[str, str]:
        found = {}
        for rank in self.ranks:
            text = tail_text(os.path.join(self.directory, f"{_slug(self.run)}.{rank.rank}.out"))
            text += tail_text(os.path.join(self.directory, f"nccl.{rank.rank}.log"))
            if text.strip():
                found[str(rank.rank)] = text
        return found

    def _end_ranks_only(self) -> list[int]:
        """Stacks, a moment, SIGTERM, SIGKILL: each to the pid that we started. Returns the ranks that survive even that."""
        living = [r for r in self.ranks if r.alive and r.pid]
        self.board.dump = True
        for rank in living:
            try:
                os.kill(rank.pid, signal.SIGUSR1)
            except ProcessLookupError:
                pass
        self._wait_ranks(0.25, lambda: False)
        for number, patience in ((signal.SIGTERM, 0.3), (signal.SIGKILL, 2.0)):
            for rank in self.ranks:
                if rank.alive and rank.pid:
                    _kill_group(rank.pid, number)
            self._wait_ranks(patience, lambda: not any(r.alive and r.pid for r in self.ranks))
        for rank in self.ranks:
            if rank.pid and not rank.alive:
                _kill_group(rank.pid, signal.SIGKILL)  # helpers that outlived their rank
        return [r.rank for r in self.ranks if r.alive and r.pid and process_state(r.pid)[0] not in ("", "Z")]

    def _wait_ranks(self, limit: float, enough: Callable[[], bool]) -> None:
        until = time.monotonic() + limit
        while time.monotonic() < until and not enough():
            stop, self.stop, watch, self.watch_stdin = self.stop, None, self.watch_stdin, False
            try:
                if not self._listen(0.02):
                    time.sleep(0.02)
            finally:
                self.stop, self.watch_stdin = stop, watch

    def _end_ranks(self, reason: str, detail: str) -> None:
        leftover = self._end_ranks_only()
        try:
            self.emit("halt", run=self.run or "start", reason=reason, detail=detail, unkillable=leftover)
        except OSError:
            pass  # nobody listens any more

    def _exits_event(self) -> None:
        self._forward()
        self.emit(
            "end", run=self.run, exits=[{"rank": r.rank, "code": r.code} for r in self.ranks], output=self._warnings()
        )

    def _warnings(self) -> dict[str, str]:
        """What NCCL warned about although all went well: transport lines are evidence, one for each pair of ranks and way."""
        found = {}
        for rank in self.ranks[:8]:
            text = read_text(os.path.join(self.directory, f"nccl.{rank.rank}.log"), 1 << 20)
            lines = [
                re.sub(r"Channel \d+(?:/\d+)? : ", "Channel : ", line)
                for line in text.splitlines()
                if re.search(r"WARN|via |Using network|NET/|NVLS|Init COMPLETE", line)
            ]
            if lines:
                found[str(rank.rank)] = "\n".join(dict.fromkeys(lines))[:4000]
        return found

    def _bye(self) -> int:
        left: list[int] = []
        self._end_nursery()
        left = self._adopted()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.marks["total"] = time.monotonic() - self.started
        code = next((c for c in self.codes if c), OK)
        try:
            self.emit("bye", seconds={k: round(v, 3) for k, v in self.marks.items()}, leftover=left, code=code)
        except OSError:
            pass
        return code

    def _adopted(self) -> list[int]:
        """Orphans of our ranks became our children (we are their subreaper): end and count them."""
        found = []
        for _ in range(20):
            try:
                children = read_text(f"/proc/self/task/{os.getpid()}/children").split()
                for child in map(int, children):
                    found.append(child)
                    os.kill(child, signal.SIGKILL)
                if not os.waitpid(-1, 0 if children else os.WNOHANG)[0]:
                    break
            except (ChildProcessError, ProcessLookupError):
                break
        return sorted(set(found))


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name)


def describe_exit(code: Optional[int]) -> str:
    """`killed by SIGSEGV`, `exit code 4`."""
    if code is None:
        return "still running"
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"


def evidence_env(directory: str, backend: str, torch_version: str) -> dict[str, str]:
    """The switches that make torch and NCCL leave evidence. torch calls the old names deprecated where it knows the new ones."""
    old = tuple(int(part) for part in re.findall(r"\d+", torch_version)[:2]) < (2, 10)
    env = {"TORCH_NCCL_TRACE_BUFFER_SIZE" if old else "TORCH_FR_BUFFER_SIZE": "2000"}
    if directory:
        env["TORCH_NCCL_DEBUG_INFO_TEMP_FILE" if old else "TORCH_FR_DUMP_TEMP_FILE"] = os.path.join(directory, "fr_")
    if backend == "nccl":
        env.update({
            "TORCH_FR_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC": "2000",
            "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "2000", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "30",
            "TORCH_NCCL_COORD_CHECK_MILSEC": "1000", "TORCH_NCCL_PROPAGATE_ERROR": "1", "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "INFO"),
            "NCCL_DEBUG_SUBSYS": os.environ.get("NCCL_DEBUG_SUBSYS", "INIT,NET,P2P,SHM,ENV"),
        })  # fmt: skip
    return env


def place_nccl(ranks: int, gpus: int, nccl: str, plan: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """One rank per GPU when there are enough; otherwise several on one, by the way that this NCCL knows.

    From 2.30 on NCCL_MULTI_RANK_GPU_ENABLE allows it (P2P and shared memory are used); older ones refuse equal bus ids on one host, so that
    each rank claims to be a host of its own (sockets only). Neither says anything about NVLink, and the sentence says which one it was.
    """
    env = _engine_env(plan)
    wanted = str(plan.get("sharing") or "")
    if gpus >= ranks and not wanted:
        devices = list(range(ranks))
        return {
            "backend": "nccl",
            "ranks": ranks,
            "devices": devices,
            "env": env,
            "rank_env": [_nccl_log(directory, r) for r in devices],
            "sentence": f"{ranks} ranks on {ranks} GPUs" if ranks > 1 else "1 rank on 1 GPU",
        }
    if wanted:
        gpus = 1  # the first one holds them all, however many there are
    if gpus == 1:
        ranks = min(ranks, 2)  # NCCL documents two ranks on one GPU
    devices = [rank % gpus for rank in range(ranks)]
    rank_env = [_nccl_log(directory, r) for r in range(ranks)]
    for rank in range(ranks):
        shared, how = sharing_env(nccl, rank, wanted)
        if "NCCL_HOSTID" in shared:
            rank_env[rank]["NCCL_HOSTID"] = shared.pop("NCCL_HOSTID")
            shared["NCCL_SOCKET_IFNAME"] = "lo"  # one host: the ranks only claim to be several
        env.update(shared)
    sentence = (
        f"{ranks} ranks on {gpus} GPU{'s' if gpus > 1 else ''} ({how}); this proves nothing about NVLink or the network"
    )
    return {
        "backend": "nccl",
        "ranks": ranks,
        "devices": devices,
        "env": env,
        "rank_env": rank_env,
        "sentence": sentence,
        "sharing": sharing_way(nccl, wanted),
    }


def _ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"


def _nccl_log(directory: str, rank: int) -> dict[str, str]:
    return {"NCCL_DEBUG_FILE": os.path.join(directory, f"nccl.{rank}.log")}


# --------------------------------------------------------------------------------------------------------------------
# Started by torchrun, srun or mpirun: every process is one rank and watches itself and, on rank 0, the others
# --------------------------------------------------------------------------------------------------------------------


def discover(env: Mapping[str, str], flags: Mapping[str, Any]) -> Optional[dict[str, Any]]:
    """Rank, world, local rank, master and port; flags first, then torchrun, Slurm, Open MPI, PMI. `None`: nobody started us as a rank."""
    if flags.get("rank") is not None and flags.get("world_size") is not None:
        found: dict[str, Any] = {
            "how": "flags",
            "rank": flags["rank"],
            "world": flags["world_size"],
            "local": flags.get("local_rank") or 0,
        }
    elif "RANK" in env and "WORLD_SIZE" in env:
        found = {"how": "torchrun", "rank": env["RANK"], "world": env["WORLD_SIZE"], "local": env.get("LOCAL_RANK", 0)}
    elif "SLURM_PROCID" in env and int(env.get("SLURM_NTASKS", "1")) > 1:
        found = {
            "how": "slurm",
            "rank": env["SLURM_PROCID"],
            "world": env["SLURM_NTASKS"],
            "local": env.get("SLURM_LOCALID", 0),
        }
    elif "OMPI_COMM_WORLD_RANK" in env:
        found = {
            "how": "openmpi",
            "rank": env["OMPI_COMM_WORLD_RANK"],
            "world": env["OMPI_COMM_WORLD_SIZE"],
            "local": env.get("OMPI_COMM_WORLD_LOCAL_RANK", 0),
        }
    elif "PMI_RANK" in env and "PMI_SIZE" in env:
        found = {
            "how": "pmi",
            "rank": env["PMI_RANK"],
            "world": env["PMI_SIZE"],
            "local": env.get("MPI_LOCALRANKID", 0),
        }
    else:
        return None
    for key in ("rank", "world", "local"):
        found[key] = int(found[key])
    found["master"] = flags.get("master_addr") or env.get("MASTER_ADDR") or first_host(env) or "127.0.0.1"
    port = flags.get("master_port") or env.get("ENVSMITH_MASTER_PORT")
    if not port and env.get("MASTER_PORT"):
        port = int(env["MASTER_PORT"]) + (
            1 if found["how"] == "torchrun" else 0
        )  # torchrun's own store listens on MASTER_PORT
    if not port and env.get("SLURM_JOB_ID", "").isdigit():
        port = 20000 + int(env["SLURM_JOB_ID"]) % 20000
    found["port"] = int(port) if port else 29411
    return found


def first_host(env: Mapping[str, str]) -> Optional[str]:
    """The first node of a Slurm list: `node[03-05,9],x` is node03."""
    text = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or ""
    found = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\])?", text)
    return (found[1] + (found[2] or "")) if found else None


def direct_main(plan: dict[str, Any], place: dict[str, Any], out: Log) -> NoReturn:
    """One rank that somebody else started. Progress goes through the store, so that rank 0 can name who is behind.

    Ends the process by `os._exit`: what is left of torch may take its time over an orderly end, and the others wait for our connections.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # before torch makes threads: `_direct_told` takes it
    import torch

    torch.set_num_threads(1)
    rank, world = place["rank"], place["world"]
    facts = loaded_facts()
    gpus = torch.cuda.device_count() if facts.get("cuda") else 0
    backend = plan["backend"] if plan["backend"] != "auto" else ("nccl" if gpus and facts.get("has_nccl") else "gloo")
    nccl = str(facts.get("nccl_runtime") or facts.get("nccl") or "0")
    placement = place_direct(place, os.environ, gpus if backend == "nccl" else 0, nccl, plan)
    job: dict[str, Any] = {
        "kind": "collectives", "run": "collectives", "rank": rank, "world": world, "backend": backend, "direct": True,
        "devices": placement["devices"], "env": {**placement["env"], **evidence_env("", backend, str(facts["torch"]))}, "timeouts": plan["timeouts"],
        "digest": plan.get("digest", ""), "cases": plan["cases"], "master": place["master"], "sharing": placement.get("sharing", ""),
        "port": place["port"], "fault": plan.get("fault"), "image": plan.get("image"), "local": place["local"],
    }  # fmt: skip
    nodes = int(plan.get("nodes") or 1)
    job["env"].update(plan.get("env") or {})
    if nodes > 1 and backend == "gloo" and "GLOO_SOCKET_IFNAME" not in {**os.environ, **job["env"]}:
        job["env"].update(_interface_towards(place["master"], place["port"]))
    os.environ.update(job["env"])
    if rank == 0:
        out.write(
            {
                "event": "hello",
                "protocol": PROTOCOL,
                "pid": os.getpid(),
                "python": platform.python_version(),
                "launcher": place["how"],
                # With this a reader of the logs alone can make the plan again.
                "plan": {
                    **{k: plan.get(k) for k in ("tier", "backend", "engine", "digest")},
                    "ranks": world,
                    "nodes": nodes,
                },
            }
        )
        out.write({"event": "host", **host_facts()})
        out.write({"event": "loaded", **facts})
        out.write(
            {
                "event": "placement",
                "backend": backend,
                "ranks": world,
                "devices": job["devices"],
                "sentence": placement["sentence"],
                "env": placement["env"],
            }
        )
    board = Board()
    board.clear()
    log = _TaggedLog(out.fd, "collectives", getattr(out, "kept", None))
    log.write({"row": "node", "rank": rank, "node": node_name(plan, rank)})
    heard = _Heard()
    for guard, more in ((_direct_told, (board, out, log)), (_direct_watch, (board, out, heard))):
        threading.Thread(target=guard, args=(job, *more), daemon=True).start()
    code = ERROR
    try:
        code = rank_main(job, board, log)
    except BaseException:
        traceback.print_exc()
    heard.failed = code != OK
    out.write({"event": "end", "run": "collectives", "exits": [{"rank": rank, "code": code}]})
    until = time.monotonic() + 1.5
    while heard.failed and not heard.told and time.monotonic() < until:
        time.sleep(0.02)  # the others end because of us; say so before our connections close
    _direct_share(job, out, 15.0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def node_name(plan: Mapping[str, Any], rank: int) -> str:
    """What the person calls this node: the name in the plan, Slurm's, or the machine's own."""
    names = plan.get("node_of_rank") or []
    if rank < len(names):
        return str(names[rank])
    number = os.environ.get("GROUP_RANK")
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname() + (f" (node {number})" if number else "")


def _interface_towards(host: str, port: int) -> dict[str, str]:
    """The interface from which the master is reached. Gloo takes the one that the host's own name resolves to, which is often loopback."""
    import fcntl

    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(address)  # sends nothing
            mine = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                try:
                    answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                except OSError:
                    continue
                if socket.inet_ntoa(answer[20:24]) == mine:
                    return {"GLOO_SOCKET_IFNAME": name}
    except (OSError, AttributeError, IndexError):
        pass
    return {}


class _KeepingLog(Log):
    """Remembers what it wrote, for the nodes that cannot read this one's output."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.kept: list[Mapping[str, object]] = []

    def write(self, row: Mapping[str, object]) -> None:
        self.kept.append(row)
        super().write(row)


def _direct_share(job: Mapping[str, Any], out: Log, limit: float) -> None:
    """Exchange events through the store: the first rank of every node writes down those of all, so that every node comes to the same verdict.

    What a rank that is stuck or dead did not share is waited for until `limit`. Rank 0 owns the store and stays until the others have read.
    """
    if not isinstance(out, _KeepingLog):
        return
    import torch.distributed as dist

    rank, world, until = job["rank"], job["world"], time.monotonic() + limit
    kept = list(out.kept)
    try:
        store = dist.TCPStore(job["master"], job["port"], world, False, seconds(limit), wait_for_workers=False)
        store.set(f"events/{rank}", json.dumps(kept, default=str))
        for other in range(world) if job["local"] == 0 else ():
            if other == rank:
                continue
            while not stored(store, f"events/{other}") and time.monotonic() < until:
                time.sleep(0.05)
            for row in json.loads(store.get(f"events/{other}")) if stored(store, f"events/{other}") else ():
                Log.write(out, row)
        store.set(f"read/{rank}", "1")
        while rank == 0 and time.monotonic() < until and not all(stored(store, f"read/{r}") for r in range(world)):
            time.sleep(0.05)
    except Exception as error:
        Log.write(
            out,
            {
                "event": "row",
                "run": "collectives",
                "row": "note",
                "rank": rank,
                "detail": f"no exchange of results: {one_line(error)}",
            },
        )


def ranks_here(env: Mapping[str, str], world: int) -> int:
    """How many ranks this node has, as the launcher says; all of them where it says nothing."""
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        if env.get(name, "").isdigit():
            return max(1, int(env[name]))
    # "2(x3),1": the tasks of each node of the step; the largest is what the GPUs must bear.
    counts = re.findall(
        r"(\d+)(?:\(x\d+\))?", env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or ""
    )
    return max((int(count) for count in counts), default=world)


def place_direct(
    place: Mapping[str, Any], env: Mapping[str, str], gpus: int, nccl: str, plan: Mapping[str, Any]
) -> dict[str, Any]:
    """This rank's device and variables under torchrun, srun or mpirun. Several ranks share a GPU there as they do under our own supervisor."""
    world, local, here = int(place["world"]), int(place["local"]), ranks_here(env, int(place["world"]))
    nodes = int(plan.get("nodes") or 1)
    started = (
        f"{world} ranks{f' on {nodes} nodes' if nodes > 1 else ''} started by {plan.get('launcher') or place['how']}"
    )
    if not gpus:
        return {"devices": None, "env": {}, "sentence": started}
    if (
        gpus == 1
        and env.get("CUDA_VISIBLE_DEVICES", "").count(",") == 0
        and here > 1
        and env.get("SLURM_GPUS_PER_TASK")
    ):
        # Slurm shows each task its own GPU as number 0: they are not shared.
        return {"devices": [0] * world, "env": _engine_env(plan), "sentence": started + ", a GPU for each"}
    # Only this rank's entry is used; the others are told apart by their manifests.
    devices = [local % gpus] * world
    if here <= gpus:
        return {"devices": devices, "env": _engine_env(plan), "sentence": started}
    shared, how = sharing_env(nccl, int(place["rank"]))
    more = "" if here <= 2 * gpus else "; NCCL documents two ranks on a GPU, not more"
    sentence = f"{started}, {here} a node on {gpus} GPU{'s' if gpus > 1 else ''} ({how}); this proves nothing about NVLink or the network{more}"
    return {
        "devices": devices,
        "env": {**_engine_env(plan), **shared},
        "sentence": sentence,
        "sharing": sharing_way(nccl),
    }


def _engine_env(plan: Mapping[str, Any]) -> dict[str, str]:
    """Which of torch 2.15's engines; nothing where the plan leaves it to torch."""
    engine = str(plan.get("engine") or "")
    return {"TORCH_DIST_USE_NCCL2": "0" if engine == "legacy" else "1"} if engine in ("legacy", "2") else {}


def sharing_way(nccl: str, wanted: str = "") -> str:
    """How ranks share a GPU: what is `wanted`, or `multi-rank` from NCCL 2.30 on and `hostid` before."""
    version = tuple(int(part) for part in re.findall(r"\d+", nccl)[:2])
    return wanted or ("multi-rank" if version >= (2, 30) else "hostid")


def sharing_env(nccl: str, rank: int, wanted: str = "") -> tuple[dict[str, str], str]:
    """Variables with which several ranks may share a GPU, and how that is called. `rank` is the rank in the world: no two hosts have the same."""
    # torch's symmetric memory has a refusal of its own; with this it leaves multicast out instead.
    both = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"}
    if sharing_way(nccl, wanted) == "multi-rank":
        env = {**both, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "1"}
        return env, "NCCL_MULTI_RANK_GPU_ENABLE, P2P and shared memory"
    env = {
        **both,
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_IB_DISABLE": "1",
        "NCCL_HOSTID": f"envsmith-rank-{rank}",
    }
    return env, "NCCL_HOSTID, sockets"


class _TaggedLog(Log):
    """Rows of a rank that has no supervisor go straight to its output."""

    def __init__(self, fd: int, run: str, kept: Optional[list[Mapping[str, object]]] = None) -> None:
        super().__init__(fd)
        self.run, self.kept = run, kept

    def write(self, row: Mapping[str, object]) -> None:
        event = {"event": "row", "run": self.run, **row}
        if self.kept is not None:
            self.kept.append(event)
        super().write(event)


class _Heard:
    """What the guards of a rank share. `places` and `ticks` are rank 0's: what each rank told last and when, and the processor time it had then."""

    def __init__(self) -> None:
        self.at = time.monotonic()
        self.halt = ""
        self.failed = False  # this rank's own end is an error
        self.told = False  # and rank 0 can know it
        self.places: dict[int, tuple[str, float]] = {}
        self.ticks: dict[int, int] = {}


def _direct_told(job: Mapping[str, Any], board: Board, out: Log, log: Log) -> None:
    """A launcher ends the ranks that are left when one has failed: say that it was so, or this rank would pass for one that died by itself."""
    signal.sigwait({signal.SIGTERM})
    case, step, age, signature = board.row(job["rank"])
    where = {"case": case, "step": STEPS[step], "age": round(age, 3), "signature": signature}
    log.write({"row": "told", "rank": job["rank"], "signal": "SIGTERM", **where})
    _direct_share(job, out, 6.0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)  # its action is the default one: the launcher sees the end that it asked for


def _direct_watch(job: Mapping[str, Any], board: Board, out: Log, heard: _Heard) -> None:
    """Judge what the teller hears; it may itself be stuck in a store whose owner, rank 0, is stopped."""
    rank, limits = job["rank"], job["timeouts"]
    threading.Thread(target=_direct_tell, args=(job, board, heard), daemon=True).start()
    while True:
        time.sleep(0.25)
        case, step, age, signature = board.row(rank)
        if case == FINISHED or heard.failed:
            return
        silent = time.monotonic() - heard.at
        if not heard.halt and (case < 0 or silent < limits["case"] + 2 or age < limits["case"]):
            continue
        if heard.halt:
            halt = json.loads(heard.halt)
        else:
            here = {"rank": rank, "case": case, "step": STEPS[step], "age": round(age, 3), "signature": signature, "state": "", "pid": os.getpid()}  # fmt: skip
            owner = _process(job, 0)
            halt = {"event": "halt", "run": "collectives", "reason": "store", "where": [here], "silent": round(silent, 1), "owner": owner}  # fmt: skip
        if rank == 0 or not heard.halt:
            out.write(halt)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        _end_laggards(halt, rank, 7.0 if isinstance(out, _KeepingLog) else 2.0)
        _direct_share(job, out, 6.0)
        os._exit(HANG)


def _process(job: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The process of a rank, as its manifest tells it, and its state."""
    own = job["peers"][rank] if job.get("peers") else {}
    row = {"pid": own.get("pid", 0), "started": own.get("started", 0), "space": own.get("space", "")}
    return {**row, "state": _state(row)}


def _state(row: Mapping[str, Any]) -> str:
    """The kernel's letter for a rank in our space of pids, nothing for one elsewhere or gone."""
    here = row.get("pid") and row.get("space") == process_space() and process_started(row["pid"]) == row.get("started")
    return process_state(row["pid"])[0] if here else ""


def _end_laggards(halt: Mapping[str, Any], rank: int, patience: float) -> None:
    """Give who is behind a moment to end by itself, then end it, where it is ours to see: a launcher waits half a minute for a stopped rank."""
    late = [row for row in halt["where"] if row["rank"] in halt.get("laggards", ()) and row["rank"] != rank]
    late += [halt["owner"]] if halt.get("owner") else []
    until = time.monotonic() + patience
    time.sleep(0.5)
    while time.monotonic() < until and any(_state(row) not in ("", "T", "Z") for row in late):
        time.sleep(0.05)
    for row in late:
        if _state(row) not in ("", "Z"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(row["pid"], signal.SIGKILL)


def _direct_tell(job: Mapping[str, Any], board: Board, heard: _Heard) -> None:
    """Publish where this rank is, four times a second; rank 0 reads all, names the laggards and tells every rank to end."""
    import torch.distributed as dist

    rank, world, limits = job["rank"], job["world"], job["timeouts"]
    while board.row(rank)[0] < MANIFEST:
        time.sleep(0.1)
    try:
        store = dist.TCPStore(job["master"], job["port"], world, False, seconds(limits["init"]), wait_for_workers=False)
        while not heard.halt:
            failed, (case, step, age, signature) = heard.failed, board.row(rank)
            moved = round(time.monotonic() - age, 1)
            store.set(f"at/{rank}", json.dumps([case, step, signature, moved, failed]))
            heard.told = heard.told or failed
            if stored(store, "halt"):
                heard.halt = store.get("halt").decode()
            elif rank == 0:
                heard.halt = _direct_judge(store, job, heard)
                if heard.halt:
                    store.set("halt", heard.halt)
            heard.at = time.monotonic()
            time.sleep(0.05 if heard.failed else 0.25)
    except Exception:
        return  # the watch notices the silence


def _direct_judge(store: Any, job: Mapping[str, Any], heard: _Heard) -> str:
    """A halt event when a rank failed a second ago and others are still here, or when the laggards are late; nothing otherwise."""
    now, rows, limits = time.monotonic(), [], job["timeouts"]
    for rank in range(job["world"]):
        nothing = json.dumps([START, PREP, "", 0, False])
        text = store.get(f"at/{rank}").decode() if stored(store, f"at/{rank}") else nothing
        if heard.places.get(rank, ("", 0.0))[0] != text:
            heard.places[rank] = (text, now)
        case, step, signature, _, failed = json.loads(text)
        where = {"rank": rank, "case": case, "step": STEPS[step], "signature": signature, "failed": failed}
        rows.append({**where, "age": round(now - heard.places[rank][1], 3), **_process(job, rank)})
    ended = [row for row in rows if row["failed"]]
    orders = [(row["case"], STEPS.index(row["step"])) for row in rows]
    # A rank in a case proves that every rank is past the stages before the first one, whatever it told last.
    behind, ahead = min(orders), max(orders)
    laggards = [row for row, order in zip(rows, orders) if order == behind]
    nccl = job["backend"] == "nccl"
    starting = limits["init"] + (limits["first"] if nccl else 0.0)
    limit = starting if ahead[0] < 0 else limits["first" if behind[0] == 0 and nccl else "case"]
    age = min(row["age"] for row in laggards)
    if ended:
        # They lose their connections to it and say so themselves, or the launcher ends them; NCCL may do neither.
        laggards, late = [row for row in rows if not row["failed"]], max(row["age"] for row in ended) > 1.0
    else:
        late = behind[0] != FINISHED and age > limit and (age > 4 * limit or not _waits(laggards, heard))
    if not late:
        if age <= limit:
            heard.ticks.clear()
        return ""
    halt: dict[str, Any] = {
        "event": "halt",
        "run": "collectives",
        "reason": "raised" if ended else "deadline",
        "where": rows,
        "stacks": {},
    }
    exits = [{"rank": row["rank"], "code": ERROR} for row in ended]
    return json.dumps({**halt, "exits": exits, "laggards": [row["rank"] for row in laggards], "limit": limit})


def _waits(laggards: Sequence[Mapping[str, Any]], heard: _Heard) -> bool:
    """Does one of them only wait for a processor? As `Supervisor._starved`, for the ranks that we can see."""
    waits = False
    for row in laggards:
        ticks = process_state(row["pid"])[1] if row["state"] else 0
        waits = waits or (row["state"] == "R" and ticks - heard.ticks.setdefault(row["rank"], ticks) <= 50)
    return waits


# --------------------------------------------------------------------------------------------------------------------
# Start
# --------------------------------------------------------------------------------------------------------------------


def parse_flags(argv: Sequence[str]) -> dict[str, Any]:
    import argparse

    parser = argparse.ArgumentParser(description="Smoke test of the interpreter that runs this file.")
    parser.add_argument(
        "mode", nargs="?", default="file", choices=("file", "supervise", "rank"), help=argparse.SUPPRESS
    )
    parser.add_argument("--plan", help="the plan, a JSON file: `Plan.build(…).to_json()`")
    parser.add_argument("--events", help="append JSON lines here (%%r is the rank) instead of standard output")
    for name in ("--rank", "--world-size", "--local-rank", "--master-port"):
        parser.add_argument(name, type=int)
    parser.add_argument("--master-addr")
    return vars(parser.parse_args(list(argv)))


def private_output() -> Log:
    """Our own copy of standard output; whatever else prints goes to standard error, so that the events stay whole."""
    sys.stdout.flush()
    log = Log(os.dup(1))
    os.dup2(2, 1)
    return log


def _end_with_input() -> None:
    """Whoever started this rank from another machine holds its input open; when that ends, so does the rank."""
    while os.read(0, 1 << 16):
        pass
    os._exit(ERROR)


def main(argv: Sequence[str]) -> int:
    flags = parse_flags(argv)
    if flags["mode"] == "supervise":
        plan = json.loads(sys.stdin.buffer.readline())
        return Supervisor(plan, private_output(), watch_stdin=True).main()
    if flags["mode"] == "rank":
        plan = json.loads(sys.stdin.buffer.readline())
        threading.Thread(target=_end_with_input, daemon=True).start()
    elif flags["plan"]:
        with open(flags["plan"]) as file:
            plan = json.load(file)
    else:
        sys.stderr.write("agent: --plan FILE is needed\n")
        return CONFIGURATION
    place = discover(os.environ, flags)
    out = private_output()
    if flags["events"]:
        name = flags["events"].replace("%r", str(place["rank"] if place else 0))
        out = Log(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644))
    if plan.get("gather"):
        out = _KeepingLog(out.fd)
    if place is None or place["world"] == 1:
        return Supervisor(plan, out, watch_stdin=False).main()
    return direct_main(plan, place, out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
