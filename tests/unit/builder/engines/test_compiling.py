"""Sources compiled on this host: what is refused, what the wheel depends on, and that it is compiled once."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from envsmith.base.progress import Clock, silent
from envsmith.builder.engines.compiling import (
    WITHOUT_TOOLKIT,
    Workshop,
    lacking,
    lacking_later,
    refuse_uncompilable,
    sources_of,
)
from envsmith.builder.engines.venv import VenvEngine
from envsmith.builder.locking import lock_and_render
from envsmith.builder.options import Options
from envsmith.errors import BuildError, EngineError
from envsmith.lock.index.interpreters import Interpreter, running_interpreter
from envsmith.model.cell import Cell, Platform, Request
from envsmith.model.lock import Artifact, CompiledSource, Lock, Pin
from envsmith.solver import best_cell

DATA = b"an archive"


@pytest.fixture
def pin(tmp_path: Path) -> Pin:
    archive = tmp_path / "ops-1.0.tar.gz"
    archive.write_bytes(DATA)
    sha256 = hashlib.sha256(DATA).hexdigest()
    artifact = Artifact(filename=archive.name, sha256=sha256, size=len(DATA), url=archive.as_uri())
    return Pin(name="ops", version="1.0", layer="framework", artifacts=(artifact,), sdist=True)


@pytest.fixture
def lock(pin: Pin) -> Lock:
    cell = Cell(
        components={"torch": "2.13.0", "python": "3.11"}, chosen=(), platform=Platform.LINUX_64, index="default"
    )
    source = CompiledSource(name="ops", variables={"OPS": "1"}, toolkit=False)
    return Lock(
        cell=cell, request="r", exclude_newer="2026-11-20", python_version="3.11", pins=(pin,), compiled=(source,)
    )


class Uv:
    """What a workshop asks of uv: environments are folders, a build writes a wheel."""

    def __init__(self, *wheels: str) -> None:
        self.calls: list[tuple[Sequence[str], Mapping[str, str]]] = []
        self.wheels = wheels

    def __call__(self, arguments: Sequence[str], extra: Mapping[str, str]) -> None:
        self.calls.append((arguments, extra))
        if arguments[0] == "venv":
            (Path(arguments[-1]) / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
        if arguments[0] == "build":
            out = Path(arguments[arguments.index("--out-dir") + 1])
            out.mkdir()
            for name in self.wheels:
                (out / name).write_bytes(b"a wheel")

    @property
    def builds(self) -> list[Mapping[str, str]]:
        return [extra for arguments, extra in self.calls if arguments[0] == "build"]


def shop(lock: Lock, folder: Path, uv: Uv) -> Workshop:
    python = folder / "venv" / "bin" / "python"
    compiler = folder / "compiler" / "c++"
    compiler.parent.mkdir(exist_ok=True)
    compiler.write_text("#!/bin/sh\necho 'c++ 12.2.0'\n")
    compiler.chmod(0o755)
    (folder / "venv" / "lib" / "python3.11" / "site-packages").mkdir(parents=True, exist_ok=True)
    environ = {"PATH": f"{compiler.parent}:/usr/bin:/bin"}
    return Workshop(lock=lock, folder=folder, python=python, environ=environ, run=uv)


def test_a_wheel_is_compiled_once_with_the_variables_of_the_lock(tmp_path: Path, lock: Lock, pin: Pin) -> None:
    uv = Uv("ops-1.0-cp311-cp311-linux_x86_64.whl")
    first = shop(lock, tmp_path, uv).wheels([pin])
    again = shop(lock, tmp_path, uv).wheels([pin])
    assert first == again
    assert [path.name for path in first] == ["ops-1.0-cp311-cp311-linux_x86_64.whl"]
    assert len(uv.builds) == 1
    assert uv.builds[0]["OPS"] == "1"
    assert uv.builds[0]["PATH"].endswith(f"/builder/bin:{tmp_path}/compiler:/usr/bin:/bin")


def test_other_variables_are_another_wheel(tmp_path: Path, lock: Lock, pin: Pin) -> None:
    uv = Uv("ops-1.0-cp311-cp311-linux_x86_64.whl")
    other = dataclasses.replace(lock, compiled=(dataclasses.replace(lock.compiled[0], variables={"OPS": "2"}),))
    places = {shop(each, tmp_path, uv).wheels([pin])[0].parent for each in (lock, other)}
    assert len(places) == 2
    assert len(uv.builds) == 2


def test_a_setup_that_makes_no_wheel_is_an_error(tmp_path: Path, lock: Lock, pin: Pin) -> None:
    with pytest.raises(BuildError, match="its setup made 0 wheels"):
        shop(lock, tmp_path, Uv()).wheels([pin])


PYTHON = running_interpreter()


def test_what_needs_nvcc_is_refused(lock: Lock) -> None:
    toolkit = dataclasses.replace(lock.compiled[0], toolkit=True)
    with pytest.raises(EngineError, match="what needs nvcc is compiled in the pinned builder"):
        refuse_uncompilable((toolkit,), PYTHON)


def test_a_host_without_a_compiler_is_refused_in_one_sentence_with_what_to_do(lock: Lock) -> None:
    with pytest.raises(EngineError) as caught:
        refuse_uncompilable(lock.compiled, PYTHON, environ={"PATH": "/nowhere"})
    assert caught.value.message == "Cannot compile ops: this host has no C++ compiler (c++)."
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("Install what is missing")
    assert "--engine docker" in caught.value.hint


def test_every_program_that_a_source_needs_is_looked_for_at_once(lock: Lock) -> None:
    horovod = dataclasses.replace(lock, compiled=(dataclasses.replace(lock.compiled[0], name="horovod"),))
    assert {"c++", "make"} <= set(lacking(horovod.compiled, PYTHON, environ={"PATH": "/nowhere"}))


def test_programs_are_not_looked_for_where_nothing_is_compiled(lock: Lock) -> None:
    assert lacking((), PYTHON, environ={"PATH": "/nowhere"}) == ()


def test_what_a_cell_compiles_is_known_before_its_lock() -> None:
    cell = best_cell(Request(frameworks=["horovod"], constraints={"torch": "2.0"}))
    assert [source.name for source in sources_of(cell)] == ["horovod"]
    assert sources_of(best_cell(Request(frameworks=["deepspeed"]))) == ()


def test_a_host_without_a_compiler_is_told_before_anything_is_locked(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    cell = best_cell(Request(frameworks=["horovod"], constraints={"torch": "2.0", "python": PYTHON.minor}))
    with pytest.raises(EngineError, match="Cannot compile horovod: this host has no C"):
        lock_and_render(
            cell, Options(request=Request(), request_text="", output=tmp_path), engine=VenvEngine(), clock=Clock(silent)
        )
    assert not list(tmp_path.iterdir())


def test_interpreter_without_its_headers_is_known(tmp_path: Path, lock: Lock) -> None:
    horovod = dataclasses.replace(lock, compiled=(dataclasses.replace(lock.compiled[0], name="horovod"),))
    for name in ("c++", "make"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    headless = tmp_path / "python"
    headless.write_text("#!/bin/sh\necho False\n")
    headless.chmod(0o755)
    python = Interpreter(path=str(headless), version="3.11.2")
    assert lacking(horovod.compiled, python, environ={"PATH": str(tmp_path)}) == ("headers",)


def test_what_training_compiles_later_is_known_with_what_the_host_lacks(lock: Lock, pin: Pin) -> None:
    pins = tuple(dataclasses.replace(pin, name=name) for name in ("deepspeed", "numpy"))
    cell = dataclasses.replace(lock, pins=pins, compiled=())
    components, missing = lacking_later(cell, PYTHON, environ={"PATH": "/nowhere"})
    assert components == ("deepspeed",)
    assert missing[0] == "c++"
    assert lacking_later(dataclasses.replace(cell, pins=pins[1:]), PYTHON, environ={"PATH": "/nowhere"}) == ((), ())


def test_toolkit_of_the_host_is_hidden_from_every_way_in_which_torch_looks_for_it(tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\n")
    nvcc.chmod(0o755)
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TOOLKIT)
    looks = (
        "import os, shutil, subprocess\n"
        "print(shutil.which('nvcc'), shutil.which('sh') is not None, os.path.exists('/usr/local/cuda'))\n"
        "try:\n    print(subprocess.check_output(['which', 'nvcc']))\n"
        "except subprocess.CalledProcessError:\n    print('nowhere')\n"
        "print(bool(subprocess.check_output(['which', 'sh'])))"
    )
    environ = {"PYTHONPATH": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}

    printed = subprocess.run([sys.executable, "-c", looks], env=environ, capture_output=True, text=True, check=True)

    assert printed.stdout.split() == ["None", "True", "False", "nowhere", "True"]
