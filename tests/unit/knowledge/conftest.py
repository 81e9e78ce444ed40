"""The measuring script, loaded from its file: it is not a part of the package."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def bench(load_file) -> ModuleType:
    if not (ROOT / "bench" / "knowledge.py").is_file():
        pytest.skip("bench/ is not part of this copy")
    return load_file("bench/knowledge.py")


@pytest.fixture(scope="session")
def healthy(bench: ModuleType) -> list:
    """What the frameworks run or ship, judged once."""
    return bench.healthy(None)
