"""Cells locked from a local channel: what it has, what pip adds, which differences are refused or tolerated."""

from __future__ import annotations

import builtins
import dataclasses
import sys

import pytest

from envsmith.errors import LockError, NetworkError, UsageError
from envsmith.lock import store
from envsmith.lock.conda.lock import lock_conda, up_to_date
from envsmith.lock.conda.lock_files import files
from envsmith.lock.conda.model import CondaRequest
from envsmith.lock.conda.solve import compare
from envsmith.model.cell import Platform
from envsmith.model.lock import Artifact
from envsmith.model.rule import Severity


def versions(lock) -> dict[str, str]:
    return {p.name: p.version for p in lock.platforms[0].packages}


def test_deepspeed_cell_comes_from_the_channel_with_compilers_and_nvcc(deepspeed, forge, tmp_path):
    cell, pins = deepspeed
    lock = lock_conda(cell, pins, CondaRequest(channels=forge, cache_dir=tmp_path))
    got = versions(lock)
    assert got["python"].startswith("3.10.")
    assert (got["pytorch"], got["nccl"], got["cudnn"], got["triton"]) == ("2.8.0", "2.28.9.1", "9.10.2.21", "3.4.0")
    assert got["deepspeed"] == "0.18.2"
    assert {"c-compiler", "cxx-compiler", "cuda-nvcc"} <= set(got)
    assert lock.platforms[0].package("pytorch").build.startswith("cuda129_")
    assert lock.platforms[0].pip == ()
    assert compare(cell, pins, lock) == ()


def test_framework_the_channel_lacks_comes_from_pip_with_its_hash(megatron, forge, tmp_path):
    cell, pins = megatron
    lock = lock_conda(cell, pins, CondaRequest(channels=forge, cache_dir=tmp_path))
    pip = {p.name: p for p in lock.platforms[0].pip}
    assert set(pip) == {"megatron-core", "hjson"}
    assert pip["megatron-core"].sha256 == next(p for p in pins if p.name == "megatron-core").artifacts[0].sha256
    assert pip["megatron-core"].requires == ("hjson",)
    got = versions(lock)
    assert got["numpy"] == "2.2.6"
    assert got["packaging"] == "25.0"
    assert "pip" in got
    assert "cxx-compiler" not in got
    assert compare(cell, pins, lock) == ()


def test_cell_of_the_pytorch_channel_is_solved_over_three_channels(colossalai, three, tmp_path):
    cell, pins = colossalai
    lock = lock_conda(cell, pins, CondaRequest(channels=three, cache_dir=tmp_path))
    assert lock.platforms[0].package("pytorch").build == "py3.12_cuda12.4_cudnn9.1.0_0"
    assert versions(lock)["pytorch-cuda"] == "12.4"
    assert "colossalai" in {p.name for p in lock.platforms[0].pip}
    findings = compare(cell, pins, lock)
    assert [(f.severity, dict(f.components)) for f in findings] == [
        (Severity.WARNING, {"nccl": "pip 2.20.5, conda none"})
    ]
    assert any("nccl 2.20.5" in note for note in lock.notes)


def test_cpu_cell_has_no_cuda_part(local, forge, tmp_path):
    cell = local.cell(torch="2.7.1+cpu", cuda="cpu", python="3.13")
    lock = lock_conda(cell, (local.pin("torch", "2.7.1+cpu"),), CondaRequest(channels=forge, cache_dir=tmp_path))
    assert "__cuda" not in lock.platforms[0].virtual_packages
    assert lock.platforms[0].package("pytorch").build.startswith("cpu_")
    assert not {"nccl", "cudnn", "cuda-version"} & set(versions(lock))


def test_wrong_nccl_in_the_channel_is_refused_and_the_build_that_exists_is_named(local, forge, tmp_path):
    components = {**local.DEEPSPEED, "nccl": "2.27.5"}
    with pytest.raises(LockError) as caught:
        lock_conda(
            local.cell(**components), local.pins_for(components), CondaRequest(channels=forge, cache_dir=tmp_path)
        )
    assert caught.value.details[0] == (
        "nccl: the cell has 2.27.5, the channel's pytorch 2.8.0 cuda129_mkl_py310_hc78ee88_301 goes with 2.28.9"
    )
    assert "envsmith solve --nccl 2.28.9" in caught.value.hint


def test_difference_that_is_tolerated_is_noted_and_found(local, forge, tmp_path):
    components = {**local.DEEPSPEED, "nccl": "2.27.3"}
    cell, pins = local.cell(**components), local.pins_for(components)
    lock = lock_conda(cell, pins, CondaRequest(channels=forge, cache_dir=tmp_path, tolerate=["nccl"]))
    assert "nccl on linux-64: the pip lock has 2.27.3, the Conda lock has 2.28.9" in lock.notes[0]
    (finding,) = compare(cell, pins, lock)
    assert dict(finding.components) == {"nccl": "pip 2.27.3, conda 2.28.9"}
    text = files(lock)["conda-lock.yml"]
    assert up_to_date(text, cell, pins, CondaRequest(channels=forge, tolerate=["nccl"]))
    assert not up_to_date(text, cell, pins, CondaRequest(channels=forge))
    with pytest.raises(UsageError, match="torch"):
        lock_conda(cell, pins, CondaRequest(channels=forge, cache_dir=tmp_path, tolerate=["torch"]))


def test_nccl_the_channel_never_had_is_refused_with_those_it_has(local, forge, tmp_path):
    components = {**local.DEEPSPEED, "nccl": "2.26.2"}
    with pytest.raises(LockError) as caught:
        lock_conda(
            local.cell(**components), local.pins_for(components), CondaRequest(channels=forge, cache_dir=tmp_path)
        )
    assert caught.value.details == ("nccl 2.26.2: the channel has nccl 2.28.9, 2.28.7, 2.27.7, 2.27.5, 2.22.3",)


def test_pip_lock_with_another_nccl_than_the_cell_is_refused(local, forge, tmp_path):
    cell = local.cell(**local.DEEPSPEED)
    pins = local.pins_for({**local.DEEPSPEED, "nccl": "2.27.3"})
    with pytest.raises(LockError) as caught:
        lock_conda(cell, pins, CondaRequest(channels=forge, cache_dir=tmp_path))
    assert "the pip lock has 2.27.3, the Conda lock has 2.28.9" in caught.value.details[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"cuda": "12.8", "torch": "2.8.0+cu128"},
            "torch 2.8.0 for CUDA 12.8: the channel has pytorch 2.8.0 for CUDA 12.9",
        ),
        ({"torch": "2.6.0+cu129"}, "torch 2.6.0 for CUDA 12.9: the channel has pytorch 2.9.1, 2.8.0, 2.7.1"),
        ({"python": "3.11"}, "torch 2.8.0 for CUDA 12.9: the channel has it for Python 3.10, not 3.11"),
        ({"deepspeed": "0.10.0"}, "deepspeed 0.10.0: the channel has 0.18.2, and the pip lock does not pin it"),
        (
            {"transformer_engine": "2.9.0"},
            "transformer-engine 2.9.0: the channel does not have it for linux-64, and the pip lock does not pin it",
        ),
    ],
)
def test_refusal_names_what_the_channel_has_instead(local, forge, tmp_path, change, said):
    cell = local.cell(**{**local.DEEPSPEED, **change})
    pins = [p for p in local.pins_for(local.DEEPSPEED) if p.name != "deepspeed"]
    with pytest.raises(LockError) as caught:
        lock_conda(cell, pins, CondaRequest(channels=forge, cache_dir=tmp_path))
    assert said in caught.value.details


def test_every_problem_is_told_at_once(local, forge, tmp_path):
    cell = local.cell(**{**local.DEEPSPEED, "nccl": "2.1.1", "cudnn": "8.0.0.1", "torch": "2.8.0+cu129"})
    with pytest.raises(LockError) as caught:
        lock_conda(cell, (), CondaRequest(channels=forge, cache_dir=tmp_path))
    assert len(caught.value.details) == 2


def test_platform_the_channel_does_not_serve_is_refused(deepspeed, forge, tmp_path):
    cell, pins = deepspeed
    with pytest.raises(LockError) as caught:
        lock_conda(cell, pins, CondaRequest(channels=forge, platforms=[Platform.LINUX_AARCH64], cache_dir=tmp_path))
    assert "no pytorch for linux-aarch64" in "\n".join(caught.value.details)


def test_two_platforms_share_one_file(local, deepspeed, tmp_path):
    cell, pins = deepspeed
    both = local.real_records()
    both += [{**r, "subdir": "linux-aarch64"} for r in both if r["subdir"] == "linux-64"]
    root = local.write_index(tmp_path / "both", both, subdirs=("linux-64", "linux-aarch64", "noarch"))
    lock = lock_conda(
        cell,
        pins,
        CondaRequest(
            channels=((root / "conda-forge").as_uri(),),
            platforms=[Platform.LINUX_AARCH64, Platform.LINUX_64],
            cache_dir=tmp_path,
        ),
    )
    texts = files(lock)
    assert [p.platform.value for p in lock.platforms] == ["linux-64", "linux-aarch64"]
    assert {"conda-linux-64.lock", "conda-linux-aarch64.lock"} <= set(texts)
    assert lock.platforms[1].virtual_packages["__archspec"] == "1 aarch64"
    assert "linux-aarch64" in texts["conda-lock.yml"]


def test_same_request_and_channel_give_the_same_bytes(megatron, forge, tmp_path):
    cell, pins = megatron
    first = files(lock_conda(cell, pins, CondaRequest(channels=forge, cache_dir=tmp_path / "a")))
    for attempt in range(4):
        again = lock_conda(
            cell, tuple(reversed(pins)), CondaRequest(channels=forge, cache_dir=tmp_path / str(attempt % 2))
        )
        assert files(again) == first


def test_lock_is_up_to_date_until_something_is_asked_otherwise(local, megatron, forge, tmp_path):
    cell, pins = megatron
    text = files(lock_conda(cell, pins, CondaRequest(channels=forge, cache_dir=tmp_path)))["conda-lock.yml"]
    assert up_to_date(text, cell, pins, CondaRequest(channels=forge))
    assert not up_to_date(text, cell, pins[:-1], CondaRequest(channels=forge))
    assert not up_to_date(text, cell, pins, CondaRequest(channels=("conda-forge",)))
    assert not up_to_date(text, cell, pins, CondaRequest(channels=forge, platforms=[Platform.LINUX_AARCH64]))
    assert not up_to_date(text, local.cell(**{**local.MEGATRON, "nccl": "2.27.5"}), pins, CondaRequest(channels=forge))


def test_edited_lock_is_not_up_to_date(megatron, forge, tmp_path):
    cell, pins = megatron
    text = files(lock_conda(cell, pins, CondaRequest(channels=forge, cache_dir=tmp_path)))["conda-lock.yml"]
    sha = next(line for line in text.splitlines() if "sha256:" in line)
    assert not up_to_date(text.replace(sha.split()[-1], "a" * 64), cell, pins, CondaRequest(channels=forge))


def test_event_loop_of_the_caller_does_not_disturb(deepspeed, forge, tmp_path):
    import asyncio

    async def inside():
        return lock_conda(*deepspeed, CondaRequest(channels=forge, cache_dir=tmp_path))

    assert asyncio.run(inside()).platforms


def test_exclude_newer_hides_later_builds(megatron, forge, tmp_path):
    cell, pins = megatron
    with pytest.raises(LockError) as caught:
        lock_conda(cell, pins, CondaRequest(channels=forge, cache_dir=tmp_path, exclude_newer="2025-09-01"))
    assert any(line.startswith("nccl 2.28.9: the channel has") for line in caught.value.details)
    with pytest.raises(UsageError):
        lock_conda(cell, pins, CondaRequest(channels=forge, cache_dir=tmp_path, exclude_newer="yesterday"))


def test_missing_rattler_is_one_sentence_with_the_command(deepspeed, forge, tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "rattler":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    for name in [n for n in sys.modules if n.split(".")[0] == "rattler"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError) as caught:
        lock_conda(*deepspeed, CondaRequest(channels=forge, cache_dir=tmp_path))
    assert "py-rattler" in caught.value.message
    assert "pip install" in caught.value.hint


def test_lock_without_an_address_for_a_pip_package_is_refused(local, megatron, forge, tmp_path):
    import dataclasses

    cell, pins = megatron
    bare = [dataclasses.replace(p, artifacts=(dataclasses.replace(p.artifacts[0], url=None),)) for p in pins]
    with pytest.raises(LockError, match="has no address of"):
        lock_conda(cell, bare, CondaRequest(channels=forge, cache_dir=tmp_path))


def test_a_channel_that_is_none_is_a_usage_error(deepspeed, tmp_path):
    for channel in (("",), ("ftp://host.example/ch",), ("a b\n",)):
        with pytest.raises(UsageError):
            lock_conda(*deepspeed, CondaRequest(channels=channel, cache_dir=tmp_path))


def test_folder_without_an_index_is_no_channel(deepspeed, tmp_path):
    with pytest.raises(NetworkError, match="has no index"):
        lock_conda(
            *deepspeed,
            CondaRequest(channels=((tmp_path / "nothing").as_uri(),), cache_dir=tmp_path),
        )


def test_written_files_are_whole_and_equal_ones_are_left_alone(megatron, forge, tmp_path):
    lock = lock_conda(*megatron, CondaRequest(channels=forge, cache_dir=tmp_path / "cache"))
    store.write(tmp_path / "out", files(lock))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir()}
    store.write(tmp_path / "out", files(lock))
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(files(lock))


def test_second_platform_gets_its_own_wheel_from_the_index(local, tmp_path):
    records = local.real_records()
    arm = [{**r, "subdir": "linux-aarch64"} for r in records if r["subdir"] != "noarch"]
    root = local.write_index(tmp_path / "ch", [*records, *arm], subdirs=("linux-64", "linux-aarch64", "noarch"))
    components = {**local.MEGATRON}
    pins = []
    for made in local.pins_for(components):
        if made.name != "hjson":
            pins.append(made)
            continue
        wheel = "hjson-3.1.0-cp310-cp310-manylinux_2_28_{}.whl"
        x86, aarch64 = (
            Artifact(filename=wheel.format(m), sha256=c * 64, url="https://files.example/" + wheel.format(m))
            for m, c in (("x86_64", "a"), ("aarch64", "b"))
        )
        pins.append(dataclasses.replace(made, artifacts=(x86,)))
    asked: list[str] = []

    def more(pin):
        asked.append(pin.name)
        return (x86, aarch64)

    order = {
        "channels": ((root / "conda-forge").as_uri(),),
        "platforms": [Platform.LINUX_AARCH64, Platform.LINUX_64],
        "cache_dir": tmp_path,
    }
    cell = local.cell(**components)
    with pytest.raises(LockError, match="no file that linux-aarch64 can install"):
        lock_conda(cell, pins, CondaRequest(**order))
    lock = lock_conda(cell, pins, CondaRequest(**order), files_of=more)
    found = {part.platform: {p.name: p.sha256 for p in part.pip}["hjson"] for part in lock.platforms}
    assert found == {Platform.LINUX_64: "a" * 64, Platform.LINUX_AARCH64: "b" * 64}
    assert asked == ["hjson"]
    assert {"conda-linux-64.lock", "conda-linux-aarch64.lock", "conda-linux-aarch64.pip.txt"} <= set(files(lock))
    assert files(lock) == files(lock_conda(cell, pins, CondaRequest(**order), files_of=more))


def test_what_is_tolerated_differs_only_when_it_must(local, forge, tmp_path):
    everything = ("nccl", "cudnn", "triton")
    cell, pins = local.cell(**local.DEEPSPEED), local.pins_for(local.DEEPSPEED)
    same = lock_conda(cell, pins, CondaRequest(channels=forge, cache_dir=tmp_path, tolerate=everything))
    assert compare(cell, pins, same) == ()
    older = {**local.DEEPSPEED, "nccl": "2.27.5"}
    cell, pins = local.cell(**older), local.pins_for(older)
    lock = lock_conda(cell, pins, CondaRequest(channels=forge, cache_dir=tmp_path, tolerate=everything))
    assert [set(f.components) for f in compare(cell, pins, lock)] == [{"nccl"}]
    assert versions(lock)["cudnn"] == "9.10.2.21"
