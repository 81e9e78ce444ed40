"""What ranks share: the store where they meet, the manifests that they compare, groups, device and memory."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from envsmith.agent.machine import loaded_facts, memory_limit
from envsmith.agent.placement import release_of
from envsmith.agent.processes import loopback, process_space, process_started, read_text
from envsmith.agent.protocol import PROTOCOL, Board, Facts, JobJson, Log, Row

# The variables that change how a collective runs; they stand in every manifest.
TELLING = ("NCCL_", "TORCH_", "GLOO_", "CUDA_", "UCX_", "FI_", "DS_", "RCCL_", "HSA_")
ALSO_TELLING = ("LD_LIBRARY_PATH", "LD_PRELOAD", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
PER_RANK = {"NCCL_HOSTID", "NCCL_DEBUG_FILE", "CUDA_VISIBLE_DEVICES"}


def seconds(value: float) -> dt.timedelta:
    return dt.timedelta(seconds=value)


def bound_device(torch: Any, device: Any) -> Row:
    """Return `device_id` for `init_process_group`, from torch 2.5 on: 2.15 guesses the device where it is not passed.

    torch 2.3 and 2.4 know it too, but there `new_group` splits the communicator at once on the ranks that are not in
    the group and later on those that are: with one rank in it the others hang (pytorch/pytorch#134314, mended by
    #129284).
    """
    return {"device_id": device} if device is not None and release_of(str(torch.__version__)) >= (2, 5) else {}


def stored(store: Any, key: str) -> bool:
    """Check for a key. The store of torch before 2.3 has no `check`: wait a moment for the key instead."""
    if hasattr(store, "check"):
        return bool(store.check([key]))
    try:
        store.wait([key], dt.timedelta(milliseconds=2))
    except Exception:
        return False
    return True


def open_store(job: JobJson, board: Board | None) -> Any:
    """Open the TCP store. Rank 0 lets the kernel choose a port unless the plan names one, and puts it on the board."""
    import torch.distributed as dist

    rank, world, limit = job["rank"], job["world"], seconds(job["timeouts"]["init"])
    host, port = job.get("master") or loopback(), int(job.get("port") or 0)
    if rank == 0:
        store = dist.TCPStore(host, port, world, True, limit, wait_for_workers=False)
        if board is not None:
            board.port = store.port
        return store
    deadline = time.monotonic() + job["timeouts"]["init"]
    while board is not None and not port:
        port = board.port
        if time.monotonic() > deadline:
            raise RuntimeError("rank 0 opened no store")
        time.sleep(0.002)
    return dist.TCPStore(host, port, world, False, limit, wait_for_workers=False)


def manifest(job: JobJson, facts: Facts) -> Facts:
    """Return what must agree between ranks, and what may differ, apart."""
    env = {k: v for k, v in os.environ.items() if k.startswith(TELLING) or k in ALSO_TELLING}
    files = {}
    for path in ("/etc/nccl.conf", os.path.expanduser("~/.nccl.conf")):
        text = read_text(path)
        if text:
            files[os.path.basename(path)] = hashlib.sha256(text.encode()).hexdigest()
    version_keys = ("python", "torch", "torch_git", "cuda", "nccl", "nccl_runtime", "cudnn", "numpy", "installed")
    return {
        "must": {**{k: facts.get(k) for k in version_keys}, "cases": job["digest"], "world": job["world"],
                 "backend": job["backend"], "agent": PROTOCOL},
        "should": {**{k: v for k, v in sorted(env.items()) if k not in PER_RANK}, **files, "image": job.get("image")},
        "own": {**{k: v for k, v in env.items() if k in PER_RANK}, "device": job.get("device"),
                "pid": os.getpid(), "started": process_started(os.getpid()), "space": process_space()},
    }  # fmt: skip


def most_common(values: Sequence[str]) -> str:
    """Return what most ranks have. Of several the first: the lowest rank's side wins a tie."""
    return max(dict.fromkeys(values), key=values.count)


def compare_manifests(all_of_them: Sequence[Row], part: str) -> dict[str, list[int]]:
    """Return the keys on which ranks differ, each with the ranks in the minority."""
    differences = {}
    for key in sorted({k for m in all_of_them for k in m[part]}):
        values = [json.dumps(m[part].get(key), sort_keys=True) for m in all_of_them]
        if len(set(values)) > 1:
            common = most_common(values)
            differences[key] = [rank for rank, value in enumerate(values) if value != common]
    return differences


def agree(job: JobJson, store: Any, log: Log) -> tuple[bool, list[Row]]:
    """Compare manifests through the store. Return whether ranks may talk to each other, and all manifests."""
    facts = loaded_facts()
    fault = job.get("fault") or {}
    if fault.get("kind") == "version" and fault.get("rank") == job["rank"]:
        facts["torch"] = fault.get("value", "0.0.0")
    mine = manifest(job, facts)
    store.set(f"manifest/{job['rank']}", json.dumps(mine, sort_keys=True))
    manifests = [json.loads(store.get(f"manifest/{rank}")) for rank in range(job["world"])]
    bad, odd = compare_manifests(manifests, "must"), compare_manifests(manifests, "should")
    if job["rank"] == 0 or bad:
        ranks, keys = range(job["world"]), [key for key in bad if key != "installed"]
        values = {key: {str(rank): manifests[rank]["must"].get(key) for rank in ranks} for key in keys}
        log.row("manifest", rank=job["rank"], mismatch=bad, values=values, warnings=odd, manifest=mine)
    return not bad, manifests


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

    def __init__(self, job: JobJson, board: Board, log: Log) -> None:
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
        self.over = False
        self.mesh: Any = None
        self.of_process.append(self)

    def init_group(self, store: Any, prefix: str = "group") -> None:
        """Make the group, bound to this rank's device."""
        if self.cuda:
            self.torch.cuda.set_device(self.device)
        self.dist.init_process_group(
            self.backend, store=self.dist.PrefixStore(prefix, store), rank=self.rank, world_size=self.size,
            timeout=seconds(self.job["timeouts"]["group"]),
            **bound_device(self.torch, self.device if self.cuda else None),
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

    def look_at_time(self, index: int) -> None:
        """Let rank 0 say whether there is time for more cases. Ranks must not differ in it, as their clocks do."""
        until = self.job.get("until")
        if not until or self.over:
            return
        if self.rank == 0:
            self.store.set(f"over/{index}", "1" if time.monotonic() > until else "0")
        self.store.wait([f"over/{index}"], seconds(self.job["timeouts"]["group"]))
        self.over = bool(self.store.get(f"over/{index}") == b"1")
        if self.over:  # rank 0 holds the store, and with no case to run it would end before the others have read
            self.store.add("over/read", 1)
            while self.rank == 0 and self.store.add("over/read", 0) < self.size:
                time.sleep(0.005)

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
        free, total = world.torch.cuda.mem_get_info(world.device)
        reserve = min(int(total) // 16, 4 << 30) + (1 << 30)
        return max(0, int(free) - reserve) // int(world.job["share"])
    return int(memory_limit()[1] * 0.6) // int(world.job["share"])
