"""A lock moved forward: what moves, what stays, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from build_helpers import options_in

from envsmith.builder.arrow import lock_only
from envsmith.builder.existing import keeping
from envsmith.builder.upgrade import upgrade
from envsmith.errors import UsageError
from envsmith.lock import store
from envsmith.model.cell import Request
from envsmith.model.version import Spec

_EARLY = Request(frameworks=["deepspeed"], exclude_newer="2026-01-15")


@pytest.fixture
def options(world, tmp_path):
    lock_only(replace(options_in(tmp_path, conda=None), request=_EARLY))
    return options_in(tmp_path, conda=None)


def test_what_is_named_moves_and_all_else_of_the_cell_stays(options):
    before = store.need(options.output, options.request_text)[1].cell.components

    moved = upgrade(options, ["deepspeed"])

    after = moved.outcome.cell.components
    assert after["deepspeed"] != before["deepspeed"]
    assert {name: after[name] for name in ("torch", "python", "cuda")} == {
        name: before[name] for name in ("torch", "python", "cuda")
    }
    assert moved.moved == (f"deepspeed: {before['deepspeed']} -> {after['deepspeed']}",)
    assert moved.obstacles == (f"deepspeed {after['deepspeed']} is the newest that the request admits",)


def test_a_release_that_cannot_be_had_says_what_blocks_it(options):
    narrow = replace(
        options, request=Request(frameworks=["deepspeed"], constraints={"torch": "*", "python": "==3.9.*"})
    )
    lock_only(replace(narrow, request=replace(narrow.request, exclude_newer="2024-01-15")))

    moved = upgrade(narrow, ["torch"])

    assert any("blocks torch ==" in sentence for sentence in moved.obstacles), moved.obstacles


def test_without_a_name_everything_may_move(options):
    moved = upgrade(options, [])
    assert {line.partition(":")[0] for line in moved.moved} >= {"torch", "deepspeed"}


def test_a_name_that_the_lock_does_not_have_is_refused(options):
    with pytest.raises(UsageError, match=r"Cannot upgrade wandb: the lock of .* does not have it"):
        upgrade(options, ["wandb"])


def test_the_packages_of_a_lock_are_preferred_but_for_those_that_move(options):
    lock = lock_only(options).lock

    options = keeping(options, lock, ["deepspeed"])

    assert (options.earlier, options.moving) == (lock, ("deepspeed",))
    assert options.request.narrowed["torch"] == (Spec.parse(f"=={lock.cell.components['torch']}"), "the lock")
    assert "deepspeed" not in options.request.narrowed
