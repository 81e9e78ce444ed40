"""A ready wheel in a lock: a compiled extension from a page that is not the index, by address and hash."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib.util
import io
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest
from lock_helpers import fine
from tiny_index import sdist, wheel

from envsmith.builder.engines.venv import VenvEngine
from envsmith.lock.pip_files import layer_text, parse_beside, pylock_text, requirement_files
from envsmith.lock.resolve import Resolver, lock_pip
from envsmith.model.component import Component, ComponentTable, Role
from envsmith.model.lock import parse_lock
from envsmith.model.wheel import ReadyWheel

DAY = "2026-11-20"
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
MACHINE = sysconfig.get_platform().rpartition("-")[2]
LABEL = "cu12torch2.9cxx11abiTRUE"
C_SOURCE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "readyext", "compiled", -1, NULL};
PyMODINIT_FUNC PyInit_readyext(void) { return PyModule_Create(&module); }
"""

pytestmark = pytest.mark.skipif(
    not shutil.which("cc") or not sysconfig.get_path("include"), reason="a C compiler and Python.h are not here"
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> bytes:
    """A real compiled wheel whose METADATA says 1.0, as projects rename their finished wheels."""
    folder = tmp_path_factory.mktemp("ext")
    (folder / "readyext.c").write_text(C_SOURCE)
    library = f"readyext{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_path("include")
    done = subprocess.run(
        ["cc", "-shared", "-fPIC", f"-I{include}", str(folder / "readyext.c"), "-o", str(folder / library)],
        capture_output=True,
        check=False,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"no extension can be compiled here: {done.stderr[:200]}")
    info = "readyext-1.0.dist-info"
    members = {
        library: (folder / library).read_bytes(),
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: readyext\nVersion: 1.0\nRequires-Dist: numpy\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: false\nTag: {TAG}-{TAG}-linux_{MACHINE}\n".encode(),
    }
    lines = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}\n"
        for name, data in members.items()
    ]
    members[f"{info}/RECORD"] = ("".join(lines) + f"{info}/RECORD,,\n").encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data)
    return buffer.getvalue()


@pytest.fixture
def ready(server, compiled) -> ReadyWheel:
    name = f"readyext-1.0+{LABEL}-{TAG}-{TAG}-linux_{MACHINE}.whl"
    path = f"/releases/v1.0/{name.replace('+', '%2B')}"
    server.routes[path] = lambda handler: handler.reply(200, compiled)
    return ReadyWheel(
        distribution="readyext",
        version="1.0",
        address=server.url + path,
        sha256=hashlib.sha256(compiled).hexdigest(),
        publisher="its/project",
        official=True,
        evidence=(),
        torch="2.9",
        cuda="12",
        requires=("numpy",),
    )


@pytest.fixture
def locked(index, cell, table, uv, ready):
    """A lock whose framework requires the extension, of which the index has the source only."""
    index.add("deepspeed", wheel("deepspeed", "0.18.5", ["torch", "readyext"]))
    index.add("readyext", sdist("readyext", "1.0"))
    resolver = Resolver(table=table, uv=uv, judge=fine, ready=lambda name, *_: ready if name == "readyext" else None)
    return lock_pip(cell, exclude_newer=DAY, resolver=resolver)


def pip_install(uv, environment, *arguments) -> subprocess.CompletedProcess[str]:
    python = environment / "bin/python"
    uv.check(["venv", "--quiet", "--python", sys.executable, str(environment)], work="venv")
    return uv.run(["pip", "install", "--python", str(python), "--no-deps", *map(str, arguments)])


def imports(environment) -> str:
    command = [str(environment / "bin/python"), "-c", "import readyext; print(readyext.__doc__)"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def test_what_the_index_has_as_source_only_is_taken_as_a_ready_wheel_and_nothing_is_built(locked, ready):
    pin = locked.pin("readyext")

    assert (pin.version, pin.sdist, pin.address) == ("1.0", False, ready.address)
    assert [(a.filename, a.sha256, a.url) for a in pin.artifacts] == [(ready.filename, ready.sha256, ready.address)]
    assert pin.requires == ("numpy",)
    assert not locked.build_pins
    assert not locked.compiled


def test_a_component_of_the_cell_is_taken_as_a_ready_wheel_without_asking_the_index(index, cell, table, uv, ready):
    part = Component(name="readyext", role=Role.COMPANION, short="readyext", title="Ext", distributions=("readyext",))
    table = ComponentTable.of([*table.by_name.values(), part])
    cell = dataclasses.replace(cell, components={**cell.components, "readyext": "1.0"})
    labelled = dataclasses.replace(ready, version=f"1.0+{LABEL.lower()}")
    resolver = Resolver(table=table, uv=uv, judge=fine, ready=lambda name, *_: labelled if name == "readyext" else None)

    lock = lock_pip(cell, exclude_newer=DAY, resolver=resolver)

    assert lock.pin("readyext").version == f"1.0+{LABEL.lower()}"


def test_the_address_is_part_of_the_lock_and_of_its_digest(locked):
    again = parse_lock(locked.text(), where="lock.json")
    pins = tuple(dataclasses.replace(p, address="") for p in locked.pins)

    assert again.pin("readyext").address == locked.pin("readyext").address
    assert dataclasses.replace(locked, pins=pins).digest != locked.digest
    assert parse_beside(pylock_text(locked)).complete(again).pin("readyext").artifacts[0].url


def test_uv_installs_it_from_the_requirements_and_from_pylock(locked, uv, tmp_path):
    (tmp_path / "r.txt").write_text(layer_text([locked.pin("readyext")]))
    pylock = tmp_path / "pylock.toml"
    pylock.write_text(pylock_text(dataclasses.replace(locked, pins=(locked.pin("readyext"),))))

    by_requirements = pip_install(
        uv, tmp_path / "one", "--require-hashes", "--only-binary", ":all:", "-r", tmp_path / "r.txt"
    )
    by_pylock = pip_install(uv, tmp_path / "two", "-r", pylock)

    assert (by_requirements.status, by_pylock.status) == (0, 0), by_pylock.lines[-4:]
    assert imports(tmp_path / "one") == imports(tmp_path / "two") == "compiled"


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this interpreter has no pip")
@pytest.mark.parametrize("honest", [True, False])
def test_pip_takes_it_by_address_and_hash(locked, tmp_path, *, honest):
    pin = locked.pin("readyext")
    text = layer_text([pin]) if honest else layer_text([pin]).replace(pin.artifacts[0].sha256, "0" * 64)
    (tmp_path / "r.txt").write_text(text)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-cache-dir", "--isolated"]
    command += ["--require-hashes", "--target", str(tmp_path / "site"), "--requirement", str(tmp_path / "r.txt")]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode == 0) == honest, done.stderr
    assert ("DO NOT MATCH" in done.stderr) != honest


def test_without_a_network_it_is_installed_from_the_file_that_was_carried_over(locked, compiled, uv, tmp_path):
    pin = locked.pin("readyext")
    (tmp_path / pin.artifacts[0].filename).write_bytes(compiled)
    text = re.sub("@ http://.*/", f"@ file://{tmp_path}/", layer_text([pin]))
    (tmp_path / "offline.txt").write_text(text)

    run = pip_install(
        uv, tmp_path / "env", "--offline", "--no-index", "--require-hashes", "-r", tmp_path / "offline.txt"
    )

    assert run.status == 0, run.lines
    assert imports(tmp_path / "env") == "compiled"


def test_another_file_at_the_address_is_refused(locked, uv, server, tmp_path):
    (tmp_path / "r.txt").write_text(layer_text([locked.pin("readyext")]))
    path = locked.pin("readyext").address.removeprefix(server.url)
    server.routes[path] = lambda handler: handler.reply(200, wheel("readyext", "1.0")[1])

    run = pip_install(uv, tmp_path / "env", "--require-hashes", "-r", tmp_path / "r.txt")

    assert run.status != 0
    assert any("Hash mismatch" in line for line in run.lines), run.lines


def test_the_venv_engine_installs_it_and_holds_the_environment_against_the_lock(locked, uv, index, tmp_path):
    engine = VenvEngine(uv=uv)

    built = engine.build(locked, tmp_path)

    assert imports(tmp_path / "venv") == "compiled"
    assert engine.verify(locked, built)


def test_requirements_name_the_address_of_the_wheel_and_of_nothing_else(locked):
    texts = requirement_files(locked)

    lines = [line for line in texts["requirements.txt"].splitlines() if "://" in line]
    assert lines == [f"readyext @ {locked.pin('readyext').address} \\"]
