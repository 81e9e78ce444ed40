"""``--code``, ``--date`` and ``--package`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsmith.base.progress import EventKind, ProgressEvent
from envsmith.cli.app import run
from envsmith.cli.code import lock_plan
from envsmith.cli.flags import RequestFlags
from envsmith.errors import LockError, UsageError
from envsmith.model.cell import Cell
from envsmith.model.lock import Lock


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(
        "import torch, accelerate, trl, wandb\naccelerate.Accelerator(dispatch_batches=True)\n"
    )
    return tmp_path


def test_the_date_and_the_packages_are_part_of_what_a_lock_was_made_from():
    text = RequestFlags(date="2023-05-01", package=("wandb", "einops>=0.6")).text()
    assert "--package einops>=0.6 --package wandb" in text
    assert "--date 2023-05-01" in text


@pytest.mark.parametrize("package", ["a b", "x @ https://example.org/x.whl", "-r file", ""])
def test_a_package_is_a_requirement_of_the_index(package):
    with pytest.raises(UsageError, match="--package"):
        RequestFlags(package=(package,)).request()


def test_check_judges_code_and_exits_with_1_where_a_name_is_missing_at_import(project, capsys):
    assert run(["check", "--code", str(project), "accelerate==1.0.0", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    (finding,) = [f for f in answer["findings"] if f["rule"] == "code-argument"]
    assert (finding["where"], finding["severity"]) == ("train.py:2", "error")
    assert finding["needs"]["accelerate"].endswith("<1.0.0")
    assert any("trl: no version is stated" in line for line in answer["unknown"])


def test_the_repair_is_a_set_in_which_the_code_finds_its_names(project, capsys):
    run(["check", "--code", str(project), "accelerate==1.0.0", "torch==2.5.1", "--json"])
    (change,) = json.loads(capsys.readouterr().out)["repair"]["changes"]
    assert change["component"] == "accelerate"
    assert run(["check", "--code", str(project), f"accelerate=={change['to']}", "torch==2.5.1"]) == 0


def test_check_of_code_alone_takes_the_newest_measured_releases(project, capsys):
    run(["check", "--code", str(project), "--json"])
    assert "accelerate" in json.loads(capsys.readouterr().out)["inferred"]


def test_solve_adds_what_the_code_needs_and_says_from_what(project, capsys):
    assert run(["solve", "--code", str(project), "--date", "2023-06-01", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["cell"]["components"]["accelerate"] == "0.19.0"
    assert answer["inferred"]["package"] == ["accelerate>=0.5.0,<1.0.0", "torch", "trl", "wandb"]
    assert any(
        "train.py:2 takes accelerate.Accelerator(dispatch_batches=)" in line for line in answer["inferred"]["from"]
    )


def test_a_package_that_envsmith_has_releases_of_is_in_the_cell_and_not_in_its_name(capsys):
    assert run(["solve", "--torch", "2.9", "--package", "peft==0.17.0", "--package", "wandb", "--json"]) == 0
    cell = json.loads(capsys.readouterr().out)["cell"]
    assert cell["components"]["peft"] == "0.17.0"
    assert "peft" not in cell["id"]


def test_what_the_user_names_is_the_users(project, capsys):
    assert run(["solve", "--code", str(project), "--with", "accelerate==1.0.0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cell"]["components"]["accelerate"] == "1.0.0"


def test_a_folder_without_python_is_refused(tmp_path, capsys):
    assert run(["check", "--code", str(tmp_path)]) > 1
    assert "holds no Python" in capsys.readouterr().err


def test_a_lock_says_what_was_inferred_and_what_gave_way(project):
    (project / "requirements.txt").write_text("wandb==0.15.3\n")

    def lock(flags, *, progress):
        progress(ProgressEvent(kind=EventKind.NOTE, step="", text="the lock itself says it"))
        if "wandb==0.15.3" in flags.package:
            raise LockError(
                "Cannot resolve the packages of cell: wandb==0.15.3 is not on the package index.", names=["wandb"]
            )
        cell = Cell(components={"python": "3.11"}, chosen=())
        return Lock(cell=cell, request="", exclude_newer="", python_version="3.11", pins=())

    flags = RequestFlags(code=project, date="2023-06-01")
    events = []
    settled, answer = lock_plan(flags, None, lambda some: some, events.append, lock)

    assert "wandb" in settled.package
    assert answer["inferred"]["package"] == list(settled.package)
    assert answer["inferred"]["from"][-1] == ("wandb ==0.15.3 gives way: wandb==0.15.3 is not on the package index")
    assert [event.kind for event in events] == [EventKind.START, EventKind.DONE]
