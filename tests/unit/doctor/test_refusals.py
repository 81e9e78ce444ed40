"""A package that refuses its settings is named with its sentence and what that advises; data and scripts are not."""

from __future__ import annotations

import pytest

from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts


def judged(text: str):
    return diagnose(read_texts([("log", text)]), [("log", text)]).diagnosed


def traceback(file: str, error: str) -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 8, in check\n    raise ValueError(\n{error}'


TRL = "/env/lib/python3.11/site-packages/trl/trainer/grpo_config.py"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            "ValueError: 'generation_batch_size' and 'steps_per_generation' can not be both configured at the same time",
            "Leave out one of them: generation_batch_size, steps_per_generation.",
        ),
        (
            "ValueError: The batch (7 x 1) must be divisible by num_generations (8).",
            "7 can be divided by 1, 7, not by 8",
        ),
        ("ValueError: Unknown `vllm_mode`. Expected either 'server' or 'colocate'", "one of these values: 'server' or"),
        ("ValueError: `use_vllm` requires `vllm_mode='server'`", "Set what it asks for ('vllm_mode='server'"),
        (
            "ValueError: `pp_size` requires sequence parallelism to be False",
            "Set sequence parallelism to False, or leave",
        ),
        ("ValueError: `use_bf16` requires `master_weights` to be enabled.", "Enable `master_weights`, or leave out"),
        ("ValueError: `a_b` must be set before `c_d`", "Set `a_b`, or leave out what asks for it"),
        ("ValueError: fp16 with `use_mps` requires Pytorch 2.5.0 of MPS", "(Pytorch 2.5.0 of MPS)"),
        ("ValueError: `num_groups` must be at least 1, got 0", "Give num_groups a value that is at least 1"),
        ("ValueError: `amax_algo` must be one of max, most_recent", "a value that is one of max, most_recent"),
        (
            "ValueError: Unknown vLLM mode: 2. Possible values are 'token_mask' and 'sequence_mask'. Got: 2",
            "Give it one of these values: 'token_mask' and 'sequence_mask'.",
        ),
        ("ValueError: `use_x` is not supported. Use `use_vllm` instead.", "Use `use_vllm` instead"),
        ("AssertionError: `a_b` is not equal to the rest 256 != 2 * 18 * 7", "2 * 18 * 7 is 252, not 256"),
    ],
)
def test_the_fix_is_what_the_sentence_advises_or_names(error, advice):
    first = judged(traceback(TRL, error))[0]
    assert first.finding.message.startswith("trl ")
    assert advice.replace("'", "`") in (first.finding.fix or "").replace("'", "`")


SITE = "/env/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("file", "error", "advice"),
    [
        (
            f"{SITE}/torch/utils/checkpoint.py",
            "RuntimeError: incompatible with .grad(). To resolve this error, you can either set use_reentrant=False",
            "To resolve this error, you can either set use_reentrant=False",
        ),
        (
            f"{SITE}/ray/train/torch/train_loop_utils.py",
            "RuntimeError: FSDP is only available with GPU-enabled training. Set `use_gpu=True` in your Trainer.",
            "Set `use_gpu=True` in your Trainer.",
        ),
        (
            "",
            "MisconfigurationException: SWA is off. Please provide `swa_epoch_start` as an integer.",
            "Please provide",
        ),
    ],
)
def test_what_a_package_advises_about_its_start_is_the_fix_whatever_it_raises(file, error, advice):
    first = judged(traceback(file, error) if file else error)[0]
    assert advice.replace("'", "`") in (first.finding.fix or "").replace("'", "`")
    assert first.finding.severity.value == "warning" or "provide" in advice


@pytest.mark.parametrize(
    "text",
    [
        traceback("/home/me/train.py", "RuntimeError: no data. Please set the path of the data."),
        traceback(f"{SITE}/torch/nn/functional.py", "RuntimeError: sizes differ. Make sure that they are equal."),
        traceback(
            f"{SITE}/torch/utils/checkpoint.py", "RuntimeError: it went wrong. Please report this bug to PyTorch."
        ),
    ],
    ids=["a script of one's own", "an operator", "advice for the makers alone"],
)
def test_other_advice_is_not_repeated(text):
    assert not [d for d in judged(text) if d.finding.rule.startswith("settings-")]


def test_the_items_of_a_list_behind_the_sentence_belong_to_it():
    error = "ValueError: --load_best_model_at_end requires the strategies to match, but found\n- Save strategy: epoch"
    assert "but found Save strategy: epoch" in judged(error)[0].finding.message


@pytest.mark.parametrize(
    "text",
    [
        traceback("/home/me/model.py", "ValueError: hidden_size must be divisible by num_heads"),
        traceback("/env/lib/python3.11/site-packages/numpy/core/shape_base.py", "ValueError: arrays must be set"),
        traceback("/env/lib/python3.11/site-packages/transformers/tokenization_utils.py", "ValueError: use `padding`"),
        "ValueError: every row must be given",
        "ValueError: num_samples should be a positive integer value, but got num_samples=0",
    ],
    ids=["a script of one's own", "data", "a part that reads no settings", "nothing that is a setting", "no speaker"],
)
def test_what_is_not_about_settings_is_not_said_to_be(text):
    assert not [d for d in judged(text) if d.finding.rule.startswith("settings-")]


def test_what_a_sentence_only_names_is_not_advised_to_be_left_out():
    error = "ValueError: Unrecognized model in ./x. Should have a `model_type` key in its config.json"
    file = "/env/lib/python3.11/site-packages/transformers/models/auto/configuration_auto.py"

    (first, *_) = judged(traceback(file, error))

    assert (first.finding.fix or "").replace("'", "`") == "Correct what the message says of model_type."


def test_a_message_that_is_known_is_said_with_the_sentence_of_its_line():
    first = judged("ValueError: Total number of attention heads (12) must be divisible by tensor parallel size (8).")[0]
    assert first.finding.rule == "batch-not-divisible"
    assert "attention heads (12)" in first.finding.message
    assert "12 can be divided by 1, 2, 3, 4, 6, 12" in (first.finding.fix or "")
