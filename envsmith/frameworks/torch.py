"""torch itself: what it has of its own to train on many ranks. Every cell has it, and its first steps are the control."""

from __future__ import annotations

from envsmith.frameworks.framework import Framework, Step

# torch 2.6.0 on the CPU, measured: its fully_shard records events on a stream, and the CPU's stand-in for one has none.
# 2.9.1 and later pass.
_FSDP2_STOPS = r"'Stream' object has no attribute 'record_event'"
_GATHERS = ("all_gather_single", "reduce_scatter_single")

_DDP = Step(name="torch ddp fp32", kind="ddp", issues=("all_reduce",), native=True)
_FSDP2 = Step(name="torch fsdp2 fp32", kind="fsdp2", issues=_GATHERS, stops_with=_FSDP2_STOPS)
_HSDP = Step(
    name="torch fsdp2 hybrid fp32",
    kind="fsdp2",
    options={"replicas": 2},
    ranks=4,
    issues=(*_GATHERS, "all_reduce"),
    stops_with=_FSDP2_STOPS,
)
_CHECKPOINT = Step(
    name="torch checkpoint resharded fp32", kind="torch-checkpoint", ranks=4, issues=_GATHERS, stops_with=_FSDP2_STOPS
)
_TENSOR = Step(name="torch tensor-parallel fp32", kind="torch-tensor", issues=("all_reduce",), native=True)
_TENSOR_AND_SHARDS = Step(
    name="torch tensor-parallel fsdp2 fp32",
    kind="torch-tensor",
    options={"data": 2},
    ranks=4,
    issues=(*_GATHERS, "all_reduce"),
    native=True,
    stops_with=_FSDP2_STOPS,
)
_SEQUENCE = Step(
    name="torch sequence-parallel fp32",
    kind="torch-sequence",
    # gloo makes reduce_scatter of all_reduce.
    issues=("all_gather_single|all_gather", "reduce_scatter_single|reduce_scatter|all_reduce"),
    native=True,
)
_DTENSOR = Step(
    name="torch dtensor fp32", kind="torch-dtensor", issues=("all_gather_single|all_gather", "all_reduce"), native=True
)


def _pipeline(schedule: str) -> Step:
    return Step(
        name=f"torch pipeline {schedule.removeprefix('Schedule').lower()} fp32",
        kind="torch-pipeline",
        options={"schedule": schedule},
        issues=("send", "recv"),
    )


def _engine(number: str) -> Step:
    return Step(
        name=f"torch ddp fp32, nccl engine {number}",
        kind="ddp",
        options={"engine": number},
        issues=("all_reduce",),
        native=True,
        torch=">=2.15",
        needs="gpu",
        why="needs a GPU: torch 2.15 has two engines for NCCL, gloo has one",
    )


_CONTROL = (_DDP, _FSDP2, _engine("2"), _engine("legacy"))

TORCH = Framework(
    name="torch",
    short="torch",
    title="PyTorch",
    distributions=("torch",),
    module="torch",
    aliases=("pytorch",),
    # torch 2.1 compares versions with pkg_resources.
    undeclared=("numpy", "setuptools"),
    quick_steps=_CONTROL,
    steps=(
        *_CONTROL,
        _HSDP,
        _CHECKPOINT,
        _TENSOR,
        _TENSOR_AND_SHARDS,
        _SEQUENCE,
        _pipeline("ScheduleGPipe"),
        _pipeline("Schedule1F1B"),
        _DTENSOR,
    ),
)
