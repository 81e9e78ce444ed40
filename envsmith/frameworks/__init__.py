"""The training frameworks that envsmith knows, in the order in which it lists them.

A new one is a file here and a line below.
"""

from __future__ import annotations

from envsmith.frameworks.accelerate import ACCELERATE
from envsmith.frameworks.colossalai import COLOSSALAI
from envsmith.frameworks.deepspeed import DEEPSPEED
from envsmith.frameworks.framework import Framework
from envsmith.frameworks.lightning import LIGHTNING
from envsmith.frameworks.megatron_core import MEGATRON_CORE

FRAMEWORKS: dict[str, Framework] = {
    "deepspeed": DEEPSPEED,
    "megatron-core": MEGATRON_CORE,
    "colossalai": COLOSSALAI,
    "accelerate": ACCELERATE,
    "lightning": LIGHTNING,
}
# The one that examples in hints name.
EXAMPLE = "deepspeed"
