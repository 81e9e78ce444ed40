"""Ways to make a group, and what needs a GPU: streams, CUDA graphs, symmetric memory."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from envsmith.agent.cases.kit import Kit, operation
from envsmith.agent.protocol import Skip, Wrong
from envsmith.agent.world import seconds


@operation(reducing=True)
def device_mesh(k: Kit) -> None:
    """Sum along each dimension of a 2-D mesh."""
    if k.world.size < 4 or k.world.size % 2:
        raise Skip(f"a 2-D mesh needs an even number of ranks from four on, the run has {k.world.size}")
    try:
        from torch.distributed.device_mesh import init_device_mesh
    except ImportError:
        raise k.lacks("device mesh") from None
    mesh = k.world.mesh = k.world.mesh or init_device_mesh(k.world.device.type, (2, k.world.size // 2))
    for dim in (0, 1):
        group = mesh.get_group(dim)
        ranks = k.dist.get_process_group_ranks(group)
        t = k.input(k.pattern(k.me), frozen=False)
        k.issue(functools.partial(k.dist.all_reduce, t, k.op, group=group))
        k.expect(t, k.reduced([k.pattern(r) for r in ranks]), f"dimension {dim}")


@operation(reducing=True)
def new_subgroups(k: Kit) -> None:
    if k.world.size % 2:
        raise Skip("needs an even number of ranks")
    mine, _ = k.dist.new_subgroups(group_size=2)
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=mine))
    first = k.me // 2 * 2
    k.expect(t, k.reduced([k.pattern(r) for r in (first, first + 1)]))
    k.dist.destroy_process_group(mine)


@operation(reducing=True)
def split_group(k: Kit) -> None:
    """Split a communicator by NCCL's own call, which needs a group that is bound to a device."""
    split = getattr(k.dist, "split_group", None)
    if split is None or not k.world.cuda:
        raise Skip("splitting a group needs a group that is bound to a device")
    if k.world.size % 2:
        raise Skip("needs an even number of ranks")
    pairs = [[r, r + 1] for r in range(0, k.world.size, 2)]
    mine = split(split_ranks=pairs)
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=mine))
    k.expect(t, k.reduced([k.pattern(r) for r in pairs[k.me // 2]]))


@operation(reducing=True)
def new_group_again(k: Kit) -> None:
    """Make, use and destroy one more group: groups come and go in a long training."""
    group = k.dist.new_group(list(range(k.world.size)), timeout=seconds(k.world.job["timeouts"]["group"]))
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=group))
    k.expect(t, k.reduced())
    k.dist.destroy_process_group(group)


@operation(reducing=True)
def reinit(k: Kit) -> None:
    """Destroy the world and make it again, as an elastic restart does. It must be the last case."""
    k.dist.destroy_process_group()
    k.world.init_group(k.world.store, f"again{k.index}")
    k.world.open_groups([])
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, k.op))
    k.expect(t, k.reduced())


@operation(reducing=True)
def compute_overlap(k: Kit) -> None:
    """Reduce beside a matrix product on another stream. Both results must be right."""
    torch = k.torch
    k.needs_gpu("overlap with another stream")
    a = torch.ones(256, 256, device=k.world.device)
    t = k.input(k.pattern(k.me), frozen=False)
    side = torch.cuda.Stream(k.world.device)
    product: list[Any] = []

    def both() -> None:
        work = k.dist.all_reduce(t, k.op, group=k.group, async_op=True)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            product.append(a @ a)
        work.wait()
        torch.cuda.current_stream().wait_stream(side)

    k.issue(both)
    if not bool((product[0] == 256).all()):
        raise Wrong("the matrix product beside the reduction is wrong")
    k.expect(t, k.reduced())


@operation(reducing=True)
def cuda_graph(k: Kit) -> None:
    """Apply a captured reduction to fresh data three times."""
    torch = k.torch
    k.needs_gpu("CUDA graph")
    t = k.input(k.pattern(k.me), frozen=False)
    k.dist.all_reduce(t, k.op, group=k.group)  # a communicator is made outside of a capture
    k.world.sync()
    graph = torch.cuda.CUDAGraph()
    # What other threads of this process ask of CUDA meanwhile must not spoil the capture: torch's watchdog, and who
    # reads its flight recorder.
    parameters = inspect.signature(torch.cuda.graph).parameters
    mode = {"capture_error_mode": "thread_local"} if "capture_error_mode" in parameters else {}
    with torch.cuda.graph(graph, **mode):
        k.dist.all_reduce(t, k.op, group=k.group)
    for start in (0, 5, 9):
        t.copy_(k.pattern(k.me, start=start))
        k.world.sync()
        k.issue(graph.replay)
        k.expect(t, k.reduced(k.every(start=start)), f"replay on data {start}")


@operation(reducing=True)
def symmetric_memory(k: Kit) -> None:
    torch = k.torch
    k.needs_gpu("symmetric memory")
    if len({peer.get("space") for peer in k.world.job.get("peers", ())}) > 1:
        raise Skip("symmetric memory hands its descriptors over sockets of one node, the ranks are on several")
    try:
        import torch.distributed._symmetric_memory as symm
    except ImportError:
        raise k.lacks("symmetric memory") from None
    if not hasattr(symm, "empty") or not hasattr(symm, "rendezvous"):
        raise k.lacks("symm_mem.empty")
    # Several ranks on one GPU: `sharing_env` asks torch to allow it; one that does not know the variable refuses on
    # every rank.
    t = symm.empty(k.n, dtype=k.dtype, device=k.world.device)
    if "enable_symm_mem_for_group" in vars(symm):  # older releases need it, 2.13 calls it deprecated
        symm.enable_symm_mem_for_group(k.group.group_name)
    symm.rendezvous(t, k.group.group_name)
    t.copy_(k.pattern(k.me))
    k.world.sync()
    k.dist.barrier(group=k.group, device_ids=[k.world.device.index])
    out: list[Any] = []
    k.issue(lambda: out.append(torch.ops.symm_mem.one_shot_all_reduce(t, "sum", k.group.group_name)))
    k.expect(out[0], k.reduced())
