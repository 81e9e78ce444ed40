"""Messages between two ranks, and collectives of Python objects."""

from __future__ import annotations

from typing import Any

from envsmith.agent.cases.kit import Kit, operation
from envsmith.agent.protocol import Row, Skip, Wrong


@operation()
def send_recv(k: Kit) -> None:
    """Send around a ring: even ranks send first, odd ones receive first."""
    k.needs_peer()
    out, t = k.output(), k.input(k.pattern(k.me))
    after, before = k.neighbour(1), k.neighbour(-1)

    def ring() -> None:
        if k.me % 2 == 0:
            k.dist.send(t, after, group=k.group)
            k.dist.recv(out, before, group=k.group)
        else:
            k.dist.recv(out, before, group=k.group)
            k.dist.send(t, after, group=k.group)

    k.issue(ring)
    k.expect(out, k.pattern((k.me - 1) % k.size))


@operation()
def isend_irecv(k: Kit) -> None:
    k.needs_peer()
    out, t = k.output(), k.input(k.pattern(k.me))
    after, before = k.neighbour(1), k.neighbour(-1)
    if k.world.backend == "nccl":
        raise Skip("NCCL orders sends and receives; use batch_isend_irecv")
    k.issue_all(lambda: [k.dist.irecv(out, after, group=k.group), k.dist.isend(t, before, group=k.group)])
    k.expect(out, k.pattern((k.me + 1) % k.size))


@operation()
def batch_isend_irecv(k: Kit) -> None:
    """Send in both directions at once, as pipeline parallelism does."""
    k.needs_peer()
    up, down, t = k.output(), k.output(), k.input(k.pattern(k.me))
    after, before = k.neighbour(1), k.neighbour(-1)
    p2p = k.dist.P2POp
    ops = [p2p(k.dist.isend, t, after, k.group), p2p(k.dist.irecv, up, before, k.group)]
    if k.size > 2:
        ops += [p2p(k.dist.isend, t, before, k.group), p2p(k.dist.irecv, down, after, k.group)]
    k.issue_all(lambda: k.dist.batch_isend_irecv(ops))
    k.expect(up, k.pattern((k.me - 1) % k.size), "from the rank before")
    if k.size > 2:
        k.expect(down, k.pattern((k.me + 1) % k.size), "from the rank after")


@operation()
def tags(k: Kit) -> None:
    """Receive two messages between neighbours in the opposite order of their sending."""
    k.needs_peer()
    peer = k.me ^ 1
    if peer >= k.size:
        k.issue(lambda: None)
        return
    one, two = k.output(), k.output()
    a, b = k.input(k.pattern(k.me)), k.input(k.pattern(k.me, start=7))

    def start() -> list[Any]:
        sent = [k.dist.isend(t, k.ranks[peer], group=k.group, tag=tag) for t, tag in ((a, 11), (b, 12))]
        return sent + [k.dist.irecv(t, k.ranks[peer], group=k.group, tag=tag) for t, tag in ((two, 12), (one, 11))]

    k.issue_all(start)
    k.expect(one, k.pattern(peer), "tag 11")
    k.expect(two, k.pattern(peer, start=7), "tag 12")


@operation(wide=True)
def any_source(k: Kit) -> None:
    """Receive on rank 0 whatever comes, with the sender's number."""
    k.needs_peer()
    outs = [k.output() for _ in range(k.size - 1)]
    t = k.input(k.pattern(k.me))
    senders: list[int] = []

    def take() -> None:
        if k.me == 0:
            senders.extend(k.dist.recv(out, group=k.group) for out in outs)
        else:
            k.dist.send(t, k.ranks[0], group=k.group)

    k.issue(take)
    k.dist.barrier(group=k.group)  # or the next case's message would be taken for this one's
    if k.me == 0:
        if sorted(senders) != k.ranks[1:]:
            raise Wrong(f"received from {sorted(senders)}, due from {k.ranks[1:]}")
        for sender, out in zip(senders, outs):
            k.expect(out, k.pattern(k.ranks.index(sender)), f"from rank {sender}")


def _thing(rank: int) -> Row:
    """Return an object whose pickle has a different length on every rank."""
    return {"rank": rank, "text": "x" * (7 * rank + 1), "list": list(range(rank))}


def _same(got: object, want: object) -> None:
    if got != want:
        raise Wrong(f"read {str(got)[:120]} where {str(want)[:120]} was due")


@operation()
def all_gather_object(k: Kit) -> None:
    got: list[Any] = [None] * k.size
    k.issue(lambda: k.dist.all_gather_object(got, _thing(k.me), group=k.group))
    _same(got, [_thing(r) for r in range(k.size)])


@operation()
def gather_object(k: Kit) -> None:
    got: list[Any] | None = [None] * k.size if k.me == k.root else None
    k.issue(lambda: k.dist.gather_object(_thing(k.me), got, k.src, group=k.group))
    if k.me == k.root:
        _same(got, [_thing(r) for r in range(k.size)])


@operation()
def broadcast_object_list(k: Kit) -> None:
    got = [_thing(k.me), k.me]
    k.issue(lambda: k.dist.broadcast_object_list(got, k.src, group=k.group))
    _same(got, [_thing(k.root), k.root])


@operation()
def scatter_object_list(k: Kit) -> None:
    got: list[Any] = [None]
    things = [_thing(r) for r in range(k.size)] if k.me == k.root else None
    k.issue(lambda: k.dist.scatter_object_list(got, things, k.src, group=k.group))
    _same(got, [_thing(k.me)])


@operation()
def send_object_list(k: Kit) -> None:
    k.needs_peer()
    if not hasattr(k.dist, "send_object_list"):
        raise k.lacks("send_object_list")
    peer = k.me ^ 1
    if peer >= k.size:
        k.issue(lambda: None)
        return
    got: list[Any] = [None]

    def exchange() -> None:
        if k.me % 2 == 0:
            k.dist.send_object_list([_thing(k.me)], k.ranks[peer], group=k.group)
            k.dist.recv_object_list(got, k.ranks[peer], group=k.group)
        else:
            k.dist.recv_object_list(got, k.ranks[peer], group=k.group)
            k.dist.send_object_list([_thing(k.me)], k.ranks[peer], group=k.group)

    k.issue(exchange)
    _same(got, [_thing(peer)])
