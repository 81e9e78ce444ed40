"""The package layer, resolved by a real uv over an index in a folder."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from lock_helpers import bad, fine, uv_for
from tiny_index import TinyIndex, sdist, wheel

from envsmith.errors import ContentError, LockError, NetworkError
from envsmith.lock.index.uv import Uv
from envsmith.lock.pip_files import pylock_text, requirement_files
from envsmith.lock.resolve import Beside, Resolver, lock_pip
from envsmith.model.cell import Cell
from envsmith.model.component import ComponentTable
from envsmith.model.finding import Change
from envsmith.model.lock import Compile, GivenArchive, Lock, parse_lock

DAY = "2026-11-20"


def test_every_pin_is_exact_hashed_and_sorted(lock: Lock) -> None:
    assert {p.name: p.version for p in lock.pins} == {
        "deepspeed": "0.18.5",
        "filelock": "3.20.0",
        "ninja": "1.13.0",
        "numpy": "2.3.0",
        "nvidia-nccl-cu12": "2.27.5",
        "setuptools": "80.9.0",
        "torch": "2.9.1",
    }
    assert [p.name for p in lock.pins] == sorted(p.name for p in lock.pins)
    assert all(len(a.sha256) == 64 for p in lock.pins for a in p.artifacts)


def test_the_torch_layer_is_torch_and_the_heavy_part_of_what_it_requires(lock: Lock) -> None:
    assert {p.name for p in lock.pins if p.layer == "torch"} == {"torch", "nvidia-nccl-cu12"}
    assert lock.pins[[p.name for p in lock.pins].index("filelock")].layer == "framework"
    torch = next(p for p in lock.pins if p.name == "torch")
    assert torch.requires == ("filelock", "nvidia-nccl-cu12")


def test_what_an_sdist_is_built_with_is_pinned_too(lock: Lock) -> None:
    assert [(p.name, p.version, p.layer) for p in lock.build_pins] == [("tiny-backend", "1.2", "build")]
    assert [p.name for p in lock.pins if p.sdist] == ["deepspeed"]


@pytest.mark.parametrize(("setuptools", "pinned"), [("68.0.0", {"setuptools", "wheel"}), ("70.1.0", {"setuptools"})])
def test_wheel_is_pinned_beside_a_setuptools_that_asks_for_it(
    index: TinyIndex, cell: Cell, table: ComponentTable, uv: Uv, setuptools: str, pinned: set[str]
) -> None:
    pyproject = f'[build-system]\nrequires = ["setuptools=={setuptools}"]\n'
    index.add("deepspeed", sdist("deepspeed", "0.18.5", requires=["torch"], extra={"pyproject.toml": pyproject}))
    index.add("setuptools", wheel("setuptools", setuptools))
    index.add("wheel", wheel("wheel", "0.40.0"))

    lock = lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=fine))

    assert {pin.name for pin in lock.build_pins} == pinned


def test_an_sdist_is_left_out_where_a_wheel_can_be_installed(
    index: TinyIndex, cell: Cell, table: ComponentTable, uv: Uv
) -> None:
    index.add("deepspeed", wheel("deepspeed", "0.18.5", ["torch"]))
    lock = lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=fine))
    deepspeed = next(p for p in lock.pins if p.name == "deepspeed")
    assert [a.filename for a in deepspeed.artifacts] == ["deepspeed-0.18.5-py3-none-any.whl"]
    assert not lock.build_pins


def test_the_same_request_gives_the_same_bytes_from_an_empty_cache(
    index: TinyIndex, cell: Cell, table: ComponentTable, tmp_path: Path
) -> None:
    texts = []
    for n in range(2):
        lock = lock_pip(
            cell,
            exclude_newer=DAY,
            resolver=Resolver(table=table, uv=uv_for(index.url, tmp_path / f"cache{n}"), judge=fine),
        )
        texts.append((lock.text(), pylock_text(lock), *requirement_files(lock).values()))
    assert texts[0] == texts[1]


def test_a_constraint_of_a_rule_is_kept(cell: Cell, table: ComponentTable, uv: Uv) -> None:
    lock = lock_pip(
        cell,
        beside=Beside(constraints=(("numpy<2", "numpy-2-abi"),)),
        exclude_newer=DAY,
        resolver=Resolver(table=table, uv=uv, judge=fine),
    )
    assert next(p for p in lock.pins if p.name == "numpy").version == "1.26.4"


def test_another_nccl_overrides_the_pin_of_torch(cell: Cell, table: ComponentTable, uv: Uv) -> None:
    other = dataclasses.replace(cell, components={**cell.components, "nccl": "2.28.9"})
    lock = lock_pip(other, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=fine))
    assert next(p for p in lock.pins if p.name == "nvidia-nccl-cu12").version == "2.28.9"
    assert "nvidia-nccl-cu12==2.28.9" in lock.facts["overrides"]


def test_a_lock_of_the_flavour_train_has_pip(index: TinyIndex, cell: Cell, table: ComponentTable, uv: Uv) -> None:
    index.add("pip", wheel("pip", "26.1"))
    resolver = Resolver(table=table, uv=uv, judge=fine)
    lock = lock_pip(cell, exclude_newer=DAY, flavour="train", resolver=resolver)
    pip = lock.pin("pip")
    assert pip is not None
    assert pip.layer == "framework"
    assert lock.name == f"{cell.id}-train"


def test_the_lock_says_so_when_the_index_tells_no_upload_times(lock: Lock) -> None:
    assert "not applied to" in lock.facts["exclude_newer"]
    assert "torch" in lock.facts["exclude_newer"]


def test_a_settings_file_of_a_project_does_not_change_the_lock(
    cell: Cell, table: ComponentTable, uv: Uv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.uv]\nconstraint-dependencies = ["numpy<2"]\n')
    monkeypatch.chdir(tmp_path)
    lock = lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=fine))
    assert next(p for p in lock.pins if p.name == "numpy").version == "2.3.0"


def test_a_local_build_beside_the_index_is_not_taken_unless_it_is_asked_for(
    cell: Cell, table: ComponentTable, uv: Uv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, data = wheel("torch", "2.9.1+cpu", ["filelock"])
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / name).write_bytes(data)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    assert lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=fine)).pins
    with pytest.raises(LockError, match="other versions than the cell") as caught:
        lock_pip(
            cell,
            exclude_newer=DAY,
            resolver=Resolver(table=table, uv=uv, judge=fine, find_links=(str(tmp_path / "wheels"),)),
        )
    assert "torch: the cell says 2.9.1+cu128, the resolver pinned torch 2.9.1+cpu" in caught.value.details


@pytest.mark.parametrize("component", ["deepspeed", "numpy"])
def test_a_release_that_is_not_on_the_index_is_named(cell: Cell, table: ComponentTable, uv: Uv, component: str) -> None:
    wanted = dataclasses.replace(cell, components={**cell.components, component: "99.1"})
    with pytest.raises(LockError, match=rf"the package index has no {component}==99\.1"):
        lock_pip(wanted, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=fine))


def given(tmp_path: Path, *, requires: tuple[str, ...] = (), cuda: bool = False) -> GivenArchive:
    """The archive of a distribution that the index has not; its setup would fail, and is never run."""
    _, data = sdist("my-ops", "0.1", extra={"setup.py": "import torch, packaging\nraise SystemExit\n"})
    path = tmp_path / "a folder.tar.gz"
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return GivenArchive(
        name="my-ops", version="0.1", address=path.as_uri(), sha256=digest, size=len(data), requires=requires, cuda=cuda
    )


def test_an_archive_that_was_given_stands_for_what_the_index_has_not(
    index: TinyIndex, cell: Cell, table: ComponentTable, uv: Uv, tmp_path: Path
) -> None:
    for name in ("packaging", "wheel"):
        index.add(name, wheel(name, "1.0"))
    index.add("my-ops", wheel("my-ops", "9.9"))  # another program, as on the real index
    archive = given(tmp_path, requires=("packaging", "numpy<2"))
    told = Compile(archives=(archive,), variables={"my-ops": (("MY_OPS", "1"),)})
    lock = lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=fine), compile=told)
    pins = {p.name: p for p in lock.pins}
    assert (pins["my-ops"].version, pins["my-ops"].sdist, pins["my-ops"].artifacts) == (
        "0.1",
        True,
        (archive.artifact,),
    )
    assert pins["my-ops"].requires == ("numpy", "packaging")
    assert pins["numpy"].version == "1.26.4"
    # Built beside the cell's own torch, with what its setup imports and does not declare.
    assert {p.name: p.version for p in lock.build_pins}["torch"] == "2.9.1"
    (source,) = lock.compiled
    assert (source.name, source.archive, source.toolkit) == ("my-ops", "file", False)
    assert dict(source.variables)["MY_OPS"] == "1"
    assert "a folder" not in lock.text()
    assert parse_lock(lock.text(), where="lock.json").compiled == lock.compiled


def test_what_is_compiled_with_variables_must_be_a_source_distribution_of_the_lock(
    cell: Cell, table: ComponentTable, uv: Uv
) -> None:
    told = Compile(variables={"numpy": (("X", "1"),)})
    with pytest.raises(LockError, match="the lock compiles nothing called numpy"):
        lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=fine), compile=told)


def test_a_package_that_is_missing_is_named(index: TinyIndex, cell: Cell, table: ComponentTable, uv: Uv) -> None:
    index.add("torch", wheel("torch", "2.9.1", ["nowhere-to-be-found"]))
    with pytest.raises(LockError, match="nowhere-to-be-found") as caught:
        lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=fine))
    assert caught.value.exit_code == 4


def test_packages_that_contradict_each_other_are_named(cell: Cell, table: ComponentTable, uv: Uv) -> None:
    with pytest.raises(LockError, match=r"numpy|contradict") as caught:
        lock_pip(
            cell,
            beside=Beside(constraints=(("numpy<2", "a"), ("numpy>=2", "b"))),
            exclude_newer=DAY,
            resolver=Resolver(table=table, uv=uv, judge=fine),
        )
    assert any("numpy" in line for line in caught.value.details)


def test_a_file_that_the_index_gives_no_hash_for_is_hashed_all_the_same(
    index: TinyIndex, cell: Cell, table: ComponentTable, uv: Uv
) -> None:
    index.add("ninja", hashes=False)
    lock = lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=fine))
    artifact = next(p for p in lock.pins if p.name == "ninja").artifacts[0]
    assert artifact.sha256 == hashlib.sha256(index.files["ninja"][artifact.filename]).hexdigest()


def test_an_sdist_that_is_not_what_the_index_names_is_refused(
    index: TinyIndex, cell: Cell, table: ComponentTable, uv: Uv
) -> None:
    name, data = sdist("deepspeed", "0.18.5", requires=["torch"])
    (index.root / "deepspeed" / name).write_bytes(data + b"\0")
    with pytest.raises((ContentError, LockError), match="deepspeed"):
        lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=fine))


def test_an_index_that_does_not_answer_is_a_network_error(cell: Cell, table: ComponentTable, tmp_path: Path) -> None:
    deaf = uv_for("http://127.0.0.1:9/simple", tmp_path / "cache")
    with pytest.raises(NetworkError, match=r"http://127\.0\.0\.1:9/simple.* cannot be reached") as caught:
        lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=deaf, judge=fine))
    assert caught.value.exit_code == 5


def test_a_rule_that_the_pinned_packages_break_refuses_the_lock(cell: Cell, table: ComponentTable, uv: Uv) -> None:
    with pytest.raises(LockError, match="break 1 rule") as caught:
        lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=bad))
    assert "numpy 2 breaks it [numpy-2-abi]" in caught.value.details


def test_a_repair_that_leaves_the_cell_alone_is_made_a_constraint(cell: Cell, table: ComponentTable, uv: Uv) -> None:
    judge = functools.partial(bad, repair=(Change(component="numpy", old="2.3.0", new="1.26.4"),))
    lock = lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=judge))
    assert next(p for p in lock.pins if p.name == "numpy").version == "1.26.4"
    assert lock.constraints == (("numpy==1.26.4", "numpy-2-abi"),)


@pytest.mark.parametrize(
    "change",
    [
        Change(component="torch", old="2.9.1+cu128", new="2.8.0+cu128"),
        Change(component="numpy", old="2.3.0", new=None),
        Change(component="driver", old=None, new="580.0"),
    ],
)
def test_a_repair_that_would_change_the_cell_is_not_made(
    cell: Cell, table: ComponentTable, uv: Uv, change: Change
) -> None:
    with pytest.raises(LockError, match="break 1 rule"):
        lock_pip(
            cell,
            exclude_newer=DAY,
            resolver=Resolver(table=table, uv=uv, judge=functools.partial(bad, repair=(change,))),
        )


def test_a_repair_that_does_not_help_ends(cell: Cell, table: ComponentTable, uv: Uv) -> None:
    judge = functools.partial(bad, repair=(Change(component="numpy", old="2.3.0", new="2.3.0"),))
    with pytest.raises(LockError, match="break 1 rule"):
        lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=judge))


def test_what_is_built_against_torch_is_built_against_the_torch_of_the_cell(
    index: TinyIndex, cell: Cell, table: ComponentTable, uv: Uv
) -> None:
    index.add("torch", wheel("torch", "2.10.0"))
    needs = '[build-system]\nrequires = ["tiny-backend", "torch"]\nbuild-backend = "tiny_backend"\n'
    index.add("deepspeed", sdist("deepspeed", "0.18.5", requires=["torch"], extra={"pyproject.toml": needs}))
    lock = lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=fine))
    assert {p.name: p.version for p in lock.build_pins}["torch"] == "2.9.1"


def test_a_component_that_is_not_on_the_index_cannot_be_locked(cell: Cell, table: ComponentTable, uv: Uv) -> None:
    wanted = dataclasses.replace(cell, components={**cell.components, "apex": "24.4"})
    with pytest.raises(LockError, match="apex is not on the package index"):
        lock_pip(wanted, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=fine))


def test_a_part_of_the_toolkit_that_torch_pins_stays_in_torch_s_release(
    index: TinyIndex, cell: Cell, table: ComponentTable, uv: Uv
) -> None:
    # The numbers of CCCL left those of CUDA behind: torch 2.15 for CUDA 13.2 pins 13.3.5.
    nccl, cccl = "nvidia-nccl-cu12==2.27.5", "nvidia-cuda-cccl==13.3.5.0.6"
    index.add("torch", wheel("torch", "2.9.1", ["filelock", nccl, cccl]))
    for name in ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-cccl", "nvidia-cuda-runtime"):
        for version in ("13.2.86", "13.3.5.0.6"):
            index.add(name, wheel(name, version))
    thirteen = dataclasses.replace(cell, components={**cell.components, "cuda": "13.2"})

    lock = lock_pip(thirteen, exclude_newer=DAY, flavour="devel", resolver=Resolver(table=table, uv=uv, judge=fine))

    pins = {p.name: p.version for p in lock.pins}
    assert (pins["nvidia-cuda-cccl"], pins["nvidia-cuda-nvcc"]) == ("13.3.5.0.6", "13.2.86")


@pytest.mark.slow  # pip builds and installs all of it
def test_what_was_downloaded_for_a_lock_installs_without_an_index(
    index: TinyIndex, cell: Cell, table: ComponentTable, uv: Uv, tmp_path: Path
) -> None:
    # As docs/how-to/offline.md says it: the packages, and what their source distributions are built with.
    lock = lock_pip(cell, exclude_newer=DAY, resolver=Resolver(table=table, uv=uv, judge=fine))
    wheels, site = tmp_path / "wheels", tmp_path / "site"

    def pip(*arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    for name, text in requirement_files(lock).items():
        (tmp_path / name).write_text(text)
    hashed = ["--require-hashes", "--no-deps", "-r"]
    for name in ("requirements.txt", "requirements-build.txt"):
        pip("download", "--index-url", index.url, *hashed, str(tmp_path / name), "-d", str(wheels))
    everything = str(tmp_path / "requirements.txt")
    pip("install", "--no-index", "--find-links", str(wheels), "--target", str(site), *hashed, everything)

    assert (site / "deepspeed.py").read_text() == "BUILT = True\n"
