"""A Conda channel in a folder, and cells of the three frameworks."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from envsmith.model.cell import Cell
from envsmith.model.lock import Pin


@pytest.fixture(scope="session")
def local(load_file) -> ModuleType:
    """The helpers that make channels, cells and pins."""
    return load_file("tests/unit/lock/conda/localchannel.py")


@pytest.fixture(scope="session")
def channels(local, tmp_path_factory) -> Path:
    """A folder with three channels of real records: conda-forge, pytorch, nvidia."""
    return local.write_index(tmp_path_factory.mktemp("channels"), local.real_records())


@pytest.fixture
def forge(channels) -> tuple[str, ...]:
    return ((channels / "conda-forge").as_uri(),)


@pytest.fixture
def three(channels) -> tuple[str, ...]:
    return tuple((channels / name).as_uri() for name in ("pytorch", "nvidia", "conda-forge"))


@pytest.fixture
def deepspeed(local) -> tuple[Cell, tuple[Pin, ...]]:
    return local.cell(**local.DEEPSPEED), local.pins_for(local.DEEPSPEED)


@pytest.fixture
def megatron(local) -> tuple[Cell, tuple[Pin, ...]]:
    return local.cell(**local.MEGATRON), local.pins_for(local.MEGATRON)


@pytest.fixture
def colossalai(local) -> tuple[Cell, tuple[Pin, ...]]:
    return local.cell(**local.COLOSSALAI), local.pins_for(local.COLOSSALAI)
