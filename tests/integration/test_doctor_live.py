"""Broken environments made for real on this machine, and found by ``envsmith doctor`` as a user runs it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
TORCH = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON", "")


def doctor(*arguments: str, env: dict[str, str] | None = None, before: list[str] | None = None) -> dict:
    command = [*(before or []), sys.executable, "-m", "envsmith", "doctor", "--json", "--fail-on", "never", *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "VIRTUAL_ENV": "", "CONDA_PREFIX": "", **(env or {})},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rules(value: dict) -> dict[str, str]:
    return {f["rule"]: f["severity"] for f in value["findings"]}


def distribution(site: Path, name: str, version: str, files: dict[str, str] | None = None) -> None:
    """Lay a distribution out as pip does: its files, METADATA and RECORD."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for path, text in (files or {}).items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in files or {}))


@pytest.fixture
def venv(tmp_path):
    root = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
    site = next(root.glob("lib/python3*/site-packages"))
    return root / "bin" / "python", site


def torch_files(version: str, cuda: str | None) -> dict[str, str]:
    return {"torch/version.py": f"__version__ = '{version}'\ncuda = {cuda!r}\n", "torch/lib/libtorch.so": ""}


def test_two_copies_of_nccl(venv):
    python, site = venv
    distribution(site, "torch", "2.14.0+cu130", torch_files("2.14.0+cu130", "13.0"))
    for major, version in (("13", "2.30.7"), ("12", "2.29.3")):
        distribution(site, f"nvidia_nccl_cu{major}", version)
    assert rules(doctor("--python", str(python)))["two-nccl-wheels"] == "error"


def test_a_libnccl_that_ld_library_path_puts_first(venv, tmp_path):
    python, site = venv
    distribution(site, "torch", "2.9.0+cu128", torch_files("2.9.0+cu128", "12.8"))
    distribution(
        site, "nvidia_nccl_cu12", "2.27.5", {"nvidia/nccl/lib/libnccl.so.2": "x NCCL version 2.27.5+cuda12.9 x"}
    )
    old = tmp_path / "old"
    old.mkdir()
    (old / "libnccl.so.2.18.1").write_text("x NCCL version 2.18.1+cuda12.1 x")
    (old / "libnccl.so.2").symlink_to("libnccl.so.2.18.1")
    value = doctor("--python", str(python), env={"LD_LIBRARY_PATH": str(old)})
    assert rules(value)["nccl-shadowed"] == "error"
    assert [lib["version"] for lib in value["facts"]["libraries"] if lib["first"] and lib["name"] == "libnccl"] == [
        "2.18.1"
    ]


def test_numpy_2_with_an_old_deepspeed(venv):
    python, site = venv
    distribution(site, "torch", "2.3.1+cu121", torch_files("2.3.1+cu121", "12.1"))
    distribution(site, "deepspeed", "0.14.2")
    distribution(site, "numpy", "2.0.0")
    assert rules(doctor("--python", str(python)))["deepspeed-numpy2-bufsize"] == "error"


def test_nvcc_13_with_a_torch_of_cuda_12(venv, tmp_path):
    python, site = venv
    distribution(site, "torch", "2.6.0+cu124", torch_files("2.6.0+cu124", "12.4"))
    distribution(site, "deepspeed", "0.16.4")
    home = tmp_path / "cuda"
    (home / "bin").mkdir(parents=True)
    real = shutil.which("nvcc")
    if real and "release 13" in subprocess.run([real, "--version"], capture_output=True, text=True, check=False).stdout:
        (home / "bin" / "nvcc").symlink_to(real)
    else:
        nvcc = home / "bin" / "nvcc"
        nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
        nvcc.chmod(0o755)
    value = doctor("--python", str(python), env={"CUDA_HOME": str(home)})
    assert value["facts"]["components"]["toolkit"]["version"].startswith("13")
    assert any("toolkit" in f["components"] and f["severity"] in {"error", "warning"} for f in value["findings"])


def test_no_ninja(venv, tmp_path):
    python, site = venv
    distribution(site, "torch", "2.6.0+cu124", torch_files("2.6.0+cu124", "12.4"))
    distribution(site, "deepspeed", "0.16.4")
    value = doctor("--python", str(python), env={"PATH": str(tmp_path)})
    assert rules(value)["ninja-absent"] == "warning"


def test_variables_that_are_no_longer_read(venv):
    python, site = venv
    distribution(site, "torch", "2.9.0+cu128", torch_files("2.9.0+cu128", "12.8"))
    distribution(site, "nvidia_nccl_cu12", "2.27.5")
    value = doctor(
        "--python",
        str(python),
        env={"NCCL_IB_CUDA_SUPPORT": "1", "TORCH_NCCL_ABORT_IN_DESTROY_PG": "1", "NCCL_SOCKET_IFNAME": "nosuchnic0"},
    )
    found = [f["message"] for f in value["findings"] if f["rule"] == "variable-not-read"]
    assert len(found) == 2
    assert rules(value)["interface-absent"] == "error"


def test_a_library_that_another_package_removed(venv):
    python, site = venv
    distribution(site, "torch", "2.6.0+cu124", torch_files("2.6.0+cu124", "12.4"))
    (site / "torch/lib/libtorch.so").unlink()
    assert rules(doctor("--python", str(python)))["files-lost"] == "error"


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="mounting a small /dev/shm needs root and unshare"
)
def test_a_tiny_dev_shm():
    mount = 'mount -t tmpfs -o size=64m tmpfs /dev/shm 2>/dev/null || exit 77; exec "$@"'
    probe = subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh", "true"], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip("this sandbox does not let a mount namespace be made")
    value = doctor(before=["unshare", "-m", "sh", "-c", mount, "sh"])
    assert value["facts"]["limits"]["shm"] == 64 << 20
    assert rules(value)["shm-small"] == "warning"


def test_a_low_limit_of_open_files():
    value = doctor(before=["sh", "-c", 'ulimit -n 256; exec "$@"', "sh"])
    assert rules(value)["open-files-low"] == "warning"


def test_this_machine_is_looked_at_within_a_second_of_cpu(tmp_path):
    doctor()  # fills the caches
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    doctor()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 1.0
    assert time.monotonic() - started < 20


def test_a_hundred_megabytes_on_stdin_are_answered_in_bounded_time_and_memory(tmp_path):
    path = tmp_path / "noise.log"
    line = os.urandom(50).hex().encode() + b" step loss nccl\n"
    path.write_bytes(line * (100_000_000 // len(line)) + b"ModuleNotFoundError: No module named 'apex'\n")
    value = doctor("--from", str(path), before=["sh", "-c", 'ulimit -v 1500000; exec "$@"', "sh"])
    assert value["findings"][0]["rule"] == "apex-missing"


def test_two_nodes_are_compared(venv, tmp_path):
    python, site = venv
    distribution(site, "torch", "2.6.0+cu124", torch_files("2.6.0+cu124", "12.4"))
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    doctor("--python", str(python), "--save", str(a))
    distribution(site, "deepspeed", "0.16.4")
    doctor("--python", str(python), "--save", str(b), env={"NCCL_DEBUG": "INFO"})
    value = doctor("--compare", str(a), str(b))
    assert {"node-version-differs": "error", "node-variable-differs": "warning"}.items() <= rules(value).items()


@pytest.mark.torch
@pytest.mark.network
def test_deepspeed_0_14_0_on_torch_2_13_imported_for_real(tmp_path):
    """deepspeed 0.14.0 is installed over an environment that has torch, and its import fails as the rule says."""
    root = tmp_path / "env"
    subprocess.run([TORCH, "-m", "venv", "--without-pip", str(root)], check=True)
    site = next(root.glob("lib/python3*/site-packages"))
    theirs = subprocess.run(
        [TORCH, "-c", "import torch, os; print(os.path.dirname(os.path.dirname(torch.__file__)))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    (site / "torch.pth").write_text(theirs + "\n")
    python = root / "bin" / "python"
    install = [
        "uv",
        "pip",
        "install",
        "--python",
        str(python),
        "--no-deps",
        "--no-build-isolation",
        "deepspeed==0.14.0",
    ]
    done = subprocess.run([sys.executable, "-m", *install], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"deepspeed 0.14.0 cannot be installed here: {done.stderr[-200:]}")
    value = doctor("--python", str(python), "--deep")
    first = value["findings"][0]
    assert first["rule"] == "deepspeed-elastic-log"
    assert first["role"] == "root"
    assert "imports" in first["where"]


NVML = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "535.54.03", size); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *level) { *level = 12020; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { strncpy(text, device == (void *)1 ? "NVIDIA GeForce RTX 4090" : "NVIDIA GeForce RTX 4090", size); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 8; *minor = 9; return 0; }
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="the stand-in for NVML is compiled")
def test_driver_and_gpus_are_read_through_nvml(venv, tmp_path):
    """A library with NVML's functions answers as a machine with two RTX 4090 and driver 535 would."""
    (tmp_path / "nvml.c").write_text(NVML)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "libnvidia-ml.so.1"), str(tmp_path / "nvml.c")], check=True
    )
    python, site = venv
    distribution(site, "torch", "2.13.0+cu130", torch_files("2.13.0+cu130", "13.0"))
    value = doctor("--python", str(python), env={"LD_LIBRARY_PATH": str(tmp_path)})
    components = {n: s["version"] for n, s in value["facts"]["components"].items()}
    assert (components["driver"], components["gpu"], value["facts"]["gpu_count"]) == ("535.54.03", "sm_89", 2)
    assert value["facts"]["host"]["driver_cuda"] == "12.2"
    found = rules(value)
    assert found["cuda-driver-floor"] == "error"
    assert found["gpu-no-p2p"] == "warning"
