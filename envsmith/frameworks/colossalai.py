"""Colossal-AI.

What its plugins do on the CPU was read in 0.5.0 and seen on torch 2.13.0; the GPU steps were not run by us, for want of
a GPU.
"""

from __future__ import annotations

from envsmith.frameworks.framework import Framework, Step

# It imports 1,500 modules.
_DEADLINE = 300.0
_HYBRID_ADAM_DEADLINE = 600.0
# The words with which its CPU accelerator stops a plugin. Such a step is tried on the CPU all the same: the record has
# the error and the line of code of this very release, or, should one ever work there, its losses.
_ZERO_STOPS = r"device is required"
# HybridAdam's kernel for the host's part is only built where torch.cuda.is_available() (cuda_extension.py, which
# cpu_adam_x86.py asks).
_GEMINI_STOPS = r"not supported for cpu accelerator|No usable kernel found for CPUAdamLoader"
_TENSOR_STOPS = r"get_rng_state\(\) takes"


_BOOSTER = Step(
    name="colossalai booster ddp fp32",
    kind="colossalai",
    options={"plugin": "TorchDDPPlugin"},
    issues=("all_reduce",),
    native=True,
    deadline=_DEADLINE,
)
_PIPELINE = Step(
    name="colossalai 3d pp=2 fp32",
    kind="colossalai-3d",
    options={"pp": 2},
    issues=("send", "recv"),
    tolerance=1e-3,
    deadline=_DEADLINE,
)
_TENSOR = Step(
    name="colossalai 3d tp=2 fp32",
    kind="colossalai-3d",
    options={"tp": 2},
    tolerance=1e-3,
    issues=("all_reduce",),
    needs="gpu",
    stops_with=_TENSOR_STOPS,
    deadline=_DEADLINE,
)
_ZERO_3D = Step(
    name="colossalai 3d zero-1 bf16",
    kind="colossalai-3d",
    options={"zero": 1, "precision": "bf16"},
    tolerance=5e-2,
    needs="gpu",
    stops_with=_ZERO_STOPS,
    deadline=_DEADLINE,
)


def _low_level_zero(stage: int) -> Step:
    return Step(
        name=f"colossalai low-level zero-{stage} bf16",
        kind="colossalai",
        options={"plugin": "LowLevelZeroPlugin", "stage": stage, "precision": "bf16"},
        tolerance=5e-2,
        needs="gpu",
        stops_with=_ZERO_STOPS,
        deadline=_DEADLINE,
    )


_GEMINI = Step(
    name="colossalai gemini bf16",
    kind="colossalai",
    options={"plugin": "GeminiPlugin", "precision": "bf16", "optimizer": "HybridAdam"},
    tolerance=5e-2,
    needs="gpu",
    stops_with=_GEMINI_STOPS,
    deadline=_HYBRID_ADAM_DEADLINE,
)

COLOSSALAI = Framework(
    name="colossalai",
    short="ca",
    title="Colossal-AI",
    distributions=("colossalai",),
    module="colossalai",
    aliases=("colossal-ai", "colossal"),
    # torch.utils.cpp_extension, with which it compiles its kernels, imports setuptools and starts ninja.
    undeclared=("numpy", "setuptools", "ninja"),
    compiles=True,
    quick_steps=(_BOOSTER,),
    steps=(_BOOSTER, _PIPELINE, _TENSOR, _ZERO_3D, _low_level_zero(1), _low_level_zero(2), _GEMINI),
    reads_sdist=True,
)
