from __future__ import annotations

import subprocess
import sys

from envsmith.engine.docker_target import DockerTarget, cdi_devices, gpu_arguments


def target(**more):
    return DockerTarget(image="sha256:" + "a" * 64, python="/opt/cell/bin/python", client="docker", **more)


def test_the_image_is_run_by_its_id_and_ends_with_the_interpreter_and_its_arguments():
    argv = target().argv(["-I", "-c", "x"])
    assert argv[-5:] == ["sha256:" + "a" * 64, "/opt/cell/bin/python", "-I", "-c", "x"]


def test_the_container_has_no_network_and_no_capabilities_and_is_removed():
    argv = target().argv([])
    assert {"--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--rm", "--interactive"} <= set(
        argv
    )


def test_gpus_are_passed_only_when_offered():
    assert "--gpus=all" not in target().argv([])
    assert "--gpus=all" in target(gpu_arguments=("--gpus=all",)).argv([])


def test_every_start_has_a_container_of_its_own():
    one = target()
    names = {next(a for a in one.argv([]) if a.startswith("--name=")) for _ in range(5)}
    assert len(names) == 5


def test_kill_removes_exactly_the_containers_that_were_started(tmp_path):
    client = tmp_path / "docker"
    client.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path / "log"}\n')
    client.chmod(0o755)
    one = DockerTarget(image="x", python="p", client=str(client))
    name = next(a for a in one.argv([]) if a.startswith("--name=")).removeprefix("--name=")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        one.kill(process)
        assert process.wait(10) != 0
    assert (tmp_path / "log").read_text().split() == ["rm", "--force", name]


class Client:
    def __init__(self, **info):
        self.told = info

    def info(self):
        return self.told


def test_gpus_are_handed_over_the_way_the_host_offers(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    specified, empty = tmp_path / "cdi", tmp_path / "none"
    specified.mkdir()
    (specified / "nvidia.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n")
    folders = [empty, specified]
    assert gpu_arguments(Client(Runtimes={"runc": {}, "nvidia": {}}), folders) == ("--gpus=all",)
    assert gpu_arguments(Client(Runtimes={"runc": {}}, CDISpecDirs=["/etc/cdi"]), folders) == (
        "--device=nvidia.com/gpu=all",
    )
    assert gpu_arguments(Client(Runtimes={"runc": {}}), folders) == ()
    assert gpu_arguments(Client(CDISpecDirs=["/etc/cdi"]), [empty]) == ()
    assert gpu_arguments(object(), folders) == ()
    (specified / "nvidia.yaml").write_text("kind: example.com/other\n")
    assert not cdi_devices(folders)
