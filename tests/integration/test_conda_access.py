"""A private channel behind a dead mirror, in shards of rattler's own indexer: locked and installed, and no secret stays anywhere."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from envsmith.errors import NetworkError
from envsmith.lock.conda.install import realise
from envsmith.lock.conda.lock import lock_conda
from envsmith.lock.conda.lock_files import files
from envsmith.lock.conda.model import CondaRequest

from .conda_packages import cell_of, pins_of, run

pytestmark = pytest.mark.integration

SECRET = "s3cr3t-Tok3n"


@pytest.fixture(scope="module")
def access(load_file) -> ModuleType:
    """The guarded server of the unit tests."""
    return load_file("tests/unit/lock/conda/test_channels_access.py")


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    place = tmp_path / "home"
    (place / ".rattler").mkdir(parents=True)
    for name in ("RATTLER_AUTH_FILE", "NETRC", "CONDARC", "CONDA_PREFIX", "CONDA_CHANNEL_ALIAS", "PIXI_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "xdg"))
    return place


def remember(home: Path, entry: object) -> None:
    (home / ".rattler" / "credentials.json").write_text(json.dumps({"127.0.0.1": entry}))


def traces(folder: Path) -> list[str]:
    return [
        str(p) for p in folder.rglob("*") if p.is_file() and not p.is_symlink() and SECRET.encode() in p.read_bytes()
    ]


@pytest.mark.parametrize("kind", ["BearerToken", "CondaToken"])
def test_private_channel_is_locked_and_installed_over_its_second_mirror(
    access, home, local, channel, wheels, tmp_path, kind
):
    remember(home, {kind: SECRET})
    guard = {"header": f"Bearer {SECRET}"} if kind == "BearerToken" else {"token": SECRET}
    cell, pins = cell_of(local, "megatron_core"), pins_of(local, wheels, "megatron_core")
    up = "http://channel.invalid/corp"
    with access.Guarded(channel, **guard).up() as server:
        access.config(home, f'[mirrors]\n"{up}" = ["http://127.0.0.1:9/none", "{server.url}"]\n')
        lock = lock_conda(cell, pins, CondaRequest(channels=(up,), cache_dir=tmp_path / "cache"))
        assert {p.url.rsplit("/", 2)[0] for p in lock.platforms[0].packages} == {up}
        realise(lock, tmp_path / "env", cache_dir=tmp_path / "cache")
        assert any(path.endswith(".tar.bz2") for path, _ in server.seen)
        assert run(tmp_path / "env", "python", "-c", "import megatron_core as m; print(m.__version__)") == "0.16.1"
        remember(home, {kind: "wrong"})
        with pytest.raises(NetworkError) as caught:
            realise(lock, tmp_path / "other", cache_dir=tmp_path / "cold")
    assert SECRET not in str(caught.value)
    assert not any(SECRET in text for text in files(lock).values())
    assert traces(tmp_path / "env") == []
    assert traces(tmp_path / "cache") == []


def test_login_in_the_alias_of_a_condarc_reaches_the_packages_too(
    access, home, local, channel, wheels, tmp_path, monkeypatch
):
    monkeypatch.setenv("CORP_TOKEN", SECRET)
    root = tmp_path / "root"
    root.mkdir()
    (root / "corp").symlink_to(channel)
    cell, pins = cell_of(local, "deepspeed"), pins_of(local, wheels, "deepspeed")
    with access.Guarded(root, token=SECRET).up() as server:
        (home / ".condarc").write_text(f"channel_alias: {server.url}/t/${{CORP_TOKEN}}\n")
        lock = lock_conda(cell, pins, CondaRequest(channels=("corp",), cache_dir=tmp_path / "cache"))
        assert all(p.url.startswith(f"{server.url}/corp/") for p in lock.platforms[0].packages)
        realise(lock, tmp_path / "env", cache_dir=tmp_path / "cache")
    assert run(tmp_path / "env", "hello-cell") == f"hello from {tmp_path / 'env'}"
    assert traces(tmp_path / "env") == []


def test_shards_of_rattlers_indexer_give_the_bytes_of_the_whole_index(access, home, local, channel, wheels, tmp_path):
    from rattler.index.index import index_fs

    sharded = tmp_path / "sharded"
    shutil.copytree(channel, sharded)
    asyncio.run(index_fs(sharded, write_zst=True, write_shards=True, force=True))
    for framework in ("deepspeed", "megatron_core", "colossalai"):
        cell, pins = cell_of(local, framework), pins_of(local, wheels, framework)
        with access.Guarded(sharded).up() as server:
            lock = lock_conda(cell, pins, CondaRequest(channels=(server.url,), cache_dir=tmp_path / f"a-{framework}"))
            assert any("/shards/" in path for path, _ in server.seen)
            assert not any("repodata.json" in path for path, _ in server.seen)
            hidden = [p.rename(p.with_suffix(".away")) for p in sharded.rglob("repodata_shards.*")]
            server.seen.clear()
            whole = lock_conda(cell, pins, CondaRequest(channels=(server.url,), cache_dir=tmp_path / f"b-{framework}"))
            assert not any("/shards/" in path for path, _ in server.seen)
            for path in hidden:
                path.rename(path.with_suffix(".zst"))
        assert files(lock) == files(whole)
