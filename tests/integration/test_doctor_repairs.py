"""Environments broken for real with real wheels: found, and the command that the doctor prints mends them.

The proof is the smoke test where it can show the failure on a CPU, else the call that fails. What no CPU can show (compiling CUDA ops with the
right nvcc) is only found here; a variable that nobody reads breaks nothing, so the smoke test passes with it.
"""

from __future__ import annotations

import json
import os
import re
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
    """The smoke test shows it: collectives of objects go through numpy."""
    smoke = ("smoke", "--python", str(old_torch), "--tier", "quick", "--no-steps", "--ranks", "2")
    before = envsmith(*smoke)
    assert before.returncode == 1, before.stdout
    assert "Numpy is not available" in before.stdout
    value = doctor(old_torch)
    first = value["findings"][0]
    assert (first["rule"], first["severity"]) == ("torch-numpy2", "error")
    assert "numpy below 2" in first["fix"]
    assert [c["component"] for c in value["repair"]["changes"]] == ["numpy"]  # also beside an nvcc of another CUDA
    typed(value["repair"]["commands"]["uv"], old_torch)
    after = envsmith(*smoke)
    assert after.returncode == 0, after.stdout[-1500:] + after.stderr[-1500:]
    assert "torch-numpy2" not in {f["rule"] for f in doctor(old_torch)["findings"]}


NVCC = shutil.which("nvcc")


@pytest.mark.skipif(
    not NVCC or "release 13" not in run(NVCC, "--version").stdout, reason="no nvcc of CUDA 13 on this host"
)
def test_nvcc_13_beside_a_torch_of_cuda_12_is_what_torch_itself_refuses(old_torch):
    """Only found: the fix is a toolkit of CUDA 12 on the host, which no package index brings, or another torch; nothing that a CPU runs shows either."""
    check = "import torch.utils.cpp_extension as c; from packaging.version import Version; c._check_cuda_version('g++', Version('12.2'))"
    assert "The detected CUDA version (13" in run(str(old_torch), "-W", "ignore", "-c", check).stderr
    found = {f["rule"]: f for f in doctor(old_torch)["findings"]}
    assert found["toolkit-cuda-major"]["severity"] == "warning"
    assert "CUDA_HOME=/usr/local/cuda-12.1" in found["toolkit-cuda-major"]["fix"]


STEP = ("--tier", "quick", "--framework-only", "--ranks", "2")


@pytest.fixture(scope="module")
def without_ninja(tmp_path_factory) -> Path:
    """An environment with the packages of ENVSMITH_TEST_TORCH_PYTHON, each as a link, but for ninja."""
    if not TORCH or run(TORCH, "-c", "import deepspeed").returncode:
        pytest.skip("ENVSMITH_TEST_TORCH_PYTHON names no interpreter with torch and deepspeed")
    root = tmp_path_factory.mktemp("linked") / "env"
    run(TORCH, "-m", "venv", str(root))
    site = next(root.glob("lib/python3*/site-packages"))
    theirs = Path(
        run(TORCH, "-c", "import torch, os; print(os.path.dirname(os.path.dirname(torch.__file__)))").stdout.strip()
    )
    for entry in theirs.iterdir():
        if not entry.name.startswith("ninja") and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    return root / "bin" / "python"


def in_a_namespace(setup: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run ``command`` where ``setup`` has changed what is mounted, for it alone."""
    probe = run("unshare", "-m", "sh", "-c", f"{setup}; exec true") if shutil.which("unshare") else None
    if probe is None or probe.returncode or os.geteuid() != 0:
        pytest.skip("a mount namespace cannot be made here: that needs root and unshare")
    active = {"PYTHONPATH": str(ROOT), "VIRTUAL_ENV": "", "CONDA_PREFIX": "", "PATH": "/usr/bin:/bin"}
    line = (sys.executable, "-m", "envsmith", *command)
    return run("unshare", "-m", "sh", "-c", f'{setup}; exec "$@"', "sh", *line, env={**os.environ, **active})


def step_in(setup: str, python: Path) -> subprocess.CompletedProcess[str]:
    return in_a_namespace(setup, "smoke", "--python", str(python), *STEP)


def stopped_in(setup: str, python: Path, *, said: str, rule: str) -> dict:
    """The framework's step fails under ``setup`` and names the reason; the doctor's finding of it there."""
    before = step_in(setup, python)
    assert before.returncode == 1, before.stdout
    assert said in before.stdout
    done = in_a_namespace(setup, "doctor", "--json", "--fail-on", "never", "--python", str(python))
    assert done.returncode == 0, done.stderr
    return next(f for f in json.loads(done.stdout)["findings"] if f["rule"] == rule)


def trains_in(setup: str, python: Path) -> None:
    after = step_in(setup, python)
    assert after.returncode == 0, after.stdout[-1500:] + after.stderr[-1500:]


@pytest.mark.torch
def test_without_ninja_deepspeed_stops_and_the_printed_line_mends_it(without_ninja):
    """The machine's own ninja is hidden behind an empty mount; DeepSpeed compiles an op when it starts on a CPU."""
    hidden = 'set -e; n=$(command -v ninja || true); test -z "$n" || mount --bind /dev/null "$n"'
    first = stopped_in(hidden, without_ninja, said="ninja", rule="ninja-absent")
    assert (first["role"], first["severity"]) == ("root", "error")
    for line in first["lines"]:
        typed(line, without_ninja)
    trains_in(hidden, without_ninja)


@pytest.mark.torch
def test_a_tiny_dev_shm_stops_deepspeed_and_the_printed_line_mends_it(without_ninja):
    """DeepSpeed's op for the CPU takes 66 MiB of /dev/shm for each rank. The line is the one for a host: a container's is another ``docker run``."""
    tiny = "set -e; mount -t tmpfs -o size=1M tmpfs /dev/shm"
    found = stopped_in(tiny, without_ninja, said="/dev/shm has 1 MiB", rule="shm-small")
    printed = re.search(r"mount -o remount,size=\w+ /dev/shm", " ".join([*found["lines"], found["fix"]]))
    assert printed, found
    if not shutil.which("ninja"):
        typed("pip install ninja", without_ninja)
    trains_in(f"{tiny}; {printed[0]}", without_ninja)


@pytest.mark.torch
def test_a_variable_that_is_no_longer_read_is_told_and_breaks_nothing(without_ninja):
    """No proof by a smoke test that fails: such a variable has no effect, which is what the doctor says of it."""
    stale = {"TORCH_NCCL_ABORT_IN_DESTROY_PG": "1"}
    found = [f for f in doctor(without_ninja, env=stale)["findings"] if f["rule"] == "variable-not-read"]
    assert len(found) == 1
    assert found[0]["severity"] in {"note", "warning"}
    assert "TORCH_NCCL_ABORT_IN_DESTROY_PG" in found[0]["message"]
    done = envsmith("smoke", "--python", str(without_ninja), "--tier", "import", "--ranks", "2", env=stale)
    assert done.returncode == 0, done.stdout


@pytest.mark.torch
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
