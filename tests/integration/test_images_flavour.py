"""An image of the flavour train: what launches on several nodes, byte-code, and a HOME for whoever runs it."""

from __future__ import annotations

import dataclasses

import pytest

from envsmith.builder.engines.base import verify_content

from . import test_docker_engine as tools

pytestmark = [pytest.mark.integration, pytest.mark.engine]


@pytest.fixture(scope="module")
def engine(docker_only_ours):
    from envsmith.builder.engines.docker import DockerEngine

    return DockerEngine()


@pytest.fixture(scope="module")
def train(engine, docker_base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    heavy = tools.local_pin(tools.wheel(folder, "torch", "2.13.0"), "torch")
    light = tools.local_pin(tools.wheel(folder, "light", "2.0"), "framework")
    lock = tools.lock_of(heavy, light, python=docker_base.python, torch="2.13.0")
    lock = engine.pin_image(dataclasses.replace(lock, flavour="train"), docker_base.name)
    return lock, engine.build(lock, folder, layout=folder / "oci"), folder


def test_its_packages_are_pinned_and_two_builds_are_the_same(engine, train):
    lock, built, folder = train
    names = {package.name for package in lock.os_packages}
    assert {"openssh-client", "openssh-server", "pdsh", "git", "numactl", "rdma-core", "ibverbs-providers"} <= names
    verify_content(lock, engine.inspect(built))
    assert engine.build_again(lock, folder / "again" / "oci").identity == built.digest


def test_what_is_installed_is_compiled_and_no_key_of_a_server_is_in_the_image(engine, train):
    _, built, _ = train
    script = """
import glob, importlib.util, light, os, sys
code = importlib.util.cache_from_source(light.__file__)
print(open(code, "rb").read(16)[4:8] == b"\\1\\0\\0\\0", light.__cached__ == code, glob.glob("/etc/ssh/ssh_host_*"))
"""
    code, output = tools.inside(engine, built, "/opt/cell/bin/python", "-c", script)
    assert (code, output.split()) == (0, ["True", "True", "[]"])


@pytest.mark.parametrize("user", ["10001", "4711", "4711:4711"])
def test_any_user_has_a_home_and_a_name_that_programs_ask_for(engine, train, user):
    _, built, _ = train
    script = """
import getpass, os, pathlib, tempfile
home = pathlib.Path.home()
(home / ".cache" / "torch_extensions" / "op").mkdir(parents=True)
(home / ".triton").mkdir()
print(home, getpass.getuser(), os.getuid())
"""
    code, output = tools.inside(engine, built, "/opt/cell/bin/python", "-c", script, user=user)
    assert (code, output.split()) == (0, ["/home/cell", "cell", user.partition(":")[0]])


def test_pdsh_reaches_a_server_that_the_user_of_the_image_has_started(engine, train):
    _, built, _ = train
    script = """
set -e; cd; mkdir -m 700 .ssh; ssh-keygen -q -t ed25519 -N '' -f key; ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519
cp .ssh/id_ed25519.pub .ssh/authorized_keys
/usr/sbin/sshd -o UsePAM=no -o StrictModes=no -o PidFile=none -h ~/key -p 2222 -o ListenAddress=127.0.0.1
export PDSH_SSH_ARGS_APPEND='-p 2222 -o StrictHostKeyChecking=no -o LogLevel=ERROR'
pdsh -S -w localhost 'id -u; /opt/cell/bin/python -c "import light; print(light.x)"'
"""
    code, output = tools.inside(engine, built, "sh", "-c", script)
    assert (code, output.splitlines()[-2:]) == (0, ["localhost: 10001", "localhost: 1"]), output
