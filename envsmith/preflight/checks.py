"""The checks of the preflight: what each rank says of itself, and what differs, is too old or too small."""

from __future__ import annotations

import ctypes
import difflib
import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from envsmith.agent.machine import host_facts, installed_versions, loaded_facts
from envsmith.agent.processes import read_text
from envsmith.agent.protocol import one_line
from envsmith.agent.world import ALSO_TELLING, TELLING, most_common
from envsmith.base.schema import AsJson

# Ranks of one job that differ here compute different things or do not understand each other.
_MUST_AGREE = ("torch", "torch_git", "cuda", "nccl", "nccl_runtime")
# As the frameworks must, which ``known.json`` names.
_EXTENSIONS = ("transformer-engine", "flash-attn", "apex")
_NCCL_PACKAGES = ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")


ERROR, WARNING, NOTE = "error", "warning", "note"


class GpuFacts(TypedDict, total=False):
    """What a rank says of its GPU. ``error`` is what CUDA said where no kernel of this torch runs on it."""

    index: int
    error: str | None
    count: int
    name: str
    uuid: str
    arch: str
    free: int
    total: int


class RankFacts(TypedDict, total=False):
    """What a rank says of itself, as JSON that the other ranks read. A rank of another release may leave fields out."""

    rank: int
    python: str | None
    torch: str | None
    torch_git: str | None
    cuda: str | None
    nccl: str | None
    nccl_runtime: str | None
    numpy: str | None
    driver: str | None
    memory_bytes: int | None
    memory_free_bytes: int | None
    shm_bytes: int | None
    shm_free_bytes: int | None
    memlock_bytes: int | str | None
    open_files: int | str | None
    container: bool | None
    installed: dict[str, str]
    arch_list: list[str]
    has_nccl: bool
    has_gloo: bool
    nccl_path: str | None
    driver_cuda: str
    host: str
    pid: int
    local: int
    infiniband: bool
    gpus: int
    env: dict[str, str]
    gpu: GpuFacts | None
    cuda_usable: bool


@dataclass(frozen=True)
class RankFinding(AsJson):
    """One thing that is wrong: ``severity`` is ``error``, ``warning`` or ``note``; ``ranks`` are those that it is about."""

    check: str
    severity: str
    ranks: tuple[int, ...]
    message: str
    fix: str = ""


def name_of(facts: Sequence[RankFacts], ranks: Iterable[int]) -> str:
    """Name ranks: ``rank 2``, ``ranks 4-7 (node b)`` where there are several nodes."""
    numbers = sorted(ranks)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spans = [f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    words = ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(spans)
    by_rank = {int(f["rank"]): f for f in facts}
    hosts = {str(f.get("host")) for f in facts}
    at = {str(by_rank[n].get("host")) for n in numbers if n in by_rank}
    gpu = by_rank.get(numbers[0], {}).get("gpu") if len(numbers) == 1 else None
    where = [f"node {', '.join(sorted(at))}"] if len(hosts) > 1 and 0 < len(at) <= 3 else []
    where += [f"GPU {gpu['index']}"] if gpu else []
    return words + (f" ({', '.join(where)})" if where else "")


def odd_ones(facts: Sequence[RankFacts], value: Callable[[RankFacts], Any]) -> list[tuple[list[int], Any, Any]]:
    """Return groups of ranks whose value is not the most common one: (ranks, theirs, common)."""
    values = [(int(f["rank"]), value(f)) for f in facts]
    texts = [json.dumps(v, sort_keys=True) for _, v in values]
    if len(set(texts)) < 2:
        return []
    common = most_common(texts)
    groups: dict[str, list[int]] = {}
    for (rank, _), text in zip(values, texts):
        if text != common:
            groups.setdefault(text, []).append(rank)
    return [(ranks, json.loads(text), json.loads(common)) for text, ranks in groups.items()]


def has(ranks: Sequence[int]) -> str:
    """Return the verb for one rank or for many."""
    return "has" if len(ranks) == 1 else "have"


def about(  # noqa: PLR0917 - the parts of one sentence, in their order
    facts: Sequence[RankFacts], ranks: Iterable[int], text: str, check: str, severity: str, fix: str = ""
) -> RankFinding:
    """Return the finding whose sentence begins with the names of its ranks."""
    numbers = tuple(ranks)
    return RankFinding(
        check=check, severity=severity, ranks=numbers, message=f"{name_of(facts, numbers)} {text}", fix=fix
    )


def gib(value: object) -> str:
    """Write bytes as a person reads them."""
    amount = int(str(value))
    return f"{amount / 2**30:.1f} GiB" if amount >= 1 << 30 else f"{amount >> 20} MiB"


@dataclass(frozen=True)
class Known:
    """What ``known.json`` says: variables as ``name: [reads, since, until, renamed]``, the least driver per CUDA major, frameworks."""

    variables: Mapping[str, Sequence[str | None]]
    drivers: Mapping[str, str]
    frameworks: Sequence[str]


@cache
def known() -> Known:
    """Read the shipped extract of the matrix, in a millisecond and without YAML."""
    data = json.loads(Path(__file__).with_name("known.json").read_text(encoding="utf-8"))
    return Known(**data)


def version_key(text: object) -> tuple[int, ...]:
    """Return ``2.9.1+cu128`` as (2, 9, 1) and ``2.26.2.post1`` as (2, 26, 2): torch, NCCL and drivers report no more."""
    release = re.match(r"\d+(?:\.\d+){0,3}", str(text or ""))
    numbers = [int(part) for part in release[0].split(".")] if release else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


# What one rank sees of itself, before any group exists: versions, GPU, driver, memory, limits, variables.


# A GPU is asked for a kernel, because the list of architectures says what was built, not what runs.
_LOADED = ("python", "torch", "torch_git", "cuda", "nccl", "nccl_runtime", "numpy")
_HOST = (
    "driver", "memory_bytes", "memory_free_bytes", "shm_bytes", "shm_free_bytes", "memlock_bytes", "open_files",
    "container",
)  # fmt: skip


def collect(local: int) -> RankFacts:
    """Return facts of this process. The caller has imported torch.

    ``local`` is the rank's number on its node and chooses the GPU.
    """
    import torch

    loaded = loaded_facts()
    host = host_facts()
    names = (*TELLING, "MASTER_ADDR")
    facts: RankFacts = {
        **{key: loaded.get(key) for key in _LOADED},  # type: ignore[typeddict-item] # as the agent says them
        **{key: host.get(key) for key in _HOST},
        "installed": {**loaded["installed"], **installed_versions(known().frameworks)},
        "arch_list": loaded["arch_list"],
        "has_nccl": bool(loaded.get("has_nccl")),
        "has_gloo": bool(loaded.get("has_gloo")),
        "nccl_path": _nccl_path(),
        "driver_cuda": _driver_cuda(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "local": local,
        "infiniband": os.path.isdir("/sys/class/infiniband") and bool(os.listdir("/sys/class/infiniband")),  # noqa: PTH112, PTH208 - pathlib costs more than the call
        "gpus": len(host["gpus"]) if isinstance(host["gpus"], list) else 0,
        "env": {k: v for k, v in os.environ.items() if k.startswith(names) or k in ALSO_TELLING},
    }
    facts["gpu"] = _gpu(torch, local, facts) if loaded.get("cuda") and facts["gpus"] else None
    return facts


def _nccl_path() -> str | None:
    """Return the ``libnccl`` that is mapped into this process, where it is a library of its own."""
    match = re.search(r"(/\S*libnccl\.so\S*)", read_text("/proc/self/maps", 1 << 22))
    return match[1] if match else None


def _driver_cuda() -> str:
    """Return the CUDA that the loaded libcuda serves, without starting it, or nothing where there is none."""
    number = ctypes.c_int(0)
    try:
        status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return ""
    # 13010 is CUDA 13.1 (cuda.h).
    return "" if status else f"{number.value // 1000}.{number.value % 1000 // 10}"


def _gpu(torch: Any, local: int, facts: RankFacts) -> GpuFacts:
    """Describe the GPU that this rank will use, and try whether a kernel of this torch runs on it."""
    device: GpuFacts = {"index": local, "error": None}
    try:
        count = torch.cuda.device_count()
        if not count:
            device["error"] = "CUDA sees no GPU (CUDA_VISIBLE_DEVICES hides it, or the driver does not answer)"
            return device
        device["index"] = index = local % count
        device["count"] = count
        properties = torch.cuda.get_device_properties(index)
        device["name"], device["uuid"] = properties.name, str(getattr(properties, "uuid", "") or "")
        device["arch"] = f"sm_{properties.major}{properties.minor}"
        with torch.cuda.device(index):
            torch.zeros(1, device=f"cuda:{index}").add_(1).item()
            device["free"], device["total"] = torch.cuda.mem_get_info(index)
    except Exception as error:  # noqa: BLE001 - whatever CUDA says is the finding
        device["error"] = one_line(error)
    facts["cuda_usable"] = device["error"] is None
    return device


# Versions: the same on all ranks, those that are expected, the NCCL that is loaded, the driver under it.


def versions(facts: Sequence[RankFacts]) -> list[RankFinding]:
    """Return releases that some ranks have and others do not."""
    findings = []
    names: list[tuple[str, Callable[[RankFacts], Any], str]] = [
        (k, lambda f, k=k: f.get(k), ERROR)  # type: ignore[misc]
        for k in _MUST_AGREE
    ]
    names += [(p, lambda f, p=p: f.get("installed", {}).get(p), ERROR) for p in (*known().frameworks, *_EXTENSIONS)]  # type: ignore[misc]
    names += [("python", lambda f: f.get("python"), WARNING), ("numpy", lambda f: f.get("numpy"), WARNING)]
    blamed: set[tuple[int, ...]] = set()
    for name, value, severity in names:
        for ranks, theirs, common in odd_ones(facts, value):
            if name == "torch_git" and tuple(ranks) in blamed:
                continue  # another release is another commit
            blamed.add(tuple(ranks))
            text = f"{has(ranks)} {name} {theirs or 'not at all'}, the others {common or 'do not have it'}"
            findings.append(about(facts, ranks, text, "versions", severity, "install the same lock on every node"))
    return findings


def expected(facts: Sequence[RankFacts], expect: Mapping[str, str]) -> list[RankFinding]:
    """Return ranks that have another release of a component than ``expect`` names."""
    findings = []
    for name, spec in expect.items():
        bad: dict[str, list[int]] = {}
        for f in facts:
            have = (f.get("nccl_runtime") or f.get("nccl")) if name == "nccl" else f.get(name)
            have = have or f.get("installed", {}).get(name)
            same = have is not None and (str(have) == spec or ("+" not in spec and str(have).partition("+")[0] == spec))
            same = same or (name == "nccl" and version_key(have) == version_key(spec))
            if not same:
                bad.setdefault(str(have), []).append(int(f["rank"]))
        for have, ranks in bad.items():
            text = f"{has(ranks)} {name} {have}, but {spec} is expected"
            fix = "is this the environment that was meant? look at PATH and PYTHONPATH"
            findings.append(about(facts, ranks, text, "expected", ERROR, fix))
    return findings


def nccl(facts: Sequence[RankFacts]) -> list[RankFinding]:
    """Compare the loaded NCCL with the one that the environment declares and the one that torch was compiled with."""
    by_text: dict[tuple[str, str, str], list[int]] = {}
    for f in facts:
        runtime = f.get("nccl_runtime")
        if not runtime:
            continue
        declared = {p: v for p, v in f.get("installed", {}).items() if p in _NCCL_PACKAGES}
        path = f.get("nccl_path") or "its library"
        if declared and version_key(runtime) not in {version_key(v) for v in declared.values()}:
            package, version = next(iter(declared.items()))
            text = f"loaded NCCL {runtime} from {path}, but the environment declares {package} {version}"
            by_text.setdefault((ERROR, text, "look at LD_LIBRARY_PATH and LD_PRELOAD"), []).append(int(f["rank"]))
        elif len({version_key(v) for v in declared.values()}) > 1:
            text = f"found several NCCL packages ({', '.join(f'{p} {v}' for p, v in sorted(declared.items()))}); {runtime} was loaded"
            by_text.setdefault((WARNING, text, "uninstall the one of the other CUDA major"), []).append(int(f["rank"]))
        if version_key(runtime) < version_key(f.get("nccl")):
            text = f"loaded NCCL {runtime}, older than the {f['nccl']} that torch was compiled with"
            by_text.setdefault((ERROR, text, "look at LD_LIBRARY_PATH and LD_PRELOAD"), []).append(int(f["rank"]))
    return [about(facts, ranks, text, "nccl", severity, fix) for (severity, text, fix), ranks in by_text.items()]


def drivers(facts: Sequence[RankFacts], data: Known) -> list[RankFinding]:
    """Return drivers that differ between nodes, or are too old for the CUDA of torch.

    Forward compatibility puts a newer libcuda before an older kernel driver, and then the libcuda that is loaded counts
    (docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html).
    """
    findings = [
        about(facts, ranks, f"{has(ranks)} driver {theirs}, the others {common}", "driver", WARNING)
        for ranks, theirs, common in odd_ones(facts, lambda f: f.get("driver") or None)
    ]
    low: dict[tuple[str, str, str], list[int]] = {}
    for f in facts:
        driver, cuda = f.get("driver"), str(f.get("cuda") or "")
        floor = data.drivers.get(cuda.partition(".")[0])
        enough = f.get("cuda_usable") or version_key(f.get("driver_cuda"))[:1] >= version_key(cuda)[:1]
        if driver and floor and version_key(driver) < version_key(floor) and not enough:
            low.setdefault((str(driver), cuda, floor), []).append(int(f["rank"]))
    for (driver, cuda, floor), ranks in low.items():
        text = f"{has(ranks)} driver {driver}, but CUDA {cuda} needs at least {floor}"
        fix = "update the driver of that node, or take a torch of an older CUDA major"
        findings.append(about(facts, ranks, text, "driver", ERROR, fix))
    return findings


# GPUs: usable by this torch, with memory left, one for each rank.


def runs_on(arch: str, built: Sequence[str]) -> bool:
    """Tell whether machine code or PTX of this list runs on ``sm_XY``: the same major and no newer minor. PTX is compiled for anything newer."""
    match = re.fullmatch(r"sm_(\d+)(\d)", arch)
    if not match or not built:
        return True
    major, minor = int(match[1]), int(match[2])
    for item in built:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", item)
        if not match:
            continue
        theirs = (int(match[2]), int(match[3]))
        if match[4] == "a":
            fits = theirs == (major, minor)
        elif match[1] == "compute":
            fits = theirs <= (major, minor)
        else:
            fits = theirs[0] == major and theirs[1] <= minor
        if fits:
            return True
    return False


def gpus(facts: Sequence[RankFacts], min_free: int) -> list[RankFinding]:
    """Return ranks that cannot use their GPU, share one, or have less than ``min_free`` bytes of it (or clearly less than the others)."""
    findings: list[RankFinding] = []

    def add(f: RankFacts, check: str, severity: str, text: str, fix: str) -> None:
        findings.append(about(facts, [int(f["rank"])], text, check, severity, fix))

    owners: dict[tuple[str, str], list[int]] = {}
    for f in facts:
        gpu = f.get("gpu")
        if f.get("gpus") and not f.get("cuda"):
            add(f, "gpu", WARNING, f"sees {f['gpus']} GPUs, but its torch {f.get('torch')} is built without CUDA", "")
        if not gpu:
            continue
        arch = str(gpu.get("arch") or "")
        if gpu.get("error"):
            check = "arch" if arch and not runs_on(arch, f.get("arch_list") or []) else "gpu"
            why = f"; this torch is built for {' '.join(f['arch_list'])}" if check == "arch" else ""
            text = f"cannot use its GPU{f' ({arch})' if arch else ''}: {gpu['error']}{why}"
            add(f, check, ERROR, text, "`envsmith doctor` on that node says more")
            continue
        if min_free and int(gpu.get("free") or 0) < min_free:
            text = f"has {gib(gpu['free'])} of GPU memory free, {gib(min_free)} are asked for"
            add(f, "memory", ERROR, text, "another process holds it: nvidia-smi")
        owner = (str(f.get("host")), str(gpu.get("uuid") or f"index {gpu.get('index')}"))
        owners.setdefault(owner, []).append(int(f["rank"]))
    findings += _skewed_memory(facts)
    for (_, uuid), ranks in owners.items():
        if len(ranks) > 1:
            shared = all(
                f["env"].get("NCCL_MULTI_RANK_GPU_ENABLE") == "1" or f["env"].get("NCCL_HOSTID")
                for f in facts
                if int(f["rank"]) in ranks
            )
            fix = "LOCAL_RANK or CUDA_VISIBLE_DEVICES is not what the launcher meant"
            severity = NOTE if shared else ERROR
            findings.append(about(facts, ranks, f"use the same GPU ({uuid})", "gpu", severity, fix))
    return findings


def _skewed_memory(facts: Sequence[RankFacts]) -> list[RankFinding]:
    """Return GPUs with clearly less free memory than the others: that rank will be the first to fail."""
    frees = sorted(gpu["free"] for f in facts if (gpu := f.get("gpu")) and gpu.get("free"))
    if len(frees) < 2:
        return []
    middle = frees[len(frees) // 2]
    findings = []
    for f in facts:
        free = int((f.get("gpu") or {}).get("free") or 0)
        if free and free < 0.9 * middle:
            text = f"has {gib(free)} of GPU memory free, the others about {gib(middle)}"
            findings.append(
                about(facts, [int(f["rank"])], text, "memory", WARNING, "another process holds it: nvidia-smi")
            )
    return findings


# The hosts: memory, /dev/shm, limits on open files and locked memory.


_SHM_FULL = 64 << 20  # below this a DataLoader worker or NCCL's host buffers meet SIGBUS
_SHM_SMALL = 1 << 30  # what NVIDIA's container guide asks for with --shm-size=1g
_HOST_LOW = 1 << 30
_OPEN_FILES = 4096


def _by_host(facts: Sequence[RankFacts], *keys: str) -> list[list[RankFacts]]:
    """Group ranks of one host that see the same thing. Containers of one host may see different things."""
    groups: dict[tuple[object, ...], list[RankFacts]] = {}
    for f in facts:
        groups.setdefault((f.get("host"), *(f.get(key) for key in keys)), []).append(f)
    return list(groups.values())


def memory(facts: Sequence[RankFacts]) -> list[RankFinding]:
    """Return hosts with little memory or /dev/shm left."""
    findings = []
    for group in _by_host(facts, "shm_bytes"):
        f, ranks = group[0], tuple(int(g["rank"]) for g in group)
        free, size = int(f.get("memory_free_bytes") or 0), int(f.get("shm_bytes") or 0)
        shm = min(int(g.get("shm_free_bytes") or 0) for g in group)
        if 0 < free < _HOST_LOW * len(group) // 2:
            text = f"{has(ranks)} {gib(free)} of host memory left, for {len(group)} rank(s)"
            findings.append(about(facts, ranks, text, "memory", WARNING))
        if size and shm < _SHM_FULL:
            text = f"{has(ranks)} {gib(shm)} of /dev/shm free ({gib(size)} in all): DataLoader workers and NCCL will die of SIGBUS"
            fix = "remove what is left in /dev/shm, or give the container --shm-size=1g or --ipc=host"
            findings.append(about(facts, ranks, text, "shm", ERROR, fix))
        elif size and size < _SHM_SMALL and (f.get("container") or f.get("gpus")):
            text = f"{has(ranks)} a /dev/shm of only {gib(size)}"
            findings.append(about(facts, ranks, text, "shm", WARNING, "give the container --shm-size=1g or --ipc=host"))
    return findings


def limits(facts: Sequence[RankFacts]) -> list[RankFinding]:
    """Return hosts where a rank may open few files, or lock little memory beside InfiniBand."""
    findings = []
    for group in _by_host(facts, "memlock_bytes", "open_files"):
        f, ranks = group[0], tuple(int(g["rank"]) for g in group)
        memlock, files = f.get("memlock_bytes"), f.get("open_files")
        if f.get("infiniband") and f.get("gpus") and isinstance(memlock, int):
            text = f"may lock only {gib(memlock)}; InfiniBand registers all its buffers"
            findings.append(about(facts, ranks, text, "limits", WARNING, "ulimit -l unlimited"))
        if f.get("gpus") and isinstance(files, int) and files < _OPEN_FILES:
            text = f"may open only {files} files; NCCL opens hundreds per rank"
            findings.append(about(facts, ranks, text, "limits", WARNING, "ulimit -n 65536"))
    return findings


# Environment variables: set here and not there, or set and never read.


# Variables that may differ between ranks or nodes of a healthy job.
_PER_RANK = re.compile(
    r"NCCL_HOSTID|CUDA_VISIBLE_DEVICES|\w*_FILE|\w*_DIR|CUDA_(HOME|PATH)\w*|CUDA_MPS\w*|TORCH_\w*_PORT|TORCH_HOME"
)


def variables(facts: Sequence[RankFacts], data: Known) -> list[RankFinding]:
    """Return variables that no release here reads, and those that are not the same on all ranks."""
    by_text: dict[tuple[str, str], list[int]] = {}
    for f in facts:
        for name in f.get("env", {}):
            if unread := _not_read(name, f, data):
                by_text.setdefault(unread, []).append(int(f["rank"]))
    findings = [
        about(facts, ranks, f"{'sets' if len(ranks) == 1 else 'set'} {text}", "variables", severity)
        for (severity, text), ranks in by_text.items()
    ]
    names = sorted({n for f in facts for n in f.get("env", {}) if not _PER_RANK.fullmatch(n)})
    for name in names:
        for ranks, theirs, common in odd_ones(facts, lambda f, n=name: f["env"].get(n)):  # type: ignore[misc]
            have = f"{name}={_short(theirs)}" if theirs is not None else f"no {name}"
            advice = _short(common) if common is not None else "do not set it"
            text = f"{has(ranks)} {have}, the others {advice}"
            findings.append(about(facts, ranks, text, "variables", WARNING, "export it on every node (or on none)"))
    return findings


def _short(value: object) -> str:
    text = re.sub(r"[\x00-\x1f\x7f]", "?", str(value))
    return text if len(text) <= 60 else text[:57] + "..."


def _not_read(name: str, f: RankFacts, data: Known) -> tuple[str, str] | None:
    """Describe a variable that is set and that nothing here reads."""
    line = data.variables.get(name)
    if line is None:
        close = difflib.get_close_matches(name, data.variables, 1, 0.9) if name.startswith("NCCL_") else []
        return (NOTE, f"{name}, which no NCCL that we know reads; {close[0]} was meant?") if close else None
    reads, since, until, renamed = line
    have = (f.get("nccl_runtime") or f.get("nccl")) if reads == "nccl" else f.get(str(reads))
    have = have or f.get("installed", {}).get(str(reads))
    if not have:
        return None
    instead = f"; {renamed} counts now" if renamed else ""
    if until and version_key(have) >= version_key(until):
        return WARNING, f"{name}, which {reads} no longer reads from {until} on (here is {have}){instead}"
    if since and version_key(have) < version_key(since):
        return WARNING, f"{name}, which {reads} reads only from {since} on (here is {have}){instead}"
    return None
