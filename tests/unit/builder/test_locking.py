"""What a cell's folder holds, what is taken up again, what is told."""

from __future__ import annotations

import pytest
from build_helpers import options_in

from envsmith.base.progress import Clock, silent
from envsmith.builder import locking
from envsmith.builder.arrow import lock_only
from envsmith.errors import ContradictionError, LockError, UsageError
from envsmith.lock.learn import Learned


def test_what_will_be_compiled_is_told(given, tmp_path):
    events = []
    lock_only(given(tmp_path, "one"), progress=events.append)
    assert f"my-ops is compiled from the archive with sha256 {'b' * 16}…" in [e.text for e in events]


def test_a_conda_lock_cannot_hold_an_archive(given, tmp_path):
    noted = lock_only(given(tmp_path, "one"))
    assert any(
        "no conda-lock.yml: Cannot write a Conda lock: my-ops is built from a source archive" in note
        for note in noted.notes
    )
    with pytest.raises(UsageError, match="my-ops is built from a source archive"):
        locking.lock_and_render(
            noted.cell, given(tmp_path, "one", conda_only=True), engine=None, clock=Clock(lambda _e: None)
        )


def test_a_clock_that_stands_before_what_is_locked_is_named_before_the_index_is_asked(world, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")

    with pytest.raises(LockError) as refused:
        lock_only(options_in(tmp_path))

    assert "by this machine's clock the last whole day is 1970-01-01, and " in refused.value.message
    assert refused.value.hint.startswith("Set the clock")
    assert not list(tmp_path.glob("out/*/*"))


def test_a_day_that_was_asked_for_is_not_the_clock_s(given, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")

    assert lock_only(given(tmp_path, "one")).lock.exclude_newer == "2026-11-20"


def test_a_cell_that_packages_contradict_is_not_locked_again_when_nothing_else_can_be_chosen(tmp_path, monkeypatch):
    locked = []

    def lock(cell):
        locked.append(cell)
        raise ContradictionError("Cannot resolve: they contradict each other.", names=("torchvision",))

    monkeypatch.setattr(locking, "learn_more", lambda _error, _request, _learned: Learned())
    with pytest.raises(ContradictionError):
        locking.agreed(options_in(tmp_path).request, Clock(silent), lock)
    assert len(locked) == 1
