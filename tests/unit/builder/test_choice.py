"""A cell and a lock that agree: what packages declare joins the choice."""

from __future__ import annotations

import pytest

from envsmith.base.progress import Clock, silent
from envsmith.builder import choice
from envsmith.errors import ContradictionError
from envsmith.lock.learn import Learned

from .build_helpers import options_in


def test_a_cell_that_packages_contradict_is_not_locked_again_when_nothing_else_can_be_chosen(tmp_path, monkeypatch):
    locked = []

    def lock(cell):
        locked.append(cell)
        raise ContradictionError("Cannot resolve: they contradict each other.", names=("torchvision",))

    monkeypatch.setattr(choice, "learn_more", lambda _error, _request, _learned: Learned())
    with pytest.raises(ContradictionError):
        choice.agreed(options_in(tmp_path), Clock(silent), lock)
    assert len(locked) == 1
