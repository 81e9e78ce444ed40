"""The collectives that were issued."""

from __future__ import annotations

import json
import sys

import pytest

from envsmith.agent.counter import flight_entries


@pytest.mark.parametrize(
    ("names", "due"),
    [
        ({"_dump_fr_trace_json": "fr() -> bytes"}, "gloo"),
        ({"_dump_nccl_trace_json": "nccl() -> bytes", "_dump_fr_trace_json": "fr() -> bytes"}, "nccl"),
        ({"_dump_fr_trace_json": "fr(backend: str = 'gloo') -> bytes"}, "nccl2"),
    ],
    ids=["gloo only", "torch 2.13 with CUDA", "torch 2.15"],
)
def test_flight_recorder_of_the_group_s_backend_is_read(monkeypatch, names, due) -> None:
    """A build with CUDA has several; torch 2.15 answers for gloo unless it is told another name."""
    import types

    used = due

    def dump(own: str) -> object:
        def ask(backend: str = own) -> bytes:
            entries = [{"profiling_name": f"{backend}:all_reduce"}] if backend == used else []
            return json.dumps({"entries": entries}).encode()

        return ask

    c10d = types.ModuleType("torch._C._distributed_c10d")
    for name, doc in names.items():
        function = dump("nccl" if "nccl" in name else "gloo")
        function.__doc__ = doc
        setattr(c10d, name, function)
    inner = types.ModuleType("torch._C")
    inner._distributed_c10d = c10d
    for name, module in (("torch", types.ModuleType("torch")), ("torch._C", inner), (c10d.__name__, c10d)):
        monkeypatch.setitem(sys.modules, name, module)
    assert flight_entries() == [{"profiling_name": f"{due}:all_reduce"}]
