"""`envsmith ci run` for real: the environment of one job of a library's matrix, the library in it, its own test; and a known-bad job that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from envsmith.cli.app import run
from envsmith.lock.index.interpreters import find_interpreter

pytestmark = [pytest.mark.integration, pytest.mark.network]
# A torch whose build for CPUs lies in a folder that pip knows keeps the test small; otherwise the index's wheels are gigabytes.
TORCH, PYTHON = "2.13.0", "3.11"


@pytest.fixture
def library(tmp_path, monkeypatch):
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.find-links"], capture_output=True, text=True, check=False
    )
    folder = told.stdout.strip()
    if not folder and not os.environ.get("ENVSMITH_TEST_SLOW"):
        pytest.skip("torch would be fetched with its CUDA wheels (5 GB): ENVSMITH_TEST_SLOW=1 allows it")
    if find_interpreter(PYTHON) is None:
        pytest.skip(f"no Python {PYTHON} on this machine")
    if folder:
        monkeypatch.setenv("UV_FIND_LINKS", folder)
    root = tmp_path / "mylib"
    (root / "src" / "mylib").mkdir(parents=True)
    (root / "src" / "mylib" / "__init__.py").write_text(
        "import torch\n\ndef double(x):\n    return torch.as_tensor(x) * 2\n", encoding="utf-8"
    )
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "mylib"\nversion = "1.0"\nrequires-python = ">=3.11,<3.12"\ndependencies = ["torch=={TORCH}", "numpy>=2"]\n'
        "[tool.hatch.build.targets.wheel]\npackages = ['src/mylib']\n",
        encoding="utf-8",
    )
    return root


def _job(root, capsys):
    assert run(["ci", "matrix", str(root), "--format", "json"]) == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    return job


def test_a_job_installs_the_library_and_runs_its_test(library, tmp_path, capsys):
    (library / "envsmith.yaml").write_text(
        "smoke: python -c 'import mylib; assert int(mylib.double(21)) == 42'\n", encoding="utf-8"
    )
    job = _job(library, capsys)
    record = tmp_path / "record.json"
    assert run(["ci", "run", job["id"], str(library), "--record", str(record)]) == 0
    data = json.loads(record.read_text(encoding="utf-8"))
    assert data["passed"]
    assert data["as_expected"]
    assert data["job"]["torch"] == TORCH
    assert set(data["seconds"]) == {"install", "test"}


def test_a_test_that_fails_says_its_last_line(library, capsys):
    (library / "envsmith.yaml").write_text('smoke: "python -c \'raise SystemExit(\\"no luck\\")\'"\n', encoding="utf-8")
    job = _job(library, capsys)
    assert run(["ci", "run", job["id"], str(library)]) == 1
    out = capsys.readouterr().out
    assert "failed at test" in out
    assert "no luck" in out
