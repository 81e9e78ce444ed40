"""Environments broken for real with real wheels: found, and the command that the doctor prints mends them.

The proof is the smoke test where it can show the failure on a CPU, else the call that fails. What no CPU can show (compiling CUDA ops with the
right nvcc, a variable without effect) is only found here, see ``test_doctor_live.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.network]
TORCH = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON", "")
ROOT = Path(__file__).parents[2]


def run(*command: str, env: dict[str, str] | None = None, timeout: int = 1800) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, timeout=timeout, env=env
    )


def envsmith(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return run(
        sys.executable,
        "-m",
        "envsmith",
        *arguments,
        env={**os.environ, "PYTHONPATH": str(ROOT), "VIRTUAL_ENV": "", "CONDA_PREFIX": "", **(env or {})},
    )


def doctor(python: Path, env: dict[str, str] | None = None) -> dict:
    done = envsmith("doctor", "--json", "--fail-on", "never", "--python", str(python), env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def typed(line: str, python: Path) -> None:
    """Type a line that the doctor printed, with the environment active, as a user would."""
    root = python.parent.parent
    path = os.pathsep.join([str(root / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    active = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME"}}
    done = run("sh", "-c", line, env={**active, "VIRTUAL_ENV": str(root), "PATH": path})
    assert done.returncode == 0, done.stderr[-800:]


def uv_install(python: Path, *arguments: str) -> None:
    done = run(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python), *arguments)
    if done.returncode:
        pytest.skip(f"{' '.join(arguments)} cannot be installed here: {done.stderr[-200:]}")


@pytest.fixture(scope="module")
def old_torch(tmp_path_factory) -> Path:
    """torch 2.2.2 with its CUDA libraries and numpy 2, as pip would have given it in June 2024."""
    interpreter = shutil.which("python3.11") or (TORCH if TORCH and _is_311(TORCH) else None)
    if interpreter is None:
        pytest.skip("torch 2.2.2 has no wheel for the Pythons here (3.11 is looked for)")
    root = tmp_path_factory.mktemp("old") / "env"
    run(sys.executable, "-m", "uv", "venv", "--quiet", "--python", interpreter, str(root))
    python = root / "bin" / "python"
    uv_install(python, "torch==2.2.2", "numpy==2.0.2", "pip", "setuptools", "ninja")
    return python


def _is_311(python: str) -> bool:
    return run(python, "-c", "import sys; print(sys.version_info[:2] == (3, 11))").stdout.strip() == "True"


def test_a_second_nccl_wheel_breaks_torch_and_the_printed_lines_mend_it(old_torch):
    uv_install(old_torch, "--no-deps", "nvidia-nccl-cu11==2.14.3")
    assert envsmith("smoke", "--python", str(old_torch), "--tier", "import", "--ranks", "2").returncode == 1
    first = doctor(old_torch)["findings"][0]
    assert (first["rule"], first["role"], first["severity"]) == ("two-nccl-wheels", "root", "error")
    for line in first["lines"]:
        typed(line, old_torch)
    assert envsmith("smoke", "--python", str(old_torch), "--tier", "import", "--ranks", "2").returncode == 0
    assert "two-nccl-wheels" not in {f["rule"] for f in doctor(old_torch)["findings"]}


def test_numpy_2_under_torch_2_2_is_the_root_and_numpy_1_mends_it(old_torch):
    call = (str(old_torch), "-W", "ignore", "-c", "import torch; torch.ones(1).numpy()")
    assert "Numpy is not available" in run(*call).stderr
    first = doctor(old_torch)["findings"][0]
    assert (first["rule"], first["severity"]) == ("torch-numpy2", "error")
    assert "numpy below 2" in first["fix"]
    typed("uv pip install --quiet 'numpy<2'", old_torch)
    assert run(*call).returncode == 0
    assert "torch-numpy2" not in {f["rule"] for f in doctor(old_torch)["findings"]}


NVCC = shutil.which("nvcc")


@pytest.mark.skipif(
    not NVCC or "release 13" not in run(NVCC, "--version").stdout, reason="no nvcc of CUDA 13 on this host"
)
def test_nvcc_13_beside_a_torch_of_cuda_12_is_what_torch_itself_refuses(old_torch):
    """Only found: a toolkit of CUDA 12 would have to be installed on the host."""
    check = "import torch.utils.cpp_extension as c; from packaging.version import Version; c._check_cuda_version('g++', Version('12.2'))"
    assert "The detected CUDA version (13" in run(str(old_torch), "-W", "ignore", "-c", check).stderr
    found = {f["rule"]: f for f in doctor(old_torch)["findings"]}
    assert found["toolkit-cuda-major"]["severity"] == "warning"
    assert "CUDA_HOME=/usr/local/cuda-12.1" in found["toolkit-cuda-major"]["fix"]


@pytest.mark.torch
@pytest.mark.skipif(not TORCH, reason="ENVSMITH_TEST_TORCH_PYTHON names no interpreter with torch 2.13")
def test_deepspeed_0_14_0_on_torch_2_13_trains_after_the_printed_command(tmp_path):
    root = tmp_path / "env"
    run(TORCH, "-m", "venv", str(root))
    python = root / "bin" / "python"
    done = run(str(python), "-m", "pip", "install", "--quiet", "torch==2.13.0", "numpy", "setuptools", "ninja")
    if done.returncode:
        pytest.skip(f"torch 2.13.0 cannot be installed here: {done.stderr[-200:]}")
    uv_install(python, "deepspeed==0.14.0")
    smoke = ("smoke", "--python", str(python), "--tier", "quick", "--ranks", "2")
    assert envsmith(*smoke).returncode == 1
    value = doctor(python)
    assert value["findings"][0]["rule"] == "deepspeed-elastic-log"
    typed(value["repair"]["commands"]["uv"], python)
    assert doctor(python)["status"] == "ok"
    after = envsmith(*smoke)
    assert after.returncode == 0, after.stdout[-1500:] + after.stderr[-1500:]
