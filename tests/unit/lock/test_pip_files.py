"""A lock as requirements files and as pylock.toml, and back."""

from __future__ import annotations

import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from lock_helpers import pinned_in
from tiny_index import TinyIndex

from envsmith.base.files import read_toml
from envsmith.errors import DataError
from envsmith.lock.pip_files import layer_text, parse_beside, pylock_text, requirement_files
from envsmith.model.lock import Lock


def test_each_layer_has_its_file_and_together_they_are_all(lock: Lock) -> None:
    files = requirement_files(lock)
    assert set(files) == {
        "requirements.txt",
        "requirements-torch.txt",
        "requirements-framework.txt",
        "requirements-build.txt",
    }
    parsed = {name: dict(pinned_in(text)) for name, text in files.items()}
    assert parsed["requirements-torch.txt"] | parsed["requirements-framework.txt"] == parsed["requirements.txt"]
    assert set(parsed["requirements-build.txt"]) == {"tiny-backend"}


def test_the_file_of_all_names_cell_and_lock_and_no_file_an_address(lock: Lock) -> None:
    files = requirement_files(lock)
    assert str(lock.cell.id) in files["requirements.txt"]
    assert lock.digest in files["requirements.txt"]
    assert not any("://" in text for text in files.values())


def test_every_pin_reads_back(lock: Lock) -> None:
    back = pinned_in(requirement_files(lock)["requirements.txt"])
    assert back == {p.name: (p.version, frozenset(a.sha256 for a in p.artifacts)) for p in lock.pins}


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this interpreter has no pip")
@pytest.mark.parametrize("honest", [True, False])
def test_pip_takes_the_files_of_the_lock_and_no_others(
    lock: Lock, index: TinyIndex, tmp_path: Path, *, honest: bool
) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--isolated"]
    pip += [
        "--disable-pip-version-check",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "--dest",
        str(tmp_path / "files"),
    ]
    pins = [pin for pin in lock.pins if not pin.sdist]
    if not honest:
        pins[0] = dataclasses.replace(pins[0], artifacts=(dataclasses.replace(pins[0].artifacts[0], sha256="0" * 64),))
    (tmp_path / "r.txt").write_text(layer_text(pins))
    command = [*pip, "--index-url", index.url, "--requirement", str(tmp_path / "r.txt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode == 0) == honest, done.stderr
    assert ("DO NOT MATCH" in done.stderr) != honest


def test_pylock_holds_every_file_and_the_edges(lock: Lock) -> None:
    document = read_toml(pylock_text(lock))
    assert [p["name"] for p in document["packages"]] == [p.name for p in lock.pins]
    torch = next(p for p in document["packages"] if p["name"] == "torch")
    assert torch["dependencies"] == [{"name": "filelock"}, {"name": "nvidia-nccl-cu12"}]
    assert document["tool"]["envsmith"]["lock"] == lock.digest
    assert document["tool"]["envsmith"]["build-packages"][0]["name"] == "tiny-backend"


def test_pylock_gives_back_addresses_and_edges(lock: Lock) -> None:
    beside = parse_beside(pylock_text(lock))
    bare = [
        dataclasses.replace(p, artifacts=tuple(dataclasses.replace(a, url=None) for a in p.artifacts), requires=())
        for p in lock.pins
    ]
    assert beside.complete(dataclasses.replace(lock, pins=tuple(bare))) == lock


def test_a_lock_without_addresses_names_its_files_as_paths(lock: Lock) -> None:
    pins = tuple(
        dataclasses.replace(p, artifacts=tuple(dataclasses.replace(a, url=None) for a in p.artifacts))
        for p in lock.pins
    )
    document = read_toml(pylock_text(dataclasses.replace(lock, pins=pins)))
    assert document["packages"][1]["wheels"][0]["path"] == pins[1].artifacts[0].filename


@pytest.mark.parametrize("text", ["", "[", "lock-version = '9.0'\ncreated-by='x'\npackages=[]\n"])
def test_a_broken_pylock_is_a_data_error(text: str) -> None:
    with pytest.raises(DataError):
        parse_beside(text)
