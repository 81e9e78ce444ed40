"""A source archive of the user's with a C extension, compiled by the engine's pinned builder: what ``--source`` does, without an index.

It is not a part of ``make images`` (and ``.ci/run``): a C compiler has to be installed in the image, which takes a minute of a mirror's time.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import tarfile

import pytest

from envsmith.builder.engines.base import verify_content
from envsmith.errors import BuildError, ContentError
from envsmith.knowledge.graph.runtime import sources_of
from envsmith.lock.index.archives import parse_wish, read_archive
from envsmith.model.lock import Compile, Pin
from envsmith.net.http import HttpClient

from . import test_docker_engine as tools

pytestmark = [pytest.mark.integration, pytest.mark.engine]

# With debugging information, so that the folder and the hour would be in the file if they could.
BACKEND = """
import os, subprocess, sysconfig, zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    include = sysconfig.get_paths()["include"]
    subprocess.run(["cc", "-g", "-O1", "-shared", "-fPIC", "-I", include, f"-DANSWER={os.environ['ANSWER']}", "ops.c", "-o", "my_ops.so"], check=True)
    tag = f"cp{sysconfig.get_python_version().replace('.', '')}"
    name = f"my_ops-1.0-{tag}-{tag}-linux_x86_64.whl"
    files = {"my_ops.so": open("my_ops.so", "rb").read(),
             "my_ops-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\\nName: my-ops\\nVersion: 1.0\\n" + os.environ.get("REQUIRES", "").encode(),
             "my_ops-1.0.dist-info/WHEEL": f"Wheel-Version: 1.0\\nGenerator: own\\nRoot-Is-Purelib: false\\nTag: {tag}-{tag}-linux_x86_64\\n".encode()}
    files["my_ops-1.0.dist-info/RECORD"] = "".join(f"{n},,\\n" for n in files).encode()
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        for member, data in files.items():
            archive.writestr(zipfile.ZipInfo(member, (2020, 1, 1, 0, 0, 0)), data)
    return name
"""
CODE = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *unused) { return PyLong_FromLong(ANSWER); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, __FILE__}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "my_ops", 0, -1, methods};
PyMODINIT_FUNC PyInit_my_ops(void) { return PyModule_Create(&module); }
"""
PROJECT = '[project]\nname = "my-ops"\nversion = "1.0"\n[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


@pytest.fixture(scope="module")
def engine(docker_only_ours):
    from envsmith.builder.engines.docker import DockerEngine

    return DockerEngine()


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """As ``--source`` reads it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in (("backend.py", BACKEND), ("pyproject.toml", PROJECT), ("ops.c", CODE)):
            info = tarfile.TarInfo(f"checkout/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    path = tmp_path_factory.mktemp("archives") / "checkout.tar.gz"
    path.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))
    wish = parse_wish(f"my-ops@{path}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}")
    return read_archive(wish, HttpClient(offline=True))


def locked(engine, base, archive, folder, **variables):
    """The lock before its wheel is known. A cell with triton has a compiler and Python's headers."""
    heavy = tools.local_pin(tools.wheel(folder, "heavy", "1.0"), "torch")
    pin = Pin(name=archive.name, version=archive.version, layer="framework", artifacts=(archive.artifact,), sdist=True)
    lock = tools.lock_of(heavy, pin, python=base.python, triton="3.7.1")
    told = Compile(archives=(archive,), variables={"my-ops": tuple(sorted(variables.items()))})
    compiled = tuple(s.compiled(lock.cell, told) for s in sources_of(lock.pins, lock.cell, told))
    return engine.pin_image(dataclasses.replace(lock, compiled=compiled), base.name)


def test_an_archive_with_a_c_extension_becomes_the_same_wheel_without_a_cache(engine, docker_base, archive, tmp_path):
    first = engine.pin_wheels(locked(engine, docker_base, archive, tmp_path, ANSWER="42"))
    assert [w.name for w in first.wheels] == ["my-ops"]
    built = engine.build(first, tmp_path, layout=tmp_path / "one" / "oci")
    verify_content(first, engine.inspect(built))
    code, said = tools.inside(engine, built, "/opt/cell/bin/python", "-c", "import my_ops; print(my_ops.answer())")
    assert (code, said.strip()) == (0, "42")
    # The wheel is compiled again and has to have the hash of the lock.
    assert engine.build_again(first, tmp_path / "two" / "oci").identity == built.digest

    forged = dataclasses.replace(first.wheels[0], sha256="0" * 64)
    with pytest.raises(ContentError, match="Cannot finish framework layer"):
        engine.build(dataclasses.replace(first, wheels=(forged,)), tmp_path)


def test_a_wheel_that_requires_what_the_lock_does_not_have_ends_the_build(engine, docker_base, archive, tmp_path):
    lock = locked(engine, docker_base, archive, tmp_path, ANSWER="42", REQUIRES="Requires-Dist: einops")
    with pytest.raises(BuildError) as caught:
        engine.pin_wheels(lock)
    assert "requires einops, which the lock does not have" in "\n".join(caught.value.details)
