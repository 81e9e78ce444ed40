"""A channel of real, installable packages: locked over file:// and HTTP, read by conda-lock's own code, installed, run."""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import venv
from pathlib import Path
from types import ModuleType

import pytest

from envsmith.errors import ContentError, EnvsmithError, NetworkError, UsageError
from envsmith.lock.conda import compare, files, load_lock, lock_conda, realise, up_to_date, write
from envsmith.model.platform import Platform
from envsmith.sources.conda import read_conda_file

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(Platform.host() is not Platform.LINUX_64, reason="the records of the channel are linux-64's"),
]

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


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_cell_of_each_framework_is_locked_equal_installed_and_run(local, channel, wheels, framework, tmp_path):
    cell, pins = cell_of(local, framework), pins_of(local, wheels, framework)
    lock = lock_conda(cell, pins, channels=(channel.as_uri(),), cache_dir=tmp_path / "cache")
    assert compare(cell, pins, lock) == ()
    python = realise(lock, tmp_path / "env", cache_dir=tmp_path / "cache")
    told = run(
        tmp_path / "env",
        "python",
        "-c",
        f"import torch, {framework}, sys; print(torch.__version__, {framework}.__version__, sys.prefix)",
    )
    assert told == f"2.8.0 {FRAMEWORKS[framework]} {tmp_path / 'env'}"
    assert python == tmp_path / "env" / "bin" / "python"
    text = (tmp_path / "env/share/test/nccl.txt").read_text()
    assert str(tmp_path / "env") in text
    assert text.startswith("2.28.9.1 ")
    if framework == "deepspeed":
        assert run(tmp_path / "env", "hello-cell") == f"hello from {tmp_path / 'env'}"
        if shutil.which("gcc"):
            assert run(tmp_path / "env", "hello-c") == f"compiled for {tmp_path / 'env'}"


def test_lock_read_back_from_its_file_installs_over_http(local, channel, wheels, tmp_path):
    cell, pins = cell_of(local, "megatron_core"), pins_of(local, wheels, "megatron_core")
    with served(channel) as url:
        lock = lock_conda(cell, pins, channels=(url,), cache_dir=tmp_path / "cache")
        paths = {p.name: p for p in write(lock, tmp_path)}
        text = paths["conda-lock.yml"].read_text()
        assert up_to_date(text, cell, pins, channels=(url,))
        again = load_lock(text)
        assert compare(cell, pins, again) == ()
        realise(again, tmp_path / "env", cache_dir=tmp_path / "cache")
        assert run(tmp_path / "env", "python", "-c", "import megatron_core as m; print(m.__version__)") == "0.16.1"
        told: list[str] = []
        realise(
            again, tmp_path / "env", cache_dir=tmp_path / "cache", progress=lambda event: told.append(event.kind.value)
        )
        assert told == ["cached"]
        (tmp_path / "env/lib" / f"python{PYTHON}" / "site-packages/megatron_core-0.16.1.dist-info").rename(
            tmp_path / "gone"
        )
        realise(
            again, tmp_path / "env", cache_dir=tmp_path / "cache", progress=lambda event: told.append(event.kind.value)
        )
        assert len(told) > 1
    assert run(tmp_path / "env", "python", "-c", "import megatron_core as m; print(m.__version__)") == "0.16.1"
    for name in ("conda-lock.yml", "pixi.lock", "conda-linux-64.lock"):
        components = read_conda_file(paths[name].read_text()).components
        assert {k: components[k] for k in ("torch", "cuda", "nccl", "cudnn", "megatron-core")} == {
            "torch": "2.8.0",
            "cuda": "12.9",
            "nccl": "2.28.9",
            "cudnn": "9.10.2.21",
            "megatron-core": "0.16.1",
        }


@pytest.mark.parametrize("scheme", ["file", "http"])
def test_package_that_is_not_what_the_channel_said_is_refused_and_the_old_environment_stays(
    local, channel, wheels, tmp_path, scheme, request
):
    cell, pins = cell_of(local, "deepspeed"), pins_of(local, wheels, "deepspeed")
    lying = tmp_path / "lying"
    shutil.copytree(channel, lying)
    url = lying.as_uri()
    if scheme == "http":
        stack = contextlib.ExitStack()
        request.addfinalizer(stack.close)
        url = stack.enter_context(served(lying))
    lock = lock_conda(cell, pins, channels=(url,), cache_dir=tmp_path / "cache")
    realise(lock, tmp_path / "env", cache_dir=tmp_path / "cache")
    package = next((lying / "linux-64").glob("nccl-2.28.9.1-*.tar.bz2"))
    other = next((lying / "linux-64").glob("nccl-2.27.7.1-*.tar.bz2"))
    shutil.copyfile(other, package)
    (tmp_path / "env/conda-meta/envsmith").unlink()  # without its stamp the environment is made again
    with pytest.raises(ContentError) as caught:
        realise(lock, tmp_path / "env", cache_dir=tmp_path / "fresh")
    assert "nccl 2.28.9.1" in caught.value.message
    assert run(tmp_path / "env", "hello-cell") == f"hello from {tmp_path / 'env'}"
    with pytest.raises(ContentError):
        realise(lock, tmp_path / "new", cache_dir=tmp_path / "fresh")
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob(".*-old-*"))


def test_package_that_has_gone_and_a_wheel_that_changed_are_told_apart(local, channel, wheels, tmp_path):
    cell, pins = cell_of(local, "megatron_core"), pins_of(local, wheels, "megatron_core")
    stale = tmp_path / "stale"
    shutil.copytree(channel, stale)
    lock = lock_conda(cell, pins, channels=(stale.as_uri(),), cache_dir=tmp_path / "cache")
    gone = next((stale / "linux-64").glob("nccl-2.28.9.1-*.tar.bz2"))
    gone.rename(tmp_path / gone.name)
    with pytest.raises(NetworkError, match=r"nccl 2\.28\.9\.1"):
        realise(lock, tmp_path / "env", cache_dir=tmp_path / "fresh")
    (tmp_path / gone.name).rename(gone)
    wheel = wheels["megatron-core"]
    honest = wheel.read_bytes()
    try:
        local.make_wheel(wheel.parent, "megatron-core", "0.16.1", "EVIL = True\n")
        with pytest.raises(ContentError, match="the hash of"):
            realise(lock, tmp_path / "env", cache_dir=tmp_path / "fresh")
    finally:
        wheel.write_bytes(honest)
    assert not (tmp_path / "env").exists()


def test_folder_that_is_no_environment_is_not_touched(local, channel, wheels, tmp_path):
    cell, pins = cell_of(local, "deepspeed"), pins_of(local, wheels, "deepspeed")
    lock = lock_conda(cell, pins, channels=(channel.as_uri(),), cache_dir=tmp_path / "cache")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError):
        realise(lock, tmp_path / "home", cache_dir=tmp_path / "cache")
    assert (tmp_path / "home" / "thesis.tex").read_text() == "mine"
    with pytest.raises(UsageError, match="not for linux-aarch64"):
        realise(lock, tmp_path / "env", cache_dir=tmp_path / "cache", platform=Platform.LINUX_AARCH64)


@pytest.fixture(scope="session")
def conda_lock_python(tmp_path_factory) -> str:
    """An interpreter with conda-lock: ``ENVSMITH_TEST_CONDA_LOCK_PYTHON``, this one, or a new virtual environment."""
    named = os.environ.get("ENVSMITH_TEST_CONDA_LOCK_PYTHON")
    if named:
        return named
    if importlib.util.find_spec("conda_lock"):
        return sys.executable
    folder = tmp_path_factory.mktemp("conda-lock")
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        [str(folder / "bin/pip"), "install", "-q", "conda-lock>=4"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("conda-lock cannot be installed: " + done.stderr[-200:])
    return str(folder / "bin" / "python")


READ = """
import json, pathlib, sys
from conda_lock.lockfile import parse_conda_lock_file, write_conda_lock_file
from conda_lock.conda_lock import render_lockfile_for_platform
from conda_lock.src_parser import make_lock_spec
from conda_lock.content_hash import compute_content_hashes
from conda_lock.virtual_package import virtual_package_repo_from_specification
lock = parse_conda_lock_file(pathlib.Path("conda-lock.yml"))
spec = make_lock_spec(src_files=[pathlib.Path("environment.yml")], mapping_url=pathlib.Path("lookup.json").absolute().as_uri())
hashes = compute_content_hashes(spec, virtual_package_repo_from_specification(pathlib.Path("virtual-packages.yml")))
write_conda_lock_file(lock, pathlib.Path("rewritten.yml"), metadata_choices=None, include_help_text=False)
rendered = {p: render_lockfile_for_platform(lockfile=lock, extras=set(), kind="explicit", platform=p,
            include_dev_dependencies=False) for p in lock.metadata.platforms}
print(json.dumps({"hashes": hashes, "told": lock.metadata.content_hash,
                  "packages": sorted((d.manager, d.name, d.version, d.platform, d.url, d.hash.sha256) for d in lock.package),
                  "explicit": rendered}))
"""


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_conda_lock_itself_reads_the_file_and_agrees_on_its_hash(
    local, channel, wheels, conda_lock_python, framework, tmp_path
):
    cell, pins = cell_of(local, framework), pins_of(local, wheels, framework)
    lock = lock_conda(cell, pins, channels=(channel.as_uri(),), cache_dir=tmp_path / "cache")
    write(lock, tmp_path)
    (tmp_path / "lookup.json").write_text("{}")
    done = subprocess.run([conda_lock_python, "-c", READ], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["hashes"] == told["told"]
    part = lock.platforms[0]
    ours = [("conda", p.name, p.version, "linux-64", p.url, p.sha256) for p in part.packages]
    ours += [("pip", p.name, p.version, "linux-64", p.url, p.sha256) for p in part.pip]
    assert [tuple(p) for p in told["packages"]] == sorted(ours)
    theirs = [line for line in told["explicit"]["linux-64"] if line.startswith("file:")]
    mine = [line for line in files(lock)["conda-linux-64.lock"].splitlines() if line.startswith("file:")]
    assert sorted(line.strip() for line in theirs) == sorted(mine)
    assert (
        read_conda_file((tmp_path / "rewritten.yml").read_text()).components
        == read_conda_file(files(lock)["conda-lock.yml"]).components
    )


def test_conda_lock_check_input_hash_says_already_locked(local, channel, wheels, conda_lock_python, tmp_path):
    cell, pins = cell_of(local, "megatron_core"), pins_of(local, wheels, "megatron_core")
    write(lock_conda(cell, pins, channels=(channel.as_uri(),), cache_dir=tmp_path / "cache"), tmp_path)
    (tmp_path / "lookup.json").write_text("{}")
    command = [
        conda_lock_python,
        "-m",
        "conda_lock",
        "lock",
        "--check-input-hash",
        "-f",
        "environment.yml",
        "--lockfile",
        "conda-lock.yml",
    ]
    command += ["--pypi_to_conda_lookup_file", (tmp_path / "lookup.json").as_uri(), "--conda", "/bin/true"]
    before = (tmp_path / "conda-lock.yml").read_bytes()
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "already locked" in done.stderr, done.stderr[-2000:]
    assert (tmp_path / "conda-lock.yml").read_bytes() == before


def test_rattler_reads_pixi_lock_and_explicit_file(local, channel, wheels, tmp_path):
    from rattler import LockFile
    from rattler.explicit_environment import ExplicitEnvironmentSpec

    cell, pins = cell_of(local, "megatron_core"), pins_of(local, wheels, "megatron_core")
    lock = lock_conda(cell, pins, channels=(channel.as_uri(),), cache_dir=tmp_path / "cache")
    write(lock, tmp_path)
    environment = LockFile.from_path(tmp_path / "pixi.lock").default_environment()
    place = environment.platforms()[0]
    records = environment.conda_repodata_records_for_platform(place)
    part = lock.platforms[0]
    assert sorted((r.name.normalized, str(r.version), r.sha256.hex(), r.url) for r in records) == sorted(
        (p.name, p.version, p.sha256, p.url) for p in part.packages
    )
    assert {r.name.normalized: r.noarch.python for r in records} == {
        p.name: p.noarch == "python" for p in part.packages
    }
    wheels_read = environment.pypi_packages_for_platform(place)
    assert sorted((w.name, w.hashes.sha256.hex()) for w in wheels_read) == sorted((p.name, p.sha256) for p in part.pip)
    explicit = ExplicitEnvironmentSpec.from_path(tmp_path / "conda-linux-64.lock")
    assert len(explicit.packages) == len(part.packages)


def test_wrong_nccl_in_a_channel_of_packages_is_refused(local, channel, wheels, tmp_path):
    cell, pins = cell_of(local, "deepspeed"), pins_of(local, wheels, "deepspeed")
    poor = tmp_path / "poor"
    shutil.copytree(channel, poor)
    for package in (poor / "linux-64").glob("nccl-2.28.9*"):
        package.unlink()
    local.index_channel(poor)
    with pytest.raises(EnvsmithError) as caught:
        lock_conda(cell, pins, channels=(poor.as_uri(),), cache_dir=tmp_path / "cache")
    assert caught.value.details[0].startswith("nccl 2.28.9: the channel has nccl 2.28.7")


def test_two_platforms_with_different_requests_agree_with_conda_lock(local, conda_lock_python, tmp_path):
    both = [r for r in local.real_records() if r["subdir"] != "noarch"]
    arm = [{**r, "subdir": "linux-aarch64"} for r in both if r["name"] != "flash-attn"]
    noarch = [r for r in local.real_records() if r["subdir"] == "noarch"]
    root = local.write_index(tmp_path / "ch", [*both, *arm, *noarch], subdirs=("linux-64", "linux-aarch64", "noarch"))
    components = {
        "torch": "2.9.1+cu129",
        "cuda": "12.9",
        "python": "3.12",
        "nccl": "2.28.9",
        "cudnn": "9.13.1.26",
        "triton": "3.5.1",
        "flash_attn": "2.8.3",
    }
    pins = (local.pin("flash-attn", "2.8.3", "einops", "torch"), local.pin("einops", "0.8.1"))
    lock = lock_conda(
        local.cell(**components),
        pins,
        channels=((root / "conda-forge").as_uri(),),
        platforms=[Platform.LINUX_64, Platform.LINUX_AARCH64],
        cache_dir=tmp_path / "cache",
    )
    assert [[p.name for p in part.pip] for part in lock.platforms] == [[], ["flash-attn"]]
    write(lock, tmp_path)
    (tmp_path / "lookup.json").write_text("{}")
    done = subprocess.run([conda_lock_python, "-c", READ], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["hashes"] == told["told"]
    assert len(set(told["hashes"].values())) == 2
