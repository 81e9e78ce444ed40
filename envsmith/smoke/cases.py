"""The lists of cases, tier by tier: pure functions from a number of ranks to rows that the agent can run.

A case names an operation of the agent (:data:`envsmith.agent.cases.OPERATIONS`), a dtype, a reduction, a number
of elements, a root, a group and a mode. The list is static and in the same order on every rank, so that ranks cannot
diverge by construction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from envsmith.base.json_types import JsonDict

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int8", "uint8", "int32", "int64")
COMPLEX = ("complex64", "complex128")
COMMON = (*FLOATS, *INTS, "bool", *COMPLEX)
RARE = ("int16", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")
# One element, primes, and the neighbours of powers of two: where chunking and vector loads go wrong.
ODD_SIZES = (1, 3, 17, 127, 1023, 1025, 4099, 65535, 65537)
MOVING = (
    "all_gather",
    "all_gather_single",
    "broadcast",
    "gather",
    "scatter",
    "all_to_all",
    "all_to_all_single",
    "all_to_all_uneven",
)
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_single")
POINT_TO_POINT = ("send_recv", "batch_isend_irecv", "isend_irecv")
OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list")
WITHOUT_TENSOR = frozenset({"barrier", "monitored_barrier", *OBJECTS})
STRIDED = (
    "strided_all_reduce",
    "strided_broadcast",
    "strided_reduce",
    "strided_all_gather",
    "strided_gather",
    "strided_scatter",
    "strided_send_recv",
    "transposed_all_reduce",
)
# What needs a GPU and more of the driver than NCCL does, the one that may hang at the end.
GPU_ONLY = ("compute_overlap", "split_group", "cuda_graph", "symmetric_memory")
GROUPS = ("pairs", "stride", "head", "tail", "alone")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """``n`` counts elements (per rank, where the operation is wide). ``deadline`` in seconds replaces the tier's."""

    op: str
    dtype: str = "float32"
    redop: str = ""
    n: int = 0
    root: int = 0
    rooted: bool = False
    group: str = "world"
    mode: str = ""
    deadline: float | None = None

    @property
    def id(self) -> str:
        """Return ``reduce[float32,sum,1025]@root=2@pairs:async``, which is unique in a plan."""
        inner = ",".join(part for part in (self.dtype, self.redop, str(self.n)) if part)
        text = self.op + (f"[{inner}]" if self.op not in WITHOUT_TENSOR else "")
        text += f"@root={self.root}" if self.rooted else ""
        text += f"@{self.group}" if self.group != "world" else ""
        return text + (f":{self.mode}" if self.mode else "")

    def to_json(self) -> JsonDict:
        """Return the case as the agent reads it, without defaults."""
        row: JsonDict = {"id": self.id, "op": self.op, "dtype": self.dtype, "n": self.n}
        optional: JsonDict = {"redop": self.redop, "root": self.root, "mode": self.mode, "deadline": self.deadline}
        row.update({key: value for key, value in optional.items() if value})
        if self.group != "world":
            row["group"] = self.group
        return row


def can_run(case: Case, ranks: int) -> bool:
    """Return whether anybody runs the case among so many ranks.

    Messages need two, and not every group exists (``group_layouts`` of the agent).
    """
    if case.op in POINT_TO_POINT and ranks < 2:
        return False
    fewest = {"pairs": 2, "stride": 3, "head": 3, "tail": 3}.get(case.group, 1)
    return ranks >= fewest


def _reduced(op: str, dtype: str, redop: str, n: int, **options: object) -> Case:
    return Case(op=op, dtype=dtype, redop=redop, n=n, **options)  # type: ignore[arg-type]


def quick_cases(ranks: int) -> tuple[Case, ...]:
    """Return about a hundred cases of some seconds: every operation, the dtypes that training uses, every root once."""
    return tuple(_unique(_quick(ranks)))


def _quick(ranks: int) -> Iterator[Case]:
    for dtype in (*FLOATS, *INTS, "bool", "complex64"):
        yield _reduced("all_reduce", dtype, "sum", 1027)
    for redop in ("product", "min", "max"):
        for dtype in ("float32", "int64"):
            yield _reduced("all_reduce", dtype, redop, 17)
    for dtype in ("float32", "bfloat16"):
        yield _reduced("all_reduce", dtype, "avg", 17)
    for n in (0, 1, 3, 65536, 65537, 1 << 18):
        yield _reduced("all_reduce", "float32", "sum", n)
    for dtype in ("float32", "bfloat16", "int64", "uint8"):
        for op in MOVING[:-1]:
            yield Case(op=op, dtype=dtype, n=1025)
    for dtype in ("float32", "bfloat16", "int64"):
        for op in ("reduce_scatter", "reduce_scatter_single", "reduce"):
            yield _reduced(op, dtype, "sum", 1025)
    for root in range(ranks):
        for op in ("broadcast", "gather", "scatter"):
            yield Case(op=op, n=5, root=root, rooted=True)
        yield _reduced("reduce", "float32", "sum", 5, root=root, rooted=True)
    yield from _quick_patterns()


def _quick_patterns() -> Iterator[Case]:
    for dtype in ("float32", "bfloat16"):
        yield Case(op="all_to_all_uneven", dtype=dtype, n=1025)
    for op in ("send_recv", "batch_isend_irecv"):
        yield Case(op=op, n=1025)
    yield Case(op="barrier")
    for op in OBJECTS[:-1]:
        yield Case(op=op)
    for group in ("pairs", "stride"):
        yield _reduced("all_reduce", "float32", "sum", 1025, group=group)
        yield Case(op="all_gather_single", dtype="bfloat16", n=1025, group=group)
    yield _reduced("overlap16", "float32", "sum", 1025)
    yield _reduced("coalesced", "float32", "sum", 1025)
    yield _reduced("all_reduce", "float32", "sum", 1025, mode="async")
    yield Case(op="all_gather_single", n=1025, mode="in")
    yield _reduced("reduce_scatter_single", "float32", "sum", 1025, mode="in")
    yield _reduced("functional_all_reduce", "float32", "sum", 1025)
    yield Case(op="functional_all_gather", dtype="bfloat16", n=1025)
    yield _reduced("functional_reduce_scatter", "float32", "sum", 1025)
    yield Case(op="bytes_all_gather", dtype="float8_e4m3fn", n=1025)


def full_cases(ranks: int) -> tuple[Case, ...]:
    """Return more than 1,200 cases: dtype x reduction x size x every root, and every unusual thing.

    The unusual things are groups, modes, point to point, objects, layouts, large buffers and what needs a GPU. What a
    backend is known to refuse stands at the end: a refusal that breaks a group breaks little. Behind it stand what
    needs a GPU and the re-initialisation.
    """
    body = _unique(_full(ranks))
    plain = [c for c in body if not _is_rare(c) and c.op not in GPU_ONLY]
    rare = [c for c in body if _is_rare(c)]
    gpu = [c for op in GPU_ONLY for c in body if c.op == op]
    return (*plain, *rare, *gpu, _reduced("reinit", "float32", "sum", 1025))


def _is_rare(case: Case) -> bool:
    return (
        case.dtype in RARE
        or case.op in {*STRIDED, "sparse_all_reduce", "premul_sum"}
        or case.redop in {"band", "bor", "bxor", "premul"}
    )


def _full(ranks: int) -> Iterator[Case]:
    yield from _quick(ranks)
    yield from _full_reductions(ranks)
    yield from _full_moves(ranks)
    yield from _full_groups()
    yield from _full_patterns()
    yield from _full_layouts(ranks)
    yield from _full_large()


def _full_reductions(ranks: int) -> Iterator[Case]:
    for dtype in COMMON:
        for redop in ("sum", "product", "min", "max", "avg", "band", "bor", "bxor"):
            for n in (17, 1025):
                yield _reduced("all_reduce", dtype, redop, n)
            yield _reduced("reduce_scatter_single", dtype, redop, 129)
            yield _reduced("reduce", dtype, redop, 129)
    for dtype in RARE:
        yield _reduced("all_reduce", dtype, "sum", 129)
    for dtype in FLOATS:
        yield _reduced("premul_sum", dtype, "sum", 129)
    for n in (0, *ODD_SIZES):
        for op in REDUCING:
            for dtype in ("float32", "bfloat16", "int64", "uint8"):
                yield _reduced(op, dtype, "sum", n)
            yield _reduced(op, "float32", "sum", n, mode="odd")
    for root in range(ranks):
        for dtype in ("float32", "bfloat16", "int64", "uint8", "bool", "float64"):
            yield _reduced("reduce", dtype, "max" if dtype == "bool" else "sum", 257, root=root, rooted=True)


def _full_moves(ranks: int) -> Iterator[Case]:
    for op in MOVING:
        for dtype in COMMON:
            yield Case(op=op, dtype=dtype, n=257)
        for n in (0, *ODD_SIZES):
            for dtype in ("float32", "uint8"):
                yield Case(op=op, dtype=dtype, n=n)
            yield Case(op=op, n=n, mode="odd")
        for dtype in RARE:
            yield Case(op=op, dtype=dtype, n=257)
    for root in range(ranks):
        for op in ("broadcast", "gather", "scatter"):
            for dtype in ("float32", "bfloat16", "int64", "uint8", "bool", "float64"):
                yield Case(op=op, dtype=dtype, n=257, root=root, rooted=True)
    for op in POINT_TO_POINT:
        for dtype in (*COMMON, *RARE):
            yield Case(op=op, dtype=dtype, n=257)
        for n in ODD_SIZES:
            yield Case(op=op, n=n)


def _full_groups() -> Iterator[Case]:
    for group in GROUPS:
        for op in REDUCING:
            for dtype in ("float32", "bfloat16", "int64"):
                yield _reduced(op, dtype, "sum", 257, group=group)
        for op in (*MOVING, *(POINT_TO_POINT if group != "alone" else ())):
            for dtype in ("float32", "uint8"):
                yield Case(op=op, dtype=dtype, n=257, group=group)
        for op in ("barrier", "all_gather_object", "broadcast_object_list"):
            yield Case(op=op, group=group)
    for op in ("device_mesh", "new_subgroups", "split_group", "new_group_again"):
        for dtype in ("float32", "int64"):
            yield _reduced(op, dtype, "sum", 257)


def _full_patterns() -> Iterator[Case]:
    for op in (*MOVING, "barrier"):
        yield Case(op=op, n=0 if op == "barrier" else 1025, mode="async")
    for op in REDUCING:
        yield _reduced(op, "bfloat16", "sum", 1025, mode="async")
    for dtype in ("bfloat16", "int64", "uint8"):
        yield Case(op="all_gather_single", dtype=dtype, n=1025, mode="in")
        yield _reduced("reduce_scatter_single", dtype, "sum", 1025, mode="in")
    for op in OBJECTS:
        yield Case(op=op)
    for op in ("gather_object", "broadcast_object_list", "scatter_object_list"):
        yield Case(op=op, root=1, rooted=True)
    for op in ("overlap16", "coalesced", "functional_all_reduce", "functional_reduce_scatter", "repeatable"):
        for dtype in FLOATS:
            yield _reduced(op, dtype, "sum", 1025)
    for op in ("functional_all_gather", "functional_all_to_all", "functional_broadcast", "tags", "any_source"):
        for dtype in ("float32", "bfloat16", "int64"):
            yield Case(op=op, dtype=dtype, n=1025)
    for redop in ("sum", "min", "max", "avg"):
        yield _reduced("functional_all_reduce", "float32", redop, 257)
    for dtype in FLOATS:
        yield _reduced("not_finite", dtype, "sum", 1025)
        for op in ("compute_overlap", "cuda_graph", "symmetric_memory"):
            yield _reduced(op, dtype, "sum", 1024)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        yield Case(op="bytes_all_gather", dtype=dtype, n=1025)
    yield Case(op="monitored_barrier")


def _full_layouts(ranks: int) -> Iterator[Case]:
    for op in STRIDED:
        for dtype in ("float32", "int64"):
            redop = "sum" if "reduce" in op else ""
            yield Case(op=op, dtype=dtype, redop=redop, n=33)
    yield _reduced("bool_bytes", "bool", "sum", 33)
    for dtype in ("float32", "float64"):
        yield _reduced("sparse_all_reduce", dtype, "sum", 2 * ranks)


def _full_large() -> Iterator[Case]:
    """Yield cases of more than 2^31 bytes, where 32-bit counts overflow. Without the memory they are skipped."""
    beyond = (1 << 31) + 17
    yield Case(op="large_broadcast", dtype="uint8", n=beyond, deadline=240)
    yield _reduced("large_all_reduce", "float32", "sum", beyond // 4 + 1, deadline=240)


def _unique(cases: Iterator[Case]) -> list[Case]:
    unique: dict[str, Case] = {}
    for case in cases:
        unique.setdefault(case.id, case)
    return list(unique.values())
