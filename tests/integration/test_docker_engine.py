"""The docker engine for real: an engine and a base of the tests' own, small cells of real wheels."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import pytest

from envsmith.base.progress import EventKind
from envsmith.builder.engines.base import verify_content
from envsmith.errors import BuildError, ContentError, EnvsmithError, UsageError
from envsmith.model.cell import Cell
from envsmith.model.lock import Artifact, Lock, OsPackage, Pin

pytestmark = [pytest.mark.integration, pytest.mark.engine]

SECRET = "hunter2-of-the-integration-test"


@pytest.fixture(scope="module")
def engine(docker_only_ours):
    """A DockerEngine on a daemon that only the tests know."""
    from envsmith.builder.engines.docker import DockerEngine

    return DockerEngine()


def wheel(folder, name, version, body="x = 1\n"):
    """A real wheel of one module."""
    import zipfile

    path = folder / f"{name}-{version}-py3-none-any.whl"
    files = {
        f"{name}.py": body,
        f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{name}-{version}.dist-info/RECORD"] = "".join(f"{n},,\n" for n in files)
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(zipfile.ZipInfo(member, (2020, 1, 1, 0, 0, 0)), text)
    return path


def local_pin(path, layer):
    name, version = path.name.split("-")[:2]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Pin(
        name=name,
        version=version,
        layer=layer,
        artifacts=(Artifact(filename=path.name, sha256=digest, url=path.as_uri()),),
    )


def lock_of(*pins, python="3.11", **components):
    values = {pins[-1].name: pins[-1].version, "python": python, **components}
    return Lock(
        cell=Cell(components=values, chosen=(pins[-1].name, "python")),
        request="test",
        exclude_newer="2026-11-20",
        python_version=python,
        pins=tuple(pins),
    )


@pytest.fixture(scope="module")
def tiny(engine, docker_base, tmp_path_factory):
    """A cell of two tiny wheels that are on no index, one in each layer."""
    folder = tmp_path_factory.mktemp("wheels")
    lock = lock_of(
        local_pin(wheel(folder, "heavy", "1.0"), "torch"),
        local_pin(wheel(folder, "light", "2.0"), "framework"),
        python=docker_base.python,
    )
    lock = engine.pin_image(lock, docker_base.name)
    return lock, engine.build(lock, folder)


def inside(engine, built, *command, **options):
    return engine.shelf.run(built.image, list(command), network="none", timeout=600, **options)


def layers(engine, built):
    """Every layer of an image as (name, tar bytes)."""
    stream = io.BytesIO(b"".join(engine.client.images.get(built.image).save()))
    with tarfile.open(fileobj=stream) as archive:
        manifest = json.load(archive.extractfile("manifest.json"))[0]
        return [(name, archive.extractfile(name).read()) for name in manifest["Layers"]]


class Steps:
    def __init__(self):
        self.events = []

    def __call__(self, event):
        self.events.append(event)

    def kinds(self, step):
        return [e.kind for e in self.events if e.step == step]


def test_the_base_that_was_asked_for_is_locked_by_its_identity(engine, tiny, docker_base):
    base = tiny[0].base
    assert (base.name, base.origin) == (docker_base.name, "local")
    assert engine.shelf.find(base.digest) == engine.client.images.get(base.name).id


def test_both_layers_hold_what_is_locked(engine, tiny):
    lock, built = tiny
    found = engine.inspect(built)
    assert (found["heavy"], found["light"]) == ("1.0", "2.0")
    assert found["python"].startswith(lock.cell.components["python"])
    verify_content(lock, found)


def test_the_image_runs_as_an_unprivileged_user_in_a_home_of_its_own(engine, tiny):
    code, output = inside(
        engine,
        tiny[1],
        "sh",
        "-c",
        "id -u; id -un; touch ~/x && echo writable; touch /opt/cell/x 2>/dev/null || echo protected",
    )
    assert code == 0
    assert output.split() == ["10001", "cell", "writable", "protected"]


def test_labels_name_the_cell_its_lock_and_its_base(engine, tiny):
    lock, built = tiny
    told = engine.client.images.get(built.reference).attrs["Config"]["Labels"]
    assert told["io.envsmith.cell"] == str(lock.cell.id)
    assert told["io.envsmith.lock"] == lock.digest
    assert told["org.opencontainers.image.base.digest"] == lock.base.digest


def test_nothing_of_the_build_stays_in_a_layer(engine, tiny):
    for name, data in layers(engine, tiny[1])[1:]:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            names = tar.getnames()
        left = [
            n
            for n in names
            if n.startswith(("dev/", "run/secrets", "tmp/", "root/.c"))
            or n.endswith((".pyc", "/uv", "INSTALLER", ".lock"))
        ]
        assert left == [], name


def test_no_secret_is_found_in_any_layer_or_in_the_configuration(engine, docker_base, tmp_path, monkeypatch):
    bundle = tmp_path / "ca.pem"
    system = Path("/etc/ssl/certs/ca-certificates.crt")
    bundle.write_text(f"# {SECRET}-ca\n{system.read_text() if system.is_file() else ''}")
    home = tmp_path / "home"
    (home / ".config" / "uv").mkdir(parents=True)
    (home / ".config" / "uv" / "uv.toml").write_text(f"find-links = []\n# {SECRET}-uv\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("HTTP_PROXY", "")
    pin = local_pin(wheel(tmp_path, "secretive", "1.0"), "framework")
    lock = engine.pin_image(lock_of(pin, python=docker_base.python), docker_base.name)
    built = engine.build(lock, tmp_path)
    for name, data in layers(engine, built):
        assert SECRET.encode() not in data, name
    assert SECRET not in json.dumps(engine.client.images.get(built.image).attrs)
    assert SECRET not in json.dumps(engine.client.images.get(built.image).history())


def test_the_same_lock_is_taken_from_the_cache(engine, tiny, tmp_path):
    steps = Steps()
    again = engine.build(tiny[0], tmp_path, progress=steps)
    assert again.digest == tiny[1].digest
    for step in ("user and environment", "torch layer", "framework layer"):
        assert EventKind.CACHED in steps.kinds(step)


def test_another_cell_shares_the_heavy_layer(engine, tiny, tmp_path):
    lock, built = tiny
    steps = Steps()
    light = local_pin(wheel(tmp_path, "light", "2.1"), "framework")
    other = dataclasses.replace(lock_of(lock.pins[0], light, python=lock.cell.components["python"]), base=lock.base)
    second = engine.build(other, tmp_path, progress=steps)
    assert EventKind.CACHED in steps.kinds("torch layer")
    assert EventKind.DONE in steps.kinds("framework layer")
    one, two = (engine.client.images.get(b.digest).attrs["RootFS"]["Layers"] for b in (built, second))
    assert one[:3] == two[:3]
    assert one != two


def test_layers_are_the_same_when_nothing_is_cached(engine, tiny):
    from envsmith.builder.engines import buildkit
    from envsmith.builder.image.context import read_host_settings, write_context, write_secrets

    lock, built = tiny
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as private:
        write_context(lock, Path(folder))
        secrets = [
            f"--secret=id={name},src={path}"
            for name, path in write_secrets(read_host_settings(), Path(private)).items()
        ]
        command = [
            buildkit.find_client(),
            "build",
            "--no-cache",
            "--quiet",
            "--network",
            engine.network or "default",
            *secrets,
            folder,
        ]
        done = subprocess.run(
            command, env={**os.environ, "DOCKER_BUILDKIT": "1"}, capture_output=True, text=True, check=True
        )
    one, two = (engine.client.images.get(i).attrs["RootFS"]["Layers"] for i in (built.image, done.stdout.strip()))
    assert one == two


def test_a_failed_step_shows_its_last_lines_and_names_nothing(engine, tiny, tmp_path):
    lock = dataclasses.replace(tiny[0], os_packages=(OsPackage(name="envsmith-no-such-package", version="1.0"),))
    steps = Steps()
    before = {t for i in engine.client.images.list() for t in i.tags}
    with pytest.raises(EnvsmithError) as caught:
        engine.build(lock, tmp_path, progress=steps)
    assert "Cannot finish distribution packages" in caught.value.message
    assert any("envsmith-no-such-package" in line for line in caught.value.details)
    assert caught.value.hint
    assert EventKind.FAILED in steps.kinds("distribution packages")
    assert {t for i in engine.client.images.list() for t in i.tags} == before


def test_a_package_version_that_the_mirror_no_longer_has_says_what_to_do(engine, tiny, tmp_path):
    lock = dataclasses.replace(tiny[0], os_packages=(OsPackage(name="hostname", version="0.0-0"),))
    with pytest.raises(BuildError) as caught:
        engine.build(lock, tmp_path)
    assert "mirror has newer packages" in caught.value.hint


def test_a_wheel_that_is_not_the_locked_one_is_refused(engine, tiny, tmp_path):
    pin = local_pin(wheel(tmp_path, "forged", "1.0"), "framework")
    wheel(tmp_path, "forged", "1.0", body="import os\n")
    with pytest.raises(ContentError):
        engine.build(
            dataclasses.replace(lock_of(pin, python=tiny[0].cell.components["python"]), base=tiny[0].base), tmp_path
        )


def test_an_image_whose_content_is_not_its_label_gets_no_name(engine, tiny, tmp_path):
    """The wheel says 3.0 in its file name and in the lock, and installs as 3.1."""
    pin = local_pin(wheel(tmp_path, "liar", "3.0"), "framework")
    lock = dataclasses.replace(lock_of(pin, python=tiny[0].cell.components["python"], heavy="9.9"), base=tiny[0].base)
    lock = dataclasses.replace(lock, pins=(tiny[0].pins[0], *lock.pins))
    with pytest.raises(ContentError, match="differs") as caught:
        engine.build(lock, tmp_path)
    assert any("heavy: the cell says 9.9, installed 1.0" in line for line in caught.value.details)
    assert not [t for i in engine.client.images.list() for t in i.tags if "liar" in t]


@pytest.mark.parametrize("value", ["1.0; id", "1.0\nRUN id", "$(id)", "`id`"])
def test_hostile_values_never_reach_the_engine(value, engine, tiny, tmp_path):
    with pytest.raises(UsageError):
        engine.build(dataclasses.replace(tiny[0], os_packages=(OsPackage(name="hostname", version=value),)), tmp_path)


def test_apt_is_asked_for_exact_versions_and_they_install(engine, tiny, tmp_path):
    steps = Steps()
    packages = engine.shelf.os_packages(tiny[0].base, ("gcc", "libc6-dev"), progress=steps).packages
    assert {"gcc", "libc6-dev", "binutils"} <= {p.name for p in packages}
    lock = dataclasses.replace(tiny[0], os_packages=packages)
    built = engine.build(lock, tmp_path, progress=steps)
    code, output = inside(
        engine,
        built,
        "sh",
        "-c",
        "echo 'int main(void){return 7;}' | gcc -x c - -o /tmp/a && /tmp/a; echo $?; dpkg-query -W -f '${Version}' gcc",
    )
    assert code == 0
    assert output.splitlines() == ["7", next(p.version for p in packages if p.name == "gcc")]


def test_the_target_runs_the_interpreter_with_our_streams(engine, tiny):
    target = engine.target(tiny[1])
    argv = target.argv(["-I", "-c", "import sys, os; print(sys.stdin.read().upper(), os.getuid(), sys.prefix)"])
    done = subprocess.run(
        argv, input="hello", capture_output=True, text=True, timeout=600, env={**os.environ, **target.env()}, check=True
    )
    assert done.stdout.split() == ["HELLO", "10001", "/opt/cell"]
    assert engine.client.containers.list(all=True) == []


def test_kill_ends_the_container_with_the_client(engine, tiny):
    target = engine.target(tiny[1])
    with subprocess.Popen(
        target.argv(["-c", "import time; print('up', flush=True); time.sleep(600)"]), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"up\n"
        target.kill(process)
        process.wait(300)
    deadline = time.monotonic() + 300
    while engine.client.containers.list(all=True) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert engine.client.containers.list(all=True) == []


def test_ctrl_c_stops_the_build_and_the_next_run_resumes(engine, tiny, tmp_path):
    """A child process is interrupted in the middle of its torch layer; afterwards the same build succeeds."""
    script = tmp_path / "child.py"
    script.write_text(
        "import pickle, sys\n"
        "from pathlib import Path\n"
        "from envsmith.builder.engines.docker import DockerEngine\n"
        "lock = pickle.loads(Path(sys.argv[1]).read_bytes())\n"
        "try:\n"
        "    DockerEngine().build(lock, Path('.'), progress=lambda e: print(e.kind.value, e.step, flush=True))\n"
        "except Exception as error:\n"
        "    print('ENDED', type(error).__name__, error.exit_code, flush=True)\n"
    )
    import pickle
    import signal
    import sys

    packages = engine.shelf.os_packages(tiny[0].base, ("patch", "make"), progress=Steps()).packages
    lock = dataclasses.replace(tiny[0], os_packages=packages)
    (tmp_path / "lock").write_bytes(pickle.dumps(lock))
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    ) as child:
        seen = []
        for line in child.stdout:
            seen.append(line.strip())
            if line.strip() == "start distribution packages":
                child.send_signal(signal.SIGINT)
        child.wait(600)
    assert seen[-1] == "ENDED InterruptedRunError 130"
    steps = Steps()
    engine.build(lock, tmp_path, progress=steps)
    assert EventKind.CACHED in steps.kinds("torch layer")
    assert EventKind.DONE in steps.kinds("distribution packages")


@pytest.mark.skipif(
    not os.environ.get("ENVSMITH_TEST_SLOW"),
    reason="ENVSMITH_TEST_SLOW is not set: a deepspeed cell takes gigabytes and minutes",
)
def test_a_real_deepspeed_cell_is_built_and_proved(docker_only_ours, docker_base, tmp_path):
    if shutil.disk_usage("/tmp").free < 25 << 30:
        pytest.skip("a torch cell needs 25 GB of free disk")
    command = [
        "envsmith",
        "build",
        "--framework",
        "deepspeed",
        "--engine",
        "docker",
        "--base",
        docker_base.name,
        "--no-conda",
        "--json",
        "--output",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["built"]["kind"] == "image"
    assert told["record"]["passed"]
