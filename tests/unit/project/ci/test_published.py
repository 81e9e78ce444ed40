"""Bounds that a library drops when it is installed: what its setup.py reads beside what it publishes."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.errors import NetworkError
from envsmith.net.http import NotFoundError
from envsmith.project.ci.library import read_library
from envsmith.project.ci.published import as_published
from envsmith.project.declared import Declaration, read_declared, read_metadata

SETUP = """
from setuptools import setup
def load(name):
    return [line.split("<")[0] for line in open("requirements/" + name)]
REQUIRES = load(name="base.txt")
setup(name="mylib", install_requires=REQUIRES)
"""
PUBLISHED = """Name: mylib
Version: 1.2.0
Requires-Dist: torch>=2.4
Requires-Dist: numpy<3,>=1.26
Provides-Extra: audio
Requires-Dist: torchaudio>=2.4; extra == "audio"
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "requirements").mkdir()
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "requirements.txt").write_text("-r requirements/base.txt\nipython\n")
    files = {
        "base": "torch >=2.4, <2.11\nnumpy >=1.26, <3\n",
        "audio": "torchaudio >=2.4, <2.11\n",
        "audio_test": "torch ==2.10.0\n",
        "_docs": "lightning <2.6\n",
    }
    for name, text in files.items():
        (tmp_path / "requirements" / f"{name}.txt").write_text(text)
    return tmp_path


def _published(name: str) -> Declaration:
    return read_metadata(PUBLISHED, f"{name}-1.2.0.whl")


def _unreachable(name: str) -> Declaration:
    raise NetworkError(f"Cannot read {name}: the index does not answer.")


def test_of_a_folder_of_requirements_those_count_that_the_setup_script_reads(root: Path) -> None:
    declared = read_declared(root)

    assert [(line.name, line.extra) for line in declared.requirements] == [
        ("torch", None),
        ("numpy", None),
        ("torchaudio", "audio"),
    ]
    assert declared.read_by_setup == ("requirements/base.txt",)


def test_a_bound_that_is_published_stays_and_one_that_is_not_goes(root: Path) -> None:
    declaration = as_published(read_declared(root), _published)

    assert {line.name: line.spec for line in declaration.requirements} == {
        "torch": ">=2.4",
        "numpy": "<3,>=1.26",
        "torchaudio": ">=2.4",
    }
    assert declaration.skipped[-2:] == (
        "requirements/base.txt: bounds that mylib 1.2.0 is published without: torch<2.11",
        "requirements/audio.txt: bounds that mylib 1.2.0 is published without: torchaudio<2.11",
    )


def test_without_an_index_the_bounds_stay_and_a_line_says_so(root: Path) -> None:
    declaration = as_published(read_declared(root), _unreachable)

    assert declaration.requirements == read_declared(root).requirements
    assert "what is published cannot be compared" in declaration.skipped[-1]


def test_a_library_that_was_never_published_keeps_its_bounds_without_a_word(root: Path) -> None:
    def read(_name: str) -> Declaration:
        raise NotFoundError("Cannot read mylib: it does not exist (status 404).")

    declaration = read_declared(root)

    assert as_published(declaration, read) is declaration


def test_the_index_is_not_asked_for_a_library_whose_requirements_stand_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = ["torch<2.11"]\n')
    declaration = read_declared(tmp_path)

    assert as_published(declaration, _unreachable) is declaration


def test_the_ranges_of_a_library_are_those_that_it_is_installed_with(root: Path) -> None:
    library = read_library(root, published=lambda declaration: as_published(declaration, _published))

    assert library.ranges["torch"].contains("2.15.0")
    assert library.extras["audio"]["torchaudio"].contains("2.11.0")
