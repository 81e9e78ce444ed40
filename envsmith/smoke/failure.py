"""Why a smoke test failed, in the words that a user would search for, and at which rung of the ladder. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from envsmith.model.record import Failure, Rung, Verdict

if TYPE_CHECKING:
    from envsmith.smoke.verdict import SmokeResult

__all__ = ["failure_of", "first_rank"]

# What a host without a GPU says, whatever the versions.
# torch.utils.cpp_extension asks the GPU what to compile for: a host with a toolkit and no GPU (rule megatron-unified-memory-no-gpu).
_ASKS_GPU = "in _get_cuda_arch_flags"
_OF_HOST = (
    "Found no NVIDIA driver",
    "No CUDA GPUs are available",
    "Torch not compiled with CUDA enabled",
    "is only supported with GPUs",
    "in Gloo process group",
    "`import torch` did not end within",
    "0 active drivers",  # triton 3.2 and newer at import (rule deepspeed-triton-import)
)


# A framework that takes a GPU for granted, in a step that was forked from the shared import.
_CUDA_ON_CPU = "Cannot re-initialize CUDA in forked subprocess"


def failure_of(result: SmokeResult, reached: Sequence[Rung]) -> Failure | None:
    """The rung at which a smoke test ended. A framework that cannot be imported is found in its step, but fails the rung `imported`."""
    if result.passed:
        return None
    bad = next((s for s in result.steps if not s.verdict.good and s.verdict is not Verdict.NOT_RUN), None)
    gpu = result.backend.startswith("nccl")
    rung = Rung.FRAMEWORK_GPU if gpu else Rung.FRAMEWORK_CPU
    if Rung.IMPORTED not in reached or (bad and " in import " in bad.detail):
        rung = Rung.IMPORTED
    elif not result.collectives_good:
        rung = Rung.COLLECTIVES_GPU if gpu else Rung.COLLECTIVES_CPU
    trace = str(bad.facts.get("trace", "")).splitlines() if bad else []
    said = [line for text in result.output.values() for line in text.splitlines()]
    symptom = (
        first_rank(bad.detail) if bad and rung not in {Rung.COLLECTIVES_CPU, Rung.COLLECTIVES_GPU} else result.summary
    )
    return Failure(
        rung=rung,
        symptom=symptom,
        log=tuple(trace or said),
        of_host=any(w in symptom for w in (_OF_HOST if gpu else (*_OF_HOST, _CUDA_ON_CPU)))
        or any(_ASKS_GPU in line for line in trace),
    )


def first_rank(detail: str) -> str:
    """What the first rank said, without its number: ``ImportError: …``."""
    match = re.match(r"rank \d+ in [^:]*: (.*?)(?:; rank \d+ in .*)?$", detail, re.DOTALL)
    return match[1] if match else detail
