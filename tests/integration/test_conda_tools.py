"""What conda-lock's own code and rattler make of our lock files of a real channel."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from envsmith.lock import store
from envsmith.lock.conda.foreign import read_conda_file
from envsmith.lock.conda.lock import lock_conda
from envsmith.lock.conda.lock_files import files
from envsmith.lock.conda.model import CondaRequest
from envsmith.model.cell import Platform

from .conda_packages import FRAMEWORKS, cell_of, pins_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(Platform.host() is not Platform.LINUX_64, reason="the records of the channel are linux-64's"),
]


@pytest.fixture(scope="session")
def conda_lock_python(tmp_path_factory) -> str:
    """An interpreter with conda-lock: ``ENVSMITH_TEST_CONDA_LOCK_PYTHON``, this one, or a new virtual environment."""
    named = os.environ.get("ENVSMITH_TEST_CONDA_LOCK_PYTHON")
    if named:
        return named
    if importlib.util.find_spec("conda_lock"):
        return sys.executable
    folder = tmp_path_factory.mktemp("conda-lock")
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        [str(folder / "bin/pip"), "install", "-q", "conda-lock>=4"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("conda-lock cannot be installed: " + done.stderr[-200:])
    return str(folder / "bin" / "python")


READ = """
import json, pathlib, sys
from conda_lock.lockfile import parse_conda_lock_file, write_conda_lock_file
from conda_lock.conda_lock import render_lockfile_for_platform
from conda_lock.src_parser import make_lock_spec
from conda_lock.content_hash import compute_content_hashes
from conda_lock.virtual_package import virtual_package_repo_from_specification
lock = parse_conda_lock_file(pathlib.Path("conda-lock.yml"))
spec = make_lock_spec(src_files=[pathlib.Path("environment.yml")], mapping_url=pathlib.Path("lookup.json").absolute().as_uri())
hashes = compute_content_hashes(spec, virtual_package_repo_from_specification(pathlib.Path("virtual-packages.yml")))
write_conda_lock_file(lock, pathlib.Path("rewritten.yml"), metadata_choices=None, include_help_text=False)
rendered = {p: render_lockfile_for_platform(lockfile=lock, extras=set(), kind="explicit", platform=p,
            include_dev_dependencies=False) for p in lock.metadata.platforms}
print(json.dumps({"hashes": hashes, "told": lock.metadata.content_hash,
                  "packages": sorted((d.manager, d.name, d.version, d.platform, d.url, d.hash.sha256) for d in lock.package),
                  "explicit": rendered}))
"""


def read_by_conda_lock(lock, folder: Path, python: str) -> dict:
    """What conda-lock's code says of our file: it agrees on the hash of the request."""
    store.write(folder, files(lock))
    (folder / "lookup.json").write_text("{}")
    done = subprocess.run([python, "-c", READ], capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["hashes"] == told["told"]
    return told


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_conda_lock_itself_reads_the_file_and_agrees_on_its_hash(
    local, channel, wheels, conda_lock_python, framework, tmp_path
):
    cell, pins = cell_of(local, framework), pins_of(local, wheels, framework)
    lock = lock_conda(cell, pins, CondaRequest(channels=(channel.as_uri(),), cache_dir=tmp_path / "cache"))
    told = read_by_conda_lock(lock, tmp_path, conda_lock_python)
    part = lock.platforms[0]
    ours = [("conda", p.name, p.version, "linux-64", p.url, p.sha256) for p in part.packages]
    ours += [("pip", p.name, p.version, "linux-64", p.url, p.sha256) for p in part.pip]
    assert [tuple(p) for p in told["packages"]] == sorted(ours)
    theirs = [line for line in told["explicit"]["linux-64"] if line.startswith("file:")]
    mine = [line for line in files(lock)["conda-linux-64.lock"].splitlines() if line.startswith("file:")]
    assert sorted(line.strip() for line in theirs) == sorted(mine)
    assert (
        read_conda_file((tmp_path / "rewritten.yml").read_text()).components
        == read_conda_file(files(lock)["conda-lock.yml"]).components
    )


def test_conda_lock_check_input_hash_says_already_locked(local, channel, wheels, conda_lock_python, tmp_path):
    cell, pins = cell_of(local, "megatron_core"), pins_of(local, wheels, "megatron_core")
    request = CondaRequest(channels=(channel.as_uri(),), cache_dir=tmp_path / "cache")
    store.write(tmp_path, files(lock_conda(cell, pins, request)))
    (tmp_path / "lookup.json").write_text("{}")
    command = [
        conda_lock_python,
        "-m",
        "conda_lock",
        "lock",
        "--check-input-hash",
        "-f",
        "environment.yml",
        "--lockfile",
        "conda-lock.yml",
    ]
    command += ["--pypi_to_conda_lookup_file", (tmp_path / "lookup.json").as_uri(), "--conda", "/bin/true"]
    before = (tmp_path / "conda-lock.yml").read_bytes()
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "already locked" in done.stderr, done.stderr[-2000:]
    assert (tmp_path / "conda-lock.yml").read_bytes() == before


def test_rattler_reads_pixi_lock_and_explicit_file(local, channel, wheels, tmp_path):
    from rattler import LockFile
    from rattler.explicit_environment import ExplicitEnvironmentSpec

    cell, pins = cell_of(local, "megatron_core"), pins_of(local, wheels, "megatron_core")
    lock = lock_conda(cell, pins, CondaRequest(channels=(channel.as_uri(),), cache_dir=tmp_path / "cache"))
    store.write(tmp_path, files(lock))
    environment = LockFile.from_path(tmp_path / "pixi.lock").default_environment()
    place = environment.platforms()[0]
    records = environment.conda_repodata_records_for_platform(place)
    part = lock.platforms[0]
    assert sorted((r.name.normalized, str(r.version), r.sha256.hex(), r.url) for r in records) == sorted(
        (p.name, p.version, p.sha256, p.url) for p in part.packages
    )
    assert {r.name.normalized: r.noarch.python for r in records} == {
        p.name: p.noarch == "python" for p in part.packages
    }
    wheels_read = environment.pypi_packages_for_platform(place)
    assert sorted((w.name, w.hashes.sha256.hex()) for w in wheels_read) == sorted((p.name, p.sha256) for p in part.pip)
    explicit = ExplicitEnvironmentSpec.from_path(tmp_path / "conda-linux-64.lock")
    assert len(explicit.packages) == len(part.packages)


def test_two_platforms_with_different_requests_agree_with_conda_lock(local, conda_lock_python, tmp_path):
    both = [r for r in local.real_records() if r["subdir"] != "noarch"]
    arm = [{**r, "subdir": "linux-aarch64"} for r in both if r["name"] != "flash-attn"]
    noarch = [r for r in local.real_records() if r["subdir"] == "noarch"]
    root = local.write_index(tmp_path / "ch", [*both, *arm, *noarch], subdirs=("linux-64", "linux-aarch64", "noarch"))
    components = {
        "torch": "2.9.1+cu129",
        "cuda": "12.9",
        "python": "3.12",
        "nccl": "2.28.9",
        "cudnn": "9.13.1.26",
        "triton": "3.5.1",
        "flash_attn": "2.8.3",
    }
    pins = (local.pin("flash-attn", "2.8.3", "einops", "torch"), local.pin("einops", "0.8.1"))
    lock = lock_conda(
        local.cell(**components),
        pins,
        CondaRequest(
            channels=((root / "conda-forge").as_uri(),),
            platforms=[Platform.LINUX_64, Platform.LINUX_AARCH64],
            cache_dir=tmp_path / "cache",
        ),
    )
    assert [[p.name for p in part.pip] for part in lock.platforms] == [[], ["flash-attn"]]
    told = read_by_conda_lock(lock, tmp_path, conda_lock_python)
    assert len(set(told["hashes"].values())) == 2
