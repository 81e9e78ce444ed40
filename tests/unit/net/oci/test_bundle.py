"""Layouts and archives from outside: each bound from both sides, each refusal in its words."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from tars import member, write_tar

from envsmith.base.files import digest_of
from envsmith.errors import ContentError, DataError, StorageError
from envsmith.net.oci.image import OciImage, image_of, open_image, open_layer
from envsmith.net.oci.layout import LayoutStore, copy_layout, open_files
from envsmith.net.oci.spec import (
    IMAGE_LAYER,
    MAX_MANIFEST,
    Descriptor,
    Manifest,
    artifact,
    canonical,
    describe,
    image_manifest,
    index_bytes,
)
from envsmith.net.oci.store import blob_sha256, load_manifest, read_blob

VERSION = b'{"imageLayoutVersion":"1.0.0"}'
LAYER = b"a layer"
ABSENT = describe(b"absent", "a/b")


def _path(digest: str) -> str:
    return f"blobs/sha256/{digest[7:]}"


def _config(*layers: bytes, **fields: Any) -> bytes:
    return canonical({"config": {}, "rootfs": {"diff_ids": [digest_of(data) for data in layers]}, **fields})


def _image(*layers: bytes) -> Manifest:
    return image_manifest(_config(*layers), [describe(data, IMAGE_LAYER) for data in layers])


def _proof(subject: Manifest, text: bytes = b"proof") -> Manifest:
    return artifact(
        artifact_type="x/y", layers=[describe(text, "a/b")], subject=subject.descriptor, annotations={"k": "v"}
    )


def _files(*manifests: Manifest, blobs: tuple[bytes, ...] = (_config(LAYER), LAYER)) -> dict[str, bytes]:
    files = {_path(digest_of(data)): data for data in blobs}
    files |= {_path(manifest.digest): manifest.raw for manifest in manifests}
    return {**files, "oci-layout": VERSION, "index.json": index_bytes([m.descriptor for m in manifests])}


def _store(files: dict[str, bytes]) -> LayoutStore:
    return LayoutStore("s", lambda name: io.BytesIO(files[name]) if name in files else None, lambda: files)


def _folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


# -- what is a layout --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "is_good"),
    [
        (VERSION, True),
        (b' {\n "imageLayoutVersion" : "1.20.3" }\n', True),
        (b'{"imageLayoutVersion":"2.0.0"}', False),
        (b'{"imageLayoutVersion":"1.0"}', False),
        (VERSION + b"x", False),
        (None, False),
    ],
)
def test_a_layout_says_that_it_is_of_version_1(version: bytes | None, is_good: bool) -> None:
    files = {"index.json": index_bytes([ABSENT]), **({} if version is None else {"oci-layout": version})}
    if is_good:
        assert _store(files).entries == (ABSENT,)
        return
    with pytest.raises(DataError) as caught:
        _store(files)

    assert caught.value.message == "Cannot read s: it is not an OCI layout (oci-layout or index.json is missing)."
    assert caught.value.hint == "Give a bundle that envsmith publish --bundle wrote, or the layout of a build."


@pytest.mark.parametrize(("surplus", "is_good"), [(0, True), (1, False)])
def test_an_index_is_read_up_to_its_bound(surplus: int, is_good: bool) -> None:
    raw = index_bytes([])
    files = {"oci-layout": VERSION, "index.json": raw + b" " * (MAX_MANIFEST + surplus - len(raw))}
    if is_good:
        assert _store(files).entries == ()
        return
    with pytest.raises(
        ContentError, match=rf"^Cannot read index\.json of s: it is longer than {MAX_MANIFEST} bytes\.\n"
    ):
        _store(files)


@pytest.mark.parametrize("name", ["sha256:" + "a" * 63, "sha256:../../" + "a" * 200, "sha512:" + "a" * 64, ""])
def test_no_name_leads_out_of_a_layout(name: str) -> None:
    store = _store(_files())
    for read in (store.blob, store.manifest):
        with pytest.raises(ContentError) as caught:
            read(name)

        assert caught.value.message == f"Cannot use {name[:80]!r}: it is not a sha256 digest."


@pytest.mark.parametrize("kind", ["folder", "tar", "tar with ./"])
def test_a_layout_is_read_from_a_folder_and_from_a_tar(tmp_path: Path, kind: str) -> None:
    image = _image(LAYER)
    files = _files(image)
    if kind == "folder":
        path = _folder(tmp_path / "x", files)
    else:
        prefix = "./" if "./" in kind else ""
        path = write_tar(tmp_path / "x", {prefix + name: data for name, data in files.items()}, member("d", type=b"5"))

    with open_files(path) as store:
        blob = store.blob(digest_of(LAYER))

        assert store.name == str(path)
        assert store.manifest(image.digest) == image.raw
        assert blob is not None
        with blob:
            assert blob.read() == LAYER
        assert store.blob(ABSENT.digest) is None
        assert store.manifest(ABSENT.digest) is None
        assert store.surplus() == []


@pytest.mark.parametrize(
    ("member", "name"),
    [
        (member("index.json"), "index.json"),
        (member("./oci-layout"), "oci-layout"),
        (member("x" * 79 + "yz", type=tarfile.SYMTYPE, linkname="a"), "x" * 79 + "y"),
        (member("hard", type=tarfile.LNKTYPE, linkname="index.json"), "hard"),
        (member("pipe", type=tarfile.FIFOTYPE), "pipe"),
        (member("device", type=tarfile.CHRTYPE), "device"),
        (member("index.json", type=tarfile.DIRTYPE), "index.json"),
    ],
)
def test_a_tar_that_two_readers_unpack_differently_is_refused(
    tmp_path: Path, member: tarfile.TarInfo, name: str
) -> None:
    path = write_tar(tmp_path / "x.tar", _files(), member)

    with pytest.raises(ContentError) as caught:
        open_files(path)

    assert caught.value.message == f"Cannot read the bundle {path}: {name} is there twice, or is not a file."
    assert caught.value.hint == "Copy it again: it is cut or damaged."


@pytest.mark.parametrize(
    ("zeros", "after", "is_good"),
    [
        (1024, b"", True),
        (512 * 512, b"", True),
        (512 * 512 + 1, b"", False),
        (512 * 512, b"x", False),
        (1024, b"x", False),
        (1024, b"x" + b"\0" * 511, False),
    ],
)
def test_a_tar_ends_with_zeros_up_to_a_record(tmp_path: Path, zeros: int, after: bytes, is_good: bool) -> None:
    path = write_tar(tmp_path / "x.tar", _files(_image(LAYER)))
    with tarfile.open(path) as archive:
        archive.getmembers()
        end = archive.offset
    path.write_bytes(path.read_bytes()[:end] + b"\0" * zeros + after)
    if is_good:
        with open_files(path) as store:
            assert len(store.entries) == 1
        return
    with pytest.raises(ContentError, match=r"Cannot read the bundle .*: more data follows after its end\.\n"):
        open_files(path)


@pytest.mark.parametrize(("count", "is_good"), [(9_998, True), (9_999, False)])
def test_a_tar_of_too_many_files_is_no_bundle(tmp_path: Path, count: int, is_good: bool) -> None:
    path = write_tar(tmp_path / "x.tar", {**_files(blobs=()), **{f"n{number}": b"" for number in range(count)}})
    if is_good:
        with open_files(path) as store:
            assert len(store.surplus()) == count
        return
    with pytest.raises(DataError, match=r"envsmith did not write this bundle, which has more than 10000 files"):
        open_files(path)


def test_a_tar_that_was_cut_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", {**_files(), "z": b"x" * 5000})
    with tarfile.open(path) as archive:
        archive.getmembers()
        end = archive.offset
    path.write_bytes(path.read_bytes()[: end - 600])

    with pytest.raises(ContentError, match="Cannot read the bundle"):
        open_files(path)


def test_a_pipe_is_no_bundle(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(DataError) as caught:
        open_files(tmp_path / "pipe")

    assert caught.value.message == f"Cannot read {tmp_path / 'pipe'}: it is not a bundle but a pipe or a device."


# -- what it holds -----------------------------------------------------------------------------------------------------


def test_a_tag_leads_to_the_first_entry_that_bears_it() -> None:
    ref = "org.opencontainers.image.ref.name"
    rows = [
        Descriptor(media_type="a/b", digest=digest_of(tag + number), size=1, annotations={ref: tag.decode()})
        for tag, number in [(b"a", b"1"), (b"b", b"2"), (b"b", b"3"), (b"c", b"4")]
    ]
    store = _store({"oci-layout": VERSION, "index.json": index_bytes([ABSENT, *rows])})

    assert [store.resolve(tag) for tag in "abcd"] == [rows[0].digest, rows[1].digest, rows[3].digest, None]
    assert image_of(store, "b") == rows[1].digest
    with pytest.raises(DataError, match=r"^Cannot find the image 'd': s does not hold it\.$"):
        image_of(store, "d")


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_layout_holds_one_image_beside_its_proofs(count: int) -> None:
    images = [_image(str(number).encode()) for number in range(count)]
    store = _store(_files(*(_proof(image) for image in images), *images))
    if count == 1:
        assert image_of(store) == images[0].digest
        return
    with pytest.raises(DataError) as caught:
        image_of(store)

    assert caught.value.message == f"Cannot choose an image of s: it holds {count}."
    assert caught.value.hint == "Name one by its tag."


def test_the_referrers_of_an_image_are_the_manifests_that_name_it() -> None:
    image, other = _image(b"1"), _image(b"2")
    proofs = [_proof(image, b"1"), _proof(image, b"2"), _proof(other), _proof(image, b"changed"), _proof(image, b"no")]
    files = _files(image, *proofs)
    files[_path(proofs[3].digest)] += b" "
    del files[_path(proofs[4].digest)]
    foreign = Descriptor(media_type="a/b", digest=proofs[2].digest, size=1)
    files["index.json"] = index_bytes([*(m.descriptor for m in (image, *proofs)), foreign])
    store = _store(files)

    assert store.referrers(image.digest) == (proofs[0].descriptor, proofs[1].descriptor)
    assert store.referrers(other.digest) == (proofs[2].descriptor,)
    assert store.referrers(ABSENT.digest) == ()


def test_what_no_manifest_names_is_surplus() -> None:
    image, damaged = _image(LAYER), _image(b"2")
    files = {**_files(damaged, image), "z": b"", "notes": b"", "blobs/sha256/1": b""}
    files[_path(damaged.digest)] = b"{}"

    assert _store(files).surplus() == ["blobs/sha256/1", "notes", "z"]


@pytest.mark.parametrize(
    ("stored", "limit", "words"),
    [
        (b"12345", 5, None),
        (b"12345", 4, "Cannot read the part: its 5 bytes are more than 4."),
        (None, 5, f"Cannot read the part: s does not have {digest_of(b'12345')}."),
        (
            b"1234",
            5,
            f"Cannot read the part: its bytes are not those of {digest_of(b'12345')[:19]}… (it is shorter than it was).",
        ),
        (b"12346", 5, f"Cannot read the part: its bytes are not those of {digest_of(b'12345')[:19]}…."),
        (b"123456", 5, f"Cannot read the part: its bytes are not those of {digest_of(b'12345')[:19]}…."),
    ],
)
def test_a_small_blob_is_read_whole_or_refused(stored: bytes | None, limit: int, words: str | None) -> None:
    blob = describe(b"12345", "a/b")
    store = _store({**_files(), **({} if stored is None else {_path(blob.digest): stored})})
    if words is None:
        assert read_blob(store, blob, "part", limit=limit) == stored
        return
    with pytest.raises(ContentError) as caught:
        read_blob(store, blob, "part", limit=limit)

    assert caught.value.message == words


@pytest.mark.parametrize(
    ("stored", "words"),
    [(None, "does not have {digest}."), (b"{}", "its bytes are not those of {short}….")],
)
def test_a_manifest_is_that_of_its_digest_or_refused(stored: bytes | None, words: str) -> None:
    image = _image(LAYER)
    files = _files(image)
    assert load_manifest(_store(files), image.digest, "part") == image
    del files[_path(image.digest)]
    files |= {} if stored is None else {_path(image.digest): stored}

    with pytest.raises(ContentError) as caught:
        load_manifest(_store(files), image.digest, "part")

    expected = words.format(digest=image.digest, short=image.digest[:19])
    assert caught.value.message == "Cannot read the part: " + ("s " if stored is None else "") + expected


@pytest.mark.parametrize("size", [0, 1, (1 << 20) + 1])
def test_digest_and_length_of_a_blob_are_of_all_its_bytes(size: int) -> None:
    assert blob_sha256(io.BytesIO(b"x" * size)) == (digest_of(b"x" * size), size)


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({}, {}),
        ({"config": None}, {}),
        ({"config": {"Labels": None}}, {}),
        ({"config": {"Labels": {"a": 1, "b": "c"}}}, {"a": "1", "b": "c"}),
    ],
)
def test_labels_are_texts(config: dict[str, Any], labels: dict[str, str]) -> None:
    assert OciImage(store=_store(_files()), manifest=_image(), config=config).labels == labels


@pytest.mark.parametrize(
    ("stored", "check", "words"),
    [
        (LAYER, True, None),
        (LAYER, False, None),
        (b"b layer", False, None),
        (b"b layer", True, "holds other bytes"),
        (b"a laye", False, "holds other bytes"),
        (b"a layer2", False, "holds other bytes"),
        (None, False, "is missing"),
    ],
)
def test_a_layer_has_its_length_and_where_it_is_checked_its_bytes(
    tmp_path: Path, stored: bytes | None, check: bool, words: str | None
) -> None:
    _folder(tmp_path / "x", _files(_image(LAYER), blobs=(_config(LAYER),)))
    if stored is not None:
        (tmp_path / "x" / _path(digest_of(LAYER))).write_bytes(stored)
    if words is None:
        assert open_image(tmp_path / "x", check=check).diff_ids == (digest_of(LAYER),)
        return
    with pytest.raises(ContentError) as caught:
        open_image(tmp_path / "x", check=check)

    assert caught.value.message == f"Cannot read {tmp_path / 'x'}: layer {digest_of(LAYER)[:19]}… {words}."
    assert caught.value.hint == "Build the cell again."


def test_a_configuration_has_at_most_8_mebibytes(tmp_path: Path) -> None:
    config = _config(LAYER)
    for surplus in (0, 1):
        data = config + b" " * ((8 << 20) - len(config) + surplus)
        manifest = image_manifest(data, [describe(LAYER, IMAGE_LAYER)])
        path = _folder(tmp_path / str(surplus), _files(manifest, blobs=(data, LAYER)))
        if not surplus:
            assert open_image(path).config["config"] == {}
            continue
        with pytest.raises(ContentError, match=r"^Cannot read the config: its 8388609 bytes are more than 8388608\.$"):
            open_image(path)


def test_a_layer_that_is_not_there_is_named_by_its_number() -> None:
    image = OciImage(store=_store(_files(blobs=(b"1",))), manifest=_image(b"1", b"2"), config={})
    with open_layer(image, 0) as file:
        assert file.read() == b"1"

    with pytest.raises(ContentError, match=r"^Cannot read s: layer 2 is missing\.$"), open_layer(image, 1):
        pass


def test_one_image_of_a_store_is_copied_whole(tmp_path: Path) -> None:
    image = _image(LAYER)
    files = {**_files(image, _proof(image)), "notes": b""}

    copy_layout(_store(files), image.digest, tmp_path / "x")

    copied = {
        p.relative_to(tmp_path / "x").as_posix(): p.read_bytes() for p in (tmp_path / "x").rglob("*") if p.is_file()
    }
    assert copied == _files(image)
    with pytest.raises(StorageError, match="Cannot write"):
        copy_layout(_store(files), image.digest, tmp_path / "x")
    del files[_path(digest_of(LAYER))]
    with pytest.raises(ContentError, match=rf"^Cannot copy s: {digest_of(LAYER)} is missing\.$"):
        copy_layout(_store(files), image.digest, tmp_path / "y")
    assert not (tmp_path / "y" / "index.json").exists()


def test_a_store_is_closed_at_the_end_of_its_block() -> None:
    files, closed = _files(), list[int]()
    opener: Callable[[str], IO[bytes] | None] = lambda name: io.BytesIO(files[name])  # noqa: E731
    with LayoutStore("s", opener, lambda: files, lambda: closed.append(1)):
        assert closed == []

    assert closed == [1]
