"""Facts of the machine and of what is loaded: GPUs, memory, versions. None of them names a host or a user."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import resource
from collections.abc import Iterable
from typing import Any

from envsmith.agent.health import inventory
from envsmith.agent.processes import fork_bound, processors, read_text
from envsmith.agent.protocol import Facts, Row, one_line

# The frameworks' distributions; the registry of steps fills it.
FRAMEWORKS: list[str] = []
DISTRIBUTIONS = (
    "transformer-engine", "flash-attn", "apex", "transformers", "pydantic", "ninja",
    "nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
    "nvidia-cudnn-cu11", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13",
    "nvidia-cuda-runtime-cu11", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime",
)  # fmt: skip


def memory_info() -> dict[str, int]:
    """Return what the kernel says of the machine's memory, in bytes."""
    return {name: int(size) * 1024 for name, size in re.findall(r"(\w+):\s+(\d+) kB", read_text("/proc/meminfo"))}


def memory_limit() -> tuple[int, int]:
    """Return the bytes of memory in all and available now: the machine's or the control group's, whichever is less.

    A group's usage counts the page cache, which the kernel gives back: what of it is not in use is available, as on the
    machine itself.
    """
    info = memory_info()
    total, free = info.get("MemTotal", 0), info.get("MemAvailable", 0)
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, used = read_text(limit_file).strip(), read_text(used_file).strip()
        if limit.isdigit() and used.isdigit() and int(limit) < total:
            cached = re.search(
                r"^(?:total_)?inactive_file (\d+)$",
                read_text(os.path.dirname(limit_file) + "/memory.stat"),
                re.MULTILINE,
            )
            in_use = int(used) - (int(cached[1]) if cached else 0)
            total, free = int(limit), max(0, min(free, int(limit) - in_use))
    return total, free


def oom_kills() -> int:
    """Count the processes of this control group that the kernel has killed for memory."""
    count = re.search(r"^oom_kill (\d+)", read_text("/sys/fs/cgroup/memory.events"), re.MULTILINE)
    return int(count[1]) if count else 0


def shm_bytes() -> tuple[int, int]:
    """Return size and free bytes of /dev/shm, zeros where there is none."""
    try:
        stat = os.statvfs("/dev/shm")
    except OSError:
        return 0, 0
    return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail


def host_facts(report: Row | None = None) -> Facts:
    """Return what a failure is most often blamed on, before anything runs. No host name, no user name.

    ``report`` is what NVML said, where it was asked already.
    """
    total, free = memory_limit()
    shm_size, shm_free = shm_bytes()
    report = inventory() if report is None else report
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', read_text("/etc/os-release"), re.MULTILINE))
    return {
        "cpus": processors(),
        "memory_bytes": total, "memory_free_bytes": free, "shm_bytes": shm_size, "shm_free_bytes": shm_free,
        "memlock_bytes": _limit(resource.RLIMIT_MEMLOCK), "open_files": _limit(resource.RLIMIT_NOFILE),
        "kernel": platform.release(), "machine": platform.machine(), "os": release.get("PRETTY_NAME", ""),
        "container": os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"),
        "driver": report.get("driver", ""),
        "gpus": [{k: v for k, v in gpu.items() if k != "health"} for gpu in report.get("gpus", ())],
    }  # fmt: skip


def _limit(which: int) -> object:
    soft = resource.getrlimit(which)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else soft


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Read what the cell's metadata says of these packages."""
    from importlib import metadata

    versions = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except (metadata.PackageNotFoundError, ValueError, TypeError):
            continue
    return versions


def loaded_facts() -> Facts:
    """Return what is really loaded. The caller has imported torch, and may fork ranks that use CUDA afterwards.

    A child is asked. torch uses CUDA itself for some of the questions (`cudnn.version()` looks at the GPUs in 2.11, the
    list of architectures counts them), and then refuses CUDA to all that the process forks. A process that uses CUDA
    already answers itself: its child could not.
    """
    import torch

    if torch.cuda.is_initialized():
        return _loaded(torch)
    ours, theirs = os.pipe()
    pid = fork_bound()
    if pid == 0:
        try:
            with open(theirs, "w") as answer:
                json.dump(_loaded(torch), answer)
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    if not text:
        raise RuntimeError("torch could not be asked what it has loaded: the process that asked it ended")
    return dict(json.loads(text))


def _loaded(torch: Any) -> Facts:
    facts: Facts = {
        "python": platform.python_version(), "glibc": " ".join(platform.libc_ver()), "torch": str(torch.__version__),
        "torch_git": getattr(torch.version, "git_version", None), "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "cxx11_abi": bool(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", False)),
        "installed": installed_versions(("torch", "numpy", "triton", *FRAMEWORKS, *DISTRIBUTIONS)),
        "arch_list": _arch_list(torch), "numpy": _numpy_version(),
    }  # fmt: skip
    import torch.distributed as dist

    facts["distributed"] = dist.is_available()
    for name in ("gloo", "nccl", "mpi", "ucc", "xccl"):
        probe = getattr(dist, f"is_{name}_available", None)
        facts[f"has_{name}"] = bool(probe and probe())
    facts.update(_cuda_libraries(torch))
    return facts


def _numpy_version() -> str | None:
    try:
        import numpy as np
    except ImportError:
        return None
    return str(np.__version__)


def _arch_list(torch: Any) -> list[str]:
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return (flags() or "").split() if flags else []


def _cuda_libraries(torch: Any) -> Facts:
    """Return NCCL as torch reports it and as the loaded library says, and cuDNN's runtime version."""
    facts: Facts = {}
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


def _nccl_runtime() -> str | None:
    """Return the version of the libnccl that is mapped into this process, when it is a library of its own."""
    library = re.search(r"(/\S*libnccl\.so\S*)", read_text("/proc/self/maps", 1 << 22))
    if not library:
        return None
    number = ctypes.c_int(0)
    if ctypes.CDLL(library[1]).ncclGetVersion(ctypes.byref(number)) != 0:
        return None
    value = number.value
    return (
        f"{value // 10000}.{value // 100 % 100}.{value % 100}"
        if value >= 10000
        else f"{value // 1000}.{value // 100 % 10}.{value % 100}"
    )


def cuda_probe() -> Facts:
    """Start CUDA and return what it says. Run in a process of its own, because a context does not survive a fork."""
    import torch

    facts: Facts = {"available": False, "count": 0}
    try:
        facts["count"] = torch.cuda.device_count()
        facts["available"] = torch.cuda.is_available()
        if facts["available"]:
            torch.zeros(1, device="cuda").add_(1).item()  # is there a kernel for this architecture?
            facts["free"] = [torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())]
            capabilities = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
            facts["arch"] = [f"sm_{major}{minor}" for major, minor in capabilities]
    except Exception as error:
        facts["available"] = False
        facts["error"] = one_line(error)
    return facts
