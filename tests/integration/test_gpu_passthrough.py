"""How a smoke test's container gets the host's GPUs, as far as a host without one lets it be tried.

A specification (CDI) of our own stands in for the one that NVIDIA's toolkit writes: its device is the null device under another name.
podman hands it over for real; Docker before 25 knows no CDI, so there it is the refusal that is tried.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from pathlib import Path

import pytest

from envsmith.builder.engines.base import Built
from envsmith.builder.engines.docker import DockerEngine
from envsmith.builder.engines.docker_target import DockerTarget, cdi_devices, gpu_arguments
from envsmith.builder.engines.podman import PodmanEngine
from envsmith.errors import EngineError
from envsmith.smoke import run
from envsmith.smoke.plan import Plan

from .podman_storage import podman_with

pytestmark = [pytest.mark.integration, pytest.mark.engine]

# What the interpreter inside says of what it was handed.
LOOK = (
    "import json, os; d = '/dev/nvidia-envsmith'; n = os.stat(d).st_rdev if os.path.exists(d) else 0; f = '/usr/lib/envsmith-cdi';"
    "print(json.dumps([os.major(n), os.minor(n), os.environ.get('ENVSMITH_CDI'), open(f).read() if os.path.exists(f) else None]))"
)


@pytest.fixture(scope="module")
def engine(docker_only_ours):
    return DockerEngine()


@pytest.fixture(scope="module")
def base(docker_base):
    return docker_base.name


@pytest.fixture
def specification(tmp_path):
    """A specification of one harmless device in the folder that engines read; removed whatever happens."""
    if os.geteuid() != 0:
        pytest.skip("only root can write a specification where engines look for one")
    if cdi_devices():
        pytest.skip("this host has a specification of NVIDIA's devices already")
    (tmp_path / "marker").write_text("from the host")
    edits = {
        "env": ["ENVSMITH_CDI=handed over"],
        "mounts": [
            {"hostPath": str(tmp_path / "marker"), "containerPath": "/usr/lib/envsmith-cdi", "options": ["ro", "bind"]}
        ],
    }
    device = {"deviceNodes": [{"path": "/dev/nvidia-envsmith", "type": "c", "major": 1, "minor": 3}]}
    text = {
        "cdiVersion": "0.3.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "all", "containerEdits": device}],
        "containerEdits": edits,
    }
    path = Path("/var/run/cdi") / f"envsmith-test-{uuid.uuid4().hex[:8]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(text))
    try:
        yield path
    finally:
        path.unlink()


def podman_target(cuda):
    names = subprocess.run(
        ["podman", "images", "--quiet", "--no-trunc"], capture_output=True, text=True, check=True
    ).stdout.split()
    built = Built(digest=names[0], kind="image", reference="x", python="/usr/bin/python3", facts={"cuda": cuda})
    return PodmanEngine().target(built)


def looked(target):
    done = subprocess.run(target.argv(["-I", "-c", LOOK]), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_podman_hands_over_what_the_specification_says(engine, base, specification):
    with podman_with(base, engine.client):
        assert looked(podman_target("13.0")) == [1, 3, "handed over", "from the host"]
        assert looked(podman_target("cpu")) == [0, 0, None, None]


def test_podman_s_refusal_of_a_device_that_is_not_specified_is_ours(engine, base, specification):
    with podman_with(base, engine.client):
        target = podman_target("13.0")
        specification.write_text(specification.read_text().replace('"name": "all"', '"name": "0"'))
        with pytest.raises(EngineError, match=r"does not say what nvidia\.com/gpu=all is") as caught:
            run.run(Plan.build({"torch": "2.9.1"}, ranks=2), target)
    assert "nvidia-ctk cdi generate" in caught.value.hint


@pytest.mark.parametrize(
    ("flag", "why"), [("--gpus=all", "has no NVIDIA runtime"), ("--device=nvidia.com/gpu=all", "")]
)
def test_docker_without_nvidia_s_runtime_is_told_as_that(flag, why, engine, base):
    if gpu_arguments(engine.client):
        pytest.skip("this engine can hand over GPUs")
    target = DockerTarget(image=base, python="/usr/bin/python3", gpu_arguments=(flag,))
    with pytest.raises(
        EngineError, match=f"Cannot give the host's GPUs to the container of the smoke test: .*{why}"
    ) as caught:
        run.run(Plan.build({"torch": "2.9.1"}, ranks=2), target)
    assert caught.value.details
    assert "--no-smoke" in caught.value.hint
    assert not engine.client.containers.list(all=True)
