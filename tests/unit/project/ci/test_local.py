"""One job of a library's matrix on this machine: where its environment may lie, and what it leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_index import TinyIndex, wheel

from envsmith.errors import UsageError
from envsmith.lock.index.interpreters import find_interpreter
from envsmith.project.ci.jobs import CiJob, make_matrix
from envsmith.project.ci.library import Library, read_library
from envsmith.project.ci.local import JobEnd, run_job


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """Return a library that needs one small wheel, from an index in a folder."""
    index = TinyIndex(tmp_path / "index")
    index.add("torch", wheel("torch", "2.9.1"))
    index.add("torch", wheel("torch", "2.9.2"))
    index.add("checker", wheel("checker", "1.0"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    root = tmp_path / "library"
    root.mkdir()
    (root / "requirements.txt").write_text("torch==2.9.1\n")
    (root / "envsmith.yaml").write_text("smoke: python -c 'import torch'\n")
    return read_library(root)


@pytest.fixture
def job(library: Library) -> CiJob:
    present = (j for j in make_matrix(library).jobs if find_interpreter(j.cell.components["python"]))
    found = next(present, None)
    return found or pytest.skip("no Python of the matrix is on this machine")


def _run(library: Library, job: CiJob, tmp_path: Path, environment: Path) -> JobEnd:
    return run_job(library, job, tmp_path / "library", environment=environment)


def test_an_environment_of_somebody_else_is_refused_and_stays(library: Library, job: CiJob, tmp_path: Path) -> None:
    foreign = tmp_path / "venv"
    (foreign / "bin").mkdir(parents=True)
    (foreign / "pyvenv.cfg").write_text("home = /usr/bin")
    (foreign / "bin" / "tool").write_text("mine")

    with pytest.raises(UsageError, match=r"Cannot replace .*venv: it is not empty"):
        _run(library, job, tmp_path, foreign)

    assert (foreign / "bin" / "tool").read_text() == "mine"


def test_an_environment_in_a_relative_folder_is_made_and_made_again(
    library: Library, job: CiJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    first = _run(library, job, tmp_path, Path("env"))
    (tmp_path / "env" / "note").write_text("mine")
    (tmp_path / "env" / "lib" / "stale").write_text("of the first run")
    second = _run(library, job, tmp_path, Path("env"))

    assert first.passed, first.sentence
    assert second.passed, second.sentence
    assert (tmp_path / "env" / "note").read_text() == "mine"
    assert not (tmp_path / "env" / "lib" / "stale").exists()


def test_a_test_can_add_what_it_needs_within_the_constraints_of_the_job(
    library: Library, job: CiJob, tmp_path: Path
) -> None:
    command = "uv pip install checker && python -c 'import checker' && uv pip install --upgrade torch && uv pip freeze"
    adding = replace(library, settings=replace(library.settings, smoke=f"{command} | grep -x torch==2.9.1"))

    end = _run(adding, job, tmp_path, tmp_path / "env")

    assert end.passed, end.sentence
