"""All of it at once, in under a second."""

# ruff: noqa: PTH110, PTH112, PTH113, PTH118, PTH208
# Plain os calls: a diagnosis looks at hundreds of paths within its second, and a Path for each is most of that.

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from envsmith.agent.health import infiniband, report_apart
from envsmith.agent.machine import shm_bytes
from envsmith.base.interpreter import python_in
from envsmith.base.programs import execute
from envsmith.base.schema import parse_json, parse_value
from envsmith.doctor.facts import THIS_MACHINE, Draft, Facts, Read, StatedVersion
from envsmith.doctor.library_copies import libraries_of, libstdcxx_of, nccl_of, text_of
from envsmith.doctor.read.lines import (
    OWN_PREFIXES,
    cuda_of_level,
    first_version,
    fold,
    gpu_architecture,
    note_distribution,
)
from envsmith.doctor.read.logs import read_log
from envsmith.frameworks import added_frameworks
from envsmith.lock.index.python_files import minors_here
from envsmith.smoke.health import HealthReport
from envsmith.smoke.machine_faults import problems_text, state_problems

# The machine at hand -> facts: everything a diagnosis needs, read from files and a few short commands; torch is not
# imported.
#
# Under one second: distributions are read by their ``METADATA`` heads, libraries found by looking into the folders
# that the loader and the wheels use, the driver through ``/proc`` and NVML. ``deep`` starts the environment's Python
# and imports what is installed.


# Environment variables that anything we judge reads.
WATCHED = re.compile(
    rf"(?:NCCL|TORCH|PYTORCH|CUDA|GLOO|DS|NVTE|UCX|OMPI_MCA|FI|TRITON|ACCELERATE|MASTER|MPI|{OWN_PREFIXES})_\w+"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|CPATH|LIBRARY_PATH|PATH|CUDA_HOME|CUDA_PATH|CC|CXX|NVCC_PREPEND_FLAGS|RANK|WORLD_SIZE"
    r"|LOCAL_RANK|OMP_NUM_THREADS|MAX_JOBS|PYTHONPATH|CONDA_PREFIX|VIRTUAL_ENV|SLURM_\w{1,40}"
)


# What a look at the machine may raise: what it looks at cannot be read.
UNREADABLE = (OSError, ValueError, subprocess.SubprocessError)


def interpreter_of(python: str | None) -> Path:
    """Return the interpreter whose environment is judged: the one named, that of the active environment, or our own."""
    if python:
        return Path(python)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        candidate = python_in(Path(os.environ.get(name, "/nonexistent")))
        if candidate.exists():
            return candidate
    return Path(sys.executable)


def collect(python: str | None = None, *, deep: bool = False) -> Facts:
    """Return the facts of this machine and of the environment of ``python``.

    What cannot be read is left out, and nothing is raised.
    """
    draft = Draft()
    interpreter = interpreter_of(python)
    draft.host["environment"] = str(interpreter.parent.parent)
    notes: list[str] = []
    _variables(draft)
    site = python_of(draft, interpreter, notes)
    distributions(draft, site)
    lost_files(draft, site)
    torch_of(draft, site)
    for step in (driver, gpus, toolkit, compilers, limits, shm, network, container, fabric, system):
        with contextlib.suppress(*UNREADABLE):
            step(draft)
    programs(draft, interpreter)
    libraries_of(draft, site)
    libstdcxx_of(draft, interpreter)
    if deep:
        import_what_is_there(draft, interpreter, notes)
    facts = draft.done()
    kinds = (THIS_MACHINE, f"environment of {interpreter}")
    read = Read(source="host", kinds=kinds, lines=0, characters=0, facts=facts.count, notes=tuple(notes))
    draft.read.append(read)
    return draft.done()


def _variables(draft: Draft) -> None:
    for name, value in os.environ.items():
        if WATCHED.fullmatch(name):
            draft.variable(name, value)
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home and ":" not in home:
        draft.host["cuda_home_exists"] = "yes" if os.path.isdir(home) else "no"


# The environment of one interpreter: its Python, its distributions, its torch, files that are gone; with ``deep``,
# what can be imported.


_OWN = "|".join(name.replace("-", "_") for name in added_frameworks())
_VITAL = re.compile(rf"torch|nvidia_\w+|triton|flash_attn|transformer_engine\w*|numpy|{_OWN}")


def python_of(draft: Draft, interpreter: Path, notes: list[str]) -> list[Path]:
    """Add the version of the interpreter and return its site folders, without starting it where that is possible."""
    if interpreter.resolve() == Path(sys.executable).resolve() and interpreter.parent == Path(sys.executable).parent:
        draft.component("python", ".".join(map(str, sys.version_info[:3])), str(interpreter), 4)
        draft.tools["python"] = str(interpreter)
        return [Path(p) for p in sys.path if p.endswith(("site-packages", "dist-packages")) and os.path.isdir(p)]
    root = interpreter.parent.parent
    text = text_of(root / "pyvenv.cfg")
    version = re.search(r"^version(?:_info)?\s*=\s*(3\.\d+\.\d+)", text, re.MULTILINE)
    folders = sorted(root.glob("lib*/python3.*/site-packages"))
    if version and folders and not _reaches_out(text, folders):
        draft.component("python", version[1], str(interpreter), 4)
        return folders
    program = "import sys;print(sys.version.split()[0], *(p for p in sys.path if 'packages' in p), sep='\\n')"
    answer = output_of([str(interpreter), "-I", "-c", program], 5.0).split("\n")
    if answer and (release := first_version(answer[0])):
        draft.component("python", release, str(interpreter), 4)
        return [Path(p) for p in answer[1:] if p and os.path.isdir(p)]
    notes.append(f"{interpreter} cannot be started: its packages were not looked at")
    return folders


def _reaches_out(config: str, folders: Iterable[Path]) -> bool:
    """Return whether the environment sees more than its own folder: the system's, or what a ``.pth`` file names."""
    if re.search(r"^include-system-site-packages\s*=\s*true", config, re.MULTILINE):
        return True
    lines = (line for folder in folders for path in folder.glob("*.pth") for line in text_of(path, 20_000).split("\n"))
    return any(line.strip() and not line.startswith(("#", "import ", "import\t")) for line in lines)


def distributions(draft: Draft, site: Iterable[Path]) -> None:
    """Add name and version of every ``*.dist-info``, as pip finds them.

    A folder without METADATA is a broken installation.
    """
    torsos = []
    for folder in site:
        try:
            entries = sorted(
                entry.name for entry in os.scandir(folder) if entry.name.endswith((".dist-info", ".egg-info"))
            )
        except OSError:
            continue
        for entry in entries:
            name, _, version = entry.rsplit(".", 1)[0].partition("-")
            path, first = folder / entry, draft.distributions.get(fold(name), version)
            if not ((path / "METADATA").exists() or (path / "PKG-INFO").exists() or path.is_file()):
                torsos.append(name)
            elif first != version:
                draft.disagreements.append(f"{fold(name)}: {first} and {version} are both installed ({folder})")
            else:
                note_distribution(draft, name, version.split("-py3")[0], str(folder), 4)
    if torsos:
        draft.host["broken_distributions"] = ", ".join(torsos[:20])


def lost_files(draft: Draft, site: Iterable[Path]) -> None:
    """Add shared libraries that ``RECORD`` of torch and its companions names and that are gone."""
    lost, owners = [], []
    for folder in site:
        for info in folder.glob("*.dist-info"):
            if not _VITAL.fullmatch(info.name.partition("-")[0].lower()):
                continue
            names = re.findall(r"^([^,\n]{1,200}\.so(?:\.\d+)*),", text_of(info / "RECORD", 4_000_000), re.MULTILINE)
            if gone := [name for name in names[:400] if not os.path.exists(folder / name)]:
                name, _, version = info.name.removesuffix(".dist-info").partition("-")
                lost += gone
                owners.append(f"{fold(name)}=={version}")
    if lost:
        draft.host["lost_owners"] = " ".join(owners[:20])
        draft.host["lost_files"] = ", ".join(lost[:8]) + (f" and {len(lost) - 8} more" if len(lost) > 8 else "")


def torch_of(draft: Draft, site: Iterable[Path]) -> None:
    """Add what the files of torch say: version.py names CUDA, a header names NCCL."""
    for folder in site:
        source = f"{folder}/torch/version.py"
        text = text_of(source, 4000)
        if not text:
            continue
        if match := re.search(r"__version__\s*=\s*'([^']{1,60})'", text):
            draft.components["torch"] = StatedVersion(version=match[1], source=source, strength=4)
        if cuda := re.search(r"^cuda[^=]{0,40}=\s*(?:'([\d.]+)'|None)", text, re.MULTILINE):
            draft.components["cuda"] = StatedVersion(version=cuda[1] or "cpu", source=source, strength=4)
        header = folder / "nvidia" / "nccl" / "include" / "nccl.h"
        if version := nccl_of(header):
            draft.components["nccl"] = StatedVersion(version=version, source=str(header), strength=4)
        return


_MODULES = (
    "torch",
    *(f.module for f in added_frameworks().values()),
    "transformer_engine.pytorch",
    "flash_attn",
    "triton",
    "numpy",
)
_PROBE = """
import json, sys
out = {}
for name in sys.argv[1:]:
    try:
        module = __import__(name, fromlist=["x"])
        out[name] = str(getattr(module, "__version__", "imported"))
        if name == "torch":
            out["cuda"] = str(module.version.cuda)
            out["available"] = str(module.cuda.is_available())
            if module.cuda.is_available():
                out["nccl"] = ".".join(map(str, module.cuda.nccl.version()))
                out["arch_list"] = " ".join(module.cuda.get_arch_list())
    except ModuleNotFoundError as error:
        if error.name and not name.startswith(error.name.split(".")[0]):
            out["!" + name] = repr(error)[:600]
    except BaseException as error:
        import traceback
        out["!" + name] = "".join(traceback.format_exception_only(type(error), error))[:600]
print("ENVSMITH " + json.dumps(out))
"""


def import_what_is_there(draft: Draft, interpreter: Path, notes: list[str]) -> None:
    """Import what is installed in the judged environment.

    Its errors become a text for the signatures (``host["deep"]``).
    """
    text = output_of([str(interpreter), "-c", _PROBE, *_MODULES], 120.0)
    line = next((row for row in text.split("\n") if row.startswith("ENVSMITH ")), None)
    if line is None:
        notes.append("--deep: the interpreter ended without an answer")
        draft.host["deep"] = text[-4000:]
        return
    answer = parse_json(line.removeprefix("ENVSMITH "))
    notes.append("--deep: imported " + ", ".join(f"{n} {v}" for n, v in answer.items() if not n.startswith("!"))[:400])
    errors = [f"{name.removeprefix('!')}: {value}" for name, value in answer.items() if name.startswith("!")]
    draft.host["deep"] = "\n".join([*errors, *(row for row in text.split("\n") if not row.startswith("ENVSMITH "))])[
        :20_000
    ]
    if "nccl" in answer:
        draft.component("nccl", answer["nccl"], "torch.cuda.nccl.version()", 4)


# The NVIDIA driver and the GPUs, through ``/proc`` and NVML, without torch.


def driver(draft: Draft) -> None:
    """Add the version of the kernel driver."""
    text = text_of("/proc/driver/nvidia/version", 4000)
    if match := re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d{3}\.\d+(?:\.\d+)?)", text):
        draft.component("driver", match[1], "/proc/driver/nvidia/version", 4)


def gpus(draft: Draft) -> None:
    """Add the GPUs: by NVML (milliseconds), else by the banner of nvidia-smi."""
    draft.host["gpu_number"] = "known"
    if _nvml(draft):
        return
    if smi := shutil.which("nvidia-smi"):
        read_log(output_of([smi], 4.0) + "\n" + output_of([smi, "-L"], 4.0), draft, "nvidia-smi")
    if not draft.gpus and not Path("/dev/nvidia0").exists():
        draft.gpu_count = None
        draft.host["gpu"] = "none"


def _nvml(draft: Draft) -> bool:
    report = parse_value(HealthReport, report_apart(30.0))
    if version := first_version(report.driver):
        draft.component("driver", version, "NVML", 4)
    if level := cuda_of_level(str(report.cuda_level)):
        draft.host["driver_cuda"] = level
    for gpu in report.gpus:
        if gpu.name:
            draft.gpu(gpu.name)
        if architecture := gpu.arch or gpu_architecture(gpu.name):
            draft.component("gpu", architecture, "NVML", 4 if gpu.arch else 3)
    if problems := state_problems(report):
        draft.host["health"] = problems_text(problems)
    return bool(draft.gpus)


# How this machine is looked at: short commands and small files; what cannot be had is an empty text.


def output_of(command: list[str], seconds: float = 2.0) -> str:
    """Return standard output and error of a command, or nothing when it is absent, fails or takes too long."""
    try:
        run = execute(command, seconds=seconds)
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout[:200_000] + run.stderr[:20_000]


# The machine around the environment: toolkit, compilers, limits, network, container, programs.


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
    """Add the nvcc that torch.utils.cpp_extension takes: of CUDA_HOME, else of PATH, else of /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = [os.path.join(home, "bin", "nvcc")] if home else []
    on_path = shutil.which("nvcc")
    candidates += [on_path] if on_path else []
    candidates.append("/usr/local/cuda/bin/nvcc")
    nvcc = next((path for path in candidates if os.path.isfile(path)), None)
    draft.tools["nvcc"] = nvcc
    if nvcc is None:
        return
    stated = text_of(Path(nvcc).resolve().parent.parent / "version.json", 3000)
    match = re.search(r"\"version\"\s*:\s*\"(\d+\.\d+)", stated)
    if match := match or re.search(r"release (\d+\.\d+)", output_of([nvcc, "--version"])):
        draft.component("toolkit", match[1], nvcc, 4)
    if on_path and home and Path(on_path).resolve() != Path(nvcc).resolve():
        draft.disagreements.append(f"toolkit: CUDA_HOME has {nvcc}, PATH has {on_path}")


def compilers(draft: Draft) -> None:
    """Add the host compiler: what ``CXX`` names, else the first on PATH."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler:
        text = output_of([compiler, "--version"])
        if match := re.search(r"(\d{1,2}\.\d{1,2}\.\d{1,2})", text):
            draft.component("clang" if "clang" in text else "gcc", match[1], compiler, 4)


def limits(draft: Draft) -> None:
    """Add the limits of locked memory and open files."""
    import resource

    for name, what in (("memlock", resource.RLIMIT_MEMLOCK), ("nofile", resource.RLIMIT_NOFILE)):
        soft, _ = resource.getrlimit(what)
        draft.limits[name] = -1 if soft == resource.RLIM_INFINITY else soft


def shm(draft: Draft) -> None:
    """Add the size of /dev/shm and what is free of it."""
    size, free = shm_bytes()
    if size:
        draft.limits.update(shm=size, shm_free=free)


def network(draft: Draft) -> None:
    """Add the network interfaces, and whether there are InfiniBand cards."""
    draft.interfaces += sorted(os.listdir("/sys/class/net"))
    draft.host["interfaces"] = "all"
    cards = os.listdir("/sys/class/infiniband") if os.path.isdir("/sys/class/infiniband") else []
    draft.host["infiniband"] = "present" if cards else "none"
    adapters = infiniband()
    if "InfiniBand" in adapters["active"]:
        draft.host["infiniband_active"] = ", ".join(adapters["active"]["InfiniBand"])
        draft.host["infiniband_devices"] = "yes" if adapters["devices"] else "no"
        draft.host["peer_memory"] = "yes" if adapters["peer_memory"] else "no"


def container(draft: Draft) -> None:
    """Add which kind of container this is, if it is one."""
    control = text_of("/proc/1/cgroup", 4000)
    marks = (
        ("docker", os.path.exists("/.dockerenv") or "docker" in control),
        ("podman", os.path.exists("/run/.containerenv")),
        ("kubernetes", "kubepods" in control or "KUBERNETES_SERVICE_HOST" in os.environ),
        ("apptainer", "APPTAINER_CONTAINER" in os.environ or "SINGULARITY_CONTAINER" in os.environ),
    )
    inside = [name for name, is_there in marks if is_there]
    draft.host["in_container"] = ", ".join(inside) or "no"


def fabric(draft: Draft) -> None:
    """Add whether NVIDIA's fabric manager runs, where there are GPUs."""
    if not draft.gpus:
        return
    names = [text_of(f"/proc/{pid}/comm", 40).strip() for pid in os.listdir("/proc") if pid.isdigit()]
    draft.host["fabric_manager"] = "running" if any(n.startswith("nv-fabricmanag") for n in names) else "not seen"


def system(draft: Draft) -> None:
    """Add distribution, kernel, machine type, C library, and the Pythons that environments can be made with."""
    import platform

    text = text_of("/etc/os-release", 4000)
    match = re.search(r'^PRETTY_NAME="?([^"\n]{1,80})', text, re.MULTILINE)
    draft.host["os"] = match[1] if match else platform.system()
    draft.host["kernel"] = platform.release()
    draft.host["machine"] = platform.machine()
    draft.host["pythons"] = " ".join(minors_here())
    library, version = platform.libc_ver()
    if library == "glibc" and version:
        draft.component("glibc", version, "the running interpreter", 4)


def programs(draft: Draft, interpreter: Path) -> None:
    """Add the programs that builds and launchers call. The environment's own ``bin`` counts, as when it is active."""
    path = f"{interpreter.parent}:{os.environ.get('PATH', '')}"
    for name in _TOOLS:
        if name != "nvcc":
            draft.tools[name] = shutil.which(name, path=path)
    python = draft.components.get("python")
    series = f"python{'.'.join(python.version.split('.')[:2])}" if python else "python3"
    roots = (Path("/usr/include"), interpreter.resolve().parent.parent / "include")
    headers = (root / series / "Python.h" for root in roots)
    draft.tools["Python.h"] = next((str(header) for header in headers if header.exists()), None)
