"""Run the agent's GPU paths in a process without a GPU: real torch, one gloo rank, and stand-ins for what only a GPU can do.

Every call to torch.cuda and to a function that gets other arguments on a GPU is held against the signature of the real one, so that a name or an
argument that this torch does not have is found without a GPU. Prints `ok NAME` for each path; run by tests/smoke/test_cuda_paths.py.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from envsmith.agent.cases import OPERATIONS, timing
from envsmith.agent.cases.kit import Kit
from envsmith.agent.machine import loaded_facts
from envsmith.agent.protocol import Board, Skip
from envsmith.agent.steps.stage import Stage
from envsmith.agent.world import World, bound_device, free_bytes

CALLS: list[str] = []


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def bound(real: Any, name: str, stand_in: Any) -> Any:
    """`stand_in`, called only with arguments that `real` takes."""

    def call(*args: Any, **kwargs: Any) -> Any:
        inspect.signature(real).bind(*args, **kwargs)
        CALLS.append(name)
        return stand_in(*args, **kwargs)

    call.__signature__ = inspect.signature(real)  # type: ignore[attr-defined]
    return call


class Stream:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, other: Any) -> None: ...


class Event:
    def __init__(self, *, enable_timing: bool = False) -> None:
        assert enable_timing, "an event without timing has no elapsed_time"
        self.recorded = False

    def record(self) -> None:
        self.recorded = True

    def elapsed_time(self, later: Event) -> float:
        assert self.recorded
        assert later.recorded
        return 0.5


class Graph:
    """Captured calls are not run while they are captured; replay runs them."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def replay(self) -> None:
        for call in self.calls:
            call()


class Cuda:
    """What the agent asks of torch.cuda; anything else is an AttributeError of the real module."""

    def __init__(self) -> None:
        real = torch.cuda
        self.capturing: Graph | None = None
        self.Stream = bound(real.Stream, "Stream", Stream)
        self.Event = bound(real.Event, "Event", Event)
        self.CUDAGraph = bound(real.CUDAGraph, "CUDAGraph", Graph)
        self.graph = bound(real.graph, "graph", self._graph)
        self.stream = bound(real.stream, "stream", lambda _: contextlib.nullcontext())
        self.current_stream = bound(real.current_stream, "current_stream", Stream)
        self.synchronize = bound(real.synchronize, "synchronize", lambda _device=None: None)
        self.set_device = bound(real.set_device, "set_device", lambda _device: None)
        self.mem_get_info = bound(real.mem_get_info, "mem_get_info", lambda _device=None: (120 << 30, 140 << 30))
        self.get_device_capability = bound(real.get_device_capability, "capability", lambda _device=None: (9, 0))
        self.device_count = lambda: 1
        self.is_available = lambda: True

    @contextlib.contextmanager
    def _graph(self, graph: Graph, **_: Any) -> Any:
        self.capturing = graph
        yield
        self.capturing = None


class Torch:
    """Real torch but for `cuda` and the operators of symmetric memory."""

    def __init__(self) -> None:
        self.cuda = Cuda()
        reduce = torch.ops.symm_mem.one_shot_all_reduce.default
        assert [argument.name for argument in reduce._schema.arguments] == ["input", "reduce_op", "group_name"]
        self.ops = types.SimpleNamespace(
            symm_mem=types.SimpleNamespace(one_shot_all_reduce=lambda t, _op, _name: t.clone())
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class Distributed:
    """Real torch.distributed; an all_reduce under capture is kept for the replay, `split_group` makes an ordinary group."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.split_group = bound(dist.split_group, "split_group", lambda **_: dist.new_group([0]))

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_reduce(self, *args: Any, **kwargs: Any) -> Any:
        if self.cuda.capturing is not None:
            self.cuda.capturing.calls.append(lambda: dist.all_reduce(*args, **kwargs))
            return None
        return dist.all_reduce(*args, **kwargs)


def world_of() -> Any:
    world = World.__new__(World)
    fake = Torch()
    job = {
        "devices": [0], "timeouts": {"group": 60, "init": 60}, "sharing": "multi-rank", "backend": "nccl", "share": 1,
    }  # fmt: skip
    world.torch, world.dist, world.job, world.board, world.log = fake, Distributed(fake.cuda), job, Board(), None
    world.rank, world.size, world.backend, world.over = 0, 1, "nccl", False
    # The only device that there is, with a number as a GPU has.
    world.device, world.cuda, world.groups, world.free = (
        torch.device("cpu", 0),
        True,
        {"world": (dist.group.WORLD, [0])},
        1 << 30,
    )
    world.store = dist.HashStore()
    return world


def run(world: Any, op: str, frees: Sequence[int] = (1 << 40,), **more: Any) -> None:
    case = {"op": op, "id": op, "dtype": "float32", "redop": "sum", "n": 1024, **more}
    kit = Kit(world, 0, case, None)
    kit.fit(frees)
    OPERATIONS[op].run(kit)
    kit.guards()
    if op.startswith("bw_"):
        assert kit.measured["us"] == [500.0] * len(kit.measured["us"]), kit.measured
        assert 3 <= len(kit.measured["us"]) <= 50
    say(f"ok {op}")


def init_group(world: Any) -> None:
    """`device_id` reaches init_process_group, and nothing that it does not take."""
    given: dict[str, Any] = {}
    world.dist.init_process_group = bound(
        dist.init_process_group, "init_process_group", lambda *_, **kwargs: given.update(kwargs)
    )
    world.init_group(world.store, "again")
    assert given["device_id"] is world.device, given
    say("ok init_group")


def stage_binds_device() -> None:
    """A step that makes the group itself passes `device_id`; a framework that leaves it out is left alone."""
    stage = Stage.__new__(Stage)
    stage.torch, stage.cuda, stage.device = torch, True, torch.device("cuda", 3)
    stage.job = {"backend": "nccl", "timeouts": {"group": 60}}
    given: dict[str, Any] = {}
    real = dist.init_process_group
    dist.init_process_group = bound(real, "init_process_group", lambda *_, **kwargs: given.update(kwargs))
    try:
        stage.init_group()
    finally:
        dist.init_process_group = real
    assert given["device_id"] == torch.device("cuda", 3)
    assert dist.init_process_group is dist.distributed_c10d.init_process_group is real
    say("ok bind_device")


def old_torch_is_not_bound() -> None:
    for version, bound_to in (("2.2.2+cu121", {}), ("2.4.1", {}), ("2.5.1", {"device_id": torch.device("cuda", 3)})):
        old = types.SimpleNamespace(__version__=version)
        assert bound_device(old, torch.device("cuda", 3)) == bound_to, version
    assert bound_device(torch, None) == {}
    say("ok old_torch")


def skipped(world: Any, op: str, **more: Any) -> str:
    try:
        run(world, op, **more)
    except Skip as reason:
        return str(reason)
    raise AssertionError(f"{op} was run")


def slow_calls_are_measured(world: Any) -> None:
    """A budget of seconds takes rounds away and no more: three are left of a call that takes a third of it."""
    kit = Kit(world, 0, {"op": "bw_all_reduce", "id": "slow", "dtype": "float32", "n": 1024}, None)
    timing.measured(kit, lambda: time.sleep(timing.BUDGET / 3.5 if len(waits) == 4 else 0) or waits.append(1))
    assert kit.measured["us"] == [500.0] * 3, kit.measured
    say("ok slow")


waits: list[int] = []


def sums_of_float8_are_exact(world: Any) -> None:
    """Every order of the ranks gives the expected value although each partial sum is stored in the dtype."""
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        for size in (2, 3, 8, 64):
            world.size = size
            kit = Kit(world, 0, {"op": "all_reduce", "id": "f", "dtype": dtype, "redop": "sum", "n": 129}, None)
            parts = [kit.pattern(rank) for rank in range(size)]
            for order in (parts, parts[::-1], parts[size // 2 :] + parts[: size // 2]):
                total = order[0]
                for part in order[1:]:
                    total = (total.float() + part.float()).to(kit.dtype)
                kit.expect(total, kit.reduced(parts), f"{dtype} of {size} ranks")
    world.size = 1
    say("ok float8")


def forks_may_use_cuda() -> None:
    """What the nursery asks before it forks the ranks leaves CUDA to them. The first run on a GPU failed here."""
    assert loaded_facts()["torch"] == torch.__version__
    pid = os.fork()
    if pid == 0:
        os._exit(int(torch._C._cuda_isInBadFork()))
    assert os.waitpid(pid, 0)[1] == 0, "torch refuses CUDA to what is forked after loaded_facts()"
    say("ok forks")


def main() -> None:
    forks_may_use_cuda()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    world = world_of()
    symm.empty = bound(symm.empty, "symm.empty", lambda n, dtype, device: torch.empty(n, dtype=dtype, device=device))
    symm.rendezvous = bound(symm.rendezvous, "rendezvous", lambda _t, _group: None)
    symm.enable_symm_mem_for_group = lambda _name: None
    for op in ("all_reduce", "compute_overlap", "cuda_graph", "symmetric_memory", "barrier", "coalesced"):
        run(world, op)
    run(world, "all_reduce", mode="async")
    run(world, "all_gather_object")
    for op in sorted(name for name in OPERATIONS if name.startswith("bw_") and "send" not in name):
        run(world, op)
    try:
        run(world, "bw_all_reduce", n=1 << 30)
    except Skip as reason:
        say(f"ok limit: {reason}")
    world.size = 2
    kit = Kit(world, 0, {"op": "split_group", "id": "s", "dtype": "float32", "redop": "sum", "n": 17}, None)
    kit.ranks, kit.size = [0], 1
    kit.reduced = lambda _parts=None: kit.pattern(0)
    OPERATIONS["split_group"].run(kit)
    say("ok split_group")
    world.size = 1
    assert free_bytes(world) == (120 << 30) - (4 << 30) - (1 << 30)
    world.job["share"] = 2
    assert free_bytes(world) == (115 << 30) // 2
    world.job["share"] = 1
    assert "memory: needs 32.0 GiB" in skipped(world, "bw_all_reduce", n=4 << 30, frees=[31 << 30])
    say("ok free_bytes")
    world.job["peers"] = [{"space": "a"}, {"space": "b"}]
    assert "on several" in skipped(world, "symmetric_memory")
    del world.job["peers"]
    sums_of_float8_are_exact(world)
    slow_calls_are_measured(world)
    old_torch_is_not_bound()
    init_group(world)
    stage_binds_device()
    missing = {
        "graph",
        "CUDAGraph",
        "Stream",
        "Event",
        "synchronize",
        "set_device",
        "mem_get_info",
        "rendezvous",
        "split_group",
    } - set(CALLS)
    assert not missing, missing
    say("ok all")


if __name__ == "__main__":
    sys.exit(main())
