"""Banners of nvidia-smi as people pasted them: https://github.com/deepspeedai/DeepSpeed/issues/397 (2020), https://github.com/microsoft/BitBLAS/issues/39 (2024)."""

from __future__ import annotations

import pytest

from envsmith.doctor.read import read_texts

BANNERS = [
    ("| NVIDIA-SMI 431.40       Driver Version: 431.40       CUDA Version: 10.1     |", "431.40", "10.1"),
    (" NVIDIA-SMI 470.129.06   Driver Version: 470.129.06   CUDA Version: 12.3  ", "470.129.06", "12.3"),
]


@pytest.mark.parametrize(("banner", "driver", "level"), BANNERS)
@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "worker-1: "])
def test_driver_and_its_cuda_level_are_read_from_the_banner(banner, driver, level, prefix):
    facts = read_texts([("smi", prefix + banner)])
    assert (facts.version("driver"), facts.host["driver_cuda"]) == (driver, level)
