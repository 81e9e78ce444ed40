"""A package whose wheels ask for a newer glibc than a lock does: the wheel is taken where the host has that glibc."""

from __future__ import annotations

import dataclasses

import pytest
from lock_helpers import fine
from tiny_index import TinyIndex, sdist, wheel

from envsmith.lock.cell_query import glibc_of
from envsmith.lock.index.index import IndexFile, IndexProject
from envsmith.lock.index.index_wheels import glibc_of_wheels
from envsmith.lock.index.uv import Uv
from envsmith.lock.later import newer_glibc
from envsmith.lock.resolve import Resolver, lock_pip
from envsmith.lock.uv_output import Resolved
from envsmith.model.cell import Cell, Platform
from envsmith.model.component import ComponentTable


@pytest.fixture
def lock_of(index: TinyIndex, cell: Cell, table: ComponentTable, uv: Uv):
    _, content = wheel("fast", "1.0")
    tag = f"cp{cell.components['python'].replace('.', '')}-abi3-manylinux_2_31_{cell.platform.machine}"
    index.add("fast", sdist("fast", "1.0"), (f"fast-1.0-{tag}.whl", content))

    def lock(newest_glibc: str):
        by = Resolver(table=table, uv=uv, judge=fine, glibc=lambda *_: "2.31", newest_glibc=newest_glibc)
        return lock_pip(dataclasses.replace(cell, further=("fast",)), exclude_newer="2026-11-20", resolver=by)

    return lock


def test_the_wheel_is_taken_and_the_lock_says_its_glibc(lock_of):
    lock = lock_of("2.36")

    assert (lock.pin("fast").sdist, glibc_of(lock)) == (False, "2.31")


def test_a_host_with_an_older_glibc_gets_the_source(lock_of):
    lock = lock_of("2.30")

    assert (lock.pin("fast").sdist, glibc_of(lock)) == (True, "2.28")


@pytest.mark.parametrize(("glibc", "limit", "answer"), [("2.31", "2.36", "2.31"), ("2.31", "2.30", None), ("2.17", "2.36", None)])  # fmt: skip
def test_only_a_glibc_between_that_of_a_lock_and_that_of_the_host_is_an_answer(glibc, limit, answer, cell: Cell):
    source = Resolved(name="fast", version="1.0", artifacts=(), sdist=True)

    assert newer_glibc([source], (), cell, limit, lambda *_: glibc) == answer


def test_the_oldest_glibc_of_the_wheels_for_a_python_and_a_platform_counts():
    tags = ("cp39-abi3-manylinux_2_31_x86_64", "cp39-abi3-manylinux_2_35_x86_64", "cp314-cp314t-manylinux_2_17_x86_64")
    names = [f"llguidance-1.7.6-{tag}.whl" for tag in (*tags, "cp39-abi3-manylinux_2_28_aarch64")]
    project = IndexProject(name="llguidance", files=tuple(IndexFile(filename=n, url=n, version="1.7.6") for n in names))

    assert glibc_of_wheels(project, "1.7.6", "3.12", Platform.LINUX_64) == "2.31"
