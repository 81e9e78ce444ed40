"""The jobs of a library with extras: which versions they hold, which extra each installs, what they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.errors import UsageError
from envsmith.project.ci.check import check_library
from envsmith.project.ci.jobs import Matrix, make_matrix
from envsmith.project.ci.library import Library, read_library

PROJECT = """[project]
name = "mylib"
version = "1.0.0"
requires-python = ">=3.10"
dependencies = ["transformers>=4.56.2", "torch>=2.6"]
[project.optional-dependencies]
serving = ["vllm>=0.17,<=0.25.1"]
zero = ["deepspeed>=0.16", "transformers!=5.1.0"]
plots = ["seaborn"]
dev = ["deepspeed"]
"""


def _library(root: Path, settings: str = "") -> Library:
    (root / "pyproject.toml").write_text(PROJECT)
    if settings:
        (root / "envsmith.yaml").write_text(settings)
    return read_library(root)


@pytest.fixture
def matrix(tmp_path: Path) -> Matrix:
    return make_matrix(_library(tmp_path))


def test_the_newest_torch_is_in_the_matrix_though_an_extra_pins_an_older_one(matrix: Matrix) -> None:
    torches = {job.axes["torch"] for job in matrix.jobs if job.expect == "pass"}

    assert "2.15.0" in torches
    assert {"2.6.0", "2.11.0"} <= torches


def test_each_extra_that_names_something_known_is_installed_by_some_job(matrix: Matrix) -> None:
    assert {job.extra for job in matrix.jobs if job.expect == "pass"} == {"", "serving", "zero"}


def test_a_job_without_an_extra_has_nothing_of_it(matrix: Matrix) -> None:
    plain = [job for job in matrix.jobs if not job.extra]

    assert plain
    assert not any({"vllm", "deepspeed"} & set(job.cell.chosen) for job in plain)


def test_each_version_of_each_axis_is_in_some_job_and_few_jobs_do(matrix: Matrix) -> None:
    passing = [job for job in matrix.jobs if job.expect == "pass"]

    assert not matrix.uncovered
    assert {job.axes["python"] for job in passing} >= {"3.10", "3.11", "3.12", "3.13", "3.14"}
    assert len(passing) <= 15


def test_pairs_are_covered_where_the_settings_ask_for_them(tmp_path: Path) -> None:
    pairs = make_matrix(_library(tmp_path, "cover: pairs\nextras: []\n"))

    held = {(job.axes["python"], job.axes["torch"]) for job in pairs.jobs if job.expect == "pass"}
    assert len(held) == pairs.possible
    assert not pairs.uncovered


def test_ids_are_short_and_of_one_job_each(matrix: Matrix) -> None:
    ids = [job.id for job in matrix.jobs]

    assert max(map(len, ids)) <= 60
    assert len(set(ids)) == len(ids)


def test_an_extra_that_the_library_does_not_have_is_refused_with_those_that_it_has(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the library has no extra speed") as caught:
        _library(tmp_path, "extras: [speed]\n")

    assert caught.value.hint == "Use some of serving, zero, plots."


def test_what_only_an_extra_brings_says_with_which(tmp_path: Path) -> None:
    findings = [located.finding for located in check_library(_library(tmp_path))]

    of_vllm = [f.message for f in findings if f.rule == "ci-blocks-newest-torch"]
    assert len(of_vllm) == 1
    assert of_vllm[0].startswith("with the extra serving: torch 2.15.0")
