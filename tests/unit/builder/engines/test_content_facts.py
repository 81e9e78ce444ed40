"""CUDA, toolkit, architectures and packages of a built image held against the cell."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from envsmith.builder.engines.base import verify_content
from envsmith.builder.engines.content import (
    INSPECT_SCRIPT,
    content_facts,
    file_differences,
    os_difference,
    parse_inspection,
)
from envsmith.errors import ContentError
from envsmith.model.cell import DEVEL


@pytest.mark.parametrize(
    ("components", "found", "told"),
    [
        ({"nccl": "2.29.7"}, {"nccl.loaded": "2.29.7"}, None),
        ({"nccl": "2.29.7"}, {"nccl.loaded": "2.27.5"}, "nccl: the cell says 2.29.7, the library says 2.27.5"),
        ({"nccl": "2.29.7"}, {}, None),
        ({"glibc": "2.36"}, {"glibc.version": "2.36"}, None),
        ({"glibc": "2.36"}, {"glibc.version": "2.31"}, "glibc: the cell needs 2.36, here is 2.31"),
        ({"gpu": "sm_90"}, {"torch.archs": "sm_80 sm_90"}, None),
        ({"gpu": "sm_89"}, {"torch.archs": "sm_80 sm_90"}, None),
        ({"gpu": "sm_100"}, {"torch.archs": "sm_80 compute_90"}, None),
        (
            {"gpu": "sm_120"},
            {"torch.archs": "sm_80 sm_90"},
            "gpu: the cell says sm_120, torch holds code for sm_80 sm_90",
        ),
        (
            {"gpu": "sm_70"},
            {"torch.archs": "sm_75 sm_80"},
            "gpu: the cell says sm_70, torch holds code for sm_75 sm_80",
        ),
    ],
)
def test_a_fact_that_is_not_the_cell_s_is_told(locks, components, found, told):
    lock = locks.deepspeed(**components)
    assert content_facts(lock, found) == ([told] if told else [])


def test_the_toolkit_of_a_devel_image_is_the_one_of_its_cuda(locks):
    lock = dataclasses.replace(locks.deepspeed(), flavour=DEVEL)
    assert content_facts(lock, {"toolkit.version": "13.0"}) == []
    assert content_facts(lock, {"toolkit.version": "12.8"}) == ["toolkit: the cell says CUDA 13.0, nvcc says 12.8"]
    assert content_facts(lock, {"toolkit.version": "none"}) == ["toolkit: the cell says CUDA 13.0, nvcc says none"]
    assert content_facts(locks.deepspeed(), {"toolkit.version": "12.8"}) == []


def test_packages_of_the_distribution_are_compared_by_exact_version(locks):
    lock = locks.deepspeed()
    right = "libc6=2.36-9 " + " ".join(f"{p.name}={p.version}" for p in lock.os_packages)
    assert os_difference(lock, {"os.packages": right}) == []
    assert os_difference(lock, {}) == []
    told = os_difference(lock, {"os.packages": right.replace("gcc-12=12.2.0-14+deb12u1", "gcc-12=12.2.0-14")})
    assert told == ["gcc-12: locked 12.2.0-14+deb12u1, installed 12.2.0-14"]


def test_the_gate_fails_on_a_fact(locks):
    lock = locks.deepspeed()
    found = {p.name: p.version for p in lock.pins} | {"python": "3.12.1", "nccl.loaded": "2.27.5"}
    with pytest.raises(ContentError) as caught:
        verify_content(lock, found)
    assert any("the library says 2.27.5" in line for line in caught.value.details)


def test_the_script_reads_architectures_and_toolkit(tmp_path):
    library = tmp_path / "torch" / "lib"
    library.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.9.1'\ncuda = '12.8'\n")
    (library / "libtorch_python.so").write_bytes(b"\x00sm_80\x00\x00sm_75 sm_80 sm_90 compute_90\x00")
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n")
    nvcc.chmod(0o755)
    script = f"import sys, os; sys.path.insert(0, {str(tmp_path)!r}); os.environ['CUDA_HOME'] = {str(tmp_path / 'cuda')!r}\n{INSPECT_SCRIPT}"
    output = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True).stdout
    found = parse_inspection(output)
    assert found["torch.archs"] == "sm_75 sm_80 sm_90 compute_90"
    assert found["toolkit.version"] == "12.8"


def test_files_that_are_not_their_wheels_are_differences(locks):
    wheel = dataclasses.replace(locks.with_wheels(locks.deepspeed()).wheels[0], content="a" * 64)
    lock = dataclasses.replace(locks.deepspeed(), wheels=(wheel,))
    good = {"files.checked": "7", "content.deepspeed": "a" * 64}
    assert file_differences(lock, good) == []
    assert file_differences(lock, {}) == []  # no file was read
    told = file_differences(lock, {**good, "files.broken": "torch: torch/a.so is missing\ntorch: b is missing"})
    assert told == ["torch: torch/a.so is missing", "torch: b is missing"]
    unlike = {**good, "files.unlike": f"torch {'c' * 64} torch/a.so"}
    assert file_differences(lock, unlike, lambda _pin, _digests: False) == [
        "torch: torch/a.so is not what its RECORD says"
    ]
    assert (
        file_differences(lock, unlike, lambda pin, digests: (pin.name, digests) == ("torch", {"torch/a.so": "c" * 64}))
        == []
    )
    for other in ("b" * 64, ""):
        (told,) = file_differences(lock, {**good, "content.deepspeed": other})
        assert told.startswith("deepspeed: the files of deepspeed-0.19.8-py3-none-any.whl")
    # A lock from before wheels had such a digest is held against nothing.
    assert file_differences(locks.with_wheels(locks.deepspeed()), {"files.checked": "7"}) == []
