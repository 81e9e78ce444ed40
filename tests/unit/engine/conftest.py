"""Locks to build from and a list that events fall into."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def locks(load_file):
    return load_file("tests/unit/render/sample_locks.py")


@pytest.fixture
def events():
    """A progress that remembers; ``events.seen`` are (kind, step, text)."""

    class Recorder:
        def __init__(self):
            self.seen = []

        def __call__(self, event):
            self.seen.append((event.kind.value, event.step, event.text))

        def kinds(self, step):
            return [kind for kind, s, _ in self.seen if s == step]

    return Recorder()
