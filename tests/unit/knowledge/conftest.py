"""The measuring script, loaded from its file: it is no part of the package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def bench() -> ModuleType:
    if not (ROOT / "bench" / "knowledge.py").is_file():
        pytest.skip("bench/ is not part of this copy")
    spec = importlib.util.spec_from_file_location("bench_knowledge", ROOT / "bench" / "knowledge.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def healthy(bench: ModuleType) -> list:
    """What the frameworks run or ship, judged once."""
    return bench.healthy(None)
