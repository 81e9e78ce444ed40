"""Sharded repodata (CEP 16) over HTTP on loopback: the same lock as from the whole index, far less of it read, every hash checked."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from envsmith.errors import LockError, NetworkError
from envsmith.lock.conda.lock import lock_conda
from envsmith.lock.conda.lock_files import files
from envsmith.lock.conda.model import CondaRequest

from .test_channels_access import Guarded

msgpack = pytest.importorskip("msgpack")
zstandard = pytest.importorskip("zstandard")

INDEX = "repodata_shards.msgpack.zst"


def pack(value: Any) -> bytes:
    return zstandard.ZstdCompressor().compress(msgpack.packb(value))


def write_shards(place: Path, *, base: str = "./shards/", edit: dict[str, bytes] | None = None) -> None:
    """The shards of ``place/repodata.json``; ``edit`` gives names another content than the index says."""
    data = json.loads((place / "repodata.json").read_text())
    by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for kind in ("packages", "packages.conda"):
        for file, record in data[kind].items():
            raw = {k: bytes.fromhex(v) if k in {"sha256", "md5"} else v for k, v in record.items()}
            by_name.setdefault(record["name"], {"packages": {}, "packages.conda": {}})[kind][file] = raw
    (place / "shards").mkdir(exist_ok=True)
    hashes = {}
    for name, shard in by_name.items():
        body = pack({**shard, "removed": []})
        hashes[name] = hashlib.sha256(body).digest()
        (place / "shards" / f"{hashes[name].hex()}.msgpack.zst").write_bytes((edit or {}).get(name, body))
    info = {"subdir": place.name, "base_url": "", "shards_base_url": base, "created_at": "2026-11-21T00:00:00Z"}
    (place / INDEX).write_bytes(pack({"version": 1, "info": info, "shards": hashes}))


@pytest.fixture
def sharded(channels, tmp_path) -> Path:
    """The channel of real records in both forms."""
    root = tmp_path / "root"
    shutil.copytree(channels / "conda-forge", root / "conda-forge")
    for subdir in ("linux-64", "noarch"):
        write_shards(root / "conda-forge" / subdir)
    return root


def asked(server: Guarded, part: str) -> list[str]:
    return [path for path, _ in server.seen if part in path]


@pytest.mark.parametrize("cell", ["deepspeed", "megatron"])
def test_lock_from_shards_is_the_lock_from_the_whole_index(sharded, cell, tmp_path, request):
    what = request.getfixturevalue(cell)
    with Guarded(sharded).up() as server:
        channel = (server.url + "/conda-forge",)
        by_shards = lock_conda(*what, CondaRequest(channels=channel, cache_dir=tmp_path / "a", tolerate=("nccl",)))
        assert asked(server, "/shards/")
        assert not asked(server, "repodata.json")
        for subdir in ("linux-64", "noarch"):
            (sharded / "conda-forge" / subdir / INDEX).unlink()
        server.seen.clear()
        whole = lock_conda(*what, CondaRequest(channels=channel, cache_dir=tmp_path / "b", tolerate=("nccl",)))
        assert asked(server, "repodata.json")
        assert not asked(server, "/shards/")
    assert files(by_shards) == files(whole)


def test_only_names_that_the_solve_can_touch_are_fetched(sharded, megatron, tmp_path):
    with Guarded(sharded).up() as server:
        lock_conda(*megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path))
        fetched = len(set(asked(server, "/shards/")))
    there = len(list(sharded.rglob("shards/*")))
    assert 0 < fetched < there
    assert len(asked(server, "/shards/")) == fetched  # none of them twice


def test_second_run_transfers_no_shard_and_offline_needs_no_server(sharded, megatron, tmp_path):
    with Guarded(sharded).up() as server:
        request = CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path / "c")
        first = lock_conda(*megatron, request)
        server.seen.clear()
        assert lock_conda(*megatron, request) == first
        assert not asked(server, "/shards/")
    assert lock_conda(*megatron, dataclasses.replace(request, offline=True)) == first


def shard_of(root: Path, name: str, subdir: str = "linux-64") -> Path:
    place = root / "conda-forge" / subdir
    index = msgpack.unpackb(zstandard.ZstdDecompressor().decompressobj().decompress((place / INDEX).read_bytes()))
    return place / "shards" / f"{index['shards'][name].hex()}.msgpack.zst"


@pytest.mark.parametrize(
    "body",
    [
        b"no zstd",
        pack(3),
        pack({"packages": 3}),
        pack({"packages.conda": {"x.conda": {"name": "nccl", "depends": [1]}}}),
        pack({"packages.conda": {"x.conda": {"name": "nccl", "version": 1}}}),
    ],
)
def test_hostile_shard_with_an_honest_hash_is_refused(sharded, megatron, tmp_path, body):
    place = sharded / "conda-forge" / "linux-64"
    index = msgpack.unpackb(zstandard.ZstdDecompressor().decompressobj().decompress((place / INDEX).read_bytes()))
    index["shards"]["nccl"] = hashlib.sha256(body).digest()
    (place / INDEX).write_bytes(pack(index))
    (place / "shards" / f"{hashlib.sha256(body).hexdigest()}.msgpack.zst").write_bytes(body)
    with Guarded(sharded).up() as server, pytest.raises(NetworkError, match="its index is damaged") as caught:
        lock_conda(*megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path))
    assert "conda-forge" in caught.value.message


@pytest.mark.parametrize("change", [{"shards": {"nccl": b"short"}}, {"shards": []}, {"info": 3}])
def test_damaged_index_of_shards_is_refused(sharded, megatron, tmp_path, change):
    place = sharded / "conda-forge" / "linux-64"
    index = msgpack.unpackb(zstandard.ZstdDecompressor().decompressobj().decompress((place / INDEX).read_bytes()))
    (place / INDEX).write_bytes(pack({**index, **change}))
    with Guarded(sharded).up() as server, pytest.raises(NetworkError, match="its index is damaged"):
        lock_conda(*megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path))


def test_shards_that_lie_on_this_machine_are_not_read(sharded, megatron, tmp_path):
    for subdir in ("linux-64", "noarch"):
        write_shards(sharded / "conda-forge" / subdir, base=f"file://{sharded}/conda-forge/{subdir}/shards")
    with Guarded(sharded).up() as server, pytest.raises(NetworkError):
        lock_conda(*megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path))


def test_shards_may_lie_on_another_server(sharded, megatron, tmp_path):
    with Guarded(sharded).up() as server, Guarded(sharded).up() as far:
        for subdir in ("linux-64", "noarch"):
            write_shards(sharded / "conda-forge" / subdir, base=f"{far.url}/conda-forge/{subdir}/shards")
        lock = lock_conda(*megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path))
        assert not asked(server, "/shards/")
    assert all(p.url.startswith(f"{server.url}/conda-forge/") for p in lock.platforms[0].packages)


def test_channel_that_begins_or_ceases_to_offer_shards_is_read_anew(sharded, megatron, tmp_path):
    place = sharded / "conda-forge"
    with Guarded(sharded).up() as server:
        channel = (server.url + "/conda-forge",)
        first = lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path))
        for subdir in ("linux-64", "noarch"):
            (place / subdir / INDEX).rename(place / subdir / "away")
        assert files(lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path))) == files(first)
        for subdir in ("linux-64", "noarch"):
            (place / subdir / "away").rename(place / subdir / INDEX)
        assert files(lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path))) == files(first)


def test_component_that_the_shards_lack_is_refused_with_what_they_have(sharded, local, tmp_path):
    other = {**local.DEEPSPEED, "nccl": "2.20.5"}
    with Guarded(sharded).up() as server, pytest.raises(LockError) as caught:
        lock_conda(
            local.cell(**other),
            local.pins_for(other),
            CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path),
        )
    assert caught.value.details[0].startswith("nccl 2.20.5: the channel has nccl 2.28")


@pytest.mark.parametrize("change", ["another nccl", "writable by all", "a link"])
def test_shard_that_was_changed_in_the_cache_is_fetched_again(sharded, megatron, tmp_path, change):
    with Guarded(sharded).up() as server:
        request = CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path / "c")
        first = lock_conda(*megatron, request)
        name = shard_of(sharded, "nccl").name.removesuffix(".zst")
        shard = tmp_path / "c" / "repodata" / "shards-v1" / name
        if change == "another nccl":
            content = msgpack.unpackb(shard.read_bytes())
            for record in content["packages.conda"].values():
                record["sha256"] = b"\xaa" * 32
            shard.write_bytes(msgpack.packb(content))
        elif change == "a link":
            shard.rename(tmp_path / "elsewhere")
            shard.symlink_to(tmp_path / "elsewhere")
        else:
            shard.chmod(0o666)
        server.seen.clear()

        with pytest.raises(NetworkError, match="is not what was fetched"):
            lock_conda(*megatron, dataclasses.replace(request, offline=True))
        second = lock_conda(*megatron, request)

        assert second == first
        assert len(asked(server, "/shards/")) == 1
    assert lock_conda(*megatron, dataclasses.replace(request, offline=True)) == first


def test_copies_of_a_channel_that_others_may_write_by_the_umask_are_closed(sharded, megatron, tmp_path):
    with Guarded(sharded).up() as server:
        request = CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path / "c")
        before = os.umask(0)
        try:
            lock_conda(*megatron, request)
        finally:
            os.umask(before)
        server.seen.clear()
        lock_conda(*megatron, request)
        assert not asked(server, "/shards/")
