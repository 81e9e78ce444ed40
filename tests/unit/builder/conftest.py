"""A world with every edge pretended: an engine, a resolver, channels that do not answer."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from build_helpers import FakeEngine, options_in

from envsmith.builder import locking
from envsmith.builder.engines import EngineChoice
from envsmith.errors import NetworkError
from envsmith.lock.conda import part as conda_part
from envsmith.model.cell import Request
from envsmith.model.lock import Artifact, Compile, CompiledSource, GivenArchive, Lock, Pin


@pytest.fixture
def world(monkeypatch, tmp_path):
    engine = FakeEngine()

    def choose(_name=None, **_settings):
        return EngineChoice(engine=engine, why="it is here")

    def lock_cell(cell, options, **_):
        pins = tuple(
            Pin(
                name=n,
                version=v.split("+")[0],
                layer=n if n == "torch" else "framework",
                artifacts=(
                    Artifact(
                        filename=f"{n}-{v.split('+')[0]}-py3-none-any.whl",
                        sha256="a" * 64,
                        url="https://example.invalid/x.whl",
                    ),
                ),
            )
            for n, v in cell.components.items()
            if n in {"torch", "deepspeed"}
        )
        return Lock(
            cell=cell,
            request=options.request_text,
            exclude_newer="2026-11-20",
            python_version="3.11",
            pins=pins,
            resolver="none",
        )

    def no_channel(*_args, **_kwargs):
        raise NetworkError("the channel cannot be reached")

    monkeypatch.setattr("envsmith.builder.arrow.choose_engine", choose)
    monkeypatch.setattr(locking, "lock_cell", lock_cell)
    monkeypatch.setattr(conda_part, "lock_conda", no_channel)
    monkeypatch.chdir(tmp_path)
    return engine


@pytest.fixture
def given(world, monkeypatch):
    """Options of a lock with an archive of the user's, by the folder that it lies in."""
    plain = locking.lock_cell

    def lock_cell(cell, options, **more):
        made = plain(cell, options, **more)
        (archive,) = options.compile.archives
        pin = Pin(name="my-ops", version="1.0", layer="framework", artifacts=(archive.artifact,), sdist=True)
        source = CompiledSource(name="my-ops", toolkit=False, archive=archive.origin)
        return dataclasses.replace(made, pins=(*made.pins, pin), compiled=(source,))

    monkeypatch.setattr(locking, "lock_cell", lock_cell)

    def options(tmp_path, folder, **more):
        archive = GivenArchive(
            name="my-ops", version="1.0", address=f"file:///{folder}/x.tar.gz", sha256="b" * 64, size=1
        )
        request = Request(frameworks=["deepspeed"], exclude_newer="2026-11-20")
        return dataclasses.replace(options_in(tmp_path, **more), request=request, compile=Compile(archives=(archive,)))

    return options
