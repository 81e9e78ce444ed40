"""What engines save, from outside: each form of it, each refusal in its words, and nothing half-written."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tars import member, write_tar

from envsmith.base.files import digest_of
from envsmith.base.progress import ProgressEvent
from envsmith.errors import ContentError, UsageError
from envsmith.net.oci.canonical import Form, to_layout
from envsmith.net.oci.saved import Saved, read_saved


def _unpack(path: Path, size: int = 1 << 20) -> Saved:
    folder = path.with_name(f"{path.name}.unpacked")
    folder.mkdir()
    data = path.read_bytes()
    return read_saved((data[at : at + size] for at in range(0, len(data), size)), folder)


def _plain_tar(*names: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            archive.addfile(member(name))
    return out.getvalue()


def _saved(path: Path, *more: tarfile.TarInfo, layers: Any = ("l",), config: bytes = b"{}", **files: bytes) -> Path:
    rows = [{"Config": "c.json", "Layers": layers and list(layers)}]
    return write_tar(
        path, {"c.json": config, "l": _plain_tar("x"), "manifest.json": json.dumps(rows).encode(), **files}, *more
    )


def _read(path: Path, number: int = 0) -> bytes:
    return _unpack(path).layers[number].read_bytes()


_SENTENCE = "Cannot read the image that the engine saved: {}."


def _link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    return member(name, type=kind, linkname=target)


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("l", []),
        ("1/layer.tar", [_link("1/layer.tar", "../l")]),
        ("1/layer.tar", [_link("1/layer.tar", "l", tarfile.LNKTYPE)]),
        ("1/layer.tar", [_link("1/layer.tar", "../2/layer.tar"), _link("2/layer.tar", "/l")]),
        ("7", [_link("7", "6"), _link("6", "5"), _link("5", "4"), _link("4", "3"), _link("3", "2"), _link("2", "1"), _link("1", "l")]),
    ],
)  # fmt: skip
def test_a_layer_that_is_a_link_is_the_other(tmp_path: Path, name: str, links: list[tarfile.TarInfo]) -> None:
    assert _read(_saved(tmp_path / "x", *links, layers=[name])) == _plain_tar("x")


@pytest.mark.parametrize(
    ("name", "links", "missing"),
    [
        ("m", [], "m"),
        ("m" * 200, [], "m" * 120),
        ("a", [_link("a", "../../m")], "m"),
        ("a/b", [_link("a/b", "m")], "a/m"),
        ("d", [member("d", type=tarfile.DIRTYPE)], "d"),
        ("a/b", [_link("a/b", "m", tarfile.LNKTYPE)], "m"),
        ("a", [_link("a", "a")], "a"),
        ("8", [_link("8", "7"), _link("7", "6"), _link("6", "5"), _link("5", "4"), _link("4", "3"), _link("3", "2"), _link("2", "1"), _link("1", "l")], "l"),
    ],
)  # fmt: skip
def test_a_layer_that_the_archive_does_not_hold_is_named(
    tmp_path: Path, name: str, links: list[tarfile.TarInfo], missing: str
) -> None:
    with pytest.raises(ContentError) as caught:
        _read(_saved(tmp_path / "x", *links, layers=[name]))

    assert caught.value.message == _SENTENCE.format(f"the archive does not hold {missing}")


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda p: _saved(p, config=b"[]"), "its configuration is not a mapping"),
        (lambda p: _saved(p, config=b"{"), "its configuration: not valid JSON"),
        (lambda p: write_tar(p, {"manifest.json": b"[]"}), "manifest.json does not name exactly one image"),
        (lambda p: write_tar(p, {"manifest.json": b"[{},{}]"}), "manifest.json does not name exactly one image"),
        (lambda p: write_tar(p, {"manifest.json": b"[1]"}), "manifest.json does not name exactly one image"),
        (lambda p: write_tar(p, {"manifest.json": b'{"0":{}}'}), "manifest.json does not name exactly one image"),
        (lambda p: write_tar(p, {"manifest.json": b"[{}]"}), "the archive does not hold None"),
        (
            lambda p: write_tar(p, {}, member("manifest.json", type=tarfile.DIRTYPE)),
            "the archive does not hold manifest.json",
        ),
        (lambda p: write_tar(p, {"x": b""}), "the archive does not hold manifest.json"),
        (lambda p: p.write_bytes(b"x" * 2000), ""),
    ],
)
def test_what_is_no_archive_of_one_image_is_refused_in_words(
    tmp_path: Path, write: Callable[[Path], object], words: str
) -> None:
    write(tmp_path / "x")

    with pytest.raises(ContentError) as caught:
        _unpack(tmp_path / "x")

    assert caught.value.message.startswith(_SENTENCE.format(words).removesuffix("."))
    assert caught.value.hint == "Check that the engine is still running (docker info), then run the same command again."


@pytest.mark.parametrize("cut", [1, 600, 5000])
def test_an_archive_that_ends_early_is_refused(tmp_path: Path, cut: int) -> None:
    path = _saved(tmp_path / "x")
    path.write_bytes(path.read_bytes()[:cut])

    with pytest.raises(ContentError, match=r"^Cannot read the image that the engine saved: "):
        _unpack(path)


@pytest.mark.parametrize("size", [1, 511, 512, 513, 1 << 20])
def test_an_archive_comes_in_pieces_of_any_length(tmp_path: Path, size: int) -> None:
    assert _unpack(_saved(tmp_path / "x"), size).layers[0].read_bytes() == _plain_tar("x")


def test_a_packed_layer_that_is_cut_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContentError, match=r"^Cannot unpack a layer: "):
        _unpack(_saved(tmp_path / "x", l=gzip.compress(_plain_tar("x"))[:-9]))


def test_an_engine_that_breaks_off_is_heard(tmp_path: Path) -> None:
    data = _saved(tmp_path / "x").read_bytes()

    def pieces() -> Iterator[bytes]:
        yield data[:1000]
        raise ConnectionResetError("the engine was killed")

    with pytest.raises(ConnectionResetError):
        read_saved(pieces(), tmp_path)


@pytest.mark.parametrize(("layers", "count"), [(None, 0), ([], 0), (["l"], 1), (["l", "l"], 2)])
def test_an_archive_has_the_layers_that_its_manifest_names(
    tmp_path: Path, layers: list[str] | None, count: int
) -> None:
    config = b"{}" + b" " * ((8 << 20) - 2)
    saved = _unpack(_saved(tmp_path / "x", layers=layers, config=config))

    assert (len(saved.layers), saved.config) == (count, {})


# -- from there to a layout --------------------------------------------------------------------------------------------


def _events(events: list[ProgressEvent]) -> list[tuple[str, str, str]]:
    return [(event.kind.value, event.step, event.text) for event in events]


@pytest.mark.parametrize("base_layers", [0, 1, 2])
def test_layers_of_the_base_are_kept_even_when_they_are_empty(tmp_path: Path, base_layers: int) -> None:
    empty, full = _plain_tar(), _plain_tar("b", "a")
    path = _saved(tmp_path / "saved", layers=["e", "f", "e"], e=empty, f=full, config=b'{"architecture":"arm64"}')
    events = list[ProgressEvent]()
    form = Form(base_layers=base_layers, epoch=0)

    image = to_layout(_unpack(path), tmp_path / "cell" / "oci", form, progress=events.append)

    kept = [empty, full][:base_layers]
    layers = image.manifest.layers
    assert [layer.digest for layer in layers[:base_layers]] == [digest_of(data) for data in kept]
    assert len(layers) == (1, 2, 2)[base_layers]
    assert image.config["architecture"] == "arm64"
    assert [row["created_by"].split()[1] for row in image.config["history"]].count("base") == base_layers
    lines = [("line", "oci layout", f"{layer.size} bytes {layer.digest[:19]}") for layer in layers]
    done = ("done", "oci layout", image.identity)
    assert _events(events) == [("start", "oci layout", "3 layers"), *lines, done]
    assert sorted(p.name for p in (tmp_path / "cell" / "oci").iterdir()) == ["blobs", "index.json", "oci-layout"]
    assert len(list((tmp_path / "cell" / "oci" / "blobs" / "sha256").iterdir())) == len(layers) + 2


def test_a_layer_that_is_no_tar_is_refused_and_nothing_stays(tmp_path: Path) -> None:
    saved = _unpack(_saved(tmp_path / "saved", layers=["bad"], bad=b"x" * 600))

    with pytest.raises(ContentError, match=r"^Cannot read the image that the engine saved: layer 1: "):
        to_layout(saved, tmp_path / "cell" / "oci", Form(base_layers=0, epoch=0))

    assert list((tmp_path / "cell").iterdir()) == []


def test_the_first_foreign_file_is_named_and_how_to_go_on(tmp_path: Path) -> None:
    for name in ("z", "b", "blobs/x", "index.json", "oci-layout", "source"):
        (tmp_path / "oci" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "oci" / name).write_bytes(b"")
    saved = _unpack(_saved(tmp_path / "saved"))

    with pytest.raises(UsageError) as caught:
        to_layout(saved, tmp_path / "oci", Form(base_layers=0, epoch=0))

    assert caught.value.message == f"Cannot replace {tmp_path / 'oci'}: b is not a part of an OCI layout."
    assert caught.value.hint == "Move it elsewhere."
