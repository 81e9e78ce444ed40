"""Locks of package managers: what they pin for Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.doctor.read import read_texts

CASES = Path(__file__).parents[2] / "cases" / "locks"
PINNED = {"filelock": "4.2.11", "packaging": "26.3", "safetensors": "0.4.5", "triton": "3.0.0"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("uv.lock", "uv.lock"),
        ("pylock.uv.toml", "pylock.toml"),
        ("pylock.pip.toml", "pylock.toml"),
        ("poetry.1.lock", "poetry.lock"),
        ("poetry.2.lock", "poetry.lock"),
        ("Pipfile.lock", "Pipfile.lock"),
    ],
)
def test_every_tool_s_lock_of_one_project_says_the_same(name, kind):
    facts = read_texts([(name, (CASES / name).read_text(encoding="utf-8"))])

    pinned = {n: v for n, v in facts.distributions.items() if n not in {"mine", "setuptools"}}
    assert pinned == PINNED
    assert facts.components["triton"].version == "3.0.0"
    assert facts.read[0].kinds == (kind,)


def _uv_lock(*packages: tuple[str, str, str]) -> str:
    entries = (
        f'[[package]]\nname = "{name}"\nversion = "{version}"\nresolution-markers = [\n    "{marker}",\n]\n'
        for name, version, marker in packages
    )
    return 'version = 1\nrequires-python = ">=3.10"\n\n' + "\n".join(entries)


def test_of_several_versions_the_one_for_linux_counts():
    text = _uv_lock(("torch", "2.2.2", "sys_platform == 'darwin'"), ("torch", "2.9.1", "sys_platform == 'linux'"))

    assert read_texts([("uv.lock", text)]).components["torch"].version == "2.9.1"


def test_two_builds_of_one_release_are_that_release():
    text = _uv_lock(
        ("torch", "2.9.1+cpu", "extra != 'gpu'"), ("torch", "2.9.1+cu128", "sys_platform == 'linux' and extra != 'cpu'")
    )

    facts = read_texts([("uv.lock", text)])

    assert facts.components["torch"].version == "2.9.1"
    assert "cuda" not in facts.components


@pytest.mark.parametrize(
    "source",
    [
        'source = { git = "https://github.com/pytorch/torchtitan?rev=1#1" }',
        'source = { editable = "." }',
        '[package.source]\ntype = "git"\nurl = "https://github.com/pytorch/torchtitan.git"',
    ],
)
def test_a_commit_or_a_folder_is_no_release(source):
    lock = 'version = 1\nrequires-python = ">=3.10"\n\n[[package]]\nname = "torchtitan"\nversion = "0.1.0"\n'

    assert "torchtitan" not in read_texts([("uv.lock", lock + source)]).distributions


def test_several_releases_for_linux_say_nothing():
    text = _uv_lock(("numpy", "1.26.4", "python_full_version < '3.12'"), ("numpy", "2.3.0", "not a marker"))

    assert "numpy" not in read_texts([("uv.lock", text)]).distributions


def test_what_a_package_of_pixi_requires_is_not_what_is_installed():
    text = """version: 6
environments:
  default:
    channels:
    - url: https://conda.example/forge/
    packages:
      linux-64:
      - conda: https://conda.example/forge/linux-64/python-3.11.9-hb806964_0_cpython.conda
      - pypi: https://files.example/deepspeed-0.16.2.tar.gz
packages:
- conda: https://conda.example/forge/linux-64/python-3.11.9-hb806964_0_cpython.conda
- pypi: https://files.example/deepspeed-0.16.2.tar.gz
  name: deepspeed
  version: 0.16.2
  requires_dist:
  - triton==1.0.0 ; extra == '1bit'
"""
    facts = read_texts([("pixi.lock", text)])

    assert facts.components["deepspeed"].version == "0.16.2"
    assert "triton" not in facts.components
    assert facts.read[0].kinds == ("conda pixi-lock",)


def test_a_lock_of_pixi_5_names_packages_of_the_index_by_their_address():
    text = """version: 5
environments:
  default:
    channels:
    - url: https://conda.example/forge/
    packages:
      linux-64:
      - pypi: https://files.example/torch-2.4.1-cp311-cp311-manylinux1_x86_64.whl
      - pypi: .
packages:
- kind: pypi
  name: torch
  version: 2.4.1
  url: https://files.example/torch-2.4.1-cp311-cp311-manylinux1_x86_64.whl
- kind: pypi
  name: mine
  path: .
  url: .
"""
    assert read_texts([("pixi.lock", text)]).components["torch"].version == "2.4.1"


@pytest.mark.parametrize("text", ['{"_meta": {}, "default": []}', '{"_meta": {}, "default": {"torch": 1}}', '{"_meta"'])
def test_json_that_is_not_a_lock_pins_nothing(text):
    assert not read_texts([("x", text)]).distributions
