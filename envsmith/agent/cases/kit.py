"""The kit of a case: inputs that depend on rank and index, poisoned outputs, guard zones, exact expectations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from envsmith.agent.protocol import (
    NO_GPU,
    NO_MEMORY,
    NO_TIME,
    TIME_IS_OVER,
    CaseJson,
    FaultJson,
    Phase,
    Row,
    Skip,
    Wrong,
)
from envsmith.agent.world import World, group_layouts

POISON = 0x5A
# The sum up to which small integers and all their partial sums are exact in a dtype, whatever the order of the ranks
# and although NCCL rounds at every hop: 2 bits of mantissa hold 1 to 8, 3 bits 1 to 16, int8 ends at 127.
EXACT, EXACT_FLOAT8 = 120, 8


def summand(i: Any, rank: int, size: int, exact: int) -> Any:
    """Return what a rank adds to element `i`, a number or a tensor of numbers, so that no sum is beyond `exact`.

    As many ranks as fit add one or more to an element, the others nothing. The window of those that do moves with the
    element, so that every rank has its turn within `size / (exact / 2)` elements.
    """
    window = min(size, exact // 2)
    return ((3 * i + 5 * rank) % max(2, min(11, exact // window)) + 1) * ((i * window + rank) % size < window)


class Kit:
    """One case on one rank: operations make buffers with `input` and `output`, then `issue` and `expect`."""

    GUARD = 64  # elements before and after every buffer

    def __init__(self, world: World, index: int, case: CaseJson, fault: FaultJson | None) -> None:
        self.world, self.torch, self.dist, self.index, self.case = world, world.torch, world.dist, index, case
        self.fault = fault
        if world.over:
            raise Skip(TIME_IS_OVER, NO_TIME)
        self.operation = OPERATIONS[case["op"]]
        self.n, self.redop, self.mode = int(case.get("n", 0)), str(case.get("redop", "sum")), str(case.get("mode", ""))
        dtype = getattr(self.torch, case.get("dtype", "float32"), None)
        if dtype is None:
            raise self.lacks(f"dtype {case.get('dtype')}")
        self.dtype = dtype
        self.group_name = case.get("group", "world")
        if self.group_name != "world" and not group_layouts(world.size).get(self.group_name):
            raise Skip(f"there is no group {self.group_name} of {world.size} rank{'s' if world.size > 1 else ''}")
        named = world.groups.get(self.group_name)
        self.member = named is not None
        self.group: Any = named[0] if named else None
        self.ranks: list[int] = named[1] if named else []
        self.size = len(self.ranks)
        self.me = self.ranks.index(world.rank) if self.member else -1
        self.root = int(case.get("root", 0))
        if self.member and self.root >= self.size:
            raise Skip(f"root {self.root} is not in a group of {self.size}")
        if case.get("min_ranks", 1) > world.size:
            raise Skip(f"needs {case['min_ranks']} ranks, the run has {world.size}")
        expected = case.get("expected", {}).get(world.backend, {})
        if expected.get("expect") == "avoid":
            raise Skip(expected.get("note") or "avoided")
        minimum = expected.get("min_sm") if world.cuda else None
        if minimum and self.torch.cuda.get_device_capability(world.device) < divmod(minimum, 10):
            raise Skip(f"needs sm_{minimum}")
        self.signature = ""
        self.measured: Row = {}
        self._zones: list[tuple[Any, int, int, str]] = []
        self._frozen: list[tuple[Any, Any, str]] = []

    # -- budget ------------------------------------------------------------------------------------------------------

    def fit(self, frees: Sequence[int]) -> None:
        """Skip, on every rank alike, what the poorest rank has no room for. A case is never shrunk silently."""
        width = self.world.size + 1 if self.operation.wide else 1
        itemsize = self.torch.empty(0, dtype=self.dtype).element_size()
        # Three buffers (sent, received, due); the large operations keep one and the backend's scratch is another, the
        # timed ones have nothing to compare.
        bytes_needed = self.n * itemsize * (2 if self.case["op"].startswith(("large_", "bw_")) else 3 * width)
        if bytes_needed > min(frees):
            poorest = frees.index(min(frees))
            needed, free = bytes_needed / 2**30, min(frees) / 2**30
            raise Skip(f"memory: needs {needed:.1f} GiB, smallest rank {poorest} has {free:.1f} GiB", NO_MEMORY)

    # -- values ------------------------------------------------------------------------------------------------------

    def pattern(self, rank: int, n: int | None = None, start: int = 0) -> Any:
        """Return the data of `rank` of the group, on the host: small integers, exact in every dtype."""
        torch, n = self.torch, self.n if n is None else n
        i = torch.arange(start, start + n, dtype=torch.int64)
        if self.dtype == torch.bool:
            return (i + 3 * rank) % 5 < 2
        if self.redop == "product" and self.operation.reducing:
            values = (i + rank) % 2 + 1 if self.world.size <= 6 else (i + rank) % 16 // 15 + 1
        elif self.operation.reducing:
            values = summand(i, rank, self.world.size, EXACT_FLOAT8 if "float8" in str(self.dtype) else EXACT)
        else:
            values = (i + 31 * rank) % (7 if "float8" in str(self.dtype) else 113) + 1
        if self.dtype.is_complex:
            return torch.complex(values.to(torch.float64), ((i + rank) % 3).to(torch.float64)).to(self.dtype)
        return values.to(torch.float32).to(self.dtype) if "float8" in str(self.dtype) else values.to(self.dtype)

    def reduced(self, parts: Sequence[Any] | None = None) -> Any:
        """Return the reduction of every rank's pattern (or of `parts`), computed here, exactly."""
        torch = self.torch
        parts = self.every() if parts is None else parts
        if self.dtype == torch.bool:
            fold: Callable[[Any, Any], Any] = {
                "sum": torch.logical_or, "max": torch.logical_or, "bor": torch.logical_or, "product": torch.logical_and,
                "min": torch.logical_and, "band": torch.logical_and, "bxor": torch.logical_xor, "avg": torch.logical_or,
            }[self.redop]  # fmt: skip
        else:
            fold = {
                "sum": torch.add, "avg": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum,
                "band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor,
            }[self.redop]  # fmt: skip
        exact = torch.complex128 if self.dtype.is_complex else torch.float64
        if not (self.dtype.is_complex or self.dtype.is_floating_point):
            exact = torch.bool if self.dtype == torch.bool else torch.int64
        total = parts[0].to(exact)
        for part in parts[1:]:
            total = fold(total, part.to(exact))
        return (total / self.size if self.redop == "avg" else total).to(self.dtype)

    def needs_peer(self) -> None:
        """Skip the case where a rank has no peer."""
        if self.size < 2:
            raise Skip("needs two ranks in the group")

    def needs_gpu(self, what: str) -> None:
        """Skip the case on the CPU."""
        if not self.world.cuda:
            raise Skip(f"needs a GPU: {what}", NO_GPU)

    def lacks(self, what: str) -> Skip:
        """Return the reason to skip a case that this torch is too old for."""
        return Skip(f"torch {self.torch.__version__} has no {what}")

    def neighbour(self, steps: int) -> int:
        """Return the rank that is so many steps further round the group."""
        return self.ranks[(self.me + steps) % self.size]

    def every(self, start: int = 0) -> list[Any]:
        """Return the data of every rank of the group."""
        return [self.pattern(rank, start=start) for rank in range(self.size)]

    @property
    def op(self) -> Any:
        """Return the ReduceOp. Skip the case when this torch has none of that name."""
        op = getattr(self.dist.ReduceOp, self.redop.upper(), None)
        if op is None:
            raise self.lacks(f"ReduceOp.{self.redop.upper()}")
        return op

    @property
    def src(self) -> int:
        """Return the root's number in the world."""
        return int(self.ranks[self.root])

    def single(self, new: str, old: str) -> Callable[..., Any]:
        """Return a collective under its new name (torch 2.13) or the old one."""
        call: Callable[..., Any] = getattr(self.dist, new, None) or getattr(self.dist, old)
        return call

    # -- buffers -----------------------------------------------------------------------------------------------------

    def _buffer(self, n: int, what: str) -> Any:
        torch, guard = self.torch, self.GUARD + (1 if self.mode == "odd" else 0)
        storage = torch.empty(n + 2 * guard, dtype=self.dtype, device=self.world.device)
        self.bytes_of(storage).fill_(POISON)
        self._zones.append((storage, guard, n, what))
        return storage[guard : guard + n]

    def input(self, values: Any, *, frozen: bool = True) -> Any:
        """Return a guarded copy of `values` on the device. A frozen one must be unchanged at the end."""
        buffer = self._buffer(values.numel(), "input")
        buffer.copy_(values)
        if frozen:
            self._frozen.append((buffer, values, "input"))
        return buffer

    def output(self, n: int | None = None) -> Any:
        """Return a guarded buffer full of poison, so that an element that no rank wrote is seen."""
        return self._buffer(self.n if n is None else n, "output")

    def bytes_of(self, tensor: Any) -> Any:
        torch = self.torch
        if tensor.dtype.is_complex:
            tensor = torch.view_as_real(tensor)
        return tensor.view(torch.uint8)

    # -- the call ----------------------------------------------------------------------------------------------------

    def issue(self, call: Callable[[], Any]) -> Any:
        """Enter, issue, synchronise. The signature is what this rank is really about to call."""
        board, rank = self.world.board, self.world.rank
        op, dtype, redop = (self.case.get(key, "") for key in ("op", "dtype", "redop"))
        self.signature = f"{op}[{dtype},{redop},{self.n},root={self.root},{self.group_name}]"
        board.sign(rank, self.signature)
        board.mark(rank, self.index, Phase.ENTERED)
        work = call()
        board.mark(rank, self.index, Phase.ISSUED)
        if self.mode == "async" and work is not None and hasattr(work, "wait"):
            work.wait()
        self.world.sync()
        board.mark(rank, self.index, Phase.SYNCED)
        return work

    def issue_all(self, start: Callable[[], Sequence[Any]]) -> None:
        """Issue several operations that are in flight together, and wait for each in the order of the list."""

        def every_one() -> None:
            for work in start():
                work.wait()

        self.issue(every_one)

    @property
    def later(self) -> bool:
        return self.mode == "async"

    # -- the comparison ----------------------------------------------------------------------------------------------

    def expect(self, got: Any, want: Any, what: str = "") -> None:
        """Compare bitwise, and raise with the number of elements that differ and the first of them."""
        if self.fault and self.fault["kind"] == "wrong" and got.numel():
            self.bytes_of(got.view(-1)[got.numel() // 2 :][:1])[..., 0] ^= 1  # one bit of one element
        if got.numel() != want.numel():
            raise Wrong(f"{what or 'result'} has {got.numel()} elements, {want.numel()} were due")
        if not want.numel():
            return
        have, due = got.detach().to("cpu").contiguous().view(-1), want.contiguous().view(-1)
        if self.torch.equal(self.bytes_of(have), self.bytes_of(due)) or self._same_truth(have, due):
            return
        if self._close_enough(have, due):
            return
        width = self.bytes_of(due).numel() // due.numel()
        unequal = (self.bytes_of(have).view(-1, width) != self.bytes_of(due).view(-1, width)).any(1).nonzero().view(-1)
        first = int(unequal[0])
        poisoned = bool((self.bytes_of(have).view(-1, width)[first] == POISON).all())
        extent = f"{len(unequal)} of {due.numel()} wrong{', never written' if poisoned else ''}"
        values = f"read {self._show(have, first)} where {self._show(due, first)} was due"
        raise Wrong(f"{what + ': ' if what else ''}{values} at element {first} ({extent})")

    def expect_parts(self, outs: Sequence[Any], dues: Sequence[Any]) -> None:
        """Compare what came from each rank."""
        for rank, (out, due) in enumerate(zip(outs, dues)):
            self.expect(out, due, f"part of rank {rank}")

    def _same_truth(self, have: Any, due: Any) -> bool:
        """Compare as truth values: gloo adds booleans as bytes (true + true = 2, `bool_bytes` looks at that)."""
        if self.dtype != self.torch.bool or have.dtype != self.torch.bool:
            return False
        raw = self.bytes_of(have)
        return bool((((raw != 0) == due) & (raw != POISON)).all())

    def _show(self, tensor: Any, index: int) -> str:
        value = tensor[index]
        return str(value.to(self.torch.float32).item() if "float8" in str(tensor.dtype) else value.item())

    def _close_enough(self, have: Any, due: Any) -> bool:
        """Allow a last bit: an average over a number that is not a power of two is rounded once or twice."""
        if self.redop != "avg" or not (self.size & (self.size - 1)) or not self.dtype.is_floating_point:
            return False
        eps = float(self.torch.finfo(self.dtype).eps)
        return bool(((have.double() - due.double()).abs() <= 2 * eps * due.double().abs()).all())

    def guards(self) -> None:
        """Check that nothing beside a buffer was written, and that no input was changed."""
        for storage, guard, n, what in self._zones:
            raw = self.bytes_of(storage).view(-1)
            width = raw.numel() // max(storage.numel(), 1)
            edge = guard * width
            if not (bool((raw[:edge] == POISON).all()) and bool((raw[edge + n * width :] == POISON).all())):
                raise Wrong(f"the guard zone beside the {what} buffer was written")
        for buffer, values, what in self._frozen:
            if not self.torch.equal(self.bytes_of(buffer.to("cpu").contiguous()), self.bytes_of(values.contiguous())):
                raise Wrong(f"the {what} was changed by an out-of-place operation")


class Operation(NamedTuple):
    """An operation: what runs, whether its values stay small, whether its buffers are as large as the group."""

    run: Callable[[Kit], None]
    reducing: bool
    wide: bool


OPERATIONS: dict[str, Operation] = {}


def operation(
    *, reducing: bool = False, wide: bool = False
) -> Callable[[Callable[[Kit], None]], Callable[[Kit], None]]:
    """Register under the function's name. `reducing` keeps values small, `wide` makes a buffer for each rank."""

    def register(function: Callable[[Kit], None]) -> Callable[[Kit], None]:
        OPERATIONS[function.__name__] = Operation(function, reducing, wide)
        return function

    return register
