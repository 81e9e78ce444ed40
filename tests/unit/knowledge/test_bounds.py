"""Rules that were read out of artifacts: they hold up to their bound, and not one release further."""

import pytest

from envsmith.model.cell import Request
from envsmith.solver import check, solve


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        (
            "transformers-prefetch-float",
            {"transformers": "4.44.2", "deepspeed": "0.15.0"},
            {"transformers": "4.45.0", "deepspeed": "0.15.0"},
        ),
        (
            "transformers-prefetch-float",
            {"accelerate": "0.30.1", "deepspeed": "0.15.0"},
            {"accelerate": "0.30.1", "deepspeed": "0.14.5"},
        ),
        ("pyarrow-numpy1", {"pyarrow": "26.0.1", "numpy": "1.26.4"}, {"pyarrow": "25.0.1", "numpy": "1.26.4"}),
        (
            "transformers-float8-e8m0fnu",
            {"transformers": "5.10.4", "torch": "2.6.0"},
            {"transformers": "5.11.0", "torch": "2.6.0"},
        ),
        (
            "transformers-float8-e8m0fnu",
            {"transformers": "5.10.1", "torch": "2.6.0"},
            {"transformers": "5.10.4", "torch": "2.7.0"},
        ),
        ("verl-vllm-pair", {"verl": "0.8.0", "vllm": "0.19.1"}, {"verl": "0.8.0", "vllm": "0.12.0"}),
        ("openrlhf-vllm-pair", {"openrlhf": "0.11.2", "vllm": "0.27.1"}, {"openrlhf": "0.11.2", "vllm": "0.29.0"}),
        ("accelerate-step-was-skipped", {"accelerate": "0.9.0", "deepspeed": "0.6.5"}, {"accelerate": "0.10.0"}),
        ("deepspeed-0.9.3-zero-init", {"deepspeed": "0.9.3"}, {"deepspeed": "0.9.4"}),
        ("triton-1.0-python", {"triton": "1.0.0", "python": "3.10"}, {"triton": "2.0.0", "python": "3.10"}),
        ("toolkit-gcc-11-headers", {"toolkit": "11.5", "gcc": "11.3.0"}, {"toolkit": "11.7", "gcc": "11.3.0"}),
        ("toolkit-gcc-11-headers", {"toolkit": "11.5", "gcc": "11"}, {"toolkit": "11.5", "gcc": "10.5.0"}),
        ("colossalai-torch-six", {"colossalai": "0.2.5", "torch": "2.0.1"}, {"colossalai": "0.2.5", "torch": "1.13.1"}),
        (
            "colossalai-grad-scaler-torch2",
            {"colossalai": "0.3.2", "torch": "2.0.1"},
            {"colossalai": "0.3.3", "torch": "2.0.1"},
        ),
        (
            "colossalai-fx-profiler-torch2",
            {"colossalai": "0.2.8", "torch": "2.0.1"},
            {"colossalai": "0.3.0", "torch": "2.0.1"},
        ),
        (
            "deepspeed-autosp-import",
            {"deepspeed": "0.18.9", "torch": "2.3.1"},
            {"deepspeed": "0.18.9", "torch": "2.4.0"},
        ),
        (
            "deepspeed-autosp-import",
            {"deepspeed": "0.19.7", "torch": "2.0.1"},
            {"deepspeed": "0.19.8", "torch": "2.3.1"},
        ),
        (
            "megatron-core-write-item",
            {"megatron-core": "0.11.0", "torch": "2.7.0"},
            {"megatron-core": "0.12.0", "torch": "2.7.1"},
        ),
        (
            "megatron-core-write-item",
            {"megatron-core": "0.12.3", "torch": "2.8.0"},
            {"megatron-core": "0.13.0", "torch": "2.8.0"},
        ),
        (
            "megatron-core-numpy-dtypes",
            {"megatron-core": "0.14.0", "numpy": "1.24.4"},
            {"megatron-core": "0.14.0", "numpy": "1.25.2"},
        ),
        (
            "megatron-core-te-rope",
            {"megatron-core": "0.11.0", "transformer-engine": "2.3.0"},
            {"megatron-core": "0.12.1", "transformer-engine": "2.3.0"},
        ),
    ],
)
def test_a_bound_is_where_the_artifacts_have_it(rule, bad, good):
    assert rule in {f.rule for f in check(bad).findings}
    assert rule not in {f.rule for f in check(good).findings}


def test_verl_is_solved_with_a_vllm_that_it_is_made_for():
    cell = solve(Request(constraints={"verl": "==0.8.0", "vllm": "*"})).cell
    assert cell.components["vllm"] == "0.12.0"
