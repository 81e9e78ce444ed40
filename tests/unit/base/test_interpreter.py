"""What a person may call an interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.base.interpreter import find_python, named_python, python_in
from envsmith.errors import UsageError


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("name", ["python", "python3"])
def test_the_folder_of_an_environment_stands_for_its_interpreter(tmp_path: Path, name: str) -> None:
    inside = program(tmp_path / "venv" / "bin" / name)

    assert named_python(str(tmp_path / "venv")) == inside
    assert named_python(str(inside)) == inside


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    python_in(tmp_path).parent.mkdir()
    python_in(tmp_path).symlink_to(program(tmp_path / "elsewhere"))

    assert find_python(tmp_path) == tmp_path / "bin" / "python"


def test_a_name_is_looked_up_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert named_python(program(tmp_path / "python3.99").name) == tmp_path / "python3.99"


@pytest.mark.parametrize("name", ["empty", "nowhere", "text"])
def test_what_has_no_interpreter_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no program")

    with pytest.raises(UsageError, match="it has no interpreter"):
        named_python(str(tmp_path / name))
