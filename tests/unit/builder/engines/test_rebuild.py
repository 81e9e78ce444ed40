"""A published image against a rebuild, with a pretended engine: what is fetched, what is told, and when it is built."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from envsmith.base.files import digest_of
from envsmith.builder.engines import rebuild
from envsmith.builder.engines.rebuild import difference
from envsmith.errors import EngineError
from envsmith.net.oci.image import OciImage
from envsmith.net.oci.layout import LayoutStore
from envsmith.net.oci.spec import IMAGE_LAYER, canonical, describe, image_manifest, index_bytes, parse_manifest

PUBLISHED = "sha256:" + "1" * 64


class Engine:
    """An engine that makes images; ``gives`` is the identity of a rebuild."""

    name = "pretended"

    def __init__(self, gives=PUBLISHED):
        self.gives, self.done = gives, []

    @property
    def images(self):
        return self

    def build_again(self, lock, layout, *, progress=None):
        self.done.append(layout.name)
        return SimpleNamespace(identity=self.gives)


def never(_folder):
    raise AssertionError("gigabytes were fetched for nothing")


def test_the_published_image_is_not_fetched_while_the_digests_agree(locks, tmp_path):
    engine = Engine()

    report = rebuild.rebuild(locks.megatron(), PUBLISHED, never, tmp_path, engine=engine)

    assert (report.same, report.second, report.differences) == (True, PUBLISHED, ())
    assert engine.done == ["oci"]


def test_another_digest_is_explained_by_file(locks, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(rebuild, "difference", lambda *images: seen.append(images) or ("layer 2: /x: content",))
    engine = Engine(gives="sha256:" + "3" * 64)

    report = rebuild.rebuild(locks.megatron(), PUBLISHED, lambda _folder: "first", tmp_path, engine=engine)

    assert not report.same
    assert report.differences == ("layer 2: /x: content",)
    assert [(one, two.identity) for one, two in seen] == [("first", engine.gives)]


def test_an_engine_without_images_is_refused(locks, tmp_path):
    from envsmith.builder.engines.venv import VenvEngine

    with pytest.raises(EngineError, match="makes no images"):
        rebuild.rebuild(locks.megatron(), PUBLISHED, never, tmp_path, engine=VenvEngine())


def _tar(*members: tuple[str, dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, fields in members:
            info, content = tarfile.TarInfo(name), fields.get("content", "").encode()
            info.size = len(content)
            for key in fields.keys() - {"content"}:
                setattr(info, key, fields[key])
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def _image(layers: Iterable[bytes], folder: object = ".", **config: Any) -> OciImage:
    stored = list(layers)
    plain = [gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data for data in stored]
    document = {"architecture": "arm64", **config, "rootfs": {"diff_ids": [digest_of(data) for data in plain]}}
    kinds = [IMAGE_LAYER + ("" if data == tar else "+gzip") for data, tar in zip(stored, plain, strict=True)]
    manifest = image_manifest(canonical(document), [describe(*pair) for pair in zip(stored, kinds, strict=True)])
    files = {f"blobs/sha256/{digest_of(data)[7:]}": data for data in stored}
    files |= {"index.json": index_bytes([]), "oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
    store = LayoutStore(f"{folder}/oci", lambda name: io.BytesIO(files[name]), lambda: files)
    return OciImage(store=store, manifest=manifest, config=document)


FILE = _tar(("a", {"content": "a"}))


@pytest.mark.parametrize(
    ("one", "two", "lines"),
    [
        ({}, {}, ()),
        ({"os": "linux"}, {"os": "linux", "history": [1]}, ("configuration: another spelling of the same image",)),
        ({"os": "linux"}, {}, ('configuration os: "linux" and absent',)),
        ({}, {"os": "linux"}, ('configuration os: absent and "linux"',)),
        (
            {"config": {"User": "1", "Env": ["B", "A"]}, "os": "a"},
            {"config": {"User": "2", "Env": ["A"]}, "os": "b"},
            (
                'configuration config.Env: ["B", "A"] and ["A"]',
                'configuration config.User: "1" and "2"',
                'configuration os: "a" and "b"',
            ),
        ),
        ({"config": {}}, {"config": {"x": {"y": 1}}}, ("configuration config: {} and absent", "configuration config.x.y: absent and 1")),
        ({"a": "x" * 300}, {"a": "y" * 300}, (f'configuration a: "{"x" * 199} and "{"y" * 199}',)),
    ],
)  # fmt: skip
def test_two_configurations_differ_by_key(one: dict[str, Any], two: dict[str, Any], lines: tuple[str, ...]) -> None:
    assert difference(_image([FILE], **one), _image([FILE], **two)) == lines


@pytest.mark.parametrize(
    ("one", "two", "line"),
    [
        (None, {}, "only in the second"),
        ({}, None, "only in the first"),
        ({"mode": 0o644}, {"mode": 0o755}, "mode 0o644 and 0o755"),
        ({"uid": 1, "gid": 2}, {"uid": 1, "gid": 3}, "owner 1:2 and 1:3"),
        ({"mtime": 5}, {"mtime": 6}, "time 5 and 6"),
        ({"content": "a"}, {"content": "b"}, "content sha256 ca978112ca1b and sha256 3e23e8160039"),
        (
            {"content": "a"},
            {"content": "bb"},
            "content sha256 ca978112ca1b and sha256 3b64db95cb55, bytes 1 and 2",
        ),
        (
            {"type": tarfile.SYMTYPE, "linkname": "x"},
            {"type": tarfile.SYMTYPE, "linkname": "y"},
            "content x and y",
        ),
        (
            {"type": tarfile.SYMTYPE, "linkname": "x"},
            {"type": tarfile.LNKTYPE, "linkname": "x"},
            "kind link and hard link",
        ),
        ({"type": tarfile.DIRTYPE}, {"type": tarfile.FIFOTYPE}, "kind folder and file"),
        (
            {"pax_headers": {"b": "1", "a": "2"}},
            {"pax_headers": {"a": "2"}},
            'attributes {"a": "2", "b": "1"} and {"a": "2"}',
        ),
    ],
)
def test_two_files_differ_in_words(one: dict[str, Any] | None, two: dict[str, Any] | None, line: str) -> None:
    layers = [_tar(*([] if fields is None else [("./opt/x", fields)])) for fields in (one, two)]

    assert difference(_image([FILE, layers[0]]), _image([FILE, layers[1]])) == (f"layer 2: /opt/x: {line}",)


def test_files_are_named_in_their_order_and_layers_in_theirs() -> None:
    one = _image([_tar(("b", {}), ("a", {})), FILE, FILE])
    two = _image([_tar(("c", {})), _tar(("a", {"content": "b"}))])

    assert difference(one, two) == (
        "layers: 3 and 2",
        "layer 1: /a: only in the first",
        "layer 1: /b: only in the first",
        "layer 1: /c: only in the second",
        "layer 2: /a: content sha256 ca978112ca1b and sha256 3e23e8160039",
    )


def test_the_same_files_in_another_order_are_no_difference_of_a_file() -> None:
    members = [("a", {}), ("b", {})]

    lines = difference(_image([_tar(*members)]), _image([_tar(*reversed(members))]))

    assert lines == ("layer 1: the same files in another order or spelling",)


def test_the_same_layer_stored_in_another_way_is_no_difference(tmp_path: object) -> None:
    lines = difference(_image([FILE, FILE], tmp_path), _image([FILE, gzip.compress(FILE)], tmp_path))

    assert lines == ()


def test_a_compressed_layer_is_read_by_file(tmp_path: object) -> None:
    other = gzip.compress(_tar(("a", {"content": "b"})))

    lines = difference(_image([gzip.compress(FILE)], tmp_path), _image([other], tmp_path))

    assert lines == ("layer 1: /a: content sha256 ca978112ca1b and sha256 3e23e8160039",)


def test_images_of_one_manifest_are_not_compared_further() -> None:
    image = _image([FILE])
    other = OciImage(store=image.store, manifest=parse_manifest(image.manifest.raw, "m"), config={"os": "x"})

    assert difference(image, other) == ()
