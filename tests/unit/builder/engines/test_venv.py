"""The venv engine on tiny wheels: real uv, real interpreter, no network."""

from __future__ import annotations

import dataclasses
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from lock_helpers import fine, uv_for
from tiny_index import TinyIndex, wheel

from envsmith.base.progress import EventKind, ProgressEvent
from envsmith.builder.engines import space
from envsmith.builder.engines.base import Built, Engine
from envsmith.builder.engines.venv import VenvEngine, realise
from envsmith.errors import BuildError, ContentError, EngineError, InterruptedRunError, StorageError
from envsmith.lock.index.uv import Uv
from envsmith.lock.resolve import Beside, Resolver, lock_pip
from envsmith.model.cell import Cell, Platform
from envsmith.model.component import ComponentTable
from envsmith.model.lock import Lock


class Recorder:
    """Keeps events; raises Ctrl-C when a step starts or says something."""

    def __init__(self, *, interrupt: tuple[str, EventKind] | None = None) -> None:
        self.events: list[ProgressEvent] = []
        self.interrupt = interrupt

    def __call__(self, event: ProgressEvent) -> None:
        self.events.append(event)
        if self.interrupt == (event.step, event.kind):
            raise KeyboardInterrupt

    def told(self) -> list[tuple[str, str]]:
        return [(e.kind.value, e.step) for e in self.events if e.kind is not EventKind.LINE]


def files(folder: Path) -> set[str]:
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    return {name for name in found if "__pycache__" not in name and not name.startswith(".envsmith")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cell"


def build(lock: Lock, folder: Path, uv: Uv) -> tuple[Built, list[tuple[str, str]]]:
    recorder = Recorder()
    return realise(lock, folder, progress=recorder, uv=uv), recorder.told()


def test_it_is_an_engine(uv: Uv) -> None:
    engine: Engine = VenvEngine(uv=uv)
    assert (engine.name, engine.images, engine.needs_conda_lock) == ("venv", None, False)
    assert VenvEngine(uv=uv).available() is None
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in VenvEngine().pythons()


def test_what_is_installed_is_the_lock_and_the_sdist_was_built(lock: Lock, folder: Path, uv: Uv) -> None:
    engine = VenvEngine(uv=uv)
    built = engine.build(lock, folder)
    installed = engine.inspect(built)
    assert {p.name: p.version for p in lock.pins}.items() <= installed.items()
    done = subprocess.run(
        [built.python, "-I", "-c", "import deepspeed; print(deepspeed.BUILT)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True\n"


def test_user_is_told_how_to_activate_it_and_how_to_add_a_package(lock: Lock, folder: Path, uv: Uv) -> None:
    built = realise(lock, folder, uv=uv)
    use, add, *_ = built.usage
    assert use == ("to use it", f"source {folder}/venv/bin/activate")
    assert (folder / "venv" / "bin" / "activate").exists()
    assert add[0] == "to add a package (it has no pip)"
    assert add[1].endswith(f"uv pip install --python {folder}/venv/bin/python NAME")
    assert not (folder / "venv" / "bin" / "pip").exists()


def test_the_uv_beside_envsmith_is_named_by_its_path(
    lock: Lock, folder: Path, uv: Uv, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = folder.parent / "bin"
    elsewhere.mkdir()
    (elsewhere / "uv").write_text("#!/bin/sh\n")
    (elsewhere / "uv").chmod(0o755)
    realise(lock, folder, uv=uv)

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert realise(lock, folder, uv=uv).usage[1][1].startswith(f"{uv.binary} pip install")
    monkeypatch.setenv("PATH", str(elsewhere))
    assert realise(lock, folder, uv=uv).usage[1][1].startswith("uv pip install")


def test_a_second_build_takes_up_what_is_done(lock: Lock, folder: Path, uv: Uv) -> None:
    first, told = build(lock, folder, uv)
    steps = ("virtual environment", "source packages", "torch layer", "framework layer", "content")
    assert told == [(kind, step) for step in steps for kind in ("start", "done")]
    second, told = build(lock, folder, uv)
    assert told == [("cached", "virtual environment"), ("cached", "torch layer"), ("cached", "framework layer")]
    assert second == first


def test_the_digest_is_that_of_the_content_wherever_it_lies(
    lock: Lock, tmp_path: Path, uv: Uv, index: TinyIndex
) -> None:
    one = realise(lock, tmp_path / "one", uv=uv)
    two = realise(lock, tmp_path / "a" / "longer" / "path", uv=uv_for(index.url, tmp_path / "other-cache"))
    assert one.digest == two.digest


def test_the_digest_changes_with_a_version(
    cell: Cell, table: ComponentTable, lock: Lock, tmp_path: Path, uv: Uv
) -> None:
    other = lock_pip(
        cell,
        beside=Beside(constraints=(("numpy<2", "r"),)),
        exclude_newer="2026-11-20",
        resolver=Resolver(table=table, uv=uv, judge=fine),
    )
    assert realise(lock, tmp_path / "a", uv=uv).digest != realise(other, tmp_path / "b", uv=uv).digest


def test_another_framework_layer_keeps_the_torch_layer(
    cell: Cell, table: ComponentTable, lock: Lock, folder: Path, uv: Uv
) -> None:
    build(lock, folder, uv)
    other = lock_pip(
        cell,
        beside=Beside(constraints=(("numpy<2", "r"),)),
        exclude_newer="2026-11-20",
        resolver=Resolver(table=table, uv=uv, judge=fine),
    )
    built, told = build(other, folder, uv)
    assert ("cached", "torch layer") in told
    assert ("done", "framework layer") in told
    assert VenvEngine().inspect(built)["numpy"] == "1.26.4"


@pytest.mark.parametrize("damage", ["missing", "changed", "added", "stamp"])
def test_a_damaged_environment_is_repaired(lock: Lock, folder: Path, uv: Uv, damage: str) -> None:
    built, _ = build(lock, folder, uv)
    environment = Path(built.reference)
    before = files(environment)
    module = next(environment.glob("lib/python3*/site-packages/filelock.py"))
    if damage == "missing":
        module.unlink()
    elif damage == "changed":
        module.unlink()
        module.write_text("__version__ = 'x.y.z'\n")
    elif damage == "added":
        (module.parent / "extra-1.0.dist-info").mkdir()
        (module.parent / "extra-1.0.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n"
        )
    else:
        (environment / ".envsmith" / "1.json").write_text('{"key": ')
    again, told = build(lock, folder, uv)
    assert again.digest == built.digest
    assert files(environment) == before
    mended = "torch layer" if damage == "stamp" else "framework layer"
    assert ("done", mended) in told or damage == "added"
    assert "3.20.0" in module.read_text()


@pytest.mark.parametrize(
    ("step", "moment"),
    [
        ("virtual environment", EventKind.START),
        ("torch layer", EventKind.LINE),
        ("framework layer", EventKind.START),
        ("framework layer", EventKind.LINE),
    ],
)
def test_ctrl_c_in_a_layer_leaves_the_layers_before_and_the_next_run_resumes(
    lock: Lock, folder: Path, uv: Uv, step: str, moment: EventKind
) -> None:
    with pytest.raises(InterruptedRunError):
        realise(lock, folder, progress=Recorder(interrupt=(step, moment)), uv=uv)
    site = list(folder.glob("venv/lib/python3*/site-packages/deepspeed*"))
    assert not site
    _, told = build(lock, folder, uv)
    steps = ["virtual environment", "torch layer", "framework layer"]
    assert [s for kind, s in told if kind == "cached"] == steps[: steps.index(step)]


def test_a_wrong_hash_is_refused_and_nothing_of_the_layer_stays(
    index: TinyIndex, lock: Lock, folder: Path, uv: Uv
) -> None:
    index.add("filelock", wheel("filelock", "3.20.0", files={"filelock.py": "evil = True\n"}))
    with pytest.raises(ContentError, match=r"framework layer: the hash of filelock==3\.20\.0") as caught:
        realise(lock, folder, uv=uv)
    assert caught.value.exit_code == 8
    assert not list(folder.glob("venv/lib/python3*/site-packages/deepspeed*"))


def test_a_build_tool_with_another_hash_is_refused(index: TinyIndex, lock: Lock, folder: Path, uv: Uv) -> None:
    index.add("tiny-backend", wheel("tiny-backend", "1.2", files={"tiny_backend.py": "import os\n"}))
    with pytest.raises(ContentError, match="tiny-backend"):
        realise(lock, folder, uv=uv)


def test_a_build_tool_that_is_not_pinned_is_not_fetched(lock: Lock, folder: Path, uv: Uv) -> None:
    without = dataclasses.replace(lock, build_pins=())
    with pytest.raises(BuildError, match="deepspeed"):
        realise(without, folder, uv=uv)


def test_source_that_does_not_build_fails_before_wheels_come_down(
    lock: Lock, folder: Path, uv: Uv, tmp_path: Path
) -> None:
    script, calls = tmp_path / "uv", tmp_path / "calls"
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = pip ]; then\n echo "$*" >> {calls}\n'
        ' echo "error: Failed to build \\`deepspeed==0.18.5\\`" >&2\n'
        " echo \"error: command 'x86_64-linux-gnu-g++' failed: No such file or directory\" >&2\n exit 1\nfi\n"
        f'exec {uv.binary} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)

    with pytest.raises(EngineError) as caught:
        realise(lock, folder, uv=dataclasses.replace(uv, binary=str(script)))

    assert caught.value.message == (
        "Cannot build the source packages: deepspeed==0.18.5 does not build from source: "
        "error: command 'x86_64-linux-gnu-g++' failed: No such file or directory."
    )
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("Install what is missing (")
    assert len([line for line in calls.read_text().splitlines() if "--dry-run" not in line]) == 1


def test_a_full_disk_is_a_storage_error_and_the_layer_is_taken_back(
    lock: Lock, folder: Path, uv: Uv, tmp_path: Path
) -> None:
    script = tmp_path / "uv"
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = pip ] && ! echo "$*" | grep -q -e --target; then\n echo half > {folder}/venv/lib/half-written\n'
        ' echo "error: Failed to install: torch" >&2\n echo "  cause: No space left on device (os error 28)" >&2\n exit 2\nfi\n'
        f'exec {uv.binary} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(StorageError, match=r"torch layer: the disk is full") as caught:
        realise(lock, folder, uv=dataclasses.replace(uv, binary=str(script)))
    assert caught.value.exit_code == 10
    assert not (folder / "venv" / "lib" / "half-written").exists()
    assert build(lock, folder, uv)[1][0] == ("cached", "virtual environment")


def test_too_little_space_is_said_before_anything_is_fetched(
    lock: Lock, folder: Path, uv: Uv, monkeypatch: pytest.MonkeyPatch
) -> None:
    sized = dataclasses.replace(
        lock,
        pins=tuple(
            dataclasses.replace(p, artifacts=tuple(dataclasses.replace(a, size=1 << 30) for a in p.artifacts))
            for p in lock.pins
        ),
    )
    usage = type("Usage", (), {"free": 3 << 30})()
    monkeypatch.setattr(space.shutil, "disk_usage", lambda _path: usage)
    with pytest.raises(StorageError, match=r"14\.0 GiB are needed.*3\.0 GiB are free"):
        realise(sized, folder, uv=uv)
    assert not (folder / "venv").exists()


def test_a_python_that_is_not_here_is_an_engine_error(lock: Lock, folder: Path, uv: Uv) -> None:
    with pytest.raises(EngineError, match=r"Cannot find Python 3\.99 on this host"):
        realise(dataclasses.replace(lock, python_version="3.99"), folder, uv=uv)


def test_a_lock_of_another_platform_is_an_engine_error(lock: Lock, folder: Path, uv: Uv) -> None:
    other = Platform.LINUX_AARCH64 if os.uname().machine == "x86_64" else Platform.LINUX_64
    foreign = dataclasses.replace(lock, cell=dataclasses.replace(lock.cell, platform=other))
    with pytest.raises(EngineError, match="Cannot install the lock: it is for"):
        realise(foreign, folder, uv=uv)


def test_a_folder_that_cannot_be_written_is_a_storage_error(lock: Lock, tmp_path: Path, uv: Uv) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        realise(lock, tmp_path / "file" / "cell", uv=uv)


def test_the_target_runs_the_environments_own_python(lock: Lock, folder: Path, uv: Uv) -> None:
    engine = VenvEngine(uv=uv)
    built = engine.build(lock, folder)
    target = engine.target(built)
    assert target.argv(["-c", "1"]) == [built.python, "-c", "1"]
    assert target.env()["TORCH_EXTENSIONS_DIR"].startswith(str(folder))


def _edit(file: Path) -> None:
    """Change one byte in place and put the times back, as a careless or a sly hand may."""
    status = file.stat()
    content = file.read_bytes()
    with file.open("r+b") as opened:
        opened.write(bytes([content[0] ^ 1]))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_an_edit_in_one_environment_is_found_in_the_next_that_shares_the_file(
    lock: Lock, tmp_path: Path, uv: Uv
) -> None:
    uv = dataclasses.replace(uv, environ={**uv.environ, "UV_LINK_MODE": "hardlink"})
    build(lock, tmp_path / "one", uv)
    site = next((tmp_path / "one" / "venv").glob("lib/python3*/site-packages"))
    shared = site / "torch.py"
    assert shared.stat().st_nlink > 1
    _edit(shared)

    with pytest.raises(ContentError) as caught:
        build(lock, tmp_path / "two", uv)

    assert any("torch.py is not what its RECORD says" in line for line in caught.value.details)
    assert "uv cache clean" in (caught.value.hint or "")
    with pytest.raises(ContentError):
        build(lock, tmp_path / "one", uv)


def test_what_was_read_is_read_again_only_when_something_changed(lock: Lock, folder: Path, uv: Uv) -> None:
    build(lock, folder, uv)
    marker = folder / ".venv.read"
    before = marker.stat().st_mtime_ns, marker.read_text()
    build(lock, folder, uv)
    assert (marker.stat().st_mtime_ns, marker.read_text()) == before
