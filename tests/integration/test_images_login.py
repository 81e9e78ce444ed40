"""An image from an index that wants a login: the build has it, and neither the image nor the code of a package does."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import tarfile

import pytest

from envsmith.base.progress import ProgressEvent
from envsmith.builder.engines.base import verify_content
from envsmith.builder.image.dockerfile import UV_FILE, render
from envsmith.knowledge.graph.location import find_matrix
from envsmith.lock.index.uv import Uv
from envsmith.lock.resolve import Resolver, lock_pip
from envsmith.model.cell import Cell
from envsmith.model.component import Component, ComponentTable, Role
from envsmith.model.finding import Judgement
from envsmith.net.http import HttpClient

pytestmark = [pytest.mark.integration, pytest.mark.engine]


@pytest.fixture(scope="module")
def private(load_file):
    return load_file("tests/unit/private_index.py")


@pytest.fixture(scope="module")
def engine(docker_only_ours):
    from envsmith.builder.engines.docker import DockerEngine

    return DockerEngine()


@pytest.fixture(scope="module")
def uv_wheel(tmp_path_factory):
    """The uv that a build installs, which a mirror has to offer too."""
    folder = tmp_path_factory.mktemp("uv")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--require-hashes", "--requirement", str(find_matrix() / UV_FILE), "--dest", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"no uv can be had here: {ran.stderr[-300:]}")
    (wheel,) = folder.iterdir()
    return wheel.name, wheel.read_bytes()


@pytest.fixture
def server(private, load_file, tmp_path, uv_wheel):
    tiny = load_file("tests/unit/tiny_index.py")
    index = tiny.framework_index(tmp_path / "index")
    index.files.pop("deepspeed")
    index.add("uv", uv_wheel)
    index.add("deepspeed", private.hunting_sdist())
    with private.Guarded(tmp_path / "index", header=private.BASIC).up() as running:
        yield running


@pytest.fixture
def settings(private, server, tmp_path, monkeypatch):
    """Set what the user of ``name`` has set."""
    for variable in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
        monkeypatch.delenv(variable)

    def use(name: str) -> None:
        netrc = tmp_path / "netrc"
        netrc.write_text(f"machine 127.0.0.1 login {private.USER} password {private.SECRET}\n")
        netrc.chmod(0o600)
        ways = {
            "variable": {"PIP_INDEX_URL": server.url_with_login},
            "named": {
                "UV_DEFAULT_INDEX": f"corp={server.url}",
                "UV_INDEX_CORP_USERNAME": private.USER,
                "UV_INDEX_CORP_PASSWORD": private.SECRET,
            },
            "netrc": {"UV_DEFAULT_INDEX": server.url, "NETRC": str(netrc)},
        }
        for key, value in {"PIP_CONFIG_FILE": os.devnull, **ways[name]}.items():
            monkeypatch.setenv(key, value)

    return use


def locked(python, tmp_path):
    names = {"deepspeed": Role.FRAMEWORK, "python": Role.CORE, "cuda": Role.CORE, "torch": Role.CORE}
    table = ComponentTable.of(
        [
            Component(name=n, role=r, short=n, title=n, distributions=() if n in {"python", "cuda"} else (n,))
            for n, r in names.items()
        ]
    )
    cell = Cell(
        components={"deepspeed": "0.18.5", "torch": "2.9.1+cu128", "cuda": "12.8", "python": python},
        chosen=("deepspeed", "python"),
    )
    resolver = Resolver(
        table=table,
        uv=Uv(cache=tmp_path / "uv"),
        judge=lambda _cell, _components: Judgement(status="ok"),
        fetcher=HttpClient(cache=tmp_path / "http"),
    )
    return lock_pip(cell, exclude_newer="2026-11-20", resolver=resolver)


@pytest.mark.parametrize("name", ["named", "netrc"])
def test_an_image_is_built_with_the_login_and_does_not_have_it(
    engine, docker_base, private, settings, tmp_path, name, monkeypatch
):
    # What is locked here is locked by a user who has the login in variables: a file of theirs is theirs to read.
    settings("variable")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lock = engine.pin_image(locked(docker_base.python, tmp_path), docker_base.name)
    settings(name)
    lines: list[ProgressEvent] = []

    lock = engine.pin_wheels(lock, progress=lines.append)
    built = engine.build(lock, tmp_path, progress=lines.append)

    verify_content(lock, engine.inspect(built))
    code, output = engine.shelf.run(
        built.image,
        ["/opt/cell/bin/python", "-c", "import deepspeed; print(deepspeed.BUILT_AS)"],
        network="none",
        timeout=60,
    )
    assert (code, output.strip()) == (0, "10001")
    secret = private.SECRET.encode()
    image = engine.client.images.get(built.image)
    assert secret not in json.dumps([image.attrs, image.history()]).encode()
    with tarfile.open(fileobj=io.BytesIO(b"".join(image.save()))) as archive:
        for layer in (n for n in archive.getnames() if n.endswith("layer.tar")):
            assert secret not in archive.extractfile(layer).read()
    assert private.SECRET not in "".join(
        [lock.text(), render(lock), *map(str, map(dataclasses.asdict, lines)), repr(built)]
    )
