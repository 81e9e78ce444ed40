"""A channel of real, installable packages: locked over file:// and HTTP, installed, run."""

from __future__ import annotations

import contextlib
import shutil

import pytest

from envsmith.errors import ContentError, EnvsmithError, NetworkError, UsageError
from envsmith.lock import store
from envsmith.lock.conda.foreign import read_conda_file
from envsmith.lock.conda.install import realise
from envsmith.lock.conda.lock import lock_conda, up_to_date
from envsmith.lock.conda.lock_files import files, load_lock
from envsmith.lock.conda.model import CondaRequest
from envsmith.lock.conda.solve import compare
from envsmith.model.cell import Platform

from .conda_packages import FRAMEWORKS, PYTHON, cell_of, pins_of, run, served

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(Platform.host() is not Platform.LINUX_64, reason="the records of the channel are linux-64's"),
]


@pytest.mark.parametrize("framework", sorted(FRAMEWORKS))
def test_cell_of_each_framework_is_locked_equal_installed_and_run(local, channel, wheels, framework, tmp_path):
    cell, pins = cell_of(local, framework), pins_of(local, wheels, framework)
    lock = lock_conda(cell, pins, CondaRequest(channels=(channel.as_uri(),), cache_dir=tmp_path / "cache"))
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
        lock = lock_conda(cell, pins, CondaRequest(channels=(url,), cache_dir=tmp_path / "cache"))
        store.write(tmp_path, files(lock))
        paths = {name: tmp_path / name for name in files(lock)}
        text = paths["conda-lock.yml"].read_text()
        assert up_to_date(text, cell, pins, CondaRequest(channels=(url,)))
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
    lock = lock_conda(cell, pins, CondaRequest(channels=(url,), cache_dir=tmp_path / "cache"))
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
    lock = lock_conda(cell, pins, CondaRequest(channels=(stale.as_uri(),), cache_dir=tmp_path / "cache"))
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
    lock = lock_conda(cell, pins, CondaRequest(channels=(channel.as_uri(),), cache_dir=tmp_path / "cache"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError):
        realise(lock, tmp_path / "home", cache_dir=tmp_path / "cache")
    assert (tmp_path / "home" / "thesis.tex").read_text() == "mine"
    with pytest.raises(UsageError, match="not for linux-aarch64"):
        realise(lock, tmp_path / "env", cache_dir=tmp_path / "cache", platform=Platform.LINUX_AARCH64)


def test_wrong_nccl_in_a_channel_of_packages_is_refused(local, channel, wheels, tmp_path):
    cell, pins = cell_of(local, "deepspeed"), pins_of(local, wheels, "deepspeed")
    poor = tmp_path / "poor"
    shutil.copytree(channel, poor)
    for package in (poor / "linux-64").glob("nccl-2.28.9*"):
        package.unlink()
    local.index_channel(poor)
    with pytest.raises(EnvsmithError) as caught:
        lock_conda(cell, pins, CondaRequest(channels=(poor.as_uri(),), cache_dir=tmp_path / "cache"))
    assert caught.value.details[0].startswith("nccl 2.28.9: the channel has nccl 2.28.7")
