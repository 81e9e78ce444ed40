"""Sample locks by name."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def locks(load_file):
    return load_file("tests/unit/render/sample_locks.py")
