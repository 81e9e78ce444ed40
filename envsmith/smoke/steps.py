"""The framework steps of a plan: which ones a cell's frameworks give, for how long, and what each needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Step", "framework_steps"]

# DeepSpeed compiles its shared-memory op when it starts on the CPU: 12 s warm, about a minute cold on two busy processors.
_DEEPSPEED_DEADLINE = 300.0
_DEADLINE = 180.0
_NO_CPU = {
    "sequence": "needs a GPU: sequence parallelism in Megatron puts its scratch buffer on torch.cuda.current_device()",
    "gpt": "needs a GPU: DotProductAttention's scratch buffer and the CUDA random state of model-parallel ranks",
    "zero": "needs a GPU: LowLevelZeroPlugin stops with 'device is required' on the CPU accelerator",
    "gemini": "needs a GPU: GeminiPlugin says 'this method is not supported for cpu accelerator'",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """``kind`` names the agent's function, ``options`` are its parameters.

    ``tolerance`` is the relative difference from the reference that is allowed in every loss; ``needs`` is ``gpu`` or nothing, ``why`` the
    reason that a record gives when that is missing.
    """

    name: str
    kind: str
    options: Mapping[str, object] = field(default_factory=dict)
    ranks: int = 2
    deadline: float = _DEADLINE
    tolerance: float | None = 1e-4
    needs: str = ""
    why: str = ""

    def to_json(self) -> dict[str, object]:
        """As the agent reads it."""
        row: dict[str, object] = {
            "name": self.name,
            "kind": self.kind,
            "ranks": self.ranks,
            "deadline": self.deadline,
            **self.options,
        }
        row.update(
            {
                key: value
                for key, value in (("needs", self.needs), ("why", self.why), ("tolerance", self.tolerance))
                if value
            }
        )
        return row


def framework_steps(frameworks: Mapping[str, str], *, every: bool, control: bool) -> tuple[Step, ...]:
    """One step per framework, or ``every`` one that is known; ``control`` adds torch's own data parallelism first."""
    steps: list[Step] = []
    if control:
        steps.append(Step(name="torch ddp fp32", kind="ddp"))
        if every:
            steps.append(Step(name="torch fsdp2 fp32", kind="fsdp2"))
    makers = {"deepspeed": _deepspeed, "megatron-core": _megatron, "colossalai": _colossalai}
    for framework in frameworks:
        if framework in makers:
            steps.extend(makers[framework](every=every))
    return tuple(steps)


def _deepspeed(*, every: bool) -> list[Step]:
    def zero(stage: int, dtype: str) -> Step:
        short = {"float32": "fp32", "bfloat16": "bf16"}[dtype]
        # bf16 keeps a float32 copy of the weights but computes in eight bits of mantissa.
        return Step(
            name=f"deepspeed zero-{stage} {short}",
            kind="deepspeed-zero",
            options={"stage": stage, "dtype": dtype},
            deadline=_DEEPSPEED_DEADLINE,
            tolerance=1e-4 if dtype == "float32" else 5e-2,
        )

    if not every:
        return [zero(2, "float32")]
    moe = Step(name="deepspeed moe fp32", kind="deepspeed-moe", deadline=_DEEPSPEED_DEADLINE, tolerance=None)
    return [*(zero(stage, "float32") for stage in (0, 1, 2, 3)), *(zero(stage, "bfloat16") for stage in (1, 2, 3)), moe]


def _megatron(*, every: bool) -> list[Step]:
    steps = [Step(name="megatron-core tensor-parallel fp32", kind="megatron-tp")]
    if every:
        gpt = _NO_CPU["gpt"]
        steps += [
            Step(
                name="megatron-core sequence-parallel fp32",
                kind="megatron-tp",
                options={"sequence_parallel": True},
                needs="gpu",
                why=_NO_CPU["sequence"],
            ),
            Step(
                name="megatron-core gpt tp=1 fp32",
                kind="megatron-gpt",
                options={"tp": 1},
                tolerance=None,
                needs="gpu",
                why=gpt,
            ),
            Step(
                name="megatron-core gpt tp=2 fp32",
                kind="megatron-gpt",
                options={"tp": 2},
                tolerance=None,
                needs="gpu",
                why=gpt,
            ),
            Step(
                name="megatron-core gpt tp=2 sp fp32",
                kind="megatron-gpt",
                options={"tp": 2, "sequence_parallel": True},
                tolerance=None,
                needs="gpu",
                why=gpt,
            ),
            Step(
                name="megatron-core gpt ep=2 fp32",
                kind="megatron-gpt",
                options={"ep": 2},
                tolerance=None,
                needs="gpu",
                why=gpt,
            ),
        ]
    return steps


def _colossalai(*, every: bool) -> list[Step]:
    steps = [Step(name="colossalai booster ddp fp32", kind="colossalai", options={"plugin": "TorchDDPPlugin"})]
    if every:
        zero, gemini = _NO_CPU["zero"], _NO_CPU["gemini"]
        steps += [
            Step(
                name=f"colossalai low-level zero-{stage} bf16",
                kind="colossalai",
                options={"plugin": "LowLevelZeroPlugin", "stage": stage, "precision": "bf16"},
                tolerance=5e-2,
                needs="gpu",
                why=zero,
            )
            for stage in (1, 2)
        ]
        options = {"plugin": "GeminiPlugin", "precision": "bf16", "optimizer": "HybridAdam"}
        steps.append(
            Step(
                name="colossalai gemini bf16",
                kind="colossalai",
                options=options,
                tolerance=5e-2,
                needs="gpu",
                why=gemini,
                deadline=_DEEPSPEED_DEADLINE,
            )
        )
    return steps
