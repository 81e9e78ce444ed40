"""The training frameworks that envsmith knows, in the order in which it lists them.

A new one is a file here and a line below.
"""

from __future__ import annotations

from collections.abc import Iterable

from envsmith.frameworks.accelerate import ACCELERATE
from envsmith.frameworks.colossalai import COLOSSALAI
from envsmith.frameworks.deepspeed import DEEPSPEED
from envsmith.frameworks.framework import Framework
from envsmith.frameworks.horovod import HOROVOD
from envsmith.frameworks.lightning import LIGHTNING
from envsmith.frameworks.megatron_core import MEGATRON_CORE
from envsmith.frameworks.ray import RAY
from envsmith.frameworks.torch import TORCH

FRAMEWORKS: dict[str, Framework] = {
    "deepspeed": DEEPSPEED,
    "megatron-core": MEGATRON_CORE,
    "colossalai": COLOSSALAI,
    "accelerate": ACCELERATE,
    "lightning": LIGHTNING,
    "ray": RAY,
    "horovod": HOROVOD,
    "torch": TORCH,
}
# The one that examples in hints name.
EXAMPLE = "deepspeed"
# The one that is a component of every cell.
CORE = "torch"


def added_frameworks() -> dict[str, Framework]:
    """Return the frameworks that a cell adds to its core."""
    return {name: framework for name, framework in FRAMEWORKS.items() if name != CORE}


def frameworks_of(components: Iterable[str]) -> tuple[str, ...]:
    """Return the frameworks that a cell of these components is for: the core itself where it adds no other."""
    present = tuple(name for name in components if name in FRAMEWORKS)
    return tuple(name for name in present if name != CORE) or present


def beside_core(framework: str) -> str:
    """Return the component whose releases stand beside those of the core in the tables of a framework."""
    return "python" if framework == CORE else framework
