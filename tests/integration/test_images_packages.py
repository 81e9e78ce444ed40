"""A cell's folder is built by docker alone, on a base from packages, and is the image that envsmith builds."""

from __future__ import annotations

import os
import subprocess

import pytest

from envsmith.builder.engines.bases import Bases, asked_image
from envsmith.builder.engines.buildkit import find_client
from envsmith.builder.engines.rebuild import difference
from envsmith.builder.image.context import HostSettings, read_host_settings, write_secrets
from envsmith.builder.image.dockerfile import image_files
from envsmith.knowledge.graph.fields import load_table
from envsmith.model.cell import Platform
from envsmith.model.lock import Artifact, Pin
from envsmith.net.oci.image import open_image

from .test_docker_engine import lock_of

pytestmark = [pytest.mark.integration, pytest.mark.engine]

IDNA = ("idna", "3.10", "946d195a0d259cbba61165e88e65941f16e9b36ea6ddb97f00452bae8b1287d3")
CERTIFI = ("certifi", "2025.1.31", "ca78db4565a652026a4db2bcdf68f2fb589ea80d0be70e03929ed730746b84fe")


@pytest.fixture(scope="module")
def engine(docker_only_ours):
    from envsmith.builder.engines.docker import DockerEngine

    return DockerEngine()


def pin(release, layer):
    name, version, sha256 = release
    file = Artifact(filename=f"{name}-{version}-py3-none-any.whl", sha256=sha256)
    return Pin(name=name, version=version, layer=layer, artifacts=(file,))


@pytest.fixture(scope="module")
def bases(load_file, tmp_path_factory):
    """What the mirror of this host has today: the list of the repository may have left it, and no archive may answer."""
    tool = load_file("tools/base_image.py")
    try:
        rows = tool.measure("bookworm", Platform.host())
    except (OSError, subprocess.CalledProcessError, StopIteration) as error:
        pytest.skip(f"this host's apt does not tell what a base is made of: {error}")
    folder = tmp_path_factory.mktemp("bases")
    text = "evidence:\n  apt-bookworm: {kind: measured, source: this test, date: 2026-11-21}\nimages: []\n"
    text += 'distributions:\n- {name: bookworm, python: "3.11", headers: [libpython3.11-dev], evidence: apt-bookworm}\n'
    (folder / "bases.yaml").write_text(f"{text}packages:\n{rows}")
    return load_table(Bases, "bases.yaml", folder)


def test_docker_alone_builds_the_image_that_envsmith_builds(engine, bases: Bases, docker_base, tmp_path, monkeypatch):
    if not docker_base.name.startswith("envsmith/base:bookworm"):
        pytest.skip(f"{docker_base.name} is not of Debian bookworm, and so unpacks no base of it")
    monkeypatch.setenv("ENVSMITH_TOOL", docker_base.name)
    lock = asked_image(lock_of(pin(IDNA, "torch"), pin(CERTIFI, "framework")), engine.shelf, "packages", bases=bases)
    folder, private = tmp_path / "folder", tmp_path / "private"
    private.mkdir(mode=0o700)
    for name, text in image_files(lock).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    secrets = write_secrets(HostSettings(ca=read_host_settings().ca), private)

    words = [word for name, path in secrets.items() for word in ("--secret", f"id={name},src={path}")]
    words += ["--build-arg", f"TOOL={docker_base.name}", "--network", engine.network or "default"]
    done = subprocess.run(
        [find_client(), "build", "--quiet", *words, str(folder)],
        env={**os.environ, "DOCKER_BUILDKIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    by_hand = engine._export(lock, done.stdout.strip(), tmp_path / "by-hand", lambda _event: None)
    again = engine.build_again(lock, tmp_path / "again")

    assert list(difference(by_hand, again)) == []
    assert again.manifest.config.digest == by_hand.manifest.config.digest
    assert open_image(tmp_path / "again").labels["io.envsmith.base"] == lock.base.digest
