"""A person's own requirements, locked from the package index that uv is configured with."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from envsmith.base.files import read_toml
from envsmith.cli.app import run

pytestmark = [pytest.mark.integration, pytest.mark.network]

DAY = "2026-11-19"


def _lock(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, dict]:
    flags = ["--python", "3.11", "--exclude-newer", DAY, "-o", str(folder / "out"), "--json"]
    code = run(["lock", *words, *flags])
    return code, json.loads(capsys.readouterr().out)


def test_a_package_that_needs_an_older_torch_gives_a_cell_with_one(capsys, tmp_path) -> None:
    code, answer = _lock(capsys, tmp_path, "-f", "accelerate", "--with", "fastai==2.7.14", "--format", "pip")
    assert code == 0
    assert answer["cell"]["components"]["torch"].startswith("2.2.")
    assert "fastai==2.7.14" in Path(answer["files"]["requirements.txt"]).read_text()


def test_a_conflict_with_what_was_asked_for_has_the_words_of_both(capsys, tmp_path) -> None:
    code, answer = _lock(capsys, tmp_path, "--torch", "2.13", "--with", "fastai==2.7.14", "--format", "pip")
    assert code == 1
    assert [member["rule"] for member in answer["conflict"]] == ["request:torch", "fastai-declares-torch"]
    assert answer["conflict"][1]["evidence"][0]["sha256"]


def test_a_uv_project_gets_the_versions_of_the_lock(capsys, tmp_path) -> None:
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("no uv on PATH")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "demo"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = []\n'
    )
    words = ("-f", "deepspeed", "--with", "wandb", "--torch", "2.13", "--project", str(tmp_path))
    code, answer = _lock(capsys, tmp_path, *words, "--format", "uv", "--yes")
    assert code == 0
    for arguments in (["lock"], ["lock", "--check"]):
        subprocess.run([uv, *arguments, "--project", tmp_path, "--python", "3.11"], check=True, cwd=tmp_path)
    locked = {p["name"]: p["version"] for p in read_toml((tmp_path / "uv.lock").read_text())["package"]}
    ours = json.loads(Path(answer["files"]["lock.json"]).read_text())["packages"]
    assert {pin["name"]: pin["version"] for pin in ours}.items() <= locked.items()
