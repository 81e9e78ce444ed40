"""The numbers that a message says do not fit, and those that would."""

from __future__ import annotations

import pytest

from envsmith.doctor.fitting_numbers import numbers_that_fit, parts_between


@pytest.mark.parametrize(
    ("sentence", "advice"),
    [
        (
            "attention heads (40) must be divisible by tensor parallel size (6).",
            "not by 6: take one of these for 6, or 36 or 42",
        ),
        ("world size (6) is not divisible by tp (4) x pp (1) x cp (1)", "6 can be divided by 1, 2, 3, 6, not by 4"),
        ("batch size (10) is not divisible by micro batch size (4) times data parallel size (2)", "not by 8"),
        ("The train batch size (7 x 2) must be evenly divisible by the generations (8).", "8 or 16 for 14"),
        (
            "expert_parallel_size (8) must divide num_moe_experts (60)",
            "not by 8: take one of these for 8, or 56 or 64 for 60",
        ),
        ("[rank14]: AssertionError: 46 is not divisible by 4", "44 or 48 for 46"),
        (
            "train_batch_size is not equal to micro_batch * steps * world_size 256 != 16 * 1 * 8",
            "train_batch_size 128 or micro_batch 32 or steps 2 or world_size 16",
        ),
        ("2048 != 2 * 18 * 7", "252"),
    ],
)
def test_the_advice_names_numbers_that_fit(sentence, advice):
    assert advice in numbers_that_fit(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "First dimension of the tensor should be divisible by tensor parallel size",
        "[rank3]: the number of layers must be divisible by 4",
        "8 is divisible by 4",
        "torch 2.4.0 must be divisible by 12:30:11",
        "128 != 16 * 1 * 8",
        "no numbers here",
    ],
)
def test_a_sentence_without_a_sum_gives_no_advice(sentence):
    assert numbers_that_fit(sentence) == ""


@pytest.mark.parametrize(
    ("saved", "own", "parts"),
    [
        ("[1024, 64]", "[1024, 1024]", 16),
        ("[4096]", "[1024]", 4),
        ("[32000, 4096]", "[32001, 4096]", 0),
        ("[1024, 64]", "[2048, 128]", 0),
        ("[0]", "[8, 8]", 0),
        ("", "", 0),
    ],
)
def test_a_shape_is_a_part_of_another_where_one_side_divides_it(saved, own, parts):
    assert parts_between(saved, own) == parts
