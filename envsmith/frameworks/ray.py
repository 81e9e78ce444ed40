"""Ray Train."""

from __future__ import annotations

from envsmith.frameworks.framework import Framework, Step

# Starting Ray takes half a minute on two processors, and up to four of that where the machine is busy.
_DEADLINE = 300.0
_DDP = Step(
    name="ray ddp fp32", kind="ray-ddp", issues=("all_reduce",), native=True, family="ray fp32", launcher="ray",
    deadline=_DEADLINE,
)  # fmt: skip
_FOUR = Step(
    name="ray ddp fp32, 4 workers", kind="ray-ddp", issues=("all_reduce",), native=True, launcher="ray",
    deadline=_DEADLINE, ranks=4,
)  # fmt: skip

RAY = Framework(
    name="ray",
    short="ray",
    title="Ray Train",
    distributions=("ray",),
    module="ray",
    extras=("train",),
    # Up to 2.9 it imports pkg_resources.
    undeclared=("numpy", "setuptools"),
    # python/ray/_private/node.py gives the raylet 30 seconds, whatever its settings, and the workers of a group.
    slow_host=("The current node timed out during startup", "WorkerGroupStartupTimeoutError"),
    quick_steps=(_DDP,),
    steps=(_DDP, _FOUR),
)
