"""Which Pythons a host has, by its files."""

from __future__ import annotations

from pathlib import Path

from envsmith.lock.index.interpreters import running_interpreter
from envsmith.lock.index.python_files import minors_here


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_minor_releases_of_a_host_are_read_from_its_files_alone(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "python3.18", "exit 1")
    script(tmp_path / "uv" / "cpython-3.17.2-linux" / "bin" / "python3.17", "exit 1")
    script(tmp_path / "environment" / "bin" / "python3.16", "exit 1")
    (tmp_path / "environment" / "pyvenv.cfg").touch()
    script(tmp_path / "conda" / "bin" / "python3.15", "exit 1")
    (tmp_path / "conda" / "conda-meta").mkdir()
    folders = ":".join(str(tmp_path / name / "bin") for name in (".", "environment", "conda"))

    minors = minors_here({"PATH": folders, "UV_PYTHON_INSTALL_DIR": str(tmp_path / "uv"), "HOME": str(tmp_path)})

    assert minors[:2] == ("3.18", "3.17")
    assert running_interpreter().minor in minors
    assert not {"3.16", "3.15"} & {*minors}
