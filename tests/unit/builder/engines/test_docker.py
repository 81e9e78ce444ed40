"""The docker engine against a pretended SDK: what it asks for, what it refuses, what it leaves behind."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from envsmith.builder.engines import buildkit
from envsmith.builder.engines.container import image_name
from envsmith.builder.engines.docker import DockerEngine
from envsmith.builder.engines.shelf import BaseShelf
from envsmith.builder.image.dockerfile import labels
from envsmith.errors import BuildError, ContentError, EngineError, EnvsmithError, InterruptedRunError

docker = pytest.importorskip("docker")
IMAGE = "sha256:" + "f" * 64


class FakeImage:
    def __init__(self, client, identity, **attributes):
        self.client, self.id, self.attrs, self.tags = client, identity, attributes, []
        client.known[identity] = self

    def tag(self, repository, tag):
        self.tags.append(f"{repository}:{tag}")
        self.client.known[f"{repository}:{tag}"] = self

    def history(self):
        return self.attrs.get("history", [])


class Client:
    """Images by reference, one answer for every container, and a memory of what was removed."""

    def __init__(self):
        self.known, self.removed, self.containers_removed, self.ran, self.pulled = {}, [], [], [], []
        self.output, self.status, self.bridge, self.registry = b"", 0, [], False
        self.images = self.containers = self.networks = self.api = self
        self.base_url = "http+docker://localhost"

    def info(self):
        return {}

    def get(self, reference):
        if reference not in self.known:
            raise docker.errors.ImageNotFound("no such image")
        return self.known[reference]

    def list(self, names=None, filters=None):
        return self.bridge if names else list({image.id: image for image in self.known.values()}.values())

    def remove(self, image=None, force=False):
        (self.removed if image else self.containers_removed).append(image)

    def inspect_distribution(self, reference):
        if not self.registry:
            raise docker.errors.APIError("no such host")

    def pull(self, repository, tag=None, stream=False, decode=False):
        self.pulled.append((repository, tag))
        reference = f"{repository}@{tag}" if tag else repository
        self.known[reference] = FakeImage(self, "sha256:" + "9" * 64)
        return [{"status": "Pulling", "id": "x"}]

    def load_image(self, chunks):
        list(chunks)
        return []

    def create(self, image, command, **options):
        self.ran.append((image, command, options))
        client = self

        class Container:
            def start(self):
                pass

            def wait(self, timeout):
                return {"StatusCode": client.status}

            def logs(self, stdout, stderr):
                return client.output

            def remove(self, force):
                client.containers_removed.append(image)

        return Container()


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def shelf(client):
    return BaseShelf(client=client, network="host")


def good_output(lock):
    found = {p.name: p.version for p in lock.pins} | {"python": f"{lock.cell.components['python']}.1"}
    found |= {"torch.version": lock.cell.components["torch"], "cuda.version": lock.cell.components["cuda"]}
    return b"ENVSMITH-CONTENT " + json.dumps(found).encode() + b"\n"


@pytest.fixture
def engine(client, shelf, locks, monkeypatch):
    lock = locks.megatron(locks.LOCAL)
    base = FakeImage(client, lock.base.digest)
    base.tag("envsmith/base", "bookworm-cdcdcdcdcdcd")
    built = FakeImage(
        client, IMAGE, Config={"Labels": labels(lock), "User": "10001:10001"}, RootFS={"Layers": ["a", "b"]}, Size=5
    )
    client.output = good_output(lock)

    def build(*_args, **_more):
        client.known[IMAGE] = built
        return IMAGE

    monkeypatch.setattr(buildkit, "build", build)
    monkeypatch.setattr(buildkit, "find_client", lambda: "docker")
    monkeypatch.setattr("envsmith.builder.engines.docker.write_context", lambda *_, **_more: {})
    made = DockerEngine()
    made.__dict__.update(client=client, shelf=shelf, network="host")
    made.lock, made.image = lock, built
    return made


def test_an_image_is_named_after_its_content_was_checked(engine, tmp_path):
    built = engine.build(engine.lock, tmp_path)
    assert built.digest == IMAGE
    assert built.reference == image_name(engine.lock) == "envsmith/cell:mc0.16.1-torch2.13.0-cpu-py311"
    assert engine.image.tags == [built.reference]
    assert engine.client.removed == []


def arguments_of(engine):
    return engine.client.ran[-1][1][4:]


def test_files_of_a_torch_layer_that_was_found_whole_are_not_read_again(engine, tmp_path, monkeypatch):
    """Gigabytes: once for all cells that share the layer, on this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    engine.image.attrs["RootFS"]["Layers"] = ["base", "user", "torch", "framework"]
    monkeypatch.setattr(BaseShelf, "layers", lambda _shelf, _base: 1)
    whole = json.loads(engine.client.output.removeprefix(b"ENVSMITH-CONTENT ")) | {"files.checked": "9"}

    def say(**more):
        engine.client.output = b"ENVSMITH-CONTENT " + json.dumps(whole | more).encode()
        engine._contents.clear()

    say(**{"files.broken": "torch: torch/a.so is missing"})
    with pytest.raises(ContentError) as caught:
        engine.build(engine.lock, tmp_path)
    assert "torch: torch/a.so is missing" in caught.value.details
    say()
    engine.build(engine.lock, tmp_path)
    assert arguments_of(engine) == ["files"]  # a layer that was not whole is read again
    say()
    engine.build(engine.lock, tmp_path)
    assert arguments_of(engine) == ["files", "torch"]
    say()
    engine.image.attrs["RootFS"]["Layers"] = ["base", "user", "another torch", "framework"]
    engine.build(engine.lock, tmp_path)
    assert arguments_of(engine) == ["files"]


@pytest.mark.parametrize("wrong", ["label", "missing label", "user", "content", "silent"])
def test_an_image_that_is_not_its_lock_gets_no_name_and_is_removed(wrong, engine, tmp_path):
    config = engine.image.attrs["Config"]
    if wrong == "label":
        config["Labels"] = {**config["Labels"], "io.envsmith.torch": "2.12.0"}
    elif wrong == "missing label":
        config["Labels"] = None
    elif wrong == "user":
        config["User"] = ""
    else:
        engine.client.output = b"" if wrong == "silent" else engine.client.output.replace(b'"0.16.1"', b'"0.16.0"')
    with pytest.raises(ContentError):
        engine.build(engine.lock, tmp_path)
    assert engine.image.tags == []
    assert engine.client.removed == [IMAGE]


@pytest.mark.parametrize(
    "error", [BuildError("torch layer failed"), InterruptedRunError("interrupted"), KeyboardInterrupt()]
)
def test_a_build_that_ends_early_names_nothing(error, engine, tmp_path, monkeypatch):
    def fail(*_args, **_more):
        raise error

    monkeypatch.setattr(buildkit, "build", fail)
    with pytest.raises(type(error)):
        engine.build(engine.lock, tmp_path)
    assert not [r for r in engine.client.known if r.startswith("envsmith/cell")]


def test_secrets_reach_the_builder_as_files_outside_the_context(engine, tmp_path, monkeypatch):
    bundle = tmp_path / "corp.pem"
    bundle.write_text("PEM")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://user:hunter2@mirror.invalid/simple")
    monkeypatch.setenv("HOME", str(tmp_path))
    seen = {}

    def build(_client, context, lent, **_more):
        seen.update(
            {
                name: (path.read_text(), path.stat().st_mode & 0o777, context in path.parents)
                for name, path in lent.secrets.items()
            }
        )
        engine.client.known[IMAGE] = engine.image
        return IMAGE

    monkeypatch.setattr(buildkit, "build", build)
    engine.build(engine.lock, tmp_path)
    assert seen["ca"] == ("PEM", 0o644, False)
    assert "hunter2" in seen["uv"][0]
    assert seen["uv"][1:] == (0o600, False)


def test_a_moved_base_is_refused_before_the_build(engine, tmp_path):
    del engine.client.known[engine.lock.base.digest]
    engine.client.known["envsmith/base:bookworm-cdcdcdcdcdcd"] = FakeImage(engine.client, "sha256:" + "0" * 64)
    with pytest.raises(EngineError, match="the lock says"):
        engine.build(engine.lock, tmp_path)


def test_a_base_that_was_loaded_under_another_name_is_found_by_its_identity(engine, tmp_path):
    base = FakeImage(engine.client, engine.lock.base.digest)
    del engine.client.known["envsmith/base:bookworm-cdcdcdcdcdcd"]
    engine.build(engine.lock, tmp_path)
    assert base.tags == ["envsmith/base:bookworm-cdcdcdcdcdcd"]


def test_a_base_that_no_engine_and_no_registry_has_is_refused_before_the_build(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(buildkit, "build", lambda *_args, **_more: pytest.fail("it was built"))
    base = dataclasses.replace(engine.lock.base, name="python:3.11-slim", origin="registry")
    engine.client.pull = lambda *_args, **_more: [{"error": "no such host"}]
    with pytest.raises(EngineError, match="Cannot pull"):
        engine.build(dataclasses.replace(engine.lock, base=base), tmp_path)


def test_a_base_that_was_never_pulled_here_is_pulled_before_the_build(engine, tmp_path):
    base = dataclasses.replace(engine.lock.base, name="python:3.11-slim", origin="registry")
    lock = dataclasses.replace(engine.lock, base=base)
    engine.image.attrs["Config"]["Labels"] = labels(lock)
    engine.build(lock, tmp_path)
    assert engine.client.pulled == [("python", base.digest)]


def test_a_base_that_moved_during_the_build_is_noticed(engine, tmp_path, monkeypatch):
    def build(*_args, **_more):
        engine.client.known["envsmith/base:bookworm-cdcdcdcdcdcd"] = FakeImage(engine.client, "sha256:" + "0" * 64)
        return IMAGE

    monkeypatch.setattr(buildkit, "build", build)
    with pytest.raises(EngineError, match="the lock says"):
        engine.build(engine.lock, tmp_path)
    assert engine.image.tags == []


def test_a_lock_without_base_is_refused(engine, tmp_path):
    with pytest.raises(EngineError, match="no base"):
        engine.build(dataclasses.replace(engine.lock, base=None, image_note="3.14 unknown"), tmp_path)


def test_containers_never_outlive_their_call(shelf, client):
    def fail(timeout):
        raise docker.errors.APIError("gone")

    shelf.run("x", ["true"], network=None, timeout=1)
    real = client.create

    def create(*args, **more):
        container = real(*args, **more)
        container.wait = fail
        return container

    client.create = create
    with pytest.raises(EngineError):
        shelf.run("y", ["true"], network=None, timeout=1)
    assert client.containers_removed == ["x", "y"]


def test_looking_inside_needs_no_network(engine):
    engine._installed(IMAGE)
    assert engine.client.ran[-1][2]["network_mode"] == "none"


def test_an_image_is_looked_into_once_and_what_was_read_cannot_be_changed(engine):
    before = len(engine.client.ran)
    engine._installed(IMAGE)["torch"] = "changed"
    assert engine._installed(IMAGE)["torch"] != "changed"
    assert len(engine.client.ran) == before + 1


def test_an_engine_without_bridge_builds_on_the_host_s_network(client, monkeypatch):
    monkeypatch.delenv("ENVSMITH_BUILD_NETWORK", raising=False)
    for bridge, wanted in (([], "host"), (["bridge"], None)):
        made = DockerEngine()
        client.bridge = bridge
        made.__dict__["client"] = client
        assert made.network == wanted


def test_the_network_can_be_chosen_but_not_made_up(client, monkeypatch):
    monkeypatch.setenv("ENVSMITH_BUILD_NETWORK", "none")
    made = DockerEngine()
    assert made.network == "none"
    monkeypatch.setenv("ENVSMITH_BUILD_NETWORK", "container:x --privileged")
    with pytest.raises(EngineError):
        _ = DockerEngine().network


def test_with_a_registry_every_known_python_is_offered(shelf, client):
    client.registry = True
    assert shelf.pythons() == ("3.13", "3.12", "3.11", "3.10")


def test_without_one_only_what_is_here(shelf, client):
    FakeImage(client, "sha256:" + "2" * 64).tag("python", "3.12-slim-bookworm")
    assert shelf.pythons() == ("3.12", "3.13", "3.11")


def test_without_any_image_there_are_the_bases_from_packages(shelf):
    assert shelf.pythons() == shelf.pythons("packages") == ("3.13", "3.11")


def test_a_base_from_packages_needs_an_image_that_unpacks_them_before_the_build(shelf, client, locks):
    shelf.prepare(locks.PACKAGES)
    assert client.pulled == [("debian", "bookworm-slim")]


def test_an_image_that_unpacks_and_is_here_is_not_pulled(shelf, client, locks):
    FakeImage(client, "sha256:" + "5" * 64).tag("debian", "bookworm-slim")
    shelf.prepare(locks.PACKAGES)
    assert client.pulled == []
    assert shelf.layers(locks.PACKAGES) == 0
    assert shelf.has_base(locks.PACKAGES)


def test_a_base_that_is_asked_for_says_which_python_it_has(shelf, client):
    FakeImage(client, "sha256:" + "4" * 64).tag("mine", "1")
    client.output = b'["/usr/bin/python3", "3.12.3", "noble"]\n'
    assert shelf.pythons("mine:1") == ("3.12",)


def test_a_known_base_is_pulled_by_digest(shelf, client, events):
    client.registry = True
    base = shelf.base_for("3.12", None, progress=events)
    assert client.pulled == [("python", base.digest)]
    assert base.origin == "registry"


def test_a_base_that_was_pulled_before_is_not_pulled_again(shelf, client, events):
    known = shelf.bases.image("3.12")
    client.known[f"python@{known.digest}"] = FakeImage(client, "sha256:" + "2" * 64)
    assert shelf.base_for("3.12", None, progress=events).digest == known.digest
    assert client.pulled == []


@pytest.mark.parametrize("python", ["3.12", "3.14"])
def test_a_python_without_an_image_has_none(python, shelf, events):
    assert shelf.base_for(python, None, progress=events) is None


def test_a_local_base_is_looked_into_and_gets_the_tag_of_its_id(shelf, client, events):
    FakeImage(client, "sha256:" + "4" * 64).tag("mine", "1")
    client.output = b'["/usr/bin/python3", "3.12.3", "noble"]\n'
    base = shelf.base_for("3.12", "mine:1", progress=events)
    assert (base.origin, base.python, base.distribution) == ("local", "/usr/bin/python3", "noble")
    assert f"envsmith/base:noble-{base.digest[7:19]}" in client.known
    shelf.check(base)


def test_a_local_base_has_the_same_digest_on_an_engine_that_names_it_otherwise(client, events):
    client.output = b'["/usr/bin/python3", "3.12.3", "noble"]\n'
    config = {"Config": {"Env": ["A=1"]}, "RootFS": {"Layers": ["sha256:" + "1" * 64]}, "Architecture": "amd64"}
    digests = set()
    for number, more in enumerate(({"DockerVersion": "20.10"}, {"Descriptor": {}, "RepoDigests": []})):
        engine = Client()
        engine.output = client.output
        FakeImage(engine, f"sha256:{number:064}", **config, **more).tag("mine", "1")
        digests.add(BaseShelf(client=engine, network="host").base_for("3.12", "mine:1", progress=events).digest)

    assert len(digests) == 1


def test_an_image_of_containerd_s_store_that_no_registry_offers_is_a_local_base(client, events):
    client.output = b'["/usr/bin/python3", "3.12.3", "noble"]\n'
    manifest = "sha256:" + "4" * 64
    FakeImage(client, manifest, RepoDigests=[f"mine@{manifest}"]).tag("mine", "1")
    for offered, origin in ((False, "local"), (True, "registry")):
        client.registry = offered
        assert BaseShelf(client=client, network="host").base_for("3.12", "mine:1", progress=events).origin == origin


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"sh: python3: not found",
        b"[]",
        b'["$(id)", "3.12.3", "noble"]',
        b'["/usr/bin/python3", "3.11.3", "noble"]',
    ],
)
def test_a_base_without_the_right_python_is_refused(output, shelf, client, events):
    FakeImage(client, "sha256:" + "4" * 64).tag("mine", "1")
    client.output = output
    with pytest.raises(EnvsmithError):
        shelf.base_for("3.12", "mine:1", progress=events)


def test_a_base_that_is_not_here_is_pulled_one_tag_only(shelf, client, events):
    client.output = b'["/usr/bin/python3", "3.12.3", "noble"]\n'
    with pytest.raises(EnvsmithError):
        shelf.base_for("3.12", "localhost:5000/mine", progress=events)
    assert client.pulled == [("localhost:5000/mine", "latest")]


def test_os_packages_are_what_apt_would_install(shelf, client, events, locks):
    client.output = (
        b"Inst gcc-12 (12.2.0-14+deb12u1 Debian:12.15/oldstable [amd64])\n"
        b"Inst libc6 [2.36-9] (2.36-9+deb12u14 Debian:12.15/oldstable [amd64]) []\n"
        b"Conf gcc-12 (12.2.0-14+deb12u1 Debian:12.15/oldstable [amd64])\n"
    )
    found = shelf.os_packages(locks.LOCAL, ("g++",), progress=events)
    assert re.fullmatch(r"mirror \d{4}-\d\d-\d\d", found.source)
    assert [(p.name, p.version) for p in found.packages] == [
        ("gcc-12", "12.2.0-14+deb12u1"),
        ("libc6", "2.36-9+deb12u14"),
    ]


def test_packages_of_a_dated_archive_are_told_as_such(shelf, client, events, locks):
    client.output = b"ENVSMITH-DATED 20260805T000000Z\nInst gcc-12 (12.2.0-14 Debian:12.15/oldstable [amd64])\n"
    assert shelf.os_packages(locks.LOCAL, ("gcc",), progress=events).source == "snapshot 20260805T000000Z"


def test_a_mirror_that_does_not_answer_shows_apt_s_last_lines(shelf, client, events, locks):
    client.status, client.output = 100, b"E: Unable to locate package g++\n"
    with pytest.raises(BuildError) as caught:
        shelf.os_packages(locks.LOCAL, ("g++",), progress=events)
    assert caught.value.details == ("E: Unable to locate package g++",)
