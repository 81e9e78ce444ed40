"""The same operations with a clock. Sizes are counted as nccl-tests does (a gather's or scatter's full buffer)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from envsmith.agent.cases.kit import Kit, operation
from envsmith.agent.protocol import Skip

CPU_LIMIT = 64 << 20  # bytes; beyond this gloo over loopback measures the memory of the host
# Ranks that share a GPU take turns of milliseconds: a larger buffer takes minutes and measures loopback or one memory.
SHARING_LIMIT = 64 << 20
# The seconds that the timed calls of one size may take together, and the fewest of them: slow is measured, not ended.
BUDGET, FEWEST = 2.0, 3


def measured(k: Kit, call: Callable[[], Any]) -> None:
    """Warm up, then time every call in microseconds: by CUDA events, on a CPU by the clock from a barrier on."""
    size = k.n * k.torch.empty(0, dtype=k.dtype).element_size()
    for _ in range(4 if size <= 1 << 24 else 1):
        call()
    k.world.sync()
    rounds = _rounds(k, call, 50 if size <= 1 << 20 else 20)
    times = _on_gpu(k, call, rounds) if k.world.cuda else _on_cpu(k, call, rounds)
    k.measured = {"bytes": size, "us": [round(t, 2) for t in times]}


def _rounds(k: Kit, call: Callable[[], Any], most: int) -> int:
    """Return how many calls fit into the budget, the same on every rank: by the slowest one's time for one more."""
    started = time.perf_counter()
    call()
    k.world.sync()
    slowest = k.torch.tensor([time.perf_counter() - started], device=k.world.device)
    k.dist.all_reduce(slowest, k.dist.ReduceOp.MAX, group=k.group)
    return max(FEWEST, min(most, int(BUDGET / max(float(slowest.item()), 1e-9))))


def _on_gpu(k: Kit, call: Callable[[], Any], rounds: int) -> list[float]:
    marks = [k.torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    k.world.sync()
    return [before.elapsed_time(after) * 1e3 for before, after in zip(marks, marks[1:])]


def _on_cpu(k: Kit, call: Callable[[], Any], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        k.dist.barrier(group=k.group)
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e6)
    return times


def _buffers(k: Kit) -> tuple[Any, Any]:
    """Return the full buffer and this rank's share. Skip what cannot be shared or would measure something else."""
    size = k.n * k.torch.empty(0, dtype=k.dtype).element_size()
    if not k.world.cuda and size > CPU_LIMIT:
        raise Skip(f"on a CPU nothing beyond {CPU_LIMIT >> 20} MiB is measured")
    sharing = str(k.world.job.get("sharing") or "")
    if sharing and size > SHARING_LIMIT:
        raise Skip(f"ranks that share a GPU ({sharing}) measure nothing beyond {SHARING_LIMIT >> 20} MiB")
    if k.n % k.size:
        raise Skip(f"{k.n} elements cannot be shared out among {k.size} ranks")
    # Zeros, because a sum in place of anything else grows with every round.
    buffer = k.torch.zeros(k.n, dtype=k.dtype, device=k.world.device)
    return buffer, k.torch.zeros(k.n // k.size, dtype=k.dtype, device=k.world.device)


def _timed(k: Kit, make: Callable[[Any, Any], Callable[[], Any]]) -> None:
    buffer, share = _buffers(k)
    k.issue(lambda: measured(k, make(buffer, share)))


@operation()
def bw_all_reduce(k: Kit) -> None:
    # SUM, as the published floors have it: NVLS adds float32 and does not compare it (ncclNvlsSupported() in
    # src/include/device.h of NCCL v2.30.7-1).
    _timed(k, lambda buffer, share: lambda: k.dist.all_reduce(buffer, group=k.group))


@operation()
def bw_reduce(k: Kit) -> None:
    _timed(k, lambda buffer, share: lambda: k.dist.reduce(buffer, k.ranks[0], group=k.group))


@operation()
def bw_broadcast(k: Kit) -> None:
    _timed(k, lambda buffer, share: lambda: k.dist.broadcast(buffer, k.ranks[0], group=k.group))


@operation()
def bw_all_gather_single(k: Kit) -> None:
    gather_into = k.single("all_gather_single", "all_gather_into_tensor")
    _timed(k, lambda buffer, share: lambda: gather_into(buffer, share, group=k.group))


@operation()
def bw_reduce_scatter_single(k: Kit) -> None:
    scatter_from = k.single("reduce_scatter_single", "reduce_scatter_tensor")
    _timed(k, lambda buffer, share: lambda: scatter_from(share, buffer, group=k.group))


@operation()
def bw_all_to_all_single(k: Kit) -> None:
    def make(buffer: Any, share: Any) -> Callable[[], Any]:
        received = k.torch.empty_like(buffer)
        return lambda: k.dist.all_to_all_single(received, buffer, group=k.group)

    _timed(k, make)


@operation()
def bw_send_recv(k: Kit) -> None:
    """Send to the next rank and receive from the one before, as sendrecv_perf does."""

    def make(buffer: Any, share: Any) -> Callable[[], Any]:
        received = k.torch.empty_like(buffer)
        after, before = k.neighbour(1), k.neighbour(-1)
        both = [k.dist.P2POp(k.dist.isend, buffer, after), k.dist.P2POp(k.dist.irecv, received, before)]
        return lambda: [work.wait() for work in k.dist.batch_isend_irecv(both)]

    _timed(k, make)
