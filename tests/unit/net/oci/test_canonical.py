"""The canonical layout: what leaves no trace in it, what stays byte for byte, and how a difference is told."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import tarfile
from pathlib import Path

import pytest
from tars import tar_bytes

from envsmith.base.files import digest_of, scratch
from envsmith.base.progress import EventKind
from envsmith.builder.engines.rebuild import difference
from envsmith.errors import ContentError, DataError, UsageError
from envsmith.net.oci.canonical import Form, canonical_config, repack, to_layout
from envsmith.net.oci.image import image_of, open_image, open_layer
from envsmith.net.oci.layout import LayoutStore
from envsmith.net.oci.packing import pack, packing_of
from envsmith.net.oci.saved import loadable, read_saved
from envsmith.net.oci.spec import describe, image_manifest, index_bytes
from envsmith.net.oci.store import read_blob

EPOCH = 1735689600


def member(name, content=None, **fields):
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = 0o644, EPOCH
    if content is None and "type" not in fields:
        info.type, info.mode = tarfile.DIRTYPE, 0o755
    for key, value in fields.items():
        setattr(info, key, value)
    data = (content or "").encode()
    info.size = len(data)
    return info, data


def tar(*members, style=tarfile.PAX_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=style) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


BASE = tar(member("etc"), member("etc/passwd", "root"), member("opt"))
CELL = (member("opt/cell"), member("opt/cell/a.py", "a"), member("opt/cell/b.py", "b"))


@contextlib.contextmanager
def save(path, *layers, **how):
    """Write what ``docker save`` writes and return it unpacked."""
    told = {
        "Env": ["PATH=/bin", "A=1"],
        "Labels": {"io.envsmith.lock": "sha256:1"},
        "Hostname": "x",
        **how.pop("config", {}),
    }
    created = how.pop("created", "2026-11-21T10:00:00Z")
    style = how.pop("style", "folders")
    blob = json.dumps({"created": created, "architecture": "amd64", "os": "linux", "config": told}).encode()
    names = [f"{n}/layer.tar" if style == "folders" else f"blobs/sha256/{n}" for n in range(len(layers))]
    manifest = json.dumps([{"Config": "c.json", "RepoTags": None, "Layers": names}]).encode()
    archive = path.parent / f"{path.name}.tar"
    archive.write_bytes(tar_bytes([("c.json", blob), *zip(names, layers, strict=True), ("manifest.json", manifest)]))
    folder = path.parent / f"{path.name}.saved"
    folder.mkdir(exist_ok=True)
    with scratch(folder) as unpacked:
        yield read_saved([archive.read_bytes()], unpacked)


def layout(path, *layers, base_layers=1, **how):
    with save(path, *layers, **how) as saved:
        return to_layout(saved, path / "oci", Form(base_layers=base_layers, epoch=EPOCH))


def blob(image, digest):
    """The file of a blob."""
    return Path(image.store.name) / "blobs" / "sha256" / digest.removeprefix("sha256:")


def names(image, number):
    with open_layer(image, number) as file, tarfile.open(fileobj=file) as archive:
        return archive.getnames()


def test_order_hour_headers_and_the_engines_stubs_leave_no_trace(tmp_path):
    one = layout(tmp_path / "one", BASE, tar(*CELL))
    later = [(altered(info, mtime=EPOCH + 86400.5, uname="me", gname="me"), data) for info, data in CELL]
    random.Random(1).shuffle(later)
    stubs = [
        member("etc", mtime=EPOCH + 5),
        member("etc/resolv.conf", "nameserver"),
        member("dev/envsmith"),
        member(".dockerenv", ""),
    ]
    two = layout(
        tmp_path / "two",
        BASE,
        tar(*stubs, *later, style=tarfile.GNU_FORMAT),
        style="blobs",
        created="2027-01-01T00:00:00Z",
    )
    assert two.digest == one.digest
    assert one.config["created"] == "2025-01-01T00:00:00Z"
    assert "Hostname" not in one.config["config"]
    assert names(two, 1) == ["opt/cell", "opt/cell/a.py", "opt/cell/b.py"]


def altered(info, **fields):
    copy = tarfile.TarInfo(info.name)
    for key in ("type", "mode", "uid", "gid", "size", "linkname", "mtime"):
        setattr(copy, key, getattr(info, key))
    for key, value in fields.items():
        setattr(copy, key, value)
    return copy


def test_the_digest_of_the_same_files_is_the_same_in_every_release(tmp_path):
    """Whoever published an image wants to prove it again with a later envsmith."""
    assert (
        layout(tmp_path / "one", BASE, tar(*CELL)).digest
        == "sha256:a68d846f857644ebd4507696fcc7869035847b73ea555bafee5ec9f98a1cff5a"
    )


def test_the_base_stays_byte_for_byte(tmp_path):
    import hashlib

    image = layout(tmp_path / "one", BASE, tar(*CELL))
    assert image.manifest.layers[0].digest == "sha256:" + hashlib.sha256(BASE).hexdigest()


def test_hard_links_are_the_same_whichever_name_carries_the_content(tmp_path):
    link = {"type": tarfile.LNKTYPE}
    one = layout(tmp_path / "one", BASE, tar(member("opt/a", "x"), member("opt/b", linkname="opt/a", **link)))
    two = layout(tmp_path / "two", BASE, tar(member("opt/b", "x"), member("opt/a", linkname="opt/b", **link)))
    assert one.digest == two.digest


def test_a_folder_that_was_removed_and_made_again_is_kept(tmp_path):
    image = layout(tmp_path / "one", BASE, tar(member(".wh.opt", "")), tar(member("opt"), member("opt/x", "1")))
    assert names(image, 2) == ["opt", "opt/x"]


def test_an_empty_layer_is_left_out(tmp_path):
    image = layout(tmp_path / "one", BASE, tar(member("etc")), tar(*CELL))
    assert len(image.manifest.layers) == len(image.config["history"]) == 2


def test_what_differs_is_told_by_file(tmp_path):
    one = layout(tmp_path / "one", BASE, tar(*CELL))
    changed = (
        CELL[0],
        member("opt/cell/a.py", "A"),
        member("opt/cell/b.py", "b", mode=0o600),
        member("opt/cell/c.py", "c"),
    )
    two = layout(tmp_path / "two", BASE, tar(*changed), config={"User": "10001"})
    told = difference(one, two)
    assert told[0] == 'configuration config.User: absent and "10001"'
    assert any(
        line.startswith("layer 2: /opt/cell/a.py: content sha256 ca978112ca1b and sha256 559aead08264") for line in told
    )
    assert "layer 2: /opt/cell/b.py: mode 0o644 and 0o600" in told
    assert "layer 2: /opt/cell/c.py: only in the second" in told
    assert difference(one, one) == ()


@pytest.mark.parametrize(
    ("files", "tail"), [(39, []), (40, []), (41, ["layer 2: and 1 more"]), (60, ["layer 2: and 20 more"])]
)
def test_forty_files_of_a_layer_are_named_and_the_others_counted(tmp_path, files, tail):
    one = layout(tmp_path / "one", BASE, tar(*CELL))
    two = layout(
        tmp_path / "two", BASE, tar(*CELL, *(member(f"opt/cell/n{number:02}", "x") for number in range(files)))
    )

    lines = difference(one, two)

    assert len(lines) == min(files, 40) + len(tail)
    assert list(lines[40:]) == tail


@pytest.mark.parametrize("packing", ["none", "gzip", "zstd"])
def test_the_same_image_packed_in_another_way_keeps_its_identity(tmp_path, packing):
    one = layout(tmp_path / "one", BASE, tar(*CELL))

    two = repack(one, tmp_path / "two" / "oci", packing)

    assert (two.identity, two.diff_ids) == (one.identity, one.diff_ids)
    assert (two.digest == one.digest) is (packing == "none")
    assert {packing_of(layer.media_type) for layer in two.manifest.layers} == {packing}
    assert names(two, 1) == names(one, 1)
    assert difference(one, two) == ()
    assert repack(two, tmp_path / "three" / "oci", "none").digest == one.digest
    assert repack(one, tmp_path / "four" / "oci", packing).digest == two.digest


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_a_layer_that_a_neighbour_has_packed_is_not_packed_again(tmp_path, packing):
    one = repack(layout(tmp_path / "one", BASE, tar(*CELL)), tmp_path / "one" / "oci", packing)
    two = layout(tmp_path / "two", BASE, tar(member("opt/other", "o")))

    packed = repack(two, tmp_path / "two" / "oci", packing)

    assert inode(packed, 0) == inode(one, 0)
    assert inode(packed, 1) != inode(one, 1)
    assert open_image(tmp_path / "two" / "oci", check=True).identity == two.identity
    assert not list(tmp_path.rglob("*.shared"))


@pytest.mark.parametrize(
    "damage", [b"", b"no archive", gzip.compress(b"another layer", mtime=0)], ids=["empty", "no archive", "another"]
)
def test_a_neighbour_with_other_bytes_is_not_taken(tmp_path, damage):
    one = repack(layout(tmp_path / "one", BASE, tar(*CELL)), tmp_path / "one" / "oci", "gzip")
    blob(one, one.manifest.layers[0].digest).write_bytes(damage.ljust(one.manifest.layers[0].size, b"\0"))
    two = layout(tmp_path / "two", BASE, tar(member("opt/other", "o")))
    members = names(two, 0)

    packed = repack(two, tmp_path / "two" / "oci", "gzip")

    assert open_image(tmp_path / "two" / "oci", check=True).digest == packed.digest
    assert names(packed, 0) == members


def inode(image, number):
    return blob(image, image.manifest.layers[number].digest).stat().st_ino


def test_the_size_of_each_layer_before_and_after_packing_is_said_in_megabytes(tmp_path):
    one = layout(tmp_path / "one", BASE, tar(*CELL))
    events = []

    two = repack(one, tmp_path / "two" / "oci", "gzip", progress=events.append)

    sizes = zip(one.manifest.layers, two.manifest.layers, strict=True)
    said = [f"{before.size / 1e6:.1f} MB, {after.size / 1e6:.1f} MB by gzip" for before, after in sizes]
    assert [event.text for event in events[1:-1]] == said
    assert {event.step for event in events} == {"compress"}
    assert events[0].kind is EventKind.START


def test_a_layout_reads_back_and_shares_its_blobs_with_its_neighbour(tmp_path):
    one = layout(tmp_path / "one", BASE, tar(*CELL))
    two = layout(tmp_path / "two", BASE, tar(member("opt/other", "o")))
    assert blob(one, one.manifest.layers[0].digest).samefile(blob(two, two.manifest.layers[0].digest))
    read = open_image(tmp_path / "one" / "oci", check=True)
    assert read == one


@pytest.mark.parametrize("part", ["layer", "manifest", "config", "missing"])
def test_a_changed_layout_is_refused(tmp_path, part):
    image = layout(tmp_path / "one", BASE, tar(*CELL))
    layer = image.manifest.layers[1].digest
    digests = {"layer": layer, "missing": layer, "manifest": image.digest, "config": image.manifest.config.digest}
    path = blob(image, digests[part])
    if part == "missing":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    with pytest.raises(ContentError):
        open_image(tmp_path / "one" / "oci", check=True)


@pytest.mark.parametrize("text", ["[]", "{", '{"manifests": []}', '{"manifests": [{"digest": "sha256:../../x"}]}'])
def test_a_hostile_index_is_refused(tmp_path, text):
    layout(tmp_path / "one", BASE, tar(*CELL))
    (tmp_path / "one" / "oci" / "index.json").write_text(text)
    with pytest.raises(ContentError, match=r"index\.json"):
        open_image(tmp_path / "one" / "oci")


def test_a_layout_of_several_images_is_refused(tmp_path):
    image = layout(tmp_path / "one", BASE, tar(*CELL))
    (tmp_path / "one" / "oci" / "index.json").write_bytes(index_bytes([]))
    with pytest.raises(DataError, match="it holds 0"):
        open_image(Path(image.store.name))


@pytest.mark.parametrize(
    "config", [b"[]", b"{}", b"{", b'{"rootfs": {"diff_ids": 5}}', b'{"rootfs": {"diff_ids": [1, 2]}}']
)
def test_a_configuration_that_does_not_describe_the_layers_is_refused(tmp_path, config):
    store = Path(layout(tmp_path / "one", BASE, tar(*CELL)).store.name)
    manifest = image_manifest(config, open_image(store).manifest.layers)
    for data in (config, manifest.raw):
        (store / "blobs" / "sha256" / digest_of(data)[7:]).write_bytes(data)
    (store / "index.json").write_bytes(index_bytes([manifest.descriptor]))
    with pytest.raises(DataError, match="do not name the same layers"):
        open_image(store)


def test_a_path_that_leads_out_of_the_image_is_refused_and_nothing_stays(tmp_path):
    with pytest.raises(ContentError, match="leads out"):
        layout(tmp_path / "one", BASE, tar(member("opt/../../x", "1")))
    assert not (tmp_path / "one" / "oci").exists()
    assert [p for p in (tmp_path / "one").iterdir() if p.name.startswith(".")] == []


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_an_engine_may_pack_what_it_saves(tmp_path, packing):
    one = layout(tmp_path / "one", BASE, tar(*CELL))
    packed = [io.BytesIO(), io.BytesIO()]
    for data, out in zip((BASE, tar(*CELL)), packed, strict=True):
        pack(io.BytesIO(data), out, packing)

    two = layout(tmp_path / "two", *(out.getvalue() for out in packed), style="blobs")

    assert two.digest == one.digest


@pytest.mark.parametrize("without", [0, 1, 2])
def test_what_an_engine_loads_is_an_oci_archive_and_one_of_docker_s(tmp_path, without):
    image = layout(tmp_path / "one", BASE, tar(*CELL))

    (tmp_path / "x.tar").write_bytes(b"".join(loadable(image, without=without)))

    if not without:
        with open_image(tmp_path / "x.tar", check=True).store as store:
            assert image_of(store) == image.digest
    with tarfile.open(tmp_path / "x.tar") as archive:
        (row,) = json.load(archive.extractfile("manifest.json"))
        assert digest_of(archive.extractfile(row["Config"]).read()) == image.identity
        assert [row["Layers"].index(name) for name in row["Layers"] if name in archive.getnames()] == [0, 1][without:]
        assert {(member.mode, member.mtime, member.uid) for member in archive} == {(0o644, 0, 0)}


def test_an_image_is_the_same_wherever_it_lies(tmp_path):
    one, two = (layout(tmp_path / name, BASE, tar(*CELL)) for name in ("one", "two"))

    assert (one == two, one.store == two.store) == (True, False)


@pytest.mark.parametrize("stored", [b'{"rungs": 2}', b'{"rungs": 1', b'{"rungs": 1} ', b""])
def test_a_small_blob_that_holds_other_bytes_than_its_digest_says_is_refused(stored):
    files = {"index.json": index_bytes([]), "oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
    store = LayoutStore("a store", lambda name: io.BytesIO(files.get(name, stored)), lambda: files)
    blob = describe(b'{"rungs": 1}', "application/json")
    with pytest.raises(ContentError, match="record: its bytes are not those of"):
        read_blob(store, blob, "record", limit=1000)


def test_a_layout_of_another_version_is_refused():
    files = {"index.json": index_bytes([]), "oci-layout": b'{"imageLayoutVersion": "2.0.0"}'}
    with pytest.raises(DataError, match="not an OCI layout"):
        LayoutStore("a store", lambda name: io.BytesIO(files[name]), lambda: files)


def test_a_folder_with_something_else_is_not_replaced_by_a_layout(tmp_path):
    first = layout(tmp_path / "a", tar_bytes([("x", b"1")]))
    (tmp_path / "a" / "oci" / "notes.txt").write_text("mine")

    with pytest.raises(UsageError, match=r"Cannot replace .*oci: notes\.txt is not a part"):
        layout(tmp_path / "a", tar_bytes([("x", b"2")]))

    assert (tmp_path / "a" / "oci" / "notes.txt").read_text() == "mine"
    assert open_image(tmp_path / "a" / "oci").digest == first.digest


def test_a_layout_takes_the_place_of_the_earlier_one_and_leaves_nothing_beside(tmp_path):
    layout(tmp_path / "a", tar_bytes([("x", b"1")]))

    second = layout(tmp_path / "a", tar_bytes([("x", b"2")]))

    assert open_image(tmp_path / "a" / "oci").digest == second.digest
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["oci"]


def test_a_configuration_has_nothing_of_the_engine_or_the_hour():
    config = {
        "Env": ["B=2", "A=1"], "Cmd": ["x"], "Hostname": "h", "User": "",
        "Labels": {"io.buildah.version": "1", "io.podman.x": "2", "org.x": 3},
    }  # fmt: skip

    assert canonical_config(config, architecture="arm64", diff_ids=["a", "b", "c"], base_layers=2, epoch=86_400) == {
        "architecture": "arm64",
        "config": {"Env": ["A=1", "B=2"], "Cmd": ["x"], "Labels": {"org.x": "3"}},
        "created": "1970-01-02T00:00:00Z",
        "history": [
            {"created": "1970-01-02T00:00:00Z", "created_by": f"envsmith {name}"}
            for name in ("base layer 1", "base layer 2", "cell layer 1")
        ],
        "os": "linux",
        "rootfs": {"diff_ids": ["a", "b", "c"], "type": "layers"},
    }
