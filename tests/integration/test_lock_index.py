"""Locks of real cells from the package index that uv is configured with; one of them realised and imported."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from envsmith.builder.engines.venv import VenvEngine
from envsmith.errors import EngineError, LockError, NetworkError
from envsmith.lock.index.interpreters import find_interpreter
from envsmith.lock.index.uv import Uv
from envsmith.lock.kept_cell import differences
from envsmith.lock.pip_files import layer_text, pylock_text, requirement_files
from envsmith.lock.resolve import Resolver, lock_pip
from envsmith.model.cell import Cell
from envsmith.model.lock import Lock

pytestmark = [pytest.mark.integration, pytest.mark.network]

DAY = "2026-11-19"
CELLS = {
    "deepspeed": {
        "deepspeed": "0.19.8",
        "torch": "2.15.0+cu132",
        "cuda": "13.2",
        "python": "3.11",
        "nccl": "2.30.7",
        "triton": "3.9.0",
    },
    "deepspeed312": {"deepspeed": "0.19.8", "torch": "2.15.0+cu132", "cuda": "13.2", "python": "3.12"},
    "megatron": {"megatron-core": "0.19.2", "torch": "2.15.0+cu132", "cuda": "13.2", "python": "3.12"},
    "megatron-old": {
        "megatron-core": "0.16.1",
        "torch": "2.9.1+cu128",
        "cuda": "12.8",
        "python": "3.11",
        "nccl": "2.27.5",
    },
    "colossalai": {"colossalai": "0.5.0", "torch": "2.5.1+cu124", "cuda": "12.4", "python": "3.10", "nccl": "2.21.5"},
    "colossalai311": {"colossalai": "0.5.0", "torch": "2.5.1+cu124", "cuda": "12.4", "python": "3.11"},
}


def cell_of(components: dict[str, str]) -> Cell:
    return Cell(components=components, chosen=tuple(components)[:4])


def locked(name: str, **more: Uv) -> Lock:
    cell = cell_of(CELLS[name])
    python = cell.components["python"]
    if find_interpreter(python) is None:
        pytest.skip(f"Python {python} is not on this host")
    return lock_pip(cell, request="test", exclude_newer=DAY, resolver=Resolver(**more))


@pytest.mark.parametrize("name", CELLS)
def test_a_real_cell_locks_completely(name: str) -> None:
    from envsmith.knowledge.graph.load import components

    lock = locked(name)
    assert not differences(lock.cell, lock.pins, components())
    assert all(len(a.sha256) == 64 for pin in (*lock.pins, *lock.build_pins) for a in pin.artifacts)
    assert {"torch", "numpy", lock.cell.frameworks[0]} <= {p.name for p in lock.pins}
    assert any(pin.sdist for pin in lock.pins) == bool(lock.build_pins)
    assert {p.layer for p in lock.pins} == {"torch", "framework"}


def test_the_same_request_on_the_same_date_gives_the_same_bytes_from_an_empty_cache(tmp_path: Path) -> None:
    texts = []
    for cache in (None, tmp_path / "cache"):
        lock = locked("deepspeed", uv=Uv(cache=cache))
        texts.append((lock.text(), pylock_text(lock), *requirement_files(lock).values()))
    assert texts[0] == texts[1]


def test_a_release_after_the_date_is_not_there() -> None:
    cell = cell_of(CELLS["deepspeed"])
    with pytest.raises(LockError, match=r"no deepspeed==0\.19\.8"):
        lock_pip(cell, exclude_newer="2026-06-01")


def test_a_torch_index_that_cannot_be_reached_is_a_network_error(tmp_path: Path) -> None:
    """Behind a proxy that refuses everything, whatever this host can reach otherwise."""
    uv = Uv(cache=tmp_path / "cache")
    deaf = {
        **uv.environ,
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "UV_HTTP_RETRIES": "0",
        "NO_PROXY": "",
    }
    cell = Cell(components=CELLS["megatron-old"], chosen=("megatron-core", "torch", "cuda", "python"), index="pytorch")
    with pytest.raises(NetworkError, match="cannot be reached"):
        lock_pip(cell, exclude_newer=DAY, resolver=Resolver(uv=Uv(environ=deaf, cache=tmp_path / "cache")))


def test_an_old_framework_whose_setup_imports_torch_is_refused_by_name() -> None:
    cell = cell_of({**CELLS["megatron-old"], "deepspeed": "0.13.0"})
    with pytest.raises(
        LockError, match=r"deepspeed==0\.13\.0 does not build from source, because its setup imports torch"
    ):
        lock_pip(cell, exclude_newer=DAY)


def test_uv_and_pip_accept_the_framework_layer_and_its_build_constraints(tmp_path: Path) -> None:
    lock = locked("deepspeed")
    (tmp_path / "r.txt").write_text(layer_text(p for p in lock.pins if p.name in {"deepspeed", "ninja", "hjson"}))
    (tmp_path / "b.txt").write_text(layer_text(lock.build_pins))
    uv = Uv()
    uv.check(
        ["venv", "--quiet", "--seed", "--python", str(find_interpreter("3.11").path), str(tmp_path / "v")],
        work="create the environment",
    )  # type: ignore[union-attr]
    pip = [
        str(tmp_path / "v" / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "-r",
        str(tmp_path / "r.txt"),
    ]
    done = subprocess.run(
        [*pip, "--build-constraint", str(tmp_path / "b.txt")], capture_output=True, text=True, timeout=600, check=False
    )
    if "no such option: --build-constraint" in done.stderr:
        pytest.skip("this pip has no build constraints")
    assert done.returncode == 0, done.stderr


def test_a_real_cell_is_realised_and_imports(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 15 << 30:
        pytest.skip("15 GiB are needed")
    lock = locked("deepspeed")
    engine = VenvEngine()
    try:
        built = engine.build(lock, tmp_path / "cell")
    except EngineError as error:
        pytest.skip(error.message)
    code = "import torch, deepspeed; print(torch.version.cuda, deepspeed.__version__)"
    done = subprocess.run(
        [built.python, "-c", code], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1:] == ["13.2 0.19.8"], done.stderr[-2000:]
    shutil.rmtree(tmp_path / "cell")
