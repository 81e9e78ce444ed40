"""A cell as requirement lines, and what sdists are built with: pure."""

from __future__ import annotations

import dataclasses

import pytest
from lock_helpers import component

from envsmith.errors import LockError, UsageError
from envsmith.lock import resolve
from envsmith.lock.build_requires import requires_of
from envsmith.lock.query import cutoff, last_day
from envsmith.lock.resolve import overrides, query_of, uv_platform
from envsmith.model.cell import Cell, Platform
from envsmith.model.component import ComponentTable, Role
from envsmith.model.lock import Artifact, GivenArchive, Pin


def test_frameworks_torch_and_companions_are_exact_and_what_follows_is_not_asked_for(
    cell: Cell, table: ComponentTable
) -> None:
    full = dataclasses.replace(cell, components={**cell.components, "numpy": "1.26.4", "driver": "580.65.06"})
    want = query_of(full, table, [("filelock<4", "r")])
    assert want.requirements == ("deepspeed==0.18.5", "ninja", "numpy==1.26.4", "setuptools", "torch==2.9.1")
    assert want.constraints == ("filelock<4",)


def test_a_build_from_its_own_index_is_asked_for_by_its_whole_version(cell: Cell, table: ComponentTable) -> None:
    want = query_of(dataclasses.replace(cell, index="pytorch"), table, [])
    assert "torch==2.9.1+cu128" in want.requirements
    assert want.backend == "cu128"


def test_a_constraint_that_is_none_names_its_rule(cell: Cell, table: ComponentTable) -> None:
    with pytest.raises(LockError, match="rule odd-rule: '<2'"):
        query_of(cell, table, [("<2", "odd-rule")])


@pytest.mark.parametrize(
    ("platform", "glibc", "expected"),
    [
        (Platform.LINUX_64, None, "x86_64-manylinux_2_28"),
        (Platform.LINUX_64, "2.35", "x86_64-manylinux_2_35"),
        (Platform.LINUX_64, "2.30", "x86_64-manylinux_2_28"),
        (Platform.LINUX_64, "2.12", "x86_64-manylinux_2_17"),
        (Platform.LINUX_AARCH64, "2.99", "aarch64-manylinux_2_40"),
    ],
)
def test_the_platform_is_the_newest_that_the_c_library_can_run(
    platform: Platform, glibc: str | None, expected: str
) -> None:
    assert uv_platform(platform, glibc) == expected


def test_an_override_is_made_only_for_an_nccl_that_differs(cell: Cell, table: ComponentTable) -> None:
    assert overrides(cell, table, {"nvidia-nccl-cu12": "2.27.5"}) == ()
    assert overrides(cell, table, {"nvidia-nccl-cu12": "2.26.2"}) == ("nvidia-nccl-cu12==2.27.5",)
    none = dataclasses.replace(cell, components={**cell.components, "nccl": "none"})
    assert overrides(none, table, {"nvidia-nccl-cu12": "2.26.2"}) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20", "2026-11-21T00:00:00Z"),
        ("2024-02-29", "2024-03-01T00:00:00Z"),
    ],
)
def test_a_day_counts_in_full_and_in_utc(text: str, expected: str) -> None:
    assert cutoff(text) == expected


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "", "3 days", "9999-12-31"])
def test_what_is_not_a_date_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="not a day"):
        cutoff(text)


def test_the_default_date_is_the_last_complete_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")  # 2026-01-01T00:00:00Z
    assert last_day() == "2025-12-31"


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


def test_transformer_engine_is_asked_for_with_its_torch_bindings(cell: Cell, table: ComponentTable) -> None:
    te = component("transformer-engine", Role.COMPANION, "transformer-engine", "transformer-engine-torch")
    full = dataclasses.replace(cell, components={**cell.components, "transformer-engine": "2.20.2"})
    want = query_of(full, ComponentTable.of([*table.by_name.values(), te]), [])
    assert "transformer-engine[pytorch,core_cu12]==2.20.2" in want.requirements


def test_framework_is_asked_for_with_the_extras_that_its_training_needs(cell: Cell, table: ComponentTable) -> None:
    ray = component("ray", Role.FRAMEWORK, "ray")
    full = dataclasses.replace(cell, components={**cell.components, "ray": "2.60.0"})
    want = query_of(full, ComponentTable.of([*table.by_name.values(), ray]), [])
    assert "ray[train]==2.60.0" in want.requirements


def test_a_further_distribution_of_a_component_has_its_version_should_it_come_along(
    cell: Cell, table: ComponentTable
) -> None:
    lightning = component("lightning", Role.COMPANION, "lightning", "pytorch-lightning")
    full = dataclasses.replace(cell, components={**cell.components, "lightning": "2.1.4"})
    want = query_of(full, ComponentTable.of([*table.by_name.values(), lightning]), [])
    assert "lightning==2.1.4" in want.requirements
    assert want.constraints == ("pytorch-lightning==2.1.4",)


def test_triton_is_that_of_the_cell_where_torch_does_not_declare_it_and_another_package_does(
    cell: Cell, table: ComponentTable
) -> None:
    full = dataclasses.replace(cell, components={**cell.components, "triton": "2.3.0"})
    triton = component("triton", Role.CORE, "triton")
    others = [each for each in table.by_name.values() if each.name != "triton"]

    want = query_of(full, ComponentTable.of([*others, triton]), [])

    assert "triton==2.3.0" in want.constraints
    assert not [line for line in want.requirements if line.startswith("triton")]


def test_what_was_given_is_not_asked_of_the_index(cell: Cell, table: ComponentTable) -> None:
    with_apex = dataclasses.replace(cell, components={**cell.components, "apex": "0.1"})
    archives = tuple(
        GivenArchive(name=name, version="1", address="file:///x.tar.gz", sha256="0" * 64, size=1)
        for name in ("apex", "deepspeed")
    )
    found = query_of(with_apex, table, archives=archives).requirements
    assert not [line for line in found if line.startswith(("apex", "deepspeed"))]
    assert [line for line in found if line.startswith("torch==")]


def _pins(versions: dict[str, str]) -> list[Pin]:
    return [
        Pin(name=name, version=version, layer="torch", artifacts=(Artifact(filename="a-1.whl", sha256="0" * 64),))
        for name, version in versions.items()
    ]


@pytest.mark.parametrize(
    ("components", "pinned", "lines"),
    [
        ({"driver": "580", "torch": "2.9.1"}, {"torch": "2.8.0"}, ["torch: the cell says 2.9.1, the resolver pinned torch 2.8.0"]),
        ({"torch": "2.9.1", "unknown": "1", "numpy": "1.0"}, {"numpy": "1.0.0"}, ["torch: the cell says 2.9.1, the resolver pinned none"]),
        ({"torch": "2.9.1", "numpy": "1.26"}, {"torch": "2.9.1", "numpy": "1.26.0"}, []),
        ({"torch": "2.9.1", "numpy": "none"}, {"torch": "2.9.1", "numpy": "2.0"}, ["numpy: the cell says none, the resolver pinned numpy 2.0"]),
        ({"torch": "2.9.1", "numpy": "odd one"}, {"torch": "2.9.1", "numpy": "odd one"}, []),
        ({"torch": "2.9.1", "numpy": "odd one"}, {"torch": "2.9.1", "numpy": "2"}, ["numpy: the cell says odd one, the resolver pinned numpy 2"]),
    ],
)  # fmt: skip
def test_each_component_that_was_pinned_otherwise_is_named(cell, table, components, pinned, lines):
    other = dataclasses.replace(cell, components=components, chosen=tuple(components))
    known = (
        ComponentTable([*table, component("numpy", Role.COMPANION, "numpy")]) if "numpy" not in table.by_name else table
    )

    assert list(resolve.differences(other, _pins(pinned), known)) == lines
