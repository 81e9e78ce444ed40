"""Unusual tensors: strided, transposed, sparse, boolean, larger than 2 GiB, with NaN and infinity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from envsmith.agent.cases.kit import Kit, operation
from envsmith.agent.protocol import Skip, Wrong


def _column(k: Kit, values: Any) -> tuple[Any, Any]:
    """Return a column of a two-column matrix: every second element is a neighbour that must not change."""
    base = k.torch.full((max(k.n, 1), 2), 100, dtype=k.dtype, device=k.world.device)
    base[: k.n, 0] = values.to(k.world.device)
    return base, base[: k.n, 0]


def _neighbours(base: Any) -> None:
    if not bool((base[:, 1] == 100).all()):
        raise Wrong("the elements between those of a strided tensor were overwritten")


@operation(reducing=True)
def strided_all_reduce(k: Kit) -> None:
    base, t = _column(k, k.pattern(k.me))
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=k.group))
    k.expect(t, k.reduced())
    _neighbours(base)


@operation()
def strided_broadcast(k: Kit) -> None:
    base, t = _column(k, k.pattern(k.me))
    k.issue(lambda: k.dist.broadcast(t, k.src, group=k.group))
    k.expect(t, k.pattern(k.root))
    _neighbours(base)


@operation(reducing=True)
def strided_reduce(k: Kit) -> None:
    base, t = _column(k, k.pattern(k.me))
    k.issue(lambda: k.dist.reduce(t, k.src, k.op, group=k.group))
    if k.me == k.root:
        k.expect(t, k.reduced())
        _neighbours(base)


@operation(wide=True)
def strided_all_gather(k: Kit) -> None:
    call = k.single("all_gather_single", "all_gather_into_tensor")
    _, t = _column(k, k.pattern(k.me))
    out = k.output(k.n * k.size)
    k.issue(lambda: call(out, t, group=k.group))
    k.expect(out, k.torch.cat(k.every()))


@operation(wide=True)
def strided_scatter(k: Kit) -> None:
    parts = [_column(k, values)[1] for values in k.every()] if k.me == k.root else None
    base, out = _column(k, k.pattern(k.me) * 0)
    k.issue(lambda: k.dist.scatter(out, parts, k.src, group=k.group))
    k.expect(out, k.pattern(k.me))
    _neighbours(base)


@operation(wide=True)
def strided_gather(k: Kit) -> None:
    columns = [_column(k, k.pattern(r) * 0) for r in range(k.size)] if k.me == k.root else []
    _, t = _column(k, k.pattern(k.me))
    k.issue(lambda: k.dist.gather(t, [c[1] for c in columns] or None, k.src, group=k.group))
    for r, (base, out) in enumerate(columns):
        k.expect(out, k.pattern(r), f"part of rank {r}")
        _neighbours(base)


@operation()
def strided_send_recv(k: Kit) -> None:
    """Send first on every rank, so that every rank meets a refusal."""
    k.needs_peer()
    _, t = _column(k, k.pattern(k.me))
    out = k.output()
    after, before = k.neighbour(1), k.neighbour(-1)
    if k.world.backend == "nccl":
        raise Skip("NCCL orders sends and receives; use batch_isend_irecv")
    k.issue_all(lambda: [k.dist.isend(t, after, group=k.group), k.dist.irecv(out, before, group=k.group)])
    k.expect(out, k.pattern((k.me - 1) % k.size))


@operation(reducing=True)
def transposed_all_reduce(k: Kit) -> None:
    """Reduce a tensor that is dense but not row-major, as a channels-last or transposed weight is."""
    rows = k.pattern(k.me, 12).view(3, 4).to(k.world.device)
    t = rows.t()
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=k.group))
    k.expect(t.t(), k.reduced([k.pattern(r, 12) for r in range(k.size)]))


@operation(reducing=True)
def sparse_all_reduce(k: Kit) -> None:
    torch = k.torch
    index = torch.tensor([[k.me, k.size + 1]])
    t = torch.sparse_coo_tensor(index, torch.tensor([k.me + 1.0, 2.0], dtype=k.dtype), (k.size + 3,)).to(k.world.device)
    k.issue(lambda: k.dist.all_reduce(t, group=k.group))
    due = torch.zeros(k.size + 3, dtype=k.dtype)
    for r in range(k.size):
        due[r] += r + 1
        due[k.size + 1] += 2
    k.expect(t.to_dense(), due)


@operation(reducing=True)
def bool_bytes(k: Kit) -> None:
    """Check that a boolean tensor holds bytes 0 and 1 after a reduction, as a reader of the bytes expects."""
    # True on every rank, so that two of them meet everywhere.
    t = k.input(k.torch.ones(k.n, dtype=k.dtype), frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=k.group))
    largest = int(k.bytes_of(t.to("cpu")).max())
    if largest > 1:
        raise Wrong(f"a true element is stored as the byte {largest}: true for torch, not for who reads the bytes")


# A multiple of every period that `pattern` can have, so that each piece of a large buffer holds the same values.
CHUNK = 113 * 27720 * 5


def _pieces(k: Kit) -> Iterator[slice]:
    for start in range(0, k.n, CHUNK):
        yield slice(start, min(start + CHUNK, k.n))


def _filled(k: Kit) -> Any:
    t = k.torch.empty(k.n, dtype=k.dtype, device=k.world.device)
    values = k.pattern(k.me, min(CHUNK, k.n)).to(k.world.device)
    for piece in _pieces(k):
        t[piece] = values[: piece.stop - piece.start]
    return t


def _compare_pieces(k: Kit, t: Any, due: Any) -> None:
    for piece in _pieces(k):
        k.expect(t[piece], due[: piece.stop - piece.start], f"piece at {piece.start}")


@operation()
def large_broadcast(k: Kit) -> None:
    """Send more bytes than a 32-bit count holds. They are compared in pieces, so that only the buffer is large."""
    t = _filled(k)
    k.issue(lambda: k.dist.broadcast(t, k.src, group=k.group))
    _compare_pieces(k, t, k.pattern(k.root, min(CHUNK, k.n)))


@operation(reducing=True)
def large_all_reduce(k: Kit) -> None:
    t = _filled(k)
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=k.group))
    _compare_pieces(k, t, k.reduced([k.pattern(r, min(CHUNK, k.n)) for r in range(k.size)]))


@operation(reducing=True)
def not_finite(k: Kit) -> None:
    """Check that NaN and infinity arrive: a library that drops them hides a diverged training."""
    torch = k.torch
    values = k.pattern(k.me)
    values[k.me] = float("nan")
    values[k.size + k.me] = float("inf")
    t = k.input(values, frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, k.op, group=k.group))
    got = t.to("cpu")
    if not bool(torch.isnan(got[: k.size]).all()):
        raise Wrong("a NaN was lost")
    if not bool(torch.isinf(got[k.size : 2 * k.size]).all()):
        raise Wrong("an infinity was lost")
    k.expect(got[2 * k.size :], k.reduced()[2 * k.size :])


@operation(reducing=True)
def repeatable(k: Kit) -> None:
    """Check that two runs on the same numbers give the same bits on every rank: replicas must not drift."""
    torch = k.torch
    generator = torch.Generator().manual_seed(17 + k.me)
    values = torch.randn(k.n, generator=generator).to(k.dtype)
    one, two = k.input(values, frozen=False), k.input(values, frozen=False)

    def twice() -> None:
        k.dist.all_reduce(one, k.op, group=k.group)
        k.dist.all_reduce(two, k.op, group=k.group)

    k.issue(twice)
    k.expect(two, one.to("cpu"), "second run")
    raw = bytes(k.bytes_of(one.to("cpu").contiguous()).tolist())
    digest = torch.tensor(list(hashlib.sha256(raw).digest()), dtype=torch.uint8)
    outs = [torch.zeros(32, dtype=torch.uint8, device=k.world.device) for _ in range(k.size)]
    k.dist.all_gather(outs, digest.to(k.world.device), group=k.group)
    differing = [r for r, out in enumerate(outs) if not torch.equal(out.to("cpu"), digest)]
    if differing:
        raise Wrong(f"ranks {differing} hold other bits than rank {k.me} after all_reduce")


@operation(reducing=True)
def premul_sum(k: Kit) -> None:
    name = "_make_nccl_premul_sum"
    make = getattr(k.dist, name, None) or getattr(k.dist.distributed_c10d, name, None)
    if make is None:
        raise k.lacks("premultiplied sum")
    t = k.input(k.pattern(k.me), frozen=False)
    k.issue(lambda: k.dist.all_reduce(t, make(2.0), group=k.group))
    k.expect(t, k.reduced([2 * k.pattern(r) for r in range(k.size)]))
