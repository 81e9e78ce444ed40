"""A date that is too early for the cell's Python: later wheels."""

from __future__ import annotations

import dataclasses

import pytest
from lock_helpers import fine
from tiny_index import TinyIndex, sdist, wheel

from envsmith.lock.index.uv import Uv
from envsmith.lock.later import later_wheels
from envsmith.lock.query import Query, _arguments
from envsmith.lock.resolve import Beside, Resolver, lock_pip
from envsmith.lock.uv_output import Resolved
from envsmith.model.cell import Cell
from envsmith.model.component import ComponentTable


def resolved(name: str, *, is_sdist: bool) -> Resolved:
    return Resolved(name=name, version="1.0", artifacts=(), sdist=is_sdist)


def test_only_what_would_be_compiled_and_is_not_fixed_is_asked_for_a_later_wheel(cell: Cell):
    packages = [resolved("wheeled", is_sdist=False), resolved("pinned", is_sdist=True), resolved("old", is_sdist=True)]

    later = later_wheels(packages, {"pinned"}, cell, lambda _name, _version, _cell: "1.3")

    assert later == (("old", "1.3"),)


def test_uv_takes_only_a_wheel_of_it_and_none_after_the_next_one(tmp_path):
    query = Query(
        requirements=("old",),
        python="3.11",
        platform="x86_64-manylinux_2_28",
        newest="2022-04-21T00:00:00Z",
        later=(("old", "1.3"),),
        latest="2026-11-21T00:00:00Z",
    )

    arguments = " ".join(_arguments(query, tmp_path, ()))

    assert "--only-binary old" in arguments
    assert "--exclude-newer-package old=2026-11-21T00:00:00Z" in arguments
    assert (tmp_path / "constraints.txt").read_text() == "old<=1.3\n"


@pytest.fixture
def lock_of(index: TinyIndex, cell: Cell, table: ComponentTable, uv: Uv):
    index.add("old", sdist("old", "1.1"), wheel("old", "1.0"))

    def lock(package: str):
        by = Resolver(table=table, uv=uv, judge=fine, later=lambda name, _v, _c: "1.0" if name == "old" else None)
        wider = dataclasses.replace(cell, further=(package,))
        return lock_pip(wider, exclude_newer="2026-11-20", beside=Beside(date="2026-11-01"), resolver=by).pin("old")

    return lock


def test_a_lock_with_a_date_takes_the_wheel_of_another_release_instead_of_compiling(lock_of):
    pin = lock_of("old")

    assert (pin.version, pin.sdist) == ("1.0", False)


def test_where_no_wheel_can_be_had_it_is_compiled(index, lock_of):
    index.add("user", wheel("user", "1.0", ["old>=1.1"]))

    pin = lock_of("user")

    assert (pin.version, pin.sdist) == ("1.1", True)


def test_an_exact_requirement_is_compiled_as_it_is(lock_of):
    assert dataclasses.astuple(lock_of("old==1.1"))[1] == "1.1"
