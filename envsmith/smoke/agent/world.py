"""What the cases of one rank share: torch, the device, the process groups, the memory that may be used."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from envsmith.smoke.agent.board import Board
from envsmith.smoke.agent.machine import memory_limit
from envsmith.smoke.agent.protocol import Log
from envsmith.smoke.agent.store import seconds


def group_layouts(world: int) -> dict[str, list[list[int]]]:
    """Return the groups that cases may name: every rank of a listed group runs the case, the others pass."""
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

    # Up to torch 2.7 the destructor of a gloo group can wait for ever for its own threads: none is destroyed before the
    # process ends.
    of_process: ClassVar[list[World]] = []

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
        self.mesh: Any = None
        self.of_process.append(self)

    def init_group(self, store: Any, prefix: str = "group") -> None:
        """Make the group, with `device_id` where torch knows it: torch 2.15 guesses the same device on every rank."""
        kwargs: dict[str, Any] = {}
        parameters = inspect.signature(self.dist.init_process_group).parameters
        if self.cuda:
            self.torch.cuda.set_device(self.device)
            if "device_id" in parameters:
                kwargs["device_id"] = self.device
        self.dist.init_process_group(
            self.backend, store=self.dist.PrefixStore(prefix, store), rank=self.rank, world_size=self.size,
            timeout=seconds(self.job["timeouts"]["group"]), **kwargs,
        )  # fmt: skip

    def open_groups(self, names: Iterable[str]) -> None:
        """Make every group on every rank in the same order, and keep the one that this rank is in."""
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


def implementation_of(dist: Any, device: Any) -> str:
    """Return the class behind the backend. torch 2.15 has two engines behind the name nccl, older ones have one."""
    ask = getattr(dist, "get_backend_impl", None)
    try:
        if ask:
            return type(ask()).__name__
        return type(dist.group.WORLD._get_backend(device)).__name__
    except Exception:
        return str(dist.get_backend())


def free_bytes(world: World) -> int:
    """Return what this rank may use: of the GPU its share, of the host its share of what is available now."""
    if world.cuda:
        sharing = list(world.job["devices"]).count(world.device.index)
        free, total = world.torch.cuda.mem_get_info(world.device)
        reserve = min(int(total) // 16, 4 << 30) + (1 << 30)
        return max(0, int(free) - reserve) // sharing
    return int(memory_limit()[1] * 0.6) // int(world.size)
