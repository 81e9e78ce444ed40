"""Lightning."""

from __future__ import annotations

from envsmith.frameworks.framework import Framework, Step

_DDP = Step(
    name="lightning ddp fp32", kind="lightning-ddp", issues=("all_reduce",), native=True, family="lightning fp32"
)
_FSDP2 = Step(
    name="lightning fsdp2 fp32",
    kind="lightning-fsdp2",
    issues=("all_gather_single", "reduce_scatter_single"),
    family="lightning fp32",
)
_FSDP = Step(
    name="lightning fsdp fp32",
    kind="lightning-fsdp",
    issues=("all_gather_single", "reduce_scatter_single|all_reduce"),
    family="lightning fp32",
    # src/lightning/pytorch/strategies/fsdp.py and deepspeed.py, read in 2.6.6: both refuse other accelerators.
    needs="gpu",
    why="needs a GPU: Lightning refuses its FSDP strategy elsewhere",
)
_ZERO = Step(
    name="lightning deepspeed zero-2 fp32",
    kind="lightning-deepspeed",
    issues=("all_reduce|reduce|reduce_scatter_single|reduce_scatter",),
    family="lightning fp32",
    deadline=300.0,
    needs="gpu",
    why="needs a GPU: Lightning refuses its DeepSpeed strategy elsewhere",
)

LIGHTNING = Framework(
    name="lightning",
    short="lightning",
    title="Lightning",
    distributions=("lightning", "pytorch-lightning"),
    module="lightning",
    aliases=("pytorch-lightning",),
    # torch 2.1 compares versions with pkg_resources, and 2.0 to 2.3 import it.
    undeclared=("numpy", "setuptools"),
    quick_steps=(_DDP,),
    steps=(_DDP, _FSDP2, _FSDP, _ZERO),
)
