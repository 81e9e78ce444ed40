"""The registry of framework steps: a few training steps each, judged by their losses against a reference.

A step of a plan names a ``kind``, and ``STEPS[kind]`` is the function that each rank calls with its
:class:`~envsmith.agent.steps.stage.Stage`. It returns :class:`~envsmith.agent.steps.stage.Trained`.
It calls ``stage.enter("what comes next")`` before each part that may hang, raises ``Skip``
where the step cannot be asked of this machine and ``Wrong`` where a value is wrong. It imports its framework inside the
function.

A framework is one module here, with a dict ``STEPS`` of its kinds, and a line in ``STEPS`` and in ``FRAMEWORKS`` below.
Where its ranks are started by its own launcher, ``LAUNCHERS`` has the function that does so: it gets a
:class:`~envsmith.agent.steps.launch.RankJob` in a process of its own, which it may replace by a command.
``PRELOAD`` has the frameworks that the nursery may import once for all ranks, by the beginning of the kinds.

A module from outside is sent along with ``bundle(extra={"NAME": source})``, or an entry in
``envsmith.smoke.bundle.EXTRA``. The agent imports it in the cell as ``envsmith.agent.steps.NAME`` before anything
else runs, and it registers itself:

    from envsmith.agent.steps import FRAMEWORKS, STEPS
    from envsmith.agent.steps.stage import Trained

    def step(stage):
        stage.init_group()
        return Trained(losses=[1.0, 0.5])

    STEPS["dummy"] = step
    FRAMEWORKS.append("dummy")
"""

from __future__ import annotations

from collections.abc import Callable

from envsmith.agent.machine import FRAMEWORKS as FRAMEWORKS
from envsmith.agent.steps import (
    accelerate,
    colossalai,
    deepspeed,
    horovod,
    lightning,
    megatron_core,
    packages,
    ray,
    stack,
    torch,
    torch_parallel,
)
from envsmith.agent.steps.launch import RankJob
from envsmith.agent.steps.stage import Preload, Stage, Trained

STEPS: dict[str, Callable[[Stage], Trained]] = {
    **torch.STEPS,
    **torch_parallel.STEPS,
    **deepspeed.STEPS,
    **megatron_core.STEPS,
    **colossalai.STEPS,
    **accelerate.STEPS,
    **lightning.STEPS,
    **horovod.STEPS,
    **packages.STEPS,
    **ray.STEPS,
    **stack.STEPS,
}
# By the name that a step of a plan has as its ``launcher``.
LAUNCHERS: dict[str, Callable[[RankJob], object]] = {**accelerate.LAUNCHERS, **ray.LAUNCHERS, **horovod.LAUNCHERS}
# Which of these distributions are installed is reported.
FRAMEWORKS += ["deepspeed", "megatron-core", "colossalai", "accelerate", "lightning", "ray", "horovod"]
PRELOAD: dict[str, Preload] = {
    "torch": torch.PRELOAD,
    "megatron": megatron_core.PRELOAD,
    "deepspeed": deepspeed.PRELOAD,
    "colossalai": colossalai.PRELOAD,
    "accelerate": accelerate.PRELOAD,
    "lightning": lightning.PRELOAD,
}
