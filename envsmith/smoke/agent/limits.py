"""Limits of the machine, checked before a rank starts: open files, /dev/shm, memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envsmith.smoke.agent.placement import count_ranks

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


def limit_findings(
    host: Mapping[str, Any], plan: Mapping[str, Any], placement: Mapping[str, Any], cuda: Mapping[str, Any]
) -> list[dict[str, str]]:
    """Return what is too small: `error` when the run cannot work, `warning` when training will suffer, or `note`."""
    findings = [*_open_files(host, plan, placement), *_shared_memory(host, plan, placement)]
    findings += _memory(host, placement, cuda)
    memlock = host.get("memlock_bytes")
    if placement["backend"] == "nccl" and isinstance(memlock, int) and memlock < 1 << 30:
        text = f"memlock is limited to {memlock >> 10} KiB: InfiniBand cannot register its buffers"
        fix = (
            "ulimit -l unlimited, docker run --ulimit memlock=-1, "
            "in Slurm PropagateResourceLimits or LimitMEMLOCK=infinity of slurmd"
        )
        findings.append(_finding("memlock", "note", text, fix))
    return findings


def _finding(limit: str, severity: str, message: str, fix: str) -> dict[str, str]:
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
        return [_finding("open files", "error", text, fix)]
    if placement["backend"] == "nccl" and files < 4096:
        text = f"only {files} open files are allowed; NCCL opens hundreds per rank when it trains"
        return [_finding("open files", "warning", text, fix)]
    return []


def _shared_memory(
    host: Mapping[str, Any], plan: Mapping[str, Any], placement: Mapping[str, Any]
) -> list[dict[str, str]]:
    size, free = int(host.get("shm_bytes") or 0), int(host.get("shm_free_bytes") or 0)
    fix = "docker run --shm-size=1g or --ipc=host; in Kubernetes an emptyDir with medium: Memory on /dev/shm"
    nccl = placement["backend"] == "nccl"
    if not size:
        return [_finding("/dev/shm", "warning", "there is no /dev/shm", fix)] if nccl else []
    needs = [(int(s.get("ranks", 2)), *s["shm"]) for s in plan.get("steps", ()) if s.get("shm")]
    ranks, each, user = max(needs, default=(0, 0, ""))
    if not nccl and free < ranks * each:
        text = (
            f"/dev/shm has {free >> 20} MiB free of {size >> 20}: {user} takes {each >> 20} MiB for each of {ranks} "
            "ranks, and a rank that cannot have it is killed by SIGBUS"
        )
        return [_finding("/dev/shm", "error", text, fix)]
    alone = int(placement["ranks"]) == 1  # has nobody to share a segment with
    if nccl and not alone and free < NCCL_SHM_FLOOR and placement["env"].get("NCCL_SHM_DISABLE") != "1":
        text = f"/dev/shm has {free >> 20} MiB free of {size >> 20}: NCCL cannot make its segments"
        return [_finding("/dev/shm", "error", text, fix)]
    if host.get("container") and size < NCCL_SHM:
        text = f"the container's /dev/shm is {size >> 20} MiB; NCCL wants 1 GiB"
        return [_finding("/dev/shm", "warning" if nccl else "note", text, fix)]
    return []


def _memory(host: Mapping[str, Any], placement: Mapping[str, Any], cuda: Mapping[str, Any]) -> list[dict[str, str]]:
    findings = []
    free, ranks = int(host.get("memory_free_bytes") or 0), int(placement["ranks"])
    if 0 < free < ranks * (128 << 20):
        text = f"{free >> 20} MiB of memory are available for {ranks} ranks"
        findings.append(_finding("memory", "warning", text, "fewer ranks (--ranks), or a larger memory limit"))
    devices, frees = list(placement.get("devices") or []), cuda.get("free") or []
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
