"""How the smoke test is started in a container: no network, no capabilities, GPUs as the host offers them, nothing left behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from envsmith.builder.engines import buildkit, docker_target
from envsmith.builder.engines.base import Built
from envsmith.builder.engines.docker import DockerEngine
from envsmith.builder.engines.docker_target import DockerTarget, cdi_devices, gpu_arguments
from envsmith.builder.engines.podman import PodmanEngine, has_init
from envsmith.errors import EngineError
from envsmith.smoke import run
from envsmith.smoke.plan import Plan


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


# What engines really said on hosts without a GPU (docker 20.10 with its own client and with that of 28.2, podman 4.3), and as documented
# for a host whose driver is not loaded (the last).
@pytest.mark.parametrize(
    ("status", "words", "why", "hint"),
    [
        (
            125,
            "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]]\n\nRun 'docker run --help' for more information\n",
            "no NVIDIA runtime",
            "nvidia-ctk runtime configure",
        ),
        (
            125,
            'docker: Error response from daemon: could not select device driver "cdi" with capabilities: []\n',
            "reads no specification of devices",
            "Update Docker to 25",
        ),
        (
            125,
            "docker: nvidia.com/gpu=all is not an absolute path.\nSee 'docker run --help'.\n",
            "reads no specification of devices",
            "Update Docker to 25",
        ),
        (
            126,
            "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all\n",
            "does not say what nvidia.com/gpu=all is",
            "nvidia-ctk cdi generate",
        ),
        (
            125,
            (
                "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: error running hook #0: "
                "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file\n"
            ),
            "NVIDIA's runtime fails",
            "until nvidia-smi works",
        ),
    ],
)
def test_an_engine_that_cannot_hand_over_the_gpus_is_told_as_that(status, words, why, hint):
    error = target(gpu_arguments=("--gpus=all",)).refusal(status, words)
    assert isinstance(error, EngineError)
    assert error.exit_code == 6
    assert why in error.message
    assert hint in error.hint
    assert "--no-smoke" in error.hint
    assert error.details
    assert not [line for line in error.details if "--help" in line]


def test_another_failure_of_the_engine_is_its_own_words():
    error = target().refusal(125, "docker: Error response from daemon: no such image\n")
    assert error.details == ("docker: Error response from daemon: no such image",)
    assert "GPU" not in error.message


def test_a_program_that_failed_inside_is_no_failure_of_the_engine():
    assert target(gpu_arguments=("--gpus=all",)).refusal(1, "Traceback: libcuda.so.1 is missing\n") is None
    assert target().refusal(None, "") is None


def test_the_smoke_test_tells_the_engine_s_refusal_and_not_that_of_a_python(tmp_path):
    client = tmp_path / "docker"
    client.write_text(
        "#!/bin/sh\necho 'docker: could not select device driver \"\" with capabilities: [[gpu]].' >&2\nexit 125\n"
    )
    client.chmod(0o755)
    one = DockerTarget(image="x", python="p", client=str(client), gpu_arguments=("--gpus=all",))
    plan = Plan.build({"torch": "2.9.1"}, ranks=2)
    with pytest.raises(EngineError, match="no NVIDIA runtime"):
        run.run(plan, one)


def test_podman_without_its_init_program_does_without(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert not has_init([str(tmp_path)])
    (tmp_path / "catatonit").write_text("#!/bin/sh\n")
    (tmp_path / "catatonit").chmod(0o755)
    assert has_init([str(tmp_path)])
    assert "--init" in target().argv([])
    assert "--init" not in target(init=False).argv([])


IMAGE = "sha256:" + "b" * 64


def built(cuda):
    return Built(
        digest=IMAGE, kind="image", reference="x", python="/opt/cell/bin/python", image=IMAGE, facts={"cuda": cuda}
    )


@pytest.mark.parametrize(
    ("info", "flag"),
    [
        ({"Runtimes": {"nvidia": {}}}, "--gpus=all"),
        ({"CDISpecDirs": ["/etc/cdi"]}, "--device=nvidia.com/gpu=all"),
        ({}, None),
    ],
)
def test_docker_s_command_has_the_flag_before_the_image_for_a_cell_with_cuda_only(info, flag, monkeypatch):
    monkeypatch.setattr(docker_target, "cdi_devices", lambda _folders: True)
    monkeypatch.setattr(docker_target.shutil, "which", lambda _name: None)
    monkeypatch.setattr(buildkit, "find_client", lambda: "docker")
    engine = DockerEngine()
    engine.__dict__["client"] = Client(**info)
    argv = engine.target(built("13.0")).argv(["-I"])
    assert [a for a in argv if "gpu" in a] == ([flag] if flag else [])
    assert flag is None or argv.index(flag) < argv.index(IMAGE)
    assert not [a for a in engine.target(built("cpu")).argv(["-I"]) if "gpu" in a]


@pytest.mark.parametrize("specified", [True, False])
def test_podman_s_command_names_the_devices_of_the_specification(specified, monkeypatch):
    monkeypatch.setattr("envsmith.builder.engines.podman.cdi_devices", lambda: specified)
    engine = PodmanEngine()
    argv = engine.target(built("13.0")).argv(["-I"])
    assert argv[:2] == ["podman", "run"]
    assert [a for a in argv if "gpu" in a] == (["--device=nvidia.com/gpu=all"] if specified else [])
    assert not [a for a in engine.target(built("cpu")).argv(["-I"]) if "gpu" in a]
