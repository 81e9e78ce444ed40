"""Locks to build from and a list that events fall into."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def locks():
    path = Path(__file__).parents[1] / "render" / "sample_locks.py"
    spec = importlib.util.spec_from_file_location("envsmith_tests_sample_locks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
