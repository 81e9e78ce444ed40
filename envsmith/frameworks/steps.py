"""The framework steps of a plan: which ones a cell's frameworks give, for how long, and what each needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envsmith.model.version import Spec

# DeepSpeed compiles its shared-memory op when it starts on the CPU: 12 s warm, a minute cold on two processors, and more than 300 s where
# fourteen other processes want each of them.
_DEEPSPEED_DEADLINE = 600.0
_DEADLINE = 180.0
# Read in colossalai 0.5.0 and seen on torch 2.13.0: what stops on the CPU accelerator, and where.
_NO_CPU = {
    "context": "needs a GPU and Transformer Engine: Megatron has context parallelism of a whole layer only in TEDotProductAttention",
    "sequence": "needs a GPU and Transformer Engine: Megatron's torch layer norm refuses sequence parallelism",
}
# The words with which Colossal-AI's CPU accelerator stops a plugin (0.5.0). Such a step is tried on the CPU all the same: the record has the error
# and the line of code of this very release, or, should one ever work there, its losses.
_COLOSSALAI_NEEDS = {
    "zero": r"device is required",
    # HybridAdam's kernel for the host's part is only built where torch.cuda.is_available() (cuda_extension.py, which cpu_adam_x86.py asks).
    "gemini": r"not supported for cpu accelerator|No usable kernel found for CPUAdamLoader",
    "tensor": r"get_rng_state\(\) takes",
}
# torch 2.6.0 on the CPU, measured: its fully_shard records events on a stream, and the CPU's stand-in for one has none. 2.9.1 and later pass.
_FSDP2_NEEDS = r"'Stream' object has no attribute 'record_event'"
# Colossal-AI imports 1,500 modules.
_COLOSSALAI_DEADLINE = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """``kind`` names the agent's function, ``options`` are its parameters.

    ``tolerance`` is the relative difference that is allowed in every loss, from the step's own reference and from the first step of its
    ``family`` that ran: the same training, spread otherwise. ``told`` are the words (a pattern) with which a step that needs a GPU is tried on the CPU and
    stops there: skipped with the place, while any other error is one. ``issues`` are the collectives without which the step was not what its name says
    (``a|b``: one of them); ``native`` says that C++ issues them, so that only torch's flight recorder can tell. ``needs`` is ``gpu`` or
    nothing, ``why`` the reason that a record gives when that is missing.
    """

    name: str
    kind: str
    options: Mapping[str, object] = field(default_factory=dict)
    ranks: int = 2
    deadline: float = _DEADLINE
    tolerance: float | None = 1e-4
    family: str = ""
    issues: tuple[str, ...] = ()
    native: bool = False
    needs: str = ""
    why: str = ""
    told: str = ""

    def to_json(self) -> dict[str, object]:
        """As the agent reads it."""
        row: dict[str, object] = {
            "name": self.name,
            "kind": self.kind,
            "ranks": self.ranks,
            "deadline": self.deadline,
            **self.options,
        }
        optional = {
            "needs": self.needs,
            "why": self.why,
            "told": self.told,
            "tolerance": self.tolerance,
            "issues": list(self.issues),
        }
        row.update({key: value for key, value in optional.items() if value})
        return row


def framework_steps(frameworks: Mapping[str, str], *, every: bool, control: bool, torch: str = "") -> tuple[Step, ...]:
    """One step per framework, or ``every`` one that is known; ``control`` adds torch's own data parallelism first.

    From ``torch`` 2.15 on the control runs on both NCCL engines.
    """
    steps: list[Step] = []
    if control:
        steps.append(Step(name="torch ddp fp32", kind="ddp", issues=("all_reduce",), native=True))
        if every:
            steps.append(
                Step(
                    name="torch fsdp2 fp32",
                    kind="fsdp2",
                    issues=("all_gather_single", "reduce_scatter_single"),
                    told=_FSDP2_NEEDS,
                )
            )
        if torch and Spec.parse(">=2.15").contains(torch):
            steps.extend(_engines())
    makers = {"deepspeed": _deepspeed, "megatron-core": _megatron, "colossalai": _colossalai}
    for framework in frameworks:
        if framework in makers:
            steps.extend(makers[framework](every=every))
    return tuple(steps)


def _engines() -> list[Step]:
    """Two engines stand behind the name nccl in torch 2.15; written from its sources, not run by us."""
    return [
        Step(
            name=f"torch ddp fp32, nccl engine {engine}",
            kind="ddp",
            options={"engine": engine},
            issues=("all_reduce",),
            native=True,
            needs="gpu",
            why="needs a GPU: torch 2.15 has two engines for NCCL, gloo has one",
        )
        for engine in ("2", "legacy")
    ]


def _deepspeed(*, every: bool) -> list[Step]:
    # Stage 3 gathers a module's parameters before it runs; which call reduces gradients differs between releases.
    gradients = "all_reduce|reduce|reduce_scatter_single|reduce_scatter|all_to_all_single"

    def zero(stage: int, dtype: str) -> Step:
        short = {"float32": "fp32", "bfloat16": "bf16"}[dtype]
        gathers = ("all_gather_single|all_gather",) if stage == 3 else ()
        # bf16 keeps a float32 copy of the weights but computes in eight bits of mantissa.
        return Step(
            name=f"deepspeed zero-{stage} {short}",
            kind="deepspeed-zero",
            options={"stage": stage, "dtype": dtype},
            deadline=_DEEPSPEED_DEADLINE,
            tolerance=1e-4 if dtype == "float32" else 5e-2,
            family=f"deepspeed zero {short}",
            issues=(gradients, *gathers),
        )

    if not every:
        return [zero(2, "float32")]
    moe = Step(
        name="deepspeed moe fp32",
        kind="deepspeed-moe",
        deadline=_DEEPSPEED_DEADLINE,
        tolerance=None,
        issues=("all_to_all_single",),
    )
    return [*(zero(stage, "float32") for stage in (0, 1, 2, 3)), *(zero(stage, "bfloat16") for stage in (1, 2, 3)), moe]


def _gpt(name: str, *issues: str, family: str = "megatron-core gpt fp32", why: str = "", **options: object) -> Step:
    return Step(
        name=f"megatron-core gpt {name} fp32",
        kind="megatron-gpt",
        options=options,
        family=family,
        issues=issues,
        needs="gpu" if why else "",
        why=why,
    )


def _megatron(*, every: bool) -> list[Step]:
    layers = Step(name="megatron-core tensor-parallel fp32", kind="megatron-tp", issues=("all_reduce",))
    if not every:
        return [layers]
    sequence = Step(
        name="megatron-core sequence-parallel fp32",
        kind="megatron-tp",
        options={"sequence_parallel": True},
        issues=("all_gather_single", "reduce_scatter_single"),
    )
    exchange = Step(
        name="megatron-core context-parallel exchange fp32",
        kind="megatron-context",
        issues=("all_to_all_single|all_to_all",),
    )
    mixture = "megatron-core gpt moe fp32"
    return [
        layers,
        sequence,
        exchange,
        _gpt("dp=2", "all_reduce"),
        _gpt("tp=2", "all_reduce", tp=2),
        _gpt("pp=2", "send", "recv", pp=2),
        _gpt("moe dp=2", "all_reduce", family=mixture, experts=4),
        _gpt("moe ep=2", "all_to_all_single|all_to_all", family=mixture, experts=4, ep=2),
        _gpt(
            "tp=2 sp",
            "all_gather_single",
            "reduce_scatter_single",
            family="",
            why=_NO_CPU["sequence"],
            tp=2,
            sequence_parallel=True,
        ),
        _gpt("cp=2", family="", why=_NO_CPU["context"], cp=2),
    ]


def _colossalai(*, every: bool) -> list[Step]:
    control = Step(
        name="colossalai booster ddp fp32",
        kind="colossalai",
        options={"plugin": "TorchDDPPlugin"},
        issues=("all_reduce",),
        native=True,
        deadline=_COLOSSALAI_DEADLINE,
    )
    if not every:
        return [control]
    pipeline = Step(
        name="colossalai 3d pp=2 fp32",
        kind="colossalai-3d",
        options={"pp": 2},
        issues=("send", "recv"),
        tolerance=1e-3,
        deadline=_COLOSSALAI_DEADLINE,
    )
    return [control, pipeline, *_colossalai_gpu()]


def _colossalai_gpu() -> list[Step]:
    """Written from the sources of 0.5.0; not run by us, for want of a GPU."""
    steps = [
        Step(
            name=f"colossalai 3d {name}",
            kind="colossalai-3d",
            options=options,
            tolerance=tolerance,
            issues=issues,
            needs="gpu",
            told=_COLOSSALAI_NEEDS[why],
            deadline=_COLOSSALAI_DEADLINE,
        )
        for name, options, tolerance, issues, why in (
            ("tp=2 fp32", {"tp": 2}, 1e-3, ("all_reduce",), "tensor"),
            ("zero-1 bf16", {"zero": 1, "precision": "bf16"}, 5e-2, (), "zero"),
        )
    ]
    steps += [
        Step(
            name=f"colossalai low-level zero-{stage} bf16",
            kind="colossalai",
            options={"plugin": "LowLevelZeroPlugin", "stage": stage, "precision": "bf16"},
            tolerance=5e-2,
            needs="gpu",
            told=_COLOSSALAI_NEEDS["zero"],
            deadline=_COLOSSALAI_DEADLINE,
        )
        for stage in (1, 2)
    ]
    steps.append(
        Step(
            name="colossalai gemini bf16",
            kind="colossalai",
            options={"plugin": "GeminiPlugin", "precision": "bf16", "optimizer": "HybridAdam"},
            tolerance=5e-2,
            needs="gpu",
            told=_COLOSSALAI_NEEDS["gemini"],
            deadline=_DEEPSPEED_DEADLINE,
        )
    )
    return steps
