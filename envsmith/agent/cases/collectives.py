"""Collectives of torch.distributed, several at once, coalesced, and as functional operators."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from envsmith.agent.cases.kit import Kit, operation
from envsmith.agent.protocol import Skip, Wrong
from envsmith.agent.world import seconds


@operation(reducing=True)
def all_reduce(k: Kit) -> None:
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=k.group, async_op=k.later))
    k.expect(t, k.reduced())


@operation(reducing=True)
def reduce(k: Kit) -> None:
    """Reduce to the root. What the tensors of the other ranks hold afterwards is undefined."""
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.reduce(t, k.src, k.op, group=k.group, async_op=k.later))
    if k.me == k.root:
        k.expect(t, k.reduced())


@operation()
def broadcast(k: Kit) -> None:
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.broadcast(t, k.src, group=k.group, async_op=k.later))
    k.expect(t, k.pattern(k.root))


@operation(wide=True)
def all_gather(k: Kit) -> None:
    outs = [k.output() for _ in range(k.size)]
    t = k.input(k.pattern(k.me))
    k.issue(lambda: k.dist.all_gather(outs, t, group=k.group, async_op=k.later))
    k.expect_parts(outs, k.every())


@operation(wide=True)
def all_gather_single(k: Kit) -> None:
    call = k.single("all_gather_single", "all_gather_into_tensor")
    out = k.output(k.n * k.size)
    if k.mode == "in":
        t = out[k.me * k.n : (k.me + 1) * k.n]
        t.copy_(k.pattern(k.me))
    else:
        t = k.input(k.pattern(k.me))
    k.issue(lambda: call(out, t, group=k.group, async_op=k.later))
    k.expect(out, k.torch.cat(k.every()))


@operation(wide=True)
def gather(k: Kit) -> None:
    outs = [k.output() for _ in range(k.size)] if k.me == k.root else None
    t = k.input(k.pattern(k.me))
    k.issue(lambda: k.dist.gather(t, outs, k.src, group=k.group, async_op=k.later))
    k.expect_parts(outs or (), k.every())


@operation(wide=True)
def scatter(k: Kit) -> None:
    parts = [k.input(values) for values in k.every()] if k.me == k.root else None
    out = k.output()
    k.issue(lambda: k.dist.scatter(out, parts, k.src, group=k.group, async_op=k.later))
    k.expect(out, k.pattern(k.me))


def _chunks(k: Kit) -> tuple[list[Any], list[Any]]:
    """Return what this rank sends to each, and what it receives from each."""
    patterns = [k.pattern(r, k.n * k.size) for r in range(k.size)]
    mine = slice(k.me * k.n, (k.me + 1) * k.n)
    return [patterns[k.me][r * k.n : (r + 1) * k.n] for r in range(k.size)], [w[mine] for w in patterns]


@operation(reducing=True, wide=True)
def reduce_scatter(k: Kit) -> None:
    sent, due = _chunks(k)
    out, parts = k.output(), [k.input(part) for part in sent]
    k.issue(lambda: k.dist.reduce_scatter(out, parts, k.op, group=k.group, async_op=k.later))
    k.expect(out, k.reduced(due))


@operation(reducing=True, wide=True)
def reduce_scatter_single(k: Kit) -> None:
    call = k.single("reduce_scatter_single", "reduce_scatter_tensor")
    sent, due = _chunks(k)
    t = k.input(k.torch.cat(sent), frozen=k.mode != "in")
    out = t[k.me * k.n : (k.me + 1) * k.n] if k.mode == "in" else k.output()
    k.issue(lambda: call(out, t, k.op, group=k.group, async_op=k.later))
    k.expect(out, k.reduced(due))


@operation(wide=True)
def all_to_all(k: Kit) -> None:
    sent, due = _chunks(k)
    outs, parts = [k.output() for _ in range(k.size)], [k.input(part) for part in sent]
    k.issue(lambda: k.dist.all_to_all(outs, parts, group=k.group, async_op=k.later))
    k.expect_parts(outs, due)


@operation(wide=True)
def all_to_all_single(k: Kit) -> None:
    sent, due = _chunks(k)
    t, out = k.input(k.torch.cat(sent)), k.output(k.n * k.size)
    k.issue(lambda: k.dist.all_to_all_single(out, t, group=k.group, async_op=k.later))
    k.expect(out, k.torch.cat(due))


@operation(wide=True)
def all_to_all_uneven(k: Kit) -> None:
    """Send a different count to every rank, some of them zero, as expert parallelism does."""

    def count(a: int, b: int) -> int:
        return (a + 2 * b) % 3 * k.n

    give, take = [count(k.me, r) for r in range(k.size)], [count(r, k.me) for r in range(k.size)]
    t, out = k.input(k.pattern(k.me, sum(give))), k.output(sum(take))
    k.issue(lambda: k.dist.all_to_all_single(out, t, take, give, group=k.group, async_op=k.later))
    due = []
    for r in range(k.size):
        start = sum(count(r, s) for s in range(k.me))
        due.append(k.pattern(r, count(r, k.me), start))
    k.expect(out, k.torch.cat(due))


def _meet(k: Kit, barrier: Callable[[], Any]) -> None:
    """Prove a barrier by what is known after it: no rank leaves before all have entered."""
    key = f"meet/{k.index}"
    k.world.store.add(f"{key}/{k.world.rank}", 1)  # unlike `set`, answered before it returns
    k.issue(barrier)
    if not all(k.world.store.add(f"{key}/{r}", 0) for r in k.ranks):
        raise Wrong("left the barrier before every rank had entered it")


@operation()
def barrier(k: Kit) -> None:
    kwargs = {"device_ids": [k.world.device.index]} if k.world.cuda else {}
    _meet(k, lambda: k.dist.barrier(group=k.group, async_op=k.later, **kwargs))


@operation()
def monitored_barrier(k: Kit) -> None:
    _meet(k, lambda: k.dist.monitored_barrier(group=k.group, timeout=seconds(k.world.job["timeouts"]["group"])))


@operation(reducing=True)
def overlap16(k: Kit) -> None:
    """Keep sixteen reductions in flight and wait for them in the opposite order."""
    ts = [k.input(k.pattern(k.me, start=j), frozen=False) for j in range(16)]
    k.issue_all(lambda: [k.dist.all_reduce(t, k.op, group=k.group, async_op=True) for t in ts][::-1])
    _expect_sums(k, ts)


@operation(reducing=True)
def coalesced(k: Kit) -> None:
    """Launch four reductions at once, as DDP and FSDP do."""
    manager = getattr(k.dist.distributed_c10d, "_coalescing_manager", None)
    if manager is None or "reqs" in inspect.signature(manager).parameters:
        raise k.lacks("coalescing manager of the present form")
    ts = [k.input(k.pattern(k.me, start=j), frozen=False) for j in range(4)]

    def together() -> None:
        # No device: that is for backends without an operation for several tensors, and NCCL and gloo have one.
        with manager(group=k.group):
            for t in ts:
                k.dist.all_reduce(t, k.op, group=k.group)

    k.issue(together)
    _expect_sums(k, ts)


def _expect_sums(k: Kit, ts: list[Any]) -> None:
    for start, t in enumerate(ts):
        k.expect(t, k.reduced(k.every(start=start)), f"tensor {start}")


def _functional(k: Kit, name: str, sent: Any, *arguments: Any, due: Any) -> None:
    """Call the raw operator and its wait: `torch.distributed._functional_collectives` would import dynamo (2 s)."""
    namespace = getattr(k.torch.ops, "_c10d_functional", None)
    if namespace is None or not hasattr(namespace, name) or not hasattr(k.group, "group_name"):
        raise k.lacks(f"operator _c10d_functional.{name}")
    group = k.group.group_name
    try:
        k.torch._C._distributed_c10d._resolve_process_group(group)
    except Exception:
        raise Skip(f"torch {k.torch.__version__} does not register its groups for functional operators") from None
    t, call = k.input(sent), getattr(namespace, name)
    out: list[Any] = []
    k.issue(lambda: out.append(namespace.wait_tensor(call(t, *arguments, group))))
    k.expect(out[0], due)


@operation(reducing=True)
def functional_all_reduce(k: Kit) -> None:
    _functional(k, "all_reduce", k.pattern(k.me), k.redop, due=k.reduced())


@operation(wide=True)
def functional_all_gather(k: Kit) -> None:
    due = k.torch.cat(k.every())
    _functional(k, "all_gather_into_tensor", k.pattern(k.me), k.size, due=due)


@operation(reducing=True, wide=True)
def functional_reduce_scatter(k: Kit) -> None:
    sent, due = _chunks(k)
    _functional(k, "reduce_scatter_tensor", k.torch.cat(sent), k.redop, k.size, due=k.reduced(due))


@operation(wide=True)
def functional_all_to_all(k: Kit) -> None:
    (sent, due), counts = _chunks(k), [k.n] * k.size
    _functional(k, "all_to_all_single", k.torch.cat(sent), counts, counts, due=k.torch.cat(due))


@operation()
def functional_broadcast(k: Kit) -> None:
    _functional(k, "broadcast", k.pattern(k.me), k.root, due=k.pattern(k.root))


@operation(wide=True)
def bytes_all_gather(k: Kit) -> None:
    """Gather a dtype that the backend does not know as bytes (float8 in FSDP and ZeRO++)."""
    call = k.single("all_gather_single", "all_gather_into_tensor")
    t, out = k.input(k.pattern(k.me)), k.output(k.n * k.size)
    k.issue(lambda: call(out.view(k.torch.uint8), t.view(k.torch.uint8), group=k.group))
    k.expect(out, k.torch.cat(k.every()))
