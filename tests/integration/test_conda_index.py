"""A cell of each framework with its pip lock from the real index and a Conda lock, shown equal.

The channel holds stand-ins for the cell's own releases, so that only the spelling of versions and the proof are tried, not conda-forge.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from envsmith.builder import arrow as pipeline
from envsmith.builder import existing
from envsmith.builder import options as envsmith_options
from envsmith.errors import NetworkError
from envsmith.lock.conda.model import CondaRequest
from envsmith.lock.conda.part import stored
from envsmith.lock.conda.solve import compare
from envsmith.model.cell import Request
from envsmith.solver import solve

from .conda_packages import PYTHON

pytestmark = [pytest.mark.integration, pytest.mark.network]


def channel_of(local, components, folder: Path, scratch: Path) -> Path:
    """A channel with the very releases of a cell, in Conda's spelling."""
    cuda = components["cuda"]
    tag, python = cuda.replace(".", ""), [f"python {PYTHON}.*"]
    pytorch = components["torch"].split("+")[0]
    records = [
        ("cuda-version", cuda, "h0_0", []),
        ("nccl", f"{components['nccl']}.1", "h0_0", []),
        ("cudnn", components["cudnn"], "h0_0", []),
        ("triton", components["triton"], "py0_0", python),
        ("pytorch", pytorch, f"cuda{tag}_py0_0", [*python, "nccl", "cudnn", "triton", f"cuda-version {cuda}.*"]),
        ("pip", "25.3", "py0_0", python),
        ("c-compiler", "1.0", "h0_0", []),
        ("cxx-compiler", "1.0", "h0_0", []),
        ("cuda-nvcc", f"{cuda}.1", "h0_0", []),
    ]
    plain = {"build_number": 0, "subdir": "linux-64", "timestamp": 1700000000000}
    for name, version, build, depends in records:
        record = {**plain, "name": name, "version": version, "build": build, "depends": depends}
        local.make_package(folder, record, scratch=scratch)
    local.make_package(folder, local.python_record(), scratch=scratch)
    local.index_channel(folder)
    return folder


@pytest.mark.parametrize("framework", ["deepspeed", "megatron-core", "colossalai"])
def test_pip_lock_and_conda_lock_are_one_cell(framework, local, tmp_path, monkeypatch):
    request = Request(frameworks=[framework], constraints={"python": f"=={PYTHON}.*"})
    components = solve(request).cell.components
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    channel = channel_of(local, components, tmp_path / "channel", tmp_path / "scratch")
    options = envsmith_options.Options(
        request=request,
        request_text=f"--framework {framework}",
        output=tmp_path / "out",
        conda_only=True,
        conda=CondaRequest(channels=(channel.as_uri(),)),
    )
    try:
        made = pipeline.lock_only(options)
    except NetworkError as error:
        pytest.skip(f"no index: {error.message}")
    part = stored(made.lock, made.directory, options.conda)
    assert part is not None
    assert compare(made.cell, made.lock.pins, part.lock) == ()
    assert framework in {p.name for p in part.lock.platforms[0].pip}
    locked = {p.name: p.version for p in part.lock.platforms[0].packages}
    assert locked["nccl"] == f"{made.cell.components['nccl']}.1"
    assert existing.lock_difference(options) == ()
    wrong = dataclasses.replace(made.cell, components={**made.cell.components, "nccl": "2.10.3"})
    told = compare(wrong, [p for p in made.lock.pins if "nccl" not in p.name], part.lock)
    assert [(f.rule, f.severity.value) for f in told if "nccl" in f.components] == [("conda-differs-from-pip", "error")]
