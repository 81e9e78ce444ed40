"""The collectives that a framework really issued: counted at torch's functions, and read from its flight recorder."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from envsmith.agent.protocol import Row


def flight_entries() -> list[Row] | None:
    """Return what torch's flight recorders hold, or `None` where this torch has none that can be read as JSON.

    A build with CUDA has one for NCCL and one for everything else, and torch 2.15 one per backend
    (`_dump_fr_trace_json` answers for gloo unless another name is given). Whichever has entries is the one that the
    group used.
    """
    from torch._C import _distributed_c10d as c10d

    nccl, general = getattr(c10d, "_dump_nccl_trace_json", None), getattr(c10d, "_dump_fr_trace_json", None)
    asks = [nccl] if nccl else []
    if general:
        asks.append(general)
        if "backend" in (general.__doc__ or "").partition("->")[0]:
            asks += [functools.partial(general, backend=name) for name in ("nccl", "nccl2", "nccl-legacy")]
    for ask in asks:
        with contextlib.suppress(Exception):
            entries = json.loads(ask()).get("entries", [])
            if entries:
                return list(entries)
    return [] if asks else None


# One word per operation: torch renamed some, and the point-to-point ones differ in who waits, not in what is sent.
CANONICAL = {
    "all_gather_into_tensor": "all_gather_single", "_all_gather_base": "all_gather_single",
    "_allgather_base": "all_gather_single", "allgather_into_tensor_coalesced": "all_gather_single",
    "all_gather_into_tensor_coalesced": "all_gather_single", "reduce_scatter_tensor": "reduce_scatter_single",
    "_reduce_scatter_base": "reduce_scatter_single", "reduce_scatter_tensor_coalesced": "reduce_scatter_single",
    "isend": "send", "irecv": "recv", "recv_any_source": "recv", "allreduce": "all_reduce", "allgather": "all_gather",
    "alltoall": "all_to_all", "alltoall_base": "all_to_all_single", "all_to_all_base": "all_to_all_single",
    "allreduce_coalesced": "all_reduce", "all_reduce_coalesced": "all_reduce",
}  # fmt: skip
COUNTED = (
    "all_reduce", "all_reduce_coalesced", "reduce", "broadcast", "all_gather", "all_gather_into_tensor",
    "all_gather_single", "_all_gather_base", "all_gather_coalesced", "gather", "gather_single", "scatter",
    "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base", "all_to_all",
    "all_to_all_single", "send", "recv", "isend", "irecv", "barrier", "monitored_barrier",
)  # fmt: skip
# Made of tensor operations, which count as well.
COUNTED_OBJECTS = (
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list",
)  # fmt: skip


class Counter:
    """The collectives that a framework issues: torch.distributed's functions, wrapped before the framework is imported.

    Only the outermost call counts (a deprecated name that calls its successor is one call). `bytes` adds up the largest
    buffer of every call, a list of tensors being one buffer. What C++ issues by itself (the gradient buckets of
    DistributedDataParallel) passes by here and is in torch's flight recorder, where this torch has one for the backend.
    """

    _of_process: Counter | None = None

    @classmethod
    def of_process(cls, torch: Any) -> Counter:
        """Return the counter of this process. The first call wraps torch's functions."""
        if cls._of_process is None:
            cls._of_process = cls(torch)
            cls._of_process._install()
        return cls._of_process

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.calls: dict[str, list[int]] = {}
        self.here = threading.local()

    def _install(self) -> None:
        dist = self.torch.distributed
        for name in (*COUNTED, *COUNTED_OBJECTS):
            original = getattr(dist.distributed_c10d, name, None)
            if original is None:
                continue
            wrapped = self._wrapped(name, original, outermost=name not in COUNTED_OBJECTS)
            for module in (dist.distributed_c10d, dist):
                # The same object in both: P2POp compares the function that it is given with its own.
                if getattr(module, name, None) is original:
                    setattr(module, name, wrapped)

    def _wrapped(self, name: str, original: Callable[..., Any], outermost: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if getattr(self.here, "deep", False):
                return original(*args, **kwargs)
            row = self.calls.setdefault(CANONICAL.get(name, name), [0, 0])
            row[0] += 1
            row[1] += max((self._size(a) for a in (*args, *kwargs.values())), default=0)
            self.here.deep = outermost
            try:
                return original(*args, **kwargs)
            finally:
                self.here.deep = False

        return counted

    def add(self, name: str) -> None:
        """Count a collective that a framework issues past torch, and says so itself."""
        self.calls.setdefault(name, [0, 0])[0] += 1

    def _size(self, value: Any) -> int:
        if isinstance(value, self.torch.Tensor):
            return int(value.numel() * value.element_size())
        return sum(self._size(v) for v in value) if isinstance(value, (list, tuple)) else 0

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Leave out what the test itself has to say to the other ranks."""
        self.here.deep = True
        try:
            yield
        finally:
            self.here.deep = False

    def counts(self) -> dict[str, dict[str, int]]:
        return {name: {"count": row[0], "bytes": row[1]} for name, row in sorted(self.calls.items())}

    @staticmethod
    def recorded() -> dict[str, int] | None:
        """Return what torch's flight recorder holds, by name, or `None` where it has none for this backend."""
        try:
            entries = flight_entries() or []
        except Exception:
            return None
        counts: dict[str, int] = {}
        for entry in entries:
            name = str(entry.get("profiling_name", "")).rpartition(":")[2].split(" ")[0]
            name = CANONICAL.get(name, name)
            counts[name] = counts.get(name, 0) + 1
        return dict(sorted(counts.items())) or None
