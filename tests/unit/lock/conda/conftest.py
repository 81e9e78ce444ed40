"""A Conda channel in a folder, and cells of the three frameworks."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from envsmith.model.cell import Cell
from envsmith.model.lock import Pin


def _load() -> ModuleType:
    name = "envsmith_test_localchannel"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("localchannel.py"))
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def local() -> ModuleType:
    """The helpers that make channels, cells and pins."""
    return _load()


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
