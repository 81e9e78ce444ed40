"""``Dockerfile.conda`` built for real by BuildKit, its channel on loopback: what is in the image is what the lock says.

micromamba is a stand-in (see ``micromamba_stand_in.py``), pushed to a registry of the test's own and taken from it by digest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from envsmith.base.progress import silent
from envsmith.builder.engines import buildkit
from envsmith.builder.engines.conda_content import content_digest
from envsmith.builder.image.conda_dockerfile import render_conda
from envsmith.builder.image.context import HostSettings, read_host_settings, write_secrets
from envsmith.builder.image.dockerfile import ImageOptions, step_files
from envsmith.errors import BuildError, ContentError
from envsmith.lock.conda.install import realise
from envsmith.lock.conda.lock import lock_conda
from envsmith.lock.conda.lock_files import files
from envsmith.lock.conda.model import CondaRequest
from envsmith.model.lock import Lock, Tool

from . import micromamba_stand_in
from .conda_packages import cell_of, pins_of, served

pytestmark = [pytest.mark.integration, pytest.mark.engine]


@pytest.fixture(scope="module")
def engine(docker_only_ours):
    """A DockerEngine on a daemon that only the tests know."""
    from envsmith.builder.engines.docker import DockerEngine

    return DockerEngine()


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """A registry on loopback, ended by its own process id."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed (apt-get install docker-registry)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder / 'blobs'}}}}}\nhttp: {{addr: '{address}'}}\n"
    )
    with (
        (folder / "registry.log").open("wb") as log,
        subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log) as process,
    ):
        try:
            for _ in range(200):
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/v2/", timeout=2):
                    break
                time.sleep(0.1)
            yield address
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module")
def tool(engine, tmp_path_factory) -> Iterator[Tool]:
    """The stand-in as an image of a registry, by digest."""
    folder = tmp_path_factory.mktemp("tool")
    micromamba_stand_in.write(folder / "micromamba")
    archive = folder / "image.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(folder / "micromamba", "bin/micromamba")
    with registry(folder) as address:
        name = f"{address}/micromamba-stand-in"
        with archive.open("rb") as body:
            engine.client.api.import_image_from_data(body.read(), repository=name, tag="1")
        said = [
            json.loads(line)
            for line in engine.client.api.push(name, tag="1", stream=True)
            for line in line.splitlines()
        ]
        digest = next((line["aux"]["Digest"] for line in said if "aux" in line), "")
        if not digest:
            pytest.skip(f"the engine does not push to {address}: {said[-1]}")
        yield Tool(name="micromamba", image=f"{name}:1", digest=digest, evidence="test")
        engine.client.images.remove(f"{name}:1", force=True)
    archive.unlink()


@pytest.fixture(scope="module")
def base(engine, docker_base):
    return engine.shelf.base_for("3.11", docker_base.name, progress=silent)


def context_of(folder: Path, dockerfile: str, lock, conda) -> Path:
    """What stands in a cell's folder, as far as the Dockerfile names it."""
    folder.mkdir()
    (folder / "Dockerfile").write_text(dockerfile)
    for name, text in {**files(conda), **step_files(lock)}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def build(engine, context: Path) -> str:
    private, scratch = context.parent / "private", context.parent / f"{context.name}-answers"
    private.mkdir(mode=0o700, exist_ok=True)
    scratch.mkdir()
    # uv comes from the index; nothing else may: the cell's own files are on loopback.
    secrets = write_secrets(HostSettings(ca=read_host_settings().ca), private)
    return buildkit.build(
        buildkit.find_client(),
        context,
        buildkit.Lent(network="host", secrets=secrets),
        scratch=scratch,
        progress=silent,
        cache=False,
    )


@pytest.fixture
def locked(local, channel, wheels, base, tmp_path):
    """A cell of Megatron-core whose channel and wheels are both on loopback."""
    cell = cell_of(local, "megatron_core")
    folder = tmp_path / "served"
    folder.mkdir()
    shutil.copytree(channel, folder / "corp")
    with served(folder) as url:
        pins = []
        for pin in pins_of(local, wheels, "megatron_core"):
            artifact = pin.artifacts[0]
            if (artifact.url or "").startswith("file:"):
                shutil.copyfile(wheels[pin.name], folder / artifact.filename)
                artifact = dataclasses.replace(artifact, url=f"{url}/{artifact.filename}")
            pins.append(dataclasses.replace(pin, artifacts=(artifact,)))
        conda = lock_conda(cell, pins, CondaRequest(channels=(f"{url}/corp",), cache_dir=tmp_path / "cache"))
        lock = Lock(
            cell=cell,
            request="--framework megatron-core",
            exclude_newer="2026-11-21",
            python_version=cell.components["python"],
            pins=tuple(pins),
            base=base,
        )
        yield SimpleNamespace(lock=lock, conda=conda, folder=folder)


def taken_out(engine, image: str, prefix: str, target: Path) -> Path:
    """A folder of the image's file system, here."""
    container = engine.client.containers.create(image, command=["true"])
    try:
        stream, _ = container.get_archive(prefix)
        with (target.with_suffix(".tar")).open("wb") as out:
            for chunk in stream:
                out.write(chunk)
    finally:
        container.remove(force=True)
    with tarfile.open(target.with_suffix(".tar")) as tar:
        tar.extractall(target, **({"filter": "tar"} if sys.version_info >= (3, 12) else {}))
    return target / Path(prefix).name


def test_image_of_the_conda_lock_holds_what_the_lock_says(engine, tool, locked, tmp_path):
    prefix = ImageOptions().prefix
    text = render_conda(locked.lock, locked.conda, tool)
    image = build(engine, context_of(tmp_path / "context", text, locked.lock, locked.conda))
    try:
        out = taken_out(engine, image, prefix, tmp_path / "out")
        part = locked.conda.platforms[0]
        here = tmp_path / "here"
        realise(locked.conda, here, cache_dir=tmp_path / "cache")
        assert content_digest(part, out) == content_digest(part, here)
        meta = {p["name"]: p for p in (json.loads(f.read_text()) for f in (out / "conda-meta").glob("*.json"))}
        assert {(n, p["version"], p["build"], p["sha256"]) for n, p in meta.items()} == {
            (p.name, p.version, p.build, p.sha256) for p in part.packages
        }
        looked = 0
        for record in meta.values():
            for entry in record["paths_data"]["paths"]:
                file = out / entry["_path"]
                plain = entry["path_type"] == "hardlink" and "prefix_placeholder" not in entry
                if plain and entry.get("sha256"):
                    assert hashlib.sha256(file.read_bytes()).hexdigest() == entry["sha256"], file
                    looked += 1
        assert looked > 500  # a whole interpreter is among them
        code = (
            "import sys, torch, megatron_core, hjson; print(sys.prefix, torch.__version__, megatron_core.__version__)"
        )
        said = engine.client.containers.run(image, ["python", "-I", "-c", code], remove=True, network_mode="none")
        assert said.decode().split() == [prefix, "2.8.0", "0.16.1"]
        inspected = engine.client.api.inspect_image(image)
        assert inspected["Config"]["User"] not in {"", "root", "0"}
        assert inspected["Config"]["Labels"]["io.envsmith.conda"].startswith("sha256:")
        every = engine.client.containers.run(
            image,
            [
                "python",
                "-c",
                "import os; print([d for d in ('/bin/micromamba', '/dev/cell/conda') if os.path.exists(d)], os.listdir('/tmp'))",
            ],
            remove=True,
        )
        assert every.decode().strip() == "[] []"
    finally:
        engine.client.images.remove(image, force=True)


def test_package_whose_sha256_is_not_that_of_the_lock_ends_the_build(engine, tool, locked, tmp_path):
    """MD5 can be made to agree; the sha256 of the lock is looked at in the same step, before there is a layer."""
    text = render_conda(locked.lock, locked.conda, tool)
    context = context_of(tmp_path / "context", text, locked.lock, locked.conda)
    sums = context / "conda-linux-64.sha256"
    first, *rest = sums.read_text().splitlines()
    sums.write_text("\n".join(["0" * 64 + first[64:], *rest]) + "\n")
    with pytest.raises(BuildError) as caught:
        build(engine, context)
    assert "FAILED" in str(caught.value) or "did NOT match" in str(caught.value)


def test_wheel_that_is_not_the_one_of_the_lock_ends_the_build(engine, tool, locked, local, tmp_path):
    text = render_conda(locked.lock, locked.conda, tool)
    context = context_of(tmp_path / "context", text, locked.lock, locked.conda)
    local.make_wheel(locked.folder, "megatron-core", "0.16.1", "EVIL = True\n")
    with pytest.raises(ContentError) as caught:
        build(engine, context)
    assert "megatron" in str(caught.value)
