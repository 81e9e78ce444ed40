"""GPUs: usable by this torch, with memory left, one for each rank."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from envsmith.preflight.finding import ERROR, NOTE, WARNING, Facts, Finding, gib, name_of

__all__ = ["gpus", "runs_on"]


def runs_on(arch: str, built: Sequence[str]) -> bool:
    """Does machine code or PTX of this list run on ``sm_XY``? Same major and no newer minor; PTX is compiled for anything newer."""
    match = re.fullmatch(r"sm_(\d+)(\d)", arch)
    if not match or not built:
        return True
    major, minor = int(match[1]), int(match[2])
    for item in built:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", item)
        if not found:
            continue
        theirs = (int(found[2]), int(found[3]))
        if found[4] == "a":
            fits = theirs == (major, minor)
        elif found[1] == "compute":
            fits = theirs <= (major, minor)
        else:
            fits = theirs[0] == major and theirs[1] <= minor
        if fits:
            return True
    return False


def gpus(facts: Sequence[Facts], min_free: int) -> list[Finding]:
    """Ranks that cannot use their GPU, share one, or have less than ``min_free`` bytes of it (or clearly less than the others)."""
    found: list[Finding] = []

    def add(f: Facts, check: str, severity: str, text: str, fix: str) -> None:
        rank = int(f["rank"])
        found.append(
            Finding(check=check, severity=severity, ranks=(rank,), message=f"{name_of(facts, [rank])} {text}", fix=fix)
        )

    owners: dict[tuple[str, str], list[int]] = {}
    for f in facts:
        gpu = f.get("gpu")
        if f.get("gpus") and not f.get("cuda"):
            add(f, "gpu", WARNING, f"sees {f['gpus']} GPUs, but its torch {f.get('torch')} is built without CUDA", "")
        if not isinstance(gpu, Mapping):
            continue
        arch = str(gpu.get("arch") or "")
        if gpu.get("error"):
            check = "arch" if arch and not runs_on(arch, f.get("arch_list") or []) else "gpu"
            why = f"; this torch is built for {' '.join(f['arch_list'])}" if check == "arch" else ""
            add(
                f,
                check,
                ERROR,
                f"cannot use its GPU{f' ({arch})' if arch else ''}: {gpu['error']}{why}",
                "`envsmith doctor` on that node says more",
            )
            continue
        if min_free and int(gpu.get("free") or 0) < min_free:
            add(
                f,
                "memory",
                ERROR,
                f"has {gib(gpu['free'])} of GPU memory free, {gib(min_free)} are asked for",
                "another process holds it: nvidia-smi",
            )
        owners.setdefault((str(f.get("host")), str(gpu.get("uuid") or f"index {gpu.get('index')}")), []).append(
            int(f["rank"])
        )
    found += _skewed_memory(facts)
    for (_, uuid), ranks in owners.items():
        if len(ranks) > 1:
            shared = all(
                f["env"].get("NCCL_MULTI_RANK_GPU_ENABLE") == "1" or f["env"].get("NCCL_HOSTID")
                for f in facts
                if int(f["rank"]) in ranks
            )
            text = f"{name_of(facts, ranks)} use the same GPU ({uuid})"
            fix = "LOCAL_RANK or CUDA_VISIBLE_DEVICES is not what the launcher meant"
            found.append(
                Finding(check="gpu", severity=NOTE if shared else ERROR, ranks=tuple(ranks), message=text, fix=fix)
            )
    return found


def _skewed_memory(facts: Sequence[Facts]) -> list[Finding]:
    """A GPU with clearly less free memory than the others: something else runs there, and that rank will be the first to fail."""
    frees = sorted(int(f["gpu"]["free"]) for f in facts if isinstance(f.get("gpu"), Mapping) and f["gpu"].get("free"))
    if len(frees) < 2:
        return []
    middle = frees[len(frees) // 2]
    found = []
    for f in facts:
        free = int((f.get("gpu") or {}).get("free") or 0)
        if free and free < 0.9 * middle:
            rank = int(f["rank"])
            found.append(
                Finding(
                    check="memory",
                    severity=WARNING,
                    ranks=(rank,),
                    message=f"{name_of(facts, [rank])} has {gib(free)} of GPU memory free, the others about {gib(middle)}",
                    fix="another process holds it: nvidia-smi",
                )
            )
    return found
