"""Images that rebuild to the same digest: small cells of real wheels, an engine of our own, and podman where this host lets it run."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.server
import io
import json
import os
import tarfile
import threading

import pytest

from envsmith.builder.engines import load_engine
from envsmith.builder.engines.rebuild import difference, rebuild
from envsmith.errors import ContentError
from envsmith.lock import store
from envsmith.lock.pip_files import pylock_text
from envsmith.model.lock import Artifact, CompiledSource, Pin
from envsmith.net.oci.canonical import repack
from envsmith.net.oci.image import open_image, open_layer

from . import test_docker_engine as tools
from .podman_storage import podman_with

pytestmark = [pytest.mark.integration, pytest.mark.engine]

SECRET = "token-that-must-not-be-found"


@pytest.fixture(scope="module")
def engine(docker_only_ours):
    from envsmith.builder.engines.docker import DockerEngine

    return DockerEngine()


def sdist(folder, name, version):
    """A source distribution with a backend of its own: nothing is fetched to build it."""
    backend = f"""
import os, zipfile
NAME, VERSION = {name!r}, {version!r}
SEEN = (os.getcwd(), os.environ["TOLD"]) if "TOLD" in os.environ else True
def _write(directory):
    path = os.path.join(directory, f"{{NAME}}-{{VERSION}}-py3-none-any.whl")
    info = f"{{NAME}}-{{VERSION}}.dist-info"
    files = {{f"{{NAME}}.py": f"built = {{SEEN!r}}\\n",
             f"{{info}}/METADATA": f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: {{VERSION}}\\n",
             f"{{info}}/WHEEL": "Wheel-Version: 1.0\\nGenerator: own\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}}
    files[f"{{info}}/RECORD"] = "".join(f"{{n}},,\\n" for n in files)
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(zipfile.ZipInfo(member, (2020, 1, 1, 0, 0, 0)), text)
    return os.path.basename(path)
def build_wheel(directory, config_settings=None, metadata_directory=None):
    return _write(directory)
"""
    project = f'[project]\nname = "{name}"\nversion = "{version}"\n[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in (
            ("backend.py", backend),
            ("pyproject.toml", project),
            ("PKG-INFO", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"),
        ):
            info = tarfile.TarInfo(f"{name}-{version}/{file}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    artifact = Artifact(filename=path.name, sha256=digest, url=path.as_uri())
    return Pin(name=name, version=version, layer="framework", artifacts=(artifact,), sdist=True)


@pytest.fixture(scope="module")
def lock(engine, docker_base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    python = docker_base.python
    heavy = tools.local_pin(tools.wheel(folder, "heavy", "1.0"), "torch")
    made = tools.lock_of(heavy, sdist(folder, "compiled", "3.0"), sdist(folder, "sourced", "2.0"), python=python)
    source = CompiledSource(name="compiled", variables={"TOLD": "90;100"}, toolkit=False)
    made = dataclasses.replace(made, compiled=(source,))
    return engine.pin_wheels(engine.pin_image(made, docker_base.name))


@pytest.fixture(scope="module")
def cell(lock, tmp_path_factory):
    """The cell's folder."""
    folder = tmp_path_factory.mktemp("cells") / "one"
    store.write(folder, {"lock.json": lock.text(), "pylock.toml": pylock_text(lock)})
    return folder


def test_the_source_distribution_is_a_hashed_wheel_of_the_lock(lock, engine):
    assert [w.filename for w in lock.wheels] == ["compiled-3.0-py3-none-any.whl", "sourced-2.0-py3-none-any.whl"]
    assert engine.wheels(dataclasses.replace(lock, wheels=())) == lock.wheels


def test_what_is_compiled_stood_in_a_fixed_folder_and_was_told_its_variables(lock, engine, tmp_path):
    built = engine.build(lock, tmp_path)
    code, output = tools.inside(engine, built, "/opt/cell/bin/python", "-c", "import compiled; print(*compiled.built)")
    assert (code, output.split()) == (0, ["/build/compiled", "90;100"])


def test_an_archive_that_is_not_the_locked_one_is_refused(lock, engine, tmp_path):
    pin = lock.pin("compiled")
    forged = dataclasses.replace(pin, artifacts=(dataclasses.replace(pin.artifacts[0], sha256="0" * 64),))
    pins = tuple(forged if p.name == "compiled" else p for p in lock.pins)
    with pytest.raises(ContentError, match="the lock says 0000"):
        engine.wheels(dataclasses.replace(lock, pins=pins, wheels=()))


def test_what_is_built_is_written_loaded_back_checked_and_named_by_one_identity(cell, lock, engine):
    built = engine.build(lock, cell, layout=cell / "oci")

    image = open_image(cell / "oci", check=True)
    assert built.digest == image.identity
    assert engine.has_image(image.identity)
    attributes = engine.client.images.get(built.reference).attrs
    assert attributes["RootFS"]["Layers"] == list(image.diff_ids)
    assert image.config["created"] == "2025-01-01T00:00:00Z"
    code, output = tools.inside(engine, built, "/opt/cell/bin/python", "-c", "import heavy; print(heavy.x)")
    assert (code, output.strip()) == (0, "1")


def test_a_rebuild_without_cache_at_another_time_under_another_umask_is_the_same_and_leaves_nothing(
    cell, lock, engine, tmp_path
):
    first = open_image(cell / "oci")
    usage = engine.client.df()
    before = os.umask(0o077)
    try:
        report = rebuild(lock, first.identity, lambda _folder: first, tmp_path, engine=engine)
    finally:
        os.umask(before)

    assert report.differences == ()
    assert report.same
    after = engine.client.df()
    assert sorted(step["ID"] for step in after["BuildCache"]) == sorted(step["ID"] for step in usage["BuildCache"])
    assert sorted(image["Id"] for image in after["Images"]) == sorted(image["Id"] for image in usage["Images"])


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_packed_layout_is_smaller_and_the_same_image(cell, tmp_path, packing):
    first = open_image(cell / "oci")

    packed = repack(first, tmp_path / "packed" / "oci", packing)

    assert packed.identity == first.identity
    assert sum(b.size for b in packed.manifest.layers) < sum(b.size for b in first.manifest.layers)
    assert difference(first, packed) == ()


def test_nothing_of_the_hour_or_the_host_is_in_a_layer(cell, engine):
    image = open_image(cell / "oci")
    count = len(image.manifest.layers)
    for number in range(count - 3, count):
        with open_layer(image, number) as file, tarfile.open(fileobj=file) as tar:
            members = tar.getmembers()
        assert max(m.mtime for m in members) <= 1735689600
        names = [m.name for m in members]
        left = ("etc/hostname", "etc/resolv.conf", "etc/machine-id", "var/cache/ldconfig/aux-cache")
        assert not [n for n in names if n in left or n.endswith((".pyc", "INSTALLER", "direct_url.json", "/uv"))]


def test_another_file_is_named(cell, engine, lock, tmp_path):
    first = open_image(cell / "oci")
    heavy = tools.local_pin(tools.wheel(tmp_path, "heavy", "1.0", body="x = 2\n"), "torch")
    other = dataclasses.replace(lock, pins=(heavy, *lock.pins[1:]))
    second = engine.build_again(other, tmp_path / "two" / "oci")
    told = difference(first, second)
    assert any("site-packages/heavy.py: content" in line for line in told)
    assert any(line.startswith("configuration config.Labels.io.envsmith.lock") for line in told)


def test_a_wheel_that_comes_out_otherwise_is_refused(lock, engine, tmp_path):
    forged = dataclasses.replace(lock, wheels=(dataclasses.replace(lock.wheels[0], sha256="0" * 64), *lock.wheels[1:]))
    with pytest.raises(ContentError, match="Cannot finish framework layer"):
        engine.build(forged, tmp_path)


class Index(http.server.BaseHTTPRequestHandler):
    """An index that has nothing and tells nobody."""

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_arguments):
        pass


def test_a_token_in_pip_s_settings_is_found_nowhere(engine, docker_base, tmp_path, monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://user:{SECRET}@127.0.0.1:{server.server_port}/simple"
        (tmp_path / "home" / ".config" / "pip").mkdir(parents=True)
        (tmp_path / "home" / ".config" / "pip" / "pip.conf").write_text(f"[global]\nindex-url = {address}\n")
        for name in [n for n in os.environ if n.startswith(("PIP_", "UV_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        pin = tools.local_pin(tools.wheel(tmp_path, "private", "1.0"), "framework")
        lock = engine.pin_image(tools.lock_of(pin, python=docker_base.python), docker_base.name)
        layout = tmp_path / "cell" / "oci"
        built = engine.build(lock, tmp_path, layout=layout)
        server.shutdown()
    for _name, data in tools.layers(engine, built):
        assert SECRET.encode() not in data
    for path in (layout / "blobs" / "sha256").iterdir():
        assert SECRET.encode() not in path.read_bytes()
    told = json.dumps([engine.client.images.get(built.image).attrs, engine.client.images.get(built.image).history()])
    assert SECRET not in told


@pytest.mark.parametrize("tool", ["podman", "buildah"])
def test_podman_and_buildah_make_the_same_image(tool, cell, lock, engine, tmp_path):
    if not (cell / "oci" / "index.json").is_file():
        pytest.skip("the first image was not exported")
    with podman_with(lock.base.name, engine.client, tools=("podman", "buildah")):
        other = load_engine(tool)
        if reason := other.available():
            pytest.skip(reason)
        with contextlib.closing(other):
            built = other.build(lock, tmp_path, layout=tmp_path / "cell" / "oci")
            image = open_image(tmp_path / "cell" / "oci")
            assert other.has_image(image.identity)
    first = open_image(cell / "oci")
    assert difference(first, image) == ()
    assert built.digest == image.identity == first.identity
    assert image.digest == first.digest
