"""A cell as requirement lines: pure."""

from __future__ import annotations

import dataclasses

import pytest
from lock_helpers import component

from envsmith.errors import LockError
from envsmith.lock.cell_query import overrides, query_of, uv_platform
from envsmith.model.cell import Cell, Platform
from envsmith.model.component import ComponentTable, Role
from envsmith.model.lock import GivenArchive


def test_frameworks_and_torch_are_exact_companions_preferred_and_what_follows_is_not_asked_for(
    cell: Cell, table: ComponentTable
) -> None:
    full = dataclasses.replace(cell, components={**cell.components, "numpy": "1.26.4", "driver": "580.65.06"})
    want = query_of(full, table, [("filelock<4", "r")])
    assert want.requirements == ("deepspeed==0.18.5", "ninja", "numpy", "setuptools", "torch==2.9.1")
    assert want.preferred == (("numpy", "1.26.4"),)
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


def test_transformer_engine_is_asked_for_with_its_torch_bindings(cell: Cell, table: ComponentTable) -> None:
    te = component("transformer-engine", Role.COMPANION, "transformer-engine", "transformer-engine-torch")
    full = dataclasses.replace(cell, components={**cell.components, "transformer-engine": "2.20.2"})
    want = query_of(full, ComponentTable.of([*table.by_name.values(), te]), [])
    assert "transformer-engine[core_cu12,pytorch]" in want.requirements


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
    assert ("lightning", "2.1.4") in want.preferred
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
