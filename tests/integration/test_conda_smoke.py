"""The smoke test in a Conda prefix, with a real torch and a real DeepSpeed: a request becomes a passed record.

``ENVSMITH_TEST_TORCH_PYTHON`` names an interpreter with torch, for whose release (a CPU build, as the local index of a test machine gives
it) and Python the wheels are fetched; the interpreter of the tests must be the same Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envsmith.builder import arrow as build
from envsmith.builder import locking
from envsmith.builder import options as envsmith_options
from envsmith.lock.conda.model import CondaRequest
from envsmith.lock.conda.part import stored
from envsmith.lock.conda.solve import compare
from envsmith.model.cell import Request
from envsmith.model.lock import Lock

from . import conda_torch
from .conda_packages import served

TORCH_PYTHON = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON", "")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.torch,
    pytest.mark.network,
]

DAY = "2099-01-01"  # the index of a channel that was made just now says when it was made
ASK = "import json, sys, torch, deepspeed; print(json.dumps([sys.version_info[:2], torch.__version__, deepspeed.__version__]))"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> list[conda_torch.Wheel]:
    done = subprocess.run([TORCH_PYTHON, "-c", ASK], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{TORCH_PYTHON} has no torch and DeepSpeed: {done.stderr[-200:]}")
    python, torch, deepspeed = json.loads(done.stdout.splitlines()[-1])
    if tuple(python) != sys.version_info[:2] or not torch.endswith("+cpu"):
        pytest.skip(f"Python {python}, torch {torch}: wanted is a CPU build for the Python of the tests")
    try:
        return conda_torch.wheels_of(
            TORCH_PYTHON, tmp_path_factory.mktemp("wheels"), torch.partition("+")[0], deepspeed
        )
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def channel(local, wheels, tmp_path_factory) -> Path:
    return conda_torch.make_channel(
        local, wheels, tmp_path_factory.mktemp("channel"), tmp_path_factory.mktemp("scratch")
    )


def options_for(wheels: list[conda_torch.Wheel], url: str, output: Path, monkeypatch) -> envsmith_options.Options:
    """``build --engine conda --framework deepspeed --cuda cpu``; the pip lock is that of the wheels, PyTorch's own index is not asked."""

    def lock_cell(cell, options, *, progress=None):
        return Lock(
            cell=cell,
            request=options.request_text,
            exclude_newer=DAY,
            python_version=cell.components["python"],
            pins=conda_torch.pins_of(wheels),
        )

    monkeypatch.setattr(locking, "lock_cell", lock_cell)
    version = {w.name: w.version for w in wheels}
    request = Request(
        frameworks={"deepspeed": f"=={version['deepspeed']}"},
        constraints={
            "torch": f"=={version['torch'].partition('+')[0]}",
            "cuda": "cpu",
            "python": f"=={conda_torch.PYTHON}.*",
        },
        exclude_newer=DAY,
    )
    return envsmith_options.Options(
        request=request,
        request_text="--framework deepspeed --cuda cpu",
        output=output,
        engine="conda",
        conda=CondaRequest(channels=(url,)),
    )


def test_cell_of_a_real_torch_passes_its_smoke_test_in_a_conda_prefix(wheels, channel, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with served(channel) as url:
        options = options_for(wheels, url, tmp_path / "out", monkeypatch)
        made = build.build(options)
    assert made.built is not None
    assert made.record is not None
    assert made.record.passed, made.record.summary
    written = json.loads((made.directory / "record.json").read_text())
    assert written["engine"] == "conda"
    assert written["environment"] == made.built.digest
    assert {"installed", "imported", "collectives(cpu)", "framework step(cpu)"} <= set(written["rungs"])
    assert written["cases"]["counts"]["pass"] >= 90
    assert written["cases"]["bad"] == []
    assert written["loaded"]["torch"] == next(w.version for w in wheels if w.name == "torch")
    part = stored(made.lock, made.directory, options.conda)
    assert part is not None
    assert compare(made.cell, made.lock.pins, part.lock) == ()
    assert "deepspeed" in {p.name for p in part.lock.platforms[0].pip}
    assert "pytorch" in {p.name for p in part.lock.platforms[0].packages}
    loaded = subprocess.run(
        [made.built.python, "-I", "-c", "import torch, deepspeed; print(torch.__file__, deepspeed.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.splitlines()[-1].count(made.built.reference) == 2
