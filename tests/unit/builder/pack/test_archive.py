"""One archive: what is in it, that it is the same twice, and that its script installs without an index."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from lock_helpers import fine, uv_for
from tiny_index import TinyIndex, framework_index, wheel

from envsmith.base.progress import Clock, silent
from envsmith.builder.pack.archive import Packer
from envsmith.builder.pack.local_wheels import UserPackage
from envsmith.errors import ContentError, UsageError
from envsmith.lock.resolve import Resolver, lock_pip
from envsmith.model.cell import Cell
from envsmith.model.component import ComponentTable
from envsmith.model.lock import CompiledSource, Lock, Pin

OWN = ("click", "networkx", "packaging", "pydantic", "pyelftools", "pyyaml", "rich", "tomli", "tomlkit")
# What stands where uv and envsmith would be: the script shall be run, not those two.
UV = """#!/bin/sh
if [ "$1" = venv ]; then for last; do :; done; mkdir -p "$last/bin"; printf '#!/bin/sh\\necho "envsmith $*"\\n' > "$last/bin/envsmith"
chmod +x "$last/bin/envsmith"; fi
echo "uv $*" >> "$UV_LOG"
"""


@pytest.fixture
def whole(tmp_path: Path) -> TinyIndex:
    """An index with a cell and with what envsmith needs."""
    index = framework_index(tmp_path / "whole")
    for name in OWN:
        index.add(name, wheel(name, "99.0"))
    index.add("httpx", wheel("httpx", "0.28.1", ["socksio"]))
    index.add("socksio", wheel("socksio", "1.0"))
    index.add("uv", wheel("uv", "99.0", files={"uv-99.0.data/scripts/uv": UV}))
    return index


@pytest.fixture
def packer(whole: TinyIndex, tmp_path: Path) -> Packer:
    return Packer(uv=uv_for(whole.url, tmp_path / "uv-cache"))


@pytest.fixture
def whole_lock(cell: Cell, table: ComponentTable, packer: Packer) -> Lock:
    return lock_pip(cell, exclude_newer="2026-11-20", resolver=Resolver(table=table, uv=packer.uv, judge=fine))


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {m.name.partition("/")[2]: tar.extractfile(m).read() for m in tar.getmembers()}  # type: ignore[union-attr]


def test_it_holds_every_file_of_the_lock_and_what_its_source_is_built_with(
    packer: Packer, whole_lock: Lock, tmp_path: Path
) -> None:
    packed = packer.pack(whole_lock, tmp_path / "cell.tar", Clock(silent))

    content = members(packed.path)
    names = {name.removeprefix("wheels/") for name in content if name.startswith("wheels/")}
    locked = {a.filename for pin in (*whole_lock.pins, *whole_lock.build_pins) for a in pin.artifacts}
    assert locked <= names
    assert any(name.startswith("uv-") for name in names)
    assert any(name.startswith("envsmith_train-") for name in names)
    sums = dict(line.split("  ")[::-1] for line in content["SHA256SUMS"].decode().splitlines())
    assert sums == {n: hashlib.sha256(data).hexdigest() for n, data in content.items() if n != "SHA256SUMS"}
    assert hashlib.sha256(packed.path.read_bytes()).hexdigest() == packed.sha256


def test_the_same_lock_gives_the_same_bytes(packer: Packer, whole_lock: Lock, tmp_path: Path) -> None:
    first = packer.pack(whole_lock, tmp_path / "a.tar", Clock(silent))
    second = packer.pack(whole_lock, tmp_path / "b.tar", Clock(silent))

    assert first.sha256 == second.sha256


def test_a_file_that_is_not_the_lock_s_is_not_packed(packer: Packer, whole_lock: Lock, tmp_path: Path) -> None:
    first, *further = whole_lock.pins
    artifact = dataclasses.replace(first.artifacts[0], sha256="0" * 64)
    lock = dataclasses.replace(whole_lock, pins=(dataclasses.replace(first, artifacts=(artifact,)), *further))

    with pytest.raises(ContentError, match="it is not the file of the lock"):
        packer.pack(lock, tmp_path / "cell.tar", Clock(silent))

    assert not (tmp_path / "cell.tar").exists()


def test_what_builds_is_looked_up_where_a_lock_that_was_read_again_has_no_address(
    packer: Packer, whole_lock: Lock, whole: TinyIndex, tmp_path: Path
) -> None:
    def without(pin: Pin) -> Pin:
        return dataclasses.replace(pin, artifacts=tuple(dataclasses.replace(a, url=None) for a in pin.artifacts))

    page = {(a.filename, a.sha256): a.url for pin in whole_lock.build_pins for a in pin.artifacts}
    lock = dataclasses.replace(whole_lock, build_pins=tuple(map(without, whole_lock.build_pins)))
    packer = dataclasses.replace(packer, addresses=lambda _name: page)

    packed = packer.pack(lock, tmp_path / "cell.tar", Clock(silent))

    assert {f"wheels/{name}" for name, _ in page} <= members(packed.path).keys()


BACKEND = """import zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name, info = "@NAME@", "trainer-1.2.dist-info"
    with zipfile.ZipFile(folder + "/" + name, "w") as archive:
        archive.writestr("trainer.py", "")
        archive.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: trainer\\nVersion: 1.2\\nRequires-Dist: torch @REQUIRED@\\n")
        archive.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(info + "/RECORD", "")
    return name
"""


def project(folder: Path, *, wheel_name: str = "trainer-1.2-py3-none-any.whl", required: str = ">=1") -> Path:
    """A package that brings its own build backend."""
    folder.mkdir()
    (folder / "backend.py").write_text(BACKEND.replace("@NAME@", wheel_name).replace("@REQUIRED@", required))
    (folder / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
        "[project]\nname = 'trainer'\nversion = '1.2'\n"
    )
    return folder


def test_a_project_s_own_wheel_is_installed_with_its_hash_and_imported(
    packer: Packer, whole_lock: Lock, tmp_path: Path
) -> None:
    packed = packer.pack(
        whole_lock, tmp_path / "cell.tar", Clock(silent), project=UserPackage(folder=project(tmp_path / "trainer"))
    )

    content = members(packed.path)
    digest = hashlib.sha256(content["wheels/trainer-1.2-py3-none-any.whl"]).hexdigest()
    assert f"trainer==1.2 \\\n    --hash=sha256:{digest}\n" in content["requirements.txt"].decode()
    assert 'smoke --python "$target/env" --import trainer\n' in content["install.sh"].decode()


def test_a_project_whose_wheel_is_for_another_python_is_not_packed(
    packer: Packer, whole_lock: Lock, tmp_path: Path
) -> None:
    folder = project(tmp_path / "trainer", wheel_name="trainer-1.2-cp27-cp27m-win32.whl")

    with pytest.raises(UsageError, match=r"trainer-1\.2-cp27-cp27m-win32\.whl is not for Python"):
        packer.pack(whole_lock, tmp_path / "cell.tar", Clock(silent), project=UserPackage(folder=folder))

    assert not (tmp_path / "cell.tar").exists()


def test_a_project_whose_requirements_the_lock_does_not_meet_is_packed_only_without_these(
    packer: Packer, whole_lock: Lock, tmp_path: Path
) -> None:
    folder = project(tmp_path / "trainer", required=">=999")

    with pytest.raises(UsageError, match="does not meet 1 of its requirements") as refused:
        packer.pack(whole_lock, tmp_path / "cell.tar", Clock(silent), project=UserPackage(folder=folder))
    left_out = UserPackage(folder=folder, leave_out=("Torch",))
    packed = packer.pack(whole_lock, tmp_path / "cell.tar", Clock(silent), project=left_out)

    assert list(refused.value.details) == ["torch>=999"]
    assert "wheels/trainer-1.2-py3-none-any.whl" in members(packed.path)


def test_what_is_compiled_in_an_image_is_refused(packer: Packer, whole_lock: Lock, tmp_path: Path) -> None:
    lock = dataclasses.replace(whole_lock, compiled=(CompiledSource(name="apex"),))

    with pytest.raises(UsageError, match="apex is compiled in the pinned builder"):
        packer.pack(lock, tmp_path / "cell.tar", Clock(silent))


def unpacked(packer: Packer, lock: Lock, folder: Path) -> Path:
    packed = packer.pack(lock, folder / "cell.tar", Clock(silent))
    subprocess.run(["tar", "-xf", packed.path, "-C", folder], check=True)
    return folder / lock.name


def run(script: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHON": sys.executable, **variables}
    return subprocess.run(["sh", script, *arguments], capture_output=True, text=True, check=False, env=env)


def test_the_script_installs_from_the_archive_alone_and_proves_it(
    packer: Packer, whole_lock: Lock, tmp_path: Path
) -> None:
    folder = unpacked(packer, whole_lock, tmp_path)

    answer = run(folder / "install.sh", str(tmp_path / "there"), UV_LOG=str(tmp_path / "log"))

    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == f"envsmith smoke --python {tmp_path / 'there' / 'env'}"
    installs = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("uv pip install")]
    assert len(installs) == 2
    assert all("--no-index" in line and "--require-hashes" in line for line in installs)
    assert "--build-constraints" in installs[0]
    assert not (tmp_path / "there" / ".cache").exists()


def test_the_script_run_again_proves_what_is_installed_and_makes_anew_what_was_interrupted(
    packer: Packer, whole_lock: Lock, tmp_path: Path
) -> None:
    script = unpacked(packer, whole_lock, tmp_path) / "install.sh"
    target, log = tmp_path / "there", tmp_path / "log"

    first = run(script, str(target), UV_LOG=str(log))
    again = run(script, str(target), UV_LOG=str(log))
    calls = log.read_text().count("uv pip install")
    state = target / ".envsmith-archive"
    state.write_text(state.read_text().replace("installed", "begun"))
    interrupted = run(script, str(target), UV_LOG=str(log))

    assert (first.returncode, again.returncode, interrupted.returncode) == (0, 0, 0)
    assert (calls, log.read_text().count("uv pip install")) == (2, 4)
    assert "installed already" in again.stdout


def test_the_folder_of_the_archive_may_hold_what_is_installed(packer: Packer, whole_lock: Lock, tmp_path: Path) -> None:
    folder, log = unpacked(packer, whole_lock, tmp_path), str(tmp_path / "log")

    answers = [run(folder / "install.sh", str(folder / place), UV_LOG=log) for place in (".", ".")]

    assert [answer.returncode for answer in answers] == [0, 0], answers[1].stderr


def test_an_environment_of_somebody_else_is_left_alone(packer: Packer, whole_lock: Lock, tmp_path: Path) -> None:
    script = unpacked(packer, whole_lock, tmp_path) / "install.sh"
    (tmp_path / "there" / "env").mkdir(parents=True)

    answer = run(script, str(tmp_path / "there"))

    assert answer.returncode == 10
    assert "env is there already, and not from this archive" in answer.stderr


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _link(path: Path) -> None:
    path.replace(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _unlist(path: Path) -> None:
    """Make a line of SHA256SUMS one that sha256sum only warns of, and change its file."""
    sums = path.with_name("SHA256SUMS")
    lines = sums.read_text().splitlines(keepends=True)
    sums.write_text("".join(line[1:] if line.endswith(f"  {path.name}\n") else line for line in lines))
    _flip(path)


EDITS: Mapping[str, tuple[str, Callable[[Path], object]]] = {
    "a bit of the lock": ("lock.json", _flip),
    "a bit of the requirements": ("requirements.txt", _flip),
    "a link in place of a file": ("requirements.txt", _link),
    "a line of the list that counts as none": ("requirements.txt", _unlist),
    "a file that is gone": ("lock.json", Path.unlink),
    "a file under another name": ("lock.json", lambda path: path.rename(path.with_name("lock.old"))),
    "an empty list": ("SHA256SUMS", lambda path: path.write_text("")),
    "a bit of the list": ("SHA256SUMS", _flip),
    "a second uv": ("wheels/uv-0.0-py3-none-any.whl", lambda path: path.write_bytes(b"PK")),
    "a link to a folder": ("wheels/.hidden", lambda path: path.symlink_to("/etc")),
    "a name of two lines": ("further\nfile", Path.touch),
}


def test_a_folder_that_changed_on_the_way_stops_the_script_before_anything_of_it_is_executed(
    packer: Packer, whole_lock: Lock, tmp_path: Path
) -> None:
    folder, log = unpacked(packer, whole_lock, tmp_path), tmp_path / "log"
    answers = {}

    for what, (name, edit) in EDITS.items():
        edited = Path(shutil.copytree(folder, tmp_path / what))
        edit(edited / name)
        answer = run(edited / "install.sh", str(tmp_path / "there"), UV_LOG=str(log))
        answers[what] = (answer.returncode, "a file is not the one that was packed" in answer.stderr, log.exists())

    assert answers == dict.fromkeys(EDITS, (8, True, False))


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "message"),
    [
        ((), {}, 2, "one folder is expected"),
        (("there",), {"PYTHON": "/bin/false"}, 6, "/bin/false is not Python"),
    ],
)
def test_what_the_host_lacks_is_named(
    packer: Packer,
    whole_lock: Lock,
    tmp_path: Path,
    arguments: tuple[str, ...],
    variables: dict[str, str],
    code: int,
    message: str,
) -> None:
    answer = run(unpacked(packer, whole_lock, tmp_path) / "install.sh", *arguments, **variables)

    assert (answer.returncode, message in answer.stderr) == (code, True), answer.stderr


def test_an_archive_for_another_machine_says_so(packer: Packer, whole_lock: Lock, tmp_path: Path) -> None:
    script = unpacked(packer, whole_lock, tmp_path) / "install.sh"
    script.write_text(script.read_text().replace(platform.machine(), "riscv64"))

    answer = run(script, str(tmp_path / "there"))

    assert answer.returncode == 6
    assert "this archive is for riscv64" in answer.stderr
