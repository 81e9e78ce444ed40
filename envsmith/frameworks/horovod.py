"""Horovod."""

from __future__ import annotations

from dataclasses import replace

from envsmith.frameworks.framework import Framework, Step

# horovodrun asks itself in processes of their own what it was compiled with before it starts a rank.
_DEADLINE = 300.0
_OPTIMIZER = Step(
    name="horovod optimizer fp32",
    kind="horovod-optimizer",
    launcher="horovod",
    issues=("all_reduce", "broadcast"),
    family="horovod fp32",
    deadline=_DEADLINE,
)
_COLLECTIVES = Step(
    name="horovod collectives",
    kind="horovod-collectives",
    launcher="horovod",
    issues=("all_reduce", "all_gather", "broadcast", "all_to_all", "reduce_scatter"),
    family="horovod fp32",
    deadline=_DEADLINE,
)
_MPI = replace(_COLLECTIVES, name="horovod mpi", kind="horovod-mpi", launcher="horovod-mpi")
_ELASTIC = Step(
    name="horovod elastic",
    kind="horovod-elastic",
    launcher="horovod-elastic",
    issues=("all_reduce", "broadcast"),
    deadline=_DEADLINE,
)

HOROVOD = Framework(
    name="horovod",
    short="hvd",
    title="Horovod",
    distributions=("horovod",),
    module="horovod.torch",
    compiles=True,
    quick_steps=(_OPTIMIZER,),
    steps=(_OPTIMIZER, _COLLECTIVES, _MPI, _ELASTIC),
)
