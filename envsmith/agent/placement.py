"""Where the ranks go (a GPU for each, several on one, or the CPU), and whether the machine has room for them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from envsmith.agent.launchers import LaunchPlace, ranks_here
from envsmith.agent.protocol import PlanJson, Row

# What a run whose ranks share a GPU does not show.
_UNPROVED = "; this proves nothing about NVLink or the network"


def release_of(version: str) -> tuple[int, ...]:
    """Return the release as numbers: `2.7.0+cu126` is (2, 7, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def remedies(torch_version: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return what keeps this torch from its known hangs, unless `env` says otherwise.

    torch 2.6.0 to 2.7.0 make communicators without blocking when `device_id` is passed, and those can hang
    (pytorch/pytorch#153960). #154055 turned it off in 2.7.1. The rule nccl-eager-init-hang says the same.
    """
    name = "TORCH_NCCL_USE_COMM_NONBLOCKING"
    return {name: "0"} if (2, 6) <= release_of(torch_version) < (2, 7, 1) and name not in env else {}


def evidence_env(directory: str, backend: str, torch_version: str) -> dict[str, str]:
    """Return the switches that make torch and NCCL leave evidence, under the names that this torch knows."""
    release = release_of(torch_version)
    old = release < (2, 10)
    env = {"TORCH_NCCL_TRACE_BUFFER_SIZE" if old else "TORCH_FR_BUFFER_SIZE": "2000"}
    if directory:
        env["TORCH_NCCL_DEBUG_INFO_TEMP_FILE" if old else "TORCH_FR_DUMP_TEMP_FILE"] = os.path.join(directory, "fr_")
    if backend == "nccl":
        env.update({
            "TORCH_FR_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC": "2000", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "2000",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "30",
            "TORCH_NCCL_COORD_CHECK_MILSEC": "1000", "TORCH_NCCL_PROPAGATE_ERROR": "1",
            "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "INFO"),
            "NCCL_DEBUG_SUBSYS": os.environ.get("NCCL_DEBUG_SUBSYS", "INIT,NET,P2P,SHM,ENV"),
            **remedies(torch_version, os.environ),
        })  # fmt: skip
        if release < (2, 2):  # the prefix came with 2.2, whose wheel has both names
            env["NCCL_ASYNC_ERROR_HANDLING"] = "1"
    return env


class Placement(NamedTuple):
    """Where the ranks of a run, or of one process, are.

    ``place`` says it in few words, ``sentence`` with what it does not prove. ``devices`` are the GPUs by rank, ``None``
    on the CPU. ``env`` are variables of all ranks, ``rank_env`` those of each. ``sharing`` is the way in which ranks
    share a GPU, empty where they do not, and ``share`` how many share the memory of one, or that of the host.
    ``cuda`` is what CUDA said when it was asked.
    """

    backend: str
    ranks: int
    place: str
    sentence: str
    devices: list[int] | None
    env: dict[str, str]
    rank_env: list[dict[str, str]]
    share: int = 1
    sharing: str = ""
    cuda: Row | None = None

    def event(self) -> Row:
        """Return what the event of it says."""
        names = ("backend", "ranks", "devices", "sentence", "place", "env")
        fields = {**{name: getattr(self, name) for name in names}, "is_shared": bool(self.sharing)}
        return fields if self.cuda is None else {"cuda": self.cuda, **fields}


# The way that every NCCL knows. By `multi-rank` (NCCL 2.30 and later) the kernels of both ranks wait for each other on
# the GPU, which takes turns: the full tier did not end within 90 s there, and takes 31 s by host IDs (one H200).
SHARING_WAY = "hostid"


def place_nccl(ranks: int, gpus: int, plan: PlanJson, directory: str) -> Placement:
    """Place one rank on each GPU when there are enough, otherwise several on one.

    NCCL refuses equal bus ids on one host, so that each rank claims to be a host of its own (sockets only). From 2.30
    on NCCL_MULTI_RANK_GPU_ENABLE allows them (P2P and shared memory are used), and a plan may ask for it. Neither says
    anything about NVLink, and the sentence says which one it was.
    """
    env = _engine_env(plan)
    requested = str(plan.get("sharing") or "")
    if gpus >= ranks and not requested:
        place = f"{ranks} ranks on {ranks} GPUs" if ranks > 1 else "1 rank on 1 GPU"
        rank_env = [_nccl_log(directory, rank) for rank in range(ranks)]
        return Placement("nccl", ranks, place, place, list(range(ranks)), env, rank_env)
    if requested:
        gpus = 1  # the first one holds them all, however many there are
    if gpus == 1:
        ranks = min(ranks, 2)  # NCCL documents two ranks on one GPU
    rank_env = [_nccl_log(directory, r) for r in range(ranks)]
    for rank in range(ranks):
        shared, way = sharing_env(rank, requested or SHARING_WAY)
        if "NCCL_HOSTID" in shared:
            rank_env[rank]["NCCL_HOSTID"] = shared.pop("NCCL_HOSTID")
            shared["NCCL_SOCKET_IFNAME"] = "lo"  # one host: the ranks only claim to be several
        env.update(shared)
    place = f"{ranks} ranks on {gpus} GPU{'s' if gpus > 1 else ''} ({way})"
    return Placement(
        "nccl", ranks, place, place + _UNPROVED, [rank % gpus for rank in range(ranks)], env, rank_env,
        share=-(-ranks // gpus), sharing=requested or SHARING_WAY,
    )  # fmt: skip


def count_ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"


def _nccl_log(directory: str, rank: int) -> dict[str, str]:
    return {"NCCL_DEBUG_FILE": os.path.join(directory, f"nccl.{rank}.log")}


def place_direct(place: LaunchPlace, env: Mapping[str, str], *, backend: str, gpus: int, plan: PlanJson) -> Placement:
    """Return this rank's device and variables under torchrun, srun or mpirun. Ranks share a GPU as elsewhere.

    ``share`` is how many ranks of this node share the memory of the rank's GPU, or without a GPU that of the host.
    """
    here, nodes = ranks_here(env, place.world), int(plan.get("nodes") or 1)
    on_nodes = f" on {nodes} nodes" if nodes > 1 else ""
    started = f"{place.world} ranks{on_nodes} started by {plan.get('launcher') or place.launcher}"
    placement = Placement(backend, place.world, started, started, None, {}, [], share=here)
    if backend != "nccl" or not gpus:
        return placement
    # Only this rank's entry is used; the others differ by their manifests.
    placement = placement._replace(devices=[place.local % gpus] * place.world, env=_engine_env(plan), share=1)
    shows_one = gpus == 1 and "," not in env.get("CUDA_VISIBLE_DEVICES", "")
    if shows_one and here > 1 and env.get("SLURM_GPUS_PER_TASK"):
        # Slurm shows each task its own GPU as number 0: they are not shared.
        words = started + ", a GPU for each"
        return placement._replace(devices=[0] * place.world, place=words, sentence=words)
    if here <= gpus:
        return placement
    shared, way = sharing_env(place.rank)
    warning = "" if here <= 2 * gpus else "; NCCL documents two ranks on a GPU, not more"
    words = f"{started}, {here} a node on {gpus} GPU{'s' if gpus > 1 else ''} ({way})"
    return placement._replace(
        env={**placement.env, **shared}, place=words + warning, sentence=words + _UNPROVED + warning,
        sharing=SHARING_WAY, share=-(-here // gpus),
    )  # fmt: skip


def _engine_env(plan: PlanJson) -> dict[str, str]:
    """Choose one of torch 2.15's engines, or nothing where the plan leaves it to torch."""
    engine = str(plan.get("engine") or "")
    return {"TORCH_DIST_USE_NCCL2": "0" if engine == "legacy" else "1"} if engine in ("legacy", "2") else {}


def sharing_env(rank: int, way: str = SHARING_WAY) -> tuple[dict[str, str], str]:
    """Return variables with which ranks may share a GPU, and the name of that way. `rank` is that in the world."""
    # torch's symmetric memory has a refusal of its own; with this it leaves multicast out instead.
    both = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1"}
    if way == "multi-rank":
        env = {**both, "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "1"}
        return env, "NCCL_MULTI_RANK_GPU_ENABLE, P2P and shared memory"
    env = {**both, "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
    return {**env, "NCCL_HOSTID": f"envsmith-rank-{rank}"}, "NCCL_HOSTID, sockets"


# NCCL wants 1 GiB of /dev/shm in a container (its own troubleshooting guide); with less than this no pair of ranks has
# a segment.
NCCL_SHM, NCCL_SHM_FLOOR = 1 << 30, 33 << 20
# What a CUDA context with its kernels takes before the first tensor, and what the quick tier and NCCL's buffers take
# with it.
GPU_FLOOR, GPU_ROOM = 512 << 20, 2 << 30


def open_files_needed(ranks: int, groups: int) -> int:
    """Return the descriptors of one rank: Python, torch, logs, store, and for each group a connection to every rank.

    Measured on torch 2.13 with the quick tier (three groups): 4 ranks fail with 40 and run with 44, 8 ranks fail with
    48 and run with 56.
    """
    return 24 + groups * (ranks + 4)


def limit_findings(host: Row, plan: PlanJson, placement: Placement, cuda: Row) -> list[dict[str, str]]:
    """Return what is too small: `error` when the run cannot work, `warning` when training will suffer, or `note`."""
    findings = [*_open_files(host, plan, placement), *_shared_memory(host, placement)]
    findings += _memory(host, placement, cuda)
    memlock = host.get("memlock_bytes")
    if placement.backend == "nccl" and isinstance(memlock, int) and memlock < 1 << 30:
        text = f"memlock is limited to {memlock >> 10} KiB: InfiniBand cannot register its buffers"
        fix = (
            "ulimit -l unlimited, docker run --ulimit memlock=-1, "
            "in Slurm PropagateResourceLimits or LimitMEMLOCK=infinity of slurmd"
        )
        findings.append(_finding("memlock", "note", text, fix))
    return findings


def _finding(limit: str, severity: str, message: str, fix: str) -> dict[str, str]:
    return {"limit": limit, "severity": severity, "message": message, "fix": fix}


def _open_files(host: Row, plan: PlanJson, placement: Placement) -> list[dict[str, str]]:
    files, ranks = host.get("open_files"), placement.ranks
    if not isinstance(files, int):
        return []
    groups = len({case.get("group", "world") for case in plan.get("cases", ())} | {"world"})
    fix = "ulimit -n 65536, docker run --ulimit nofile=65536, in systemd LimitNOFILE=65536"
    need = open_files_needed(ranks, groups)
    if files < need:
        text = f"{files} open files are allowed, a rank of {ranks} with {groups} groups needs about {need}"
        return [_finding("open files", "error", text, fix)]
    if placement.backend == "nccl" and files < 4096:
        text = f"only {files} open files are allowed; NCCL opens hundreds per rank when it trains"
        return [_finding("open files", "warning", text, fix)]
    return []


def _shared_memory(host: Row, placement: Placement) -> list[dict[str, str]]:
    size, free = int(host.get("shm_bytes") or 0), int(host.get("shm_free_bytes") or 0)
    fix = "docker run --shm-size=1g or --ipc=host; in Kubernetes an emptyDir with medium: Memory on /dev/shm"
    nccl = placement.backend == "nccl"
    if not size:
        return [_finding("/dev/shm", "warning", "there is no /dev/shm", fix)] if nccl else []
    alone = placement.ranks == 1  # has no peer to share a segment with
    if nccl and not alone and free < NCCL_SHM_FLOOR and placement.env.get("NCCL_SHM_DISABLE") != "1":
        text = f"/dev/shm has {free >> 20} MiB free of {size >> 20}: NCCL cannot make its segments"
        return [_finding("/dev/shm", "error", text, fix)]
    if host.get("container") and size < NCCL_SHM:
        text = f"the container's /dev/shm is {size >> 20} MiB; NCCL wants 1 GiB"
        return [_finding("/dev/shm", "warning" if nccl else "note", text, fix)]
    return []


def _memory(host: Row, placement: Placement, cuda: Row) -> list[dict[str, str]]:
    findings = []
    free, ranks = int(host.get("memory_free_bytes") or 0), placement.ranks
    if 0 < free < ranks * (128 << 20):
        text = f"{free >> 20} MiB of memory are available for {ranks} ranks"
        findings.append(_finding("memory", "warning", text, "fewer ranks (--ranks), or a larger memory limit"))
    devices, frees = list(placement.devices or []), cuda.get("free") or []
    fix = "end what else runs there (nvidia-smi), or choose another GPU (CUDA_VISIBLE_DEVICES)"
    for device in sorted(set(devices)):
        if device < len(frees) and int(frees[device]) // devices.count(device) < GPU_ROOM:
            free, sharing = int(frees[device]), devices.count(device)
            text = f"GPU {device} has {free >> 20} MiB free for {count_ranks(sharing)}"
            if free // sharing < GPU_FLOOR:
                findings.append(_finding("GPU memory", "error", text + ": not enough for a CUDA context", fix))
            else:
                findings.append(_finding("GPU memory", "warning", text, fix))
    return findings
