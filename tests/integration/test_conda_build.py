"""``build --engine conda`` over a channel of real, installable packages: solved, locked, realised, looked into, tried.

Its "pytorch" is a stand-in without code, so no smoke test can pass; that one which must fail is told as failed is part of the promise.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from envsmith.builder import arrow as build
from envsmith.builder import locking
from envsmith.builder import options as envsmith_options
from envsmith.builder.engines.conda import CondaEngine, read_lock
from envsmith.errors import ContentError, DataError, NetworkError
from envsmith.lock.conda.model import CondaRequest
from envsmith.model.cell import Request
from envsmith.model.lock import Lock

from .conda_packages import PYTHON, module_of, pins_of

pytestmark = pytest.mark.integration

# The index of a channel that was made just now says when it was made.
DAY = "2099-01-01"


@pytest.fixture
def options(local, channel, wheels, tmp_path, monkeypatch) -> envsmith_options.Options:
    """The request of a user; the pip lock is the one thing that is made here, from wheels of this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))

    def lock_cell(cell, options, *, progress=None):
        python = cell.components["python"]
        return Lock(
            cell=cell,
            request=options.request_text,
            exclude_newer=DAY,
            python_version=python,
            pins=pins_of(local, wheels, "megatron_core", {n.replace("-", "_"): v for n, v in cell.components.items()}),
        )

    monkeypatch.setattr(locking, "lock_cell", lock_cell)
    request = Request(
        frameworks={"megatron-core": "==0.16.1"},
        constraints={"torch": "==2.8.0", "python": f"=={PYTHON}.*"},
        exclude_newer=DAY,
    )
    return envsmith_options.Options(
        request=request,
        request_text="--framework megatron-core==0.16.1",
        output=tmp_path / "out",
        engine="conda",
        conda=CondaRequest(channels=(channel.as_uri(),), tolerate=("nccl", "cudnn", "triton")),
        smoke=False,
    )


def test_request_becomes_an_environment_that_is_what_the_lock_says(options, tmp_path):
    made = build.build(options)
    assert made.built is not None
    assert (made.built.kind, made.built.cell) == ("conda", made.cell.id)
    assert made.cell.components["torch"] == "2.8.0+cu129"
    code = "import torch, megatron_core as m; print(torch.__version__, m.__version__)"
    done = subprocess.run([made.built.python, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2.8.0", "0.16.1"]
    held = CondaEngine().inspect(made.built)
    assert (held["torch.version"], held["cuda.version"], held["megatron-core"]) == ("2.8.0", "12.9", "0.16.1")
    assert held["conda.nccl"] == "2.28.9.1"
    assert any("nccl" in note for note in made.notes)  # the wheel's is older: tolerated, and told
    elsewhere = build.build(dataclasses.replace(options, output=tmp_path / "elsewhere"))
    assert elsewhere.built is not None
    assert elsewhere.built.digest == made.built.digest
    assert elsewhere.built.reference != made.built.reference


def test_edit_in_one_environment_does_not_pass_as_the_package_in_the_next(options, tmp_path):
    first = build.build(options)
    assert first.built is not None
    module = next(Path(first.built.reference).glob("lib/python3*/site-packages/torch/version.py"))
    content = module.read_bytes()
    # In place: the file is a link into rattler's cache.
    module.write_bytes(content[:-1] + b" ")

    with pytest.raises(ContentError, match="not what their Conda packages say") as caught:
        build.build(dataclasses.replace(options, output=tmp_path / "elsewhere"))

    assert any("torch/version.py" in line for line in caught.value.details)
    assert "conda-packages" in str(caught.value.hint)


def test_frozen_build_needs_no_channel_but_the_packages(options):
    made = build.build(options)
    assert made.built is not None
    shutil.rmtree(made.built.reference)
    again = build.build(dataclasses.replace(options, frozen=True, offline=True))
    assert again.built is not None
    assert again.built.digest == made.built.digest
    (made.directory / "conda-lock.yml").unlink()
    with pytest.raises(DataError, match="there is no Conda lock"):
        build.build(dataclasses.replace(options, frozen=True))


def test_channel_that_cannot_be_reached_fails_a_conda_build_and_the_environment_stays(options):
    made = build.build(options)
    assert made.built is not None
    with pytest.raises(NetworkError):
        build.build(
            dataclasses.replace(
                options, conda=dataclasses.replace(options.conda, channels=("http://127.0.0.1:9/none",))
            )
        )
    assert Path(made.built.python).exists()
    assert read_lock(made.directory).cell_id == str(made.cell.id)


def test_package_that_carries_another_torch_than_its_name_says_is_found_out(options, local, channel, tmp_path):
    lying = tmp_path / "lying"
    shutil.copytree(channel, lying)
    package = next((lying / "linux-64").glob("pytorch-2.8.0-*"))
    index = json.loads((lying / "linux-64" / "repodata.json").read_text())
    record = next(r for f, r in {**index["packages"], **index["packages.conda"]}.items() if f == package.name)
    package.unlink()

    def fill(work: Path) -> None:
        module_of(local, record)(work)
        version = work / "lib" / f"python{PYTHON}" / "site-packages" / "torch" / "version.py"
        version.write_text("__version__ = '2.7.1.post300'\ncuda = '12.6'\n")

    local.make_package(lying, record, fill, scratch=tmp_path / "scratch")
    local.index_channel(lying)
    with pytest.raises(ContentError) as caught:
        build.build(dataclasses.replace(options, conda=dataclasses.replace(options.conda, channels=(lying.as_uri(),))))
    assert any(line.startswith("torch: the cell says 2.8.0+cu129") for line in caught.value.details)
    assert any(line.startswith("cuda: the cell says 12.9") for line in caught.value.details)


def test_smoke_test_of_a_torch_that_is_none_fails_and_the_record_says_so(options):
    made = build.build(dataclasses.replace(options, smoke=True, ranks=2))
    assert made.record is not None
    assert not made.record.passed
    assert made.record.engine == "conda"
    assert "collectives(cpu)" not in {r.value for r in made.record.rungs}
    written = json.loads((made.directory / "record.json").read_text())
    assert written["passed"] is False
    assert written["environment"] == made.built.digest if made.built else False
