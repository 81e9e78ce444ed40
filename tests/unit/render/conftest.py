"""Sample locks by name."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


def load(name):
    """Import a helper beside the tests; --import-mode=importlib keeps test folders off sys.path."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"envsmith_tests_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def locks():
    return load("sample_locks")
