"""Horovod."""

from __future__ import annotations

from envsmith.frameworks.framework import Framework, Step

_OPTIMIZER = Step(name="horovod optimizer fp32", kind="horovod-optimizer", issues=("all_reduce",))

HOROVOD = Framework(
    name="horovod",
    short="hvd",
    title="Horovod",
    distributions=("horovod",),
    module="horovod.torch",
    compiles=True,
    quick_steps=(_OPTIMIZER,),
    steps=(_OPTIMIZER,),
)
