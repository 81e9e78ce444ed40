"""Megatron-core."""

from __future__ import annotations

from envsmith.frameworks.framework import Framework, Step

_NO_SEQUENCE = "needs a GPU and Transformer Engine: Megatron's torch layer norm refuses sequence parallelism"
_NO_CONTEXT = (
    "needs a GPU and Transformer Engine: "
    "Megatron has context parallelism of a whole layer only in TEDotProductAttention"
)
_MIXTURE = "megatron-core gpt moe fp32"


def _gpt(
    name: str, *issues: str, family: str = "megatron-core gpt fp32", why: str = "", **options: str | int | bool
) -> Step:
    return Step(
        name=f"megatron-core gpt {name} {'bf16' if options.get('dtype') == 'bfloat16' else 'fp32'}",
        kind="megatron-gpt",
        options=options,
        family=family,
        issues=issues,
        needs="gpu" if why else "",
        why=why,
    )


_LAYERS = Step(name="megatron-core tensor-parallel fp32", kind="megatron-tp", issues=("all_reduce",))
_SEQUENCE = Step(
    name="megatron-core sequence-parallel fp32",
    kind="megatron-tp",
    options={"sequence_parallel": True},
    issues=("all_gather_single", "reduce_scatter_single"),
)
_EXCHANGE = Step(
    name="megatron-core context-parallel exchange fp32",
    kind="megatron-context",
    issues=("all_to_all_single|all_to_all",),
)

MEGATRON_CORE = Framework(
    name="megatron-core",
    short="mc",
    title="Megatron-core",
    distributions=("megatron-core",),
    module="megatron.core",
    aliases=("megatron-lm", "megatron"),
    parts={"megatron-bridge": "bridge", "megatron-energon": "energon"},
    # Release 0.13 compares versions with packaging and says so when it runs.
    undeclared=("numpy", "packaging", "setuptools"),
    quick_steps=(_LAYERS,),
    steps=(
        _LAYERS,
        _SEQUENCE,
        _EXCHANGE,
        _gpt("dp=2", "all_reduce"),
        _gpt("tp=2", "all_reduce", tp=2),
        _gpt("pp=2", "send", "recv", pp=2),
        _gpt("moe dp=2", "all_reduce", family=_MIXTURE, experts=4),
        _gpt("moe ep=2", "all_to_all_single|all_to_all", family=_MIXTURE, experts=4, ep=2),
        _gpt(
            "tp=2 sp",
            "all_gather_single",
            "reduce_scatter_single",
            family="",
            why=_NO_SEQUENCE,
            tp=2,
            sequence_parallel=True,
        ),
        # Context parallelism leaves Transformer Engine's flash and fused attention only, which have no float32
        # (transformer_engine/pytorch, get_attention_backend: UnfusedDotProductAttention "does not support context
        # parallelism").
        _gpt("cp=2", family="", why=_NO_CONTEXT, cp=2, dtype="bfloat16"),
    ),
)
