"""The hosts: memory, /dev/shm, limits on open files and locked memory."""

from __future__ import annotations

from collections.abc import Sequence

from envsmith.preflight.finding import ERROR, WARNING, Facts, Finding, gib, has, name_of

__all__ = ["limits", "memory"]

_SHM_FULL = 64 << 20  # below this a DataLoader worker or NCCL's host buffers meet SIGBUS
_SHM_SMALL = 1 << 30  # what NVIDIA's container guide asks for with --shm-size=1g
_HOST_LOW = 1 << 30
_OPEN_FILES = 4096


def _by_host(facts: Sequence[Facts], *keys: str) -> list[list[Facts]]:
    """Ranks of one host that see the same thing are told once; containers of one host may see different things."""
    groups: dict[tuple[object, ...], list[Facts]] = {}
    for f in facts:
        groups.setdefault((f.get("host"), *(f.get(key) for key in keys)), []).append(f)
    return list(groups.values())


def memory(facts: Sequence[Facts]) -> list[Finding]:
    """Hosts with little memory or /dev/shm left."""
    found = []
    for group in _by_host(facts, "shm_bytes"):
        f, ranks = group[0], tuple(int(g["rank"]) for g in group)
        name = name_of(facts, ranks)
        free, size = int(f.get("memory_free_bytes") or 0), int(f.get("shm_bytes") or 0)
        shm = min(int(g.get("shm_free_bytes") or 0) for g in group)
        if 0 < free < _HOST_LOW * len(group) // 2:
            found.append(
                Finding(
                    check="memory",
                    severity=WARNING,
                    ranks=ranks,
                    message=f"{name} {has(ranks)} {gib(free)} of host memory left, for {len(group)} rank(s)",
                )
            )
        if size and shm < _SHM_FULL:
            text = f"{name} {has(ranks)} {gib(shm)} of /dev/shm free ({gib(size)} in all): DataLoader workers and NCCL will die of SIGBUS"
            found.append(
                Finding(
                    check="shm",
                    severity=ERROR,
                    ranks=ranks,
                    message=text,
                    fix="remove what is left in /dev/shm, or give the container --shm-size=1g or --ipc=host",
                )
            )
        elif size and size < _SHM_SMALL and (f.get("container") or f.get("gpus")):
            text = f"{name} {has(ranks)} a /dev/shm of only {gib(size)}"
            found.append(
                Finding(
                    check="shm",
                    severity=WARNING,
                    ranks=ranks,
                    message=text,
                    fix="give the container --shm-size=1g or --ipc=host",
                )
            )
    return found


def limits(facts: Sequence[Facts]) -> list[Finding]:
    """Hosts where a rank may open few files, or lock little memory beside InfiniBand."""
    found = []
    for group in _by_host(facts, "memlock_bytes", "open_files"):
        f, ranks = group[0], tuple(int(g["rank"]) for g in group)
        name, memlock, files = name_of(facts, ranks), f.get("memlock_bytes"), f.get("open_files")
        if f.get("infiniband") and f.get("gpus") and isinstance(memlock, int):
            text = f"{name} may lock only {gib(memlock)}; InfiniBand registers all its buffers"
            found.append(
                Finding(check="limits", severity=WARNING, ranks=ranks, message=text, fix="ulimit -l unlimited")
            )
        if f.get("gpus") and isinstance(files, int) and files < _OPEN_FILES:
            text = f"{name} may open only {files} files; NCCL opens hundreds per rank"
            found.append(Finding(check="limits", severity=WARNING, ranks=ranks, message=text, fix="ulimit -n 65536"))
    return found
