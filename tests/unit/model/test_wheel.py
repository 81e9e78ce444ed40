"""A ready wheel: what it fits, and why it does not."""

from __future__ import annotations

import dataclasses

import pytest

from envsmith.model.cell import Cell, Platform, WheelPolicy
from envsmith.model.wheel import ReadyWheel, WheelTarget, glibc_of

WHEEL = ReadyWheel(
    distribution="flash-attn",
    version="2.8.3",
    address="https://host.test/d/v2.8.3/flash_attn-2.8.3%2Bcu12torch2.8cxx11abiTRUE-cp311-cp311-linux_x86_64.whl",
    sha256="a" * 64,
    publisher="its/project",
    official=True,
    evidence=(),
    torch="2.8",
    cuda="12",
    cxx11_abi=True,
    glibc="2.32",
    requires=("torch",),
)
TARGET = WheelTarget(
    python="3.11", torch="2.8.0+cu128", cuda="12.8", platform=Platform.LINUX_64, cxx11_abi=True, glibc="2.36"
)


def named(name: str, **facts: object) -> ReadyWheel:
    return dataclasses.replace(WHEEL, address=f"https://host.test/d/{name}", **facts)


def test_a_wheel_fits_the_torch_cuda_python_platform_and_abi_that_it_was_built_for():
    assert WHEEL.reasons_against(TARGET) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"python": "3.12"}, "built for Python cp311, not for 3.12"),
        ({"torch": "2.9.1+cu128"}, "built for torch 2.8, not for 2.9"),
        ({"cuda": "13.0"}, "built for CUDA 12, not for 13.0"),
        ({"cuda": "cpu"}, "built for CUDA 12, not for cpu"),
        ({"cxx11_abi": False}, "built with the new C++ ABI, and torch 2.8.0+cu128 has the old one"),
        ({"cxx11_abi": None}, "built with the new C++ ABI, and torch 2.8.0+cu128 has an unknown one"),
        ({"platform": Platform.LINUX_AARCH64}, "built for linux_x86_64, not for linux-aarch64"),
        ({"glibc": "2.31"}, "needs glibc 2.32, not 2.31"),
    ],
)
def test_each_difference_is_a_reason(change, words):
    assert WHEEL.reasons_against(dataclasses.replace(TARGET, **change)) == (words,)


def test_a_build_for_a_later_cuda_minor_does_not_fit_an_earlier_runtime():
    later = dataclasses.replace(WHEEL, cuda="12.9")

    assert later.reasons_against(TARGET) == ("built for CUDA 12.9, which is later than 12.8",)
    assert dataclasses.replace(WHEEL, cuda="12.6").reasons_against(TARGET) == ()


def test_a_wheel_that_names_no_torch_fits_nothing():
    silent = dataclasses.replace(WHEEL, torch=None)

    assert silent.reasons_against(TARGET) == ("its publisher does not say for which torch it was built",)


def test_a_stable_abi_wheel_fits_its_python_and_every_later_one():
    wheel = named("flash_attn_3-3.0.0-cp39-abi3-linux_x86_64.whl")

    assert wheel.reasons_against(TARGET) == ()
    assert named("x-1-py39-none-linux_x86_64.whl").reasons_against(TARGET) == ()
    assert named("x-1-cp312-abi3-linux_x86_64.whl").reasons_against(TARGET)
    assert named("x-1-py312-none-linux_x86_64.whl").reasons_against(TARGET)


def test_a_free_threaded_build_does_not_fit_the_usual_python():
    assert named("x-1-cp311-cp311t-linux_x86_64.whl").reasons_against(TARGET)


def test_machine_code_runs_on_later_minors_of_its_major_only():
    wheel = dataclasses.replace(WHEEL, gpu=("sm_80", "sm_90"))

    assert wheel.reasons_against(dataclasses.replace(TARGET, gpus=("sm_86",))) == ()
    assert wheel.reasons_against(dataclasses.replace(TARGET, gpus=("sm_75", "sm_90"))) == (
        "has code for sm_80, sm_90, not for sm_75",
    )


def test_the_tag_promises_a_glibc_or_nothing():
    assert glibc_of("x-1-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl") == "2.24"
    assert glibc_of("x-1-cp311-cp311-manylinux2014_x86_64.whl") == "2.17"
    assert glibc_of("x-1-cp311-cp311-linux_x86_64.whl") is None


def test_a_policy_admits_what_it_trusts_and_what_is_known_completely():
    listed = dataclasses.replace(WHEEL, official=False)
    unread = dataclasses.replace(WHEEL, requires=None)

    assert [WHEEL.admitted(policy) for policy in WheelPolicy] == [False, True, True]
    assert [listed.admitted(policy) for policy in WheelPolicy] == [False, False, True]
    assert not unread.admitted(WheelPolicy.LISTED)


def test_the_release_and_the_file_are_read_from_version_and_address():
    labelled = dataclasses.replace(WHEEL, version="2.8.3+cu128torch2.8")

    assert labelled.release == "2.8.3"
    assert labelled.filename == "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"


def test_the_target_of_a_cell_is_its_python_minor_its_torch_build_and_its_gpus():
    cell = Cell(
        components={"python": "3.11.9", "torch": "2.8.0+cu128", "cuda": "12.8", "gpu": "sm_90, sm_100"},
        chosen=("torch",),
        platform=Platform.LINUX_64,
        index="default",
    )

    assert WheelTarget.of(cell, cxx11_abi=True) == dataclasses.replace(TARGET, glibc=None, gpus=("sm_90", "sm_100"))


def test_a_variant_of_a_wheel_is_for_hardware_that_the_name_does_not_say():
    labelled = dataclasses.replace(WHEEL, address=WHEEL.address.replace(".whl", "-cu128.whl"))

    assert labelled.reasons_against(TARGET) == ("is the variant cu128, for the hardware that its publisher says",)
