"""From a build to the image that is tested: the same identity on every kind of store, and nothing left when it breaks."""

from __future__ import annotations

import dataclasses
import errno
import shutil

import docker
import pytest
import requests

from envsmith.builder.engines.container import image_name
from envsmith.builder.engines.shelf import identity_of
from envsmith.errors import ContentError, EngineError, StorageError
from envsmith.net.oci.image import open_image
from envsmith.net.oci.packing import packing_of

from .image_store import StoreEngine, files_below

KINDS = ("classic", "containerd", "podman")


@pytest.fixture
def lock(locks):
    return locks.megatron()


def engine_of(kind, folder, lock, **more):
    """An engine, and the lock on the base that its store has."""
    engine = StoreEngine(kind, folder, lock, **more)
    digest = identity_of(engine.client.get("mine:1").attrs, engine.options.epoch)
    engine.lock = dataclasses.replace(lock, base=dataclasses.replace(lock.base, digest=digest, origin="local"))
    return engine


@pytest.fixture
def engine(request, tmp_path, lock):
    return engine_of(getattr(request, "param", "classic"), tmp_path / "store", lock)


def build(engine, folder, **more):
    return engine.build(engine.lock, folder, layout=folder / "oci", **more)


def test_the_identity_is_the_same_on_every_store_and_the_layout_s_own(lock, tmp_path):
    identities = set()
    for kind in KINDS:
        built = build(engine_of(kind, tmp_path / f"store-{kind}", lock), tmp_path / kind)
        assert built.digest == open_image(tmp_path / kind / "oci").identity
        identities.add(built.digest)

    assert len(identities) == 1


@pytest.mark.parametrize("engine", KINDS, indirect=True)
def test_what_is_checked_run_and_named_is_the_image_that_was_loaded_back(engine, tmp_path):
    built = build(engine, tmp_path / "cell")

    image = open_image(tmp_path / "cell" / "oci")
    assert engine.client.get(image_name(engine.lock)).id == built.image
    assert built.image == (image.digest if engine.client.kind == "containerd" else image.identity)
    assert engine.checked == [built.image]
    assert {i.id for i in engine.client.list()} == {built.image, engine.client.get("mine:1").id}
    assert engine.has_image(built.digest)


@pytest.mark.parametrize("engine", KINDS, indirect=True)
def test_the_same_lock_once_more_sends_no_layer(engine, tmp_path):
    build(engine, tmp_path / "cell")
    engine.client.sent.clear()

    build(engine, tmp_path / "cell")

    assert engine.client.sent == []


@pytest.mark.parametrize("engine", KINDS, indirect=True)
def test_another_cell_on_the_same_torch_sends_its_own_layers_where_the_engine_can_do_with_them(engine, tmp_path):
    build(engine, tmp_path / "cell")
    engine.client.sent.clear()

    engine.lock = dataclasses.replace(engine.lock, request="another")
    build(engine, tmp_path / "other")

    assert (engine.client.sent[-1] < 40_000) is (engine.client.kind != "podman")


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_layout_that_is_packed_has_the_identity_that_was_tested(engine, tmp_path, packing):
    built = build(engine, tmp_path / "cell", packing=packing)

    image = open_image(tmp_path / "cell" / "oci", check=True)
    assert image.identity == built.digest
    assert {packing_of(layer.media_type) for layer in image.manifest.layers} == {packing}


@pytest.mark.parametrize("engine", KINDS, indirect=True)
def test_a_rebuild_leaves_neither_image_nor_step(engine, tmp_path):
    built = build(engine, tmp_path / "cell")
    engine.client.steps.append("of somebody else")
    before = [image.id for image in engine.client.list()]

    again = engine.build_again(engine.lock, tmp_path / "again" / "oci")

    assert again.identity == built.digest
    assert [image.id for image in engine.client.list()] == before
    assert engine.client.steps == ["of somebody else"]


@pytest.mark.parametrize("step", ["save", "load"])
@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (requests.ConnectionError("Connection aborted"), EngineError, "Check that the engine is still running"),
        (
            docker.errors.APIError("write /var/lib: no space left on device"),
            StorageError,
            "Free space where the engine",
        ),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_an_engine_that_breaks_off_leaves_no_image(lock, tmp_path, step, error, kind, hint):
    engine = engine_of("classic", tmp_path / "store", lock, breaks=step, error=error)

    with pytest.raises(kind) as caught:
        build(engine, tmp_path / "cell")

    assert hint is None or hint in caught.value.hint
    assert [image.tags for image in engine.client.list()] == [
        ["envsmith/base:bookworm-" + engine.lock.base.digest[7:19], "mine:1"]
    ]
    assert [name for name in files_below(tmp_path / "cell") if name.startswith(".")] == []
    assert step == "load" or not (tmp_path / "cell" / "oci").exists()


def test_a_disk_that_fills_while_the_image_is_saved_is_a_matter_of_storage(lock, tmp_path):
    error = OSError(errno.ENOSPC, "No space left on device")
    engine = engine_of("classic", tmp_path / "store", lock, breaks="save", error=error)

    with pytest.raises(StorageError, match="the disk is full"):
        build(engine, tmp_path / "cell")

    assert files_below(tmp_path / "cell") == []


def test_an_engine_that_does_not_keep_what_it_was_sent_is_named(engine, tmp_path):
    engine.client.load_image = lambda _pieces: iter(())

    with pytest.raises(EngineError, match=r"^Cannot load sha256:"):
        build(engine, tmp_path / "cell")


def test_an_image_whose_content_is_wrong_is_removed_in_both_forms(engine, tmp_path):
    engine._read_installed = lambda _image, _arguments: {"python": "3.11.1"}

    with pytest.raises(ContentError, match="differs from its lock"):
        build(engine, tmp_path / "cell")

    assert [image.id for image in engine.client.list()] == [engine.client.get("mine:1").id]


@pytest.mark.parametrize(("layout", "copies", "size"), [(True, 1, "16.0"), (False, 1, "4.0"), (False, 4, "16.0")])
def test_too_little_room_is_said_before_anything_is_built(engine, tmp_path, monkeypatch, layout, copies, size):
    engine.copies_built = copies
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: type("Usage", (), {"free": 1 << 30})())
    (pin, *others) = engine.lock.pins
    sized = dataclasses.replace(pin, artifacts=(dataclasses.replace(pin.artifacts[0], size=2 << 30),))
    unsized = (
        dataclasses.replace(each, artifacts=(dataclasses.replace(each.artifacts[0], size=1),)) for each in others
    )
    lock = dataclasses.replace(engine.lock, pins=(sized, *unsized))

    with pytest.raises(StorageError) as caught:
        engine.build(lock, tmp_path, layout=tmp_path / "cell" / "oci" if layout else None)

    assert f"{size} GiB are needed on the disk of" in caught.value.message
    assert "1.0 GiB are free" in caught.value.message
    assert next(engine.hours) == 0
