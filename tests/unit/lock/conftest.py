"""A cell, an index in a folder, and a uv that sees nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lock_helpers import component, fine, lock_of, uv_for
from tiny_index import TinyIndex, framework_index

from envsmith.lock.resolve import Pinned, lock_pip
from envsmith.model.cell import Cell
from envsmith.model.component import ComponentTable, Role
from envsmith.model.lock import Lock
from envsmith.python.uv import Uv

MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the lock keeps about sdists does not come from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def table() -> ComponentTable:
    return ComponentTable.of(
        [
            component("deepspeed", Role.FRAMEWORK, "deepspeed"),
            component("python", Role.CORE),
            component("cuda", Role.CORE),
            component("torch", Role.CORE, "torch"),
            component("nccl", Role.CORE, "nvidia-nccl-cu12"),
            component("driver", Role.HOST),
            component("numpy", Role.COMPANION, "numpy"),
            component("apex", Role.COMPANION),
        ]
    )


@pytest.fixture(scope="session")
def cell() -> Cell:
    components = {"deepspeed": "0.18.5", "torch": "2.9.1+cu128", "cuda": "12.8", "python": MINOR, "nccl": "2.27.5"}
    return Cell(components=components, chosen=("deepspeed", "torch", "cuda", "python"))


@pytest.fixture
def index(tmp_path: Path) -> TinyIndex:
    return framework_index(tmp_path / "index")


@pytest.fixture
def uv(index: TinyIndex, tmp_path: Path) -> Uv:
    return uv_for(index.url, tmp_path / "uv-cache")


@pytest.fixture(scope="session")
def pinned(cell: Cell, table: ComponentTable, tmp_path_factory: pytest.TempPathFactory) -> Pinned:
    """Resolved once for all tests that only read it."""
    folder = tmp_path_factory.mktemp("shared")
    tool = uv_for(framework_index(folder / "index").url, folder / "uv-cache")
    return lock_pip(cell, exclude_newer="2026-11-20", table=table, uv=tool, judge=fine)


@pytest.fixture(scope="session")
def lock(cell: Cell, pinned: Pinned) -> Lock:
    return lock_of(cell, pinned)
