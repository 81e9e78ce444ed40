"""A Conda channel of real, installable packages and wheels beside it, for the tests that lock, install and serve it."""

from __future__ import annotations

import contextlib
import functools
import http.server
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
COMPONENTS = {
    "torch": "2.8.0+cu129",
    "cuda": "12.9",
    "python": PYTHON,
    "nccl": "2.28.9",
    "cudnn": "9.10.2.21",
    "triton": "3.4.0",
}
FRAMEWORKS = {"deepspeed": "0.18.2", "megatron_core": "0.16.1", "colossalai": "0.5.0"}


@pytest.fixture(scope="module")
def local(load_file) -> ModuleType:
    return load_file("tests/unit/lock/conda/localchannel.py")


def hello(local):
    """A compiled program when there is a compiler, a script else: both carry the prefix inside."""

    def fill(work: Path) -> None:
        (work / "bin").mkdir()
        script = work / "bin" / "hello-cell"
        script.write_text(f"#!{local.PLACEHOLDER}/bin/python\nimport sys\nprint('hello from', sys.prefix)\n")
        script.chmod(0o755)
        if shutil.which("gcc"):
            source = work / "hello.c"
            source.write_text(
                f'#include <stdio.h>\nstatic const char prefix[] = "{local.PLACEHOLDER}";\n'
                'int main(void) { printf("compiled for %s\\n", prefix); return 0; }\n'
            )
            subprocess.run(["gcc", "-O0", str(source), "-o", str(work / "bin" / "hello-c")], check=True)
            source.unlink()

    return fill


@pytest.fixture(scope="module")
def channel(local, tmp_path_factory) -> Path:
    """Records of the real PyTorch 2.8.0 stack, fitted to this interpreter, as packages that install; indexed by rattler."""
    folder = tmp_path_factory.mktemp("channel")
    scratch = tmp_path_factory.mktemp("scratch")
    tag = PYTHON.replace(".", "")
    wanted = {"cuda-version", "nccl", "cudnn", "libcudnn-dev", "libcudnn", "libcudnn-jit"}
    real = [r for r in local.real_records() if r["name"] in wanted and r["channel"] == "conda-forge"]
    keep = {"__glibc", "cuda-version"}
    for record in real:
        record["depends"] = [d for d in record.get("depends", ()) if d.split(" ")[0] in keep]
        local.make_package(folder, record, scratch=scratch)
    torch = next(
        r
        for r in local.real_records()
        if r["name"] == "pytorch" and r["version"] == "2.8.0" and "cuda129" in r["build"]
    )
    kept = {"__cuda", "__glibc", "cuda-version", "cudnn", "nccl", "triton"}
    depends = [d for d in torch["depends"] if d.split(" ")[0] in kept]
    torch |= {
        "depends": [*depends, f"python {PYTHON}.*", f"numpy * *py{tag}*"],
        "build": torch["build"].replace("py310", f"py{tag}"),
    }
    local.make_package(
        folder, {**torch, "noarch": None} | {"subdir": "linux-64"}, module_of(local, torch), scratch=scratch
    )
    plain = {"build_number": 0, "subdir": "linux-64", "timestamp": 1700000000000}
    python_only = {**plain, "depends": [f"python {PYTHON}.*"]}
    local.make_package(folder, local.python_record(), local.python_fill, scratch=scratch)
    numpy = {**python_only, "name": "numpy", "version": "2.2.6", "build": f"py{tag}h0_0"}
    local.make_package(folder, numpy, module_of(local, numpy), scratch=scratch)
    triton = {**python_only, "name": "triton", "version": "3.4.0", "build": f"cuda129py{tag}h0_1"}
    local.make_package(folder, triton, module_of(local, triton), scratch=scratch)
    noarch = {"build_number": 0, "subdir": "noarch", "noarch": "python", "build": "pyh0_0", "timestamp": 1700000000000}
    for name, version, depends in (
        ("deepspeed", "0.18.2", ["python >=3.9", "pytorch", "numpy", "packaging", "hello-cell"]),
        ("packaging", "25.0", ["python >=3.8"]),
        ("pip", "25.3", ["python >=3.10"]),
    ):
        local.make_package(folder, {**noarch, "name": name, "version": version, "depends": depends}, scratch=scratch)
    for name in ("c-compiler", "cxx-compiler"):
        local.make_package(
            folder, {**plain, "name": name, "version": "1.0.0", "build": "h0_0", "depends": []}, scratch=scratch
        )
    nvcc = {
        **plain,
        "name": "cuda-nvcc",
        "version": "12.9.86",
        "build": "h0_0",
        "depends": ["cuda-version >=12.9,<12.10.0a0"],
    }
    local.make_package(folder, nvcc, scratch=scratch)
    local.make_package(
        folder,
        {**plain, "name": "hello-cell", "version": "1.0", "build": "h0_0", "depends": ["python"]},
        hello(local),
        scratch=scratch,
    )
    local.index_channel(folder)
    return folder


def module_of(local, record):
    """Site-packages of this interpreter with one module, as an architecture-bound Python package has it."""

    def fill(work: Path) -> None:
        name = {"pytorch": "torch"}.get(record["name"], record["name"])
        site = work / "lib" / f"python{PYTHON}" / "site-packages"
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text(f"__version__ = {record['version']!r}\n")
        if name == "torch":
            (site / name / "version.py").write_text(f"__version__ = {record['version']!r}\ncuda = '12.9'\n")
        info = site / f"{name}-{record['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {record['version']}\n")

    return fill


@pytest.fixture(scope="module")
def wheels(local, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    made = {"megatron-core": "0.16.1", "colossalai": "0.5.0", "hjson": "3.1.0"}
    return {name: local.make_wheel(folder, name, version) for name, version in made.items()}


def cell_of(local, framework: str):
    return local.cell(**{framework: FRAMEWORKS[framework], **COMPONENTS})


def pins_of(local, wheels, framework: str, components: dict[str, str] | None = None):
    made = local.pins_for(components or {framework: FRAMEWORKS[framework], **COMPONENTS})
    real = {"megatron-core", "colossalai", "hjson"}
    fixed = []
    for pin in made:
        if pin.name in real:
            fixed.append(local.wheel_pin(wheels[pin.name], pin.name, pin.version, *pin.requires))
        else:
            fixed.append(local.pin("numpy", "2.2.6") if pin.name == "numpy" else pin)
    return tuple(fixed)


@contextlib.contextmanager
def served(folder: Path):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(prefix: Path, *command: str) -> str:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(prefix)}
    done = subprocess.run(
        [str(prefix / "bin" / command[0]), *command[1:]], capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout.strip()
