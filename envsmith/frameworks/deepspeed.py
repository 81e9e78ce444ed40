"""DeepSpeed."""

from __future__ import annotations

import re

from envsmith.frameworks.framework import Framework, ImportWithoutGpu, Step, ToolkitTable

# Its import takes a quarter of a minute where four want two processors, and longer where more do.
_DEADLINE = 300.0
_TABLE = re.compile(r"^cuda_minor_mismatch_ok\s*=\s*\{([^{}]{0,4000})\}", re.MULTILINE)
_ENTRY = re.compile(r"""(\d+)\s*:\s*\[((?:\s*["']\d+\.\d+["']\s*,?)*)\s*\]""")


def cuda_minor_table(source: bytes) -> dict[str, tuple[str, ...]]:
    """Read ``cuda_minor_mismatch_ok`` of the op builder: ``{"12": ("12.0", …)}``, empty when there is none."""
    match = _TABLE.search(source.decode("utf-8", "replace"))
    if match is None:
        return {}
    return {major: tuple(re.findall(r"\d+\.\d+", minors)) for major, minors in _ENTRY.findall(match[1])}


def _zero(stage: int, dtype: str) -> Step:
    short = {"float32": "fp32", "bfloat16": "bf16"}[dtype]
    # Which call reduces gradients differs between releases. Stage 3 gathers a module's parameters before it runs.
    reduces = "all_reduce|reduce|reduce_scatter_single|reduce_scatter|all_to_all_single"
    gathers = ("all_gather_single|all_gather",) if stage == 3 else ()
    return Step(
        name=f"deepspeed zero-{stage} {short}",
        kind="deepspeed-zero",
        options={"stage": stage, "dtype": dtype},
        deadline=_DEADLINE,
        # bf16 keeps a float32 copy of the weights but computes in eight bits of mantissa.
        tolerance=1e-4 if dtype == "float32" else 5e-2,
        family=f"deepspeed zero {short}",
        issues=(reduces, *gathers),
    )


_MOE = Step(
    name="deepspeed moe fp32",
    kind="deepspeed-moe",
    deadline=_DEADLINE,
    tolerance=None,
    issues=("all_to_all_single",),
)

DEEPSPEED = Framework(
    name="deepspeed",
    short="ds",
    title="DeepSpeed",
    distributions=("deepspeed",),
    module="deepspeed",
    parts={"deepspeed-kernels": "dskernels", "deepspeed-mii": "mii"},
    # Its proof compiles nothing. Training does when it first uses one of its optimizers (FusedAdam, DeepSpeedCPUAdam):
    # torch.utils.cpp_extension, with which it compiles them, imports setuptools and starts ninja.
    undeclared=("numpy", "setuptools", "ninja"),
    compiles=True,
    quick_steps=(_zero(2, "float32"),),
    steps=(
        *(_zero(stage, "float32") for stage in (0, 1, 2, 3)),
        *(_zero(stage, "bfloat16") for stage in (1, 2, 3)),
        _MOE,
    ),
    # deepspeed 0.14.1 to 0.19.4 ask each operator at import whether it can be compiled (op_builder/fp_quantizer.py).
    errors={
        r"MissingCUDAException|CUDA_HOME does not exist, unable to compile CUDA op": (
            "deepspeed 0.14.1 to 0.19.4 look for nvcc when they are imported where there is a GPU, "
            "and this environment has no CUDA toolkit; next: install the toolkit of torch's CUDA and set CUDA_HOME, "
            "or take deepspeed 0.19.5 or later"
        )
    },
    # Its setup.py adds nvidia-ml-py where it finds a GPU.
    ignored_requirements=frozenset({"nvidia-ml-py"}),
    reads_sdist=True,
    toolkit_table=ToolkitTable(
        rule="deepspeed-toolkit-cuda",
        file="op_builder/builder.py",
        variable="cuda_minor_mismatch_ok",
        since="0.4.0",
        read=cuda_minor_table,
    ),
    # Releases before 0.14.3 ask for Intel's extension where there is no GPU. With CUDA named they can be imported,
    # except that those about 0.12 then look for the accelerator without end.
    import_without_gpu=ImportWithoutGpu(
        needs="intel_extension_for_pytorch", variables={"DS_ACCELERATOR": "cuda"}, host_errors=("RecursionError",)
    ),
)
