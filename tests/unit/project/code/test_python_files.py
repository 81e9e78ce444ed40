"""The sources of a project: a folder, a git checkout, one file, a notebook."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from envsmith.errors import DataError
from envsmith.project.code.python_files import notebook_code, read_project


def write(root: Path, **files: str) -> Path:
    """``a__b="…"`` is a/b.py."""
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def git(root: Path, *arguments: str, **environment: str) -> None:
    names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    subprocess.run(
        ["git", "-C", str(root), *arguments],
        check=True,
        capture_output=True,
        env={**os.environ, **names, **environment},
    )


def notebook(*cells: str) -> bytes:
    return json.dumps({"cells": [{"cell_type": "code", "source": text} for text in cells]}).encode()


def test_a_folder_is_read_without_environments_and_what_tools_leave(tmp_path):
    write(tmp_path, train="", models__net="", build__lib="", own_env__x="")
    (tmp_path / "own_env" / "pyvenv.cfg").write_text("")
    project = read_project(tmp_path)
    assert {s.path for s in project.sources} == {"train.py", "models/net.py"}
    assert project.day_of == "its newest file"


def test_a_git_checkout_is_read_without_what_it_ignores_and_dated_by_its_last_commit(tmp_path):
    write(tmp_path, train="", secret="")
    (tmp_path / ".gitignore").write_text("secret.py\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(
        tmp_path,
        "commit",
        "-qm",
        "x",
        GIT_COMMITTER_DATE="2023-04-17T12:00:00Z",
        GIT_AUTHOR_DATE="2020-01-01T12:00:00Z",
    )
    project = read_project(tmp_path)
    assert [s.path for s in project.sources] == ["train.py"]
    assert (project.day, project.day_of) == ("2023-04-17", "its last commit")


def test_a_folder_that_the_repository_around_it_ignores_is_read_all_the_same(tmp_path):
    write(tmp_path, work__train="")
    (tmp_path / ".gitignore").write_text("work/\n")
    git(tmp_path, "init", "-q")
    assert [s.path for s in read_project(tmp_path / "work").sources] == ["train.py"]


def test_a_checkout_cannot_have_git_start_a_program(tmp_path):
    write(tmp_path, train="")
    git(tmp_path, "init", "-q")
    (tmp_path / "hook.sh").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "hook.sh").chmod(0o755)
    git(tmp_path, "config", "core.fsmonitor", str(tmp_path / "hook.sh"))
    read_project(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_one_file_is_a_project(tmp_path):
    write(tmp_path, train="import torch", other="")
    project = read_project(tmp_path / "train.py")
    assert [s.path for s in project.sources] == ["train.py"]


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_what_holds_no_python_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError):
        read_project(tmp_path / name)


def test_links_in_a_circle_end(tmp_path):
    write(tmp_path, train="")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.py")
    project = read_project(tmp_path)
    assert [s.path for s in project.sources] == ["train.py"]
    assert len(project.unreadable) == 2


def test_a_notebook_is_read_without_its_magics():
    text, cells, broken = notebook_code(
        notebook(
            "%pip install x\nimport torch\nif 1:\n    !ls\n", "%%bash\nrm -rf", "x = !ls\ntorch.log\ntorch?", "def ("
        )
    )
    assert text.split("\n")[:4] == ["pass", "import torch", "if 1:", "    pass"]
    assert "rm" not in text
    assert (cells, broken) == ({1: 1, 2: 6, 3: 8, 4: 11}, [4])
    compile(text, "x", "exec")


def test_a_line_of_a_notebook_is_named_by_its_cell(tmp_path):
    (tmp_path / "n.ipynb").write_bytes(notebook("a = 1", "b\nc"))
    (source,) = read_project(tmp_path).sources
    assert source.where(3) == "n.ipynb: cell 2 line 2"


def test_what_is_not_a_notebook_is_left_out_with_the_reason(tmp_path):
    write(tmp_path, train="")
    (tmp_path / "n.ipynb").write_text("[1")
    assert "not a notebook" in read_project(tmp_path).unreadable[0]
