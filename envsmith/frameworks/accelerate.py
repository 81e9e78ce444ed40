"""Accelerate."""

from __future__ import annotations

from envsmith.frameworks.framework import Framework, Step

_DDP = Step(
    name="accelerate ddp fp32", kind="accelerate-ddp", issues=("all_reduce",), native=True, family="accelerate fp32"
)
_FSDP2 = Step(
    name="accelerate fsdp2 fp32",
    kind="accelerate-fsdp2",
    issues=("all_gather_single", "reduce_scatter_single"),
    family="accelerate fp32",
    # src/accelerate/state.py, read in 1.15.0: only types of devices that are no CPUs become FSDP.
    needs="gpu",
    why="needs a GPU: Accelerate takes plain data parallelism on the CPU",
)
_ZERO = Step(
    name="accelerate deepspeed zero-2 fp32",
    kind="accelerate-deepspeed",
    issues=("all_reduce|reduce|reduce_scatter_single|reduce_scatter",),
    family="accelerate fp32",
    deadline=300.0,
)
_LLAMA = Step(name="accelerate llama ddp fp32", kind="accelerate-llama", issues=("all_reduce",), native=True)
# The same training, started as users start it. The launcher imports the framework once more than its ranks.
_LAUNCHED = Step(
    name="accelerate launch ddp fp32",
    kind="accelerate-ddp",
    launcher="accelerate",
    issues=("all_reduce",),
    native=True,
    family="accelerate fp32",
    deadline=300.0,
)

ACCELERATE = Framework(
    name="accelerate",
    short="acc",
    title="Accelerate",
    distributions=("accelerate",),
    module="accelerate",
    aliases=("hf-accelerate",),
    # torch 2.1 compares versions with pkg_resources, and 0.16 to 0.20 import it.
    undeclared=("numpy", "setuptools"),
    quick_steps=(_DDP,),
    steps=(_DDP, _FSDP2, _ZERO, _LLAMA, _LAUNCHED),
)
