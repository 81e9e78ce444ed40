import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mended import environment, tiny
from tiny_index import TinyIndex


@pytest.fixture
def numpy_index(tmp_path: Path) -> TinyIndex:
    return tiny(tmp_path / "numpy-index")


@pytest.fixture
def env(tmp_path: Path, numpy_index: TinyIndex) -> Path:
    return environment(tmp_path, numpy_index, "numpy==2.0.2", "click==8.0", "tool==1.0")
