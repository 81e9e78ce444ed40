"""What one rank sees of itself, before any group exists: versions, GPU, driver, memory, limits, variables."""

from __future__ import annotations

import os
import re
import socket
from typing import Any

from envsmith.smoke import agent

__all__ = ["collect"]

# A GPU is asked for a kernel, because the list of architectures says what was built, not what runs.
_KEPT = ("driver", "memory_bytes", "memory_free_bytes", "shm_bytes", "shm_free_bytes", "memlock_bytes", "open_files")


def collect(local: int = 0, *, gpu: bool = True) -> dict[str, Any]:
    """Facts of this process as JSON values; the caller has imported torch.

    ``local`` is the rank's number on its node and chooses the GPU. ``gpu=False`` starts no CUDA context.
    """
    import torch

    loaded, host = agent.loaded_facts(), agent.host_facts()
    names = (*agent.TELLING, "MASTER_ADDR")
    facts: dict[str, Any] = {
        **{key: loaded.get(key) for key in ("python", "torch", "torch_git", "cuda", "nccl", "nccl_runtime", "numpy")},
        **{key: host.get(key) for key in (*_KEPT, "container")},
        "installed": loaded["installed"],
        "arch_list": loaded["arch_list"],
        "has_nccl": bool(loaded.get("has_nccl")),
        "has_gloo": bool(loaded.get("has_gloo")),
        "nccl_path": _nccl_path(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "local": local,
        "infiniband": os.path.isdir("/sys/class/infiniband") and bool(os.listdir("/sys/class/infiniband")),  # noqa: PTH112, PTH208 - pathlib costs more than the call
        "gpus": len(host["gpus"]) if isinstance(host["gpus"], list) else 0,
        "env": {k: v for k, v in os.environ.items() if k.startswith(names) or k in agent.ALSO_TELLING},
    }
    facts["gpu"] = _gpu(torch, local, facts) if gpu and loaded.get("cuda") and facts["gpus"] else None
    return facts


def _nccl_path() -> str | None:
    """Which ``libnccl`` is mapped into this process, when it is a library of its own."""
    found = re.search(r"(/\S*libnccl\.so\S*)", agent.read_text("/proc/self/maps", 1 << 22))
    return found[1] if found else None


def _gpu(torch: Any, local: int, facts: dict[str, Any]) -> dict[str, Any]:
    """The GPU that this rank will use, and whether a kernel of this torch runs on it."""
    seen: dict[str, Any] = {"index": local, "error": None}
    try:
        count = torch.cuda.device_count()
        if not count:
            seen["error"] = "CUDA sees no GPU (CUDA_VISIBLE_DEVICES hides it, or the driver does not answer)"
            return seen
        seen["index"] = index = local % count
        seen["count"] = count
        properties = torch.cuda.get_device_properties(index)
        seen["name"], seen["uuid"] = properties.name, str(getattr(properties, "uuid", "") or "")
        seen["arch"] = f"sm_{properties.major}{properties.minor}"
        with torch.cuda.device(index):
            torch.zeros(1, device=f"cuda:{index}").add_(1).item()
            seen["free"], seen["total"] = torch.cuda.mem_get_info(index)
    except Exception as error:  # noqa: BLE001 - whatever CUDA says is the finding
        seen["error"] = agent.one_line(error)
    facts["cuda_usable"] = seen["error"] is None
    return seen
