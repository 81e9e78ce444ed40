"""The machine around the environment: toolkit, compilers, limits, network, container, programs."""

# ruff: noqa: PTH110, PTH112, PTH113, PTH118, PTH208, S108
# Plain os calls: a diagnosis looks at hundreds of paths within its second, and a Path for each is most of that.

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from envsmith.sources.host.looking import output_of, text_of
from envsmith.sources.reports.facts import Draft

__all__ = ["compilers", "container", "fabric", "limits", "network", "programs", "shm", "system", "toolkit"]

_TOOLS = (
    "ninja",
    "nvcc",
    "gcc",
    "c++",
    "cmake",
    "make",
    "git",
    "which",
    "ld",
    "pdsh",
    "ssh",
    "mpirun",
    "ibstat",
    "nvidia-smi",
    "docker",
    "python3-config",
)


def toolkit(draft: Draft) -> None:
    """The nvcc that a build takes: of CUDA_HOME, else of PATH, else of /usr/local/cuda, as torch.utils.cpp_extension looks for it."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = [os.path.join(home, "bin", "nvcc")] if home else []
    on_path = shutil.which("nvcc")
    found += [on_path] if on_path else []
    found.append("/usr/local/cuda/bin/nvcc")
    nvcc = next((path for path in found if os.path.isfile(path)), None)
    draft.tools["nvcc"] = nvcc
    if nvcc is None:
        return
    told = re.search(
        r"\"version\"\s*:\s*\"(\d+\.\d+)", text_of(Path(nvcc).resolve().parent.parent / "version.json", 3000)
    )
    text = "" if told else output_of([nvcc, "--version"])
    match = told or re.search(r"release (\d+\.\d+)", text)
    if match:
        draft.component("toolkit", match[1], nvcc, 4)
    if on_path and home and Path(on_path).resolve() != Path(nvcc).resolve():
        draft.disagreements.append(f"toolkit: CUDA_HOME has {nvcc}, PATH has {on_path}")


def compilers(draft: Draft) -> None:
    """The host compiler: what ``CXX`` names, else the first on PATH."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler:
        text = output_of([compiler, "--version"])
        match = re.search(r"(\d{1,2}\.\d{1,2}\.\d{1,2})", text)
        if match:
            draft.component("clang" if "clang" in text else "gcc", match[1], compiler, 4)


def limits(draft: Draft) -> None:
    """Limits of the process: locked memory and open files."""
    import resource

    for name, what in (("memlock", resource.RLIMIT_MEMLOCK), ("nofile", resource.RLIMIT_NOFILE)):
        soft, _ = resource.getrlimit(what)
        draft.limits[name] = -1 if soft == resource.RLIM_INFINITY else soft


def shm(draft: Draft) -> None:
    """The size of /dev/shm and what is free of it, in bytes."""
    status = os.statvfs("/dev/shm")
    draft.limits["shm"] = status.f_frsize * status.f_blocks
    draft.limits["shm_free"] = status.f_frsize * status.f_bavail


def network(draft: Draft) -> None:
    """The names of the network interfaces, and whether there are InfiniBand cards."""
    draft.interfaces += sorted(os.listdir("/sys/class/net"))
    draft.host["interfaces"] = "all"
    cards = os.listdir("/sys/class/infiniband") if os.path.isdir("/sys/class/infiniband") else []
    draft.host["infiniband"] = "present" if cards else "none"


def container(draft: Draft) -> None:
    """Whether this is a container, and of which kind."""
    control = text_of("/proc/1/cgroup", 4000)
    marks = (
        ("docker", os.path.exists("/.dockerenv") or "docker" in control),
        ("podman", os.path.exists("/run/.containerenv")),
        ("kubernetes", "kubepods" in control or "KUBERNETES_SERVICE_HOST" in os.environ),
        ("apptainer", "APPTAINER_CONTAINER" in os.environ or "SINGULARITY_CONTAINER" in os.environ),
    )
    inside = [name for name, seen in marks if seen]
    draft.host["in_container"] = ", ".join(inside) or "no"


def fabric(draft: Draft) -> None:
    """Whether NVIDIA's fabric manager runs; asked only where there are GPUs."""
    if not draft.gpus:
        return
    names = [text_of(f"/proc/{pid}/comm", 40).strip() for pid in os.listdir("/proc") if pid.isdigit()]
    draft.host["fabric_manager"] = "running" if any(n.startswith("nv-fabricmanag") for n in names) else "not seen"


def system(draft: Draft) -> None:
    """Distribution, kernel, machine type and C library."""
    import platform

    text = text_of("/etc/os-release", 4000)
    match = re.search(r'^PRETTY_NAME="?([^"\n]{1,80})', text, re.MULTILINE)
    draft.host["os"] = match[1] if match else platform.system()
    draft.host["kernel"] = platform.release()
    draft.host["machine"] = platform.machine()
    library, version = platform.libc_ver()
    if library == "glibc" and version:
        draft.component("glibc", version, "the running interpreter", 4)


def programs(draft: Draft, interpreter: Path) -> None:
    """Programs that builds and launchers call; the environment's own ``bin`` counts, as when it is active."""
    path = f"{interpreter.parent}:{os.environ.get('PATH', '')}"
    for name in _TOOLS:
        if name != "nvcc":
            draft.tools[name] = shutil.which(name, path=path)
    include = Path(
        f"/usr/include/python{'.'.join((draft.components['python'].version if 'python' in draft.components else '3.0').split('.')[:2])}/Python.h"
    )
    near = interpreter.resolve().parent.parent / "include" / include.parent.name / "Python.h"
    draft.tools["Python.h"] = next((str(p) for p in (include, near) if p.exists()), None)
