"""What sdists are built with: pure."""

from __future__ import annotations

import dataclasses

import pytest

from envsmith.errors import LockError
from envsmith.lock import resolve
from envsmith.lock.build_requires import requires_of
from envsmith.model.cell import Cell


@pytest.mark.parametrize(
    ("pyproject", "setup", "expected"),
    [
        (None, b"import setuptools", ("setuptools>=40.8.0", "wheel")),
        (b"[tool.black]\n", None, ("setuptools>=40.8.0", "wheel")),
        (b'[build-system]\nrequires = ["hatchling"]\n', None, ("hatchling",)),
        (
            None,
            b"from setuptools import setup\nsetup(setup_requires=['cython<3'])",
            ("setuptools>=40.8.0", "wheel", "cython<3"),
        ),
        (None, b"import pkg_resources\n", ("setuptools>=40.8.0", "wheel", "setuptools<82")),
        (None, b"def broken(", ("setuptools>=40.8.0", "wheel")),
    ],
)
def test_build_requirements_are_read_from_the_sdist(
    pyproject: bytes | None, setup: bytes | None, expected: tuple[str, ...]
) -> None:
    assert requires_of(pyproject, setup, where="x-1.tar.gz") == expected


@pytest.mark.parametrize(
    "pyproject", [b"\xff", b"[build-system", b"[build-system]\nrequires = 3\n", b'[build-system]\nrequires = ["=="]\n']
)
def test_a_broken_pyproject_is_refused_by_name(pyproject: bytes) -> None:
    with pytest.raises(LockError, match=r"x-1\.tar\.gz"):
        requires_of(pyproject, None, where="x-1.tar.gz")


@pytest.mark.parametrize("setup", [b"import torch\n", b"from torch.utils.cpp_extension import CUDAExtension\n"])
def test_a_setup_that_imports_torch_without_declaring_it_is_refused(setup: bytes) -> None:
    with pytest.raises(LockError, match="its setup imports torch, which it does not declare"):
        requires_of(None, setup, where="x-1.tar.gz")
    assert "torch>=2" in requires_of(b'[build-system]\nrequires = ["torch>=2"]\n', setup, where="x-1.tar.gz")


def test_what_is_known_to_be_compiled_against_torch_gets_what_it_does_not_declare() -> None:
    setup = b"import torch\nfrom packaging.version import parse\n"
    found = requires_of(None, setup, where="x-1.tar.gz", undeclared=("packaging", "torch", "setuptools>=40.8.0"))
    assert found == ("setuptools>=40.8.0", "wheel", "packaging", "torch")


@pytest.mark.parametrize(("cuda", "told"), [("12.8", "has no nvcc for CUDA 12"), ("11.8", "no toolkit is known")])
def test_what_is_compiled_with_nvcc_is_refused_where_the_index_has_none(cell: Cell, cuda: str, told: str) -> None:
    old = dataclasses.replace(cell, components={**cell.components, "cuda": cuda})
    with pytest.raises(LockError, match=told) as caught:
        resolve._toolkit(old, "flash-attn")
    assert "flash-attn is compiled with nvcc" in caught.value.message
    assert "CUDA 13" in (caught.value.hint or "")
    new = dataclasses.replace(cell, components={**cell.components, "cuda": "13.0"})
    assert "nvidia-cuda-nvcc==13.0.*" in resolve._toolkit(new, "flash-attn")


def test_a_setup_that_can_do_without_torch_is_not_refused() -> None:
    setup = b"try:\n    import torch\nexcept ImportError:\n    torch = None\n"
    assert requires_of(None, setup, where="x-1.tar.gz") == ("setuptools>=40.8.0", "wheel")
