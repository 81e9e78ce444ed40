"""Layers packed and unpacked: what comes back, what is refused, and what a type says."""

from __future__ import annotations

import gzip
import io
import zlib

import pytest

from envsmith.errors import ContentError
from envsmith.net.oci.layers import stream
from envsmith.net.oci.packing import pack, packing_of, packing_seen, unpacked

DATA = b"a layer " * 40_000


def _packed(how: str, data: bytes = DATA) -> bytes:
    out = io.BytesIO()
    pack(io.BytesIO(data), out, how)
    return out.getvalue()


def _unpacked(data: bytes, how: str) -> bytes:
    with unpacked(io.BytesIO(data), how) as plain:
        return plain.read()


@pytest.mark.parametrize("how", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("data", [b"", b"x", DATA])
def test_what_was_packed_unpacks_and_shows_how_it_was_packed(how: str, data: bytes) -> None:
    packed = _packed(how, data)

    assert _unpacked(packed, how) == data
    assert packing_seen(io.BufferedReader(io.BytesIO(packed))) == how  # type: ignore[type-var]
    assert _packed(how, data) == packed


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_what_was_packed_piece_by_piece_unpacks_whole(how: str) -> None:
    assert _unpacked(_packed(how, b"one ") + _packed(how, b"two"), how) == b"one two"


@pytest.mark.parametrize("how", ["gzip", "zstd"])
@pytest.mark.parametrize("data", [b"nonsense", b"\x1f\x8b\x08nonsense", b"\x28\xb5\x2f\xfdnonsense"])
def test_what_cannot_be_unpacked_is_refused_in_words(how: str, data: bytes) -> None:
    with pytest.raises(ContentError, match=r"^Cannot unpack a layer: .*\.$"):
        _unpacked(data, how)


def test_a_layer_by_gzip_that_is_cut_is_refused() -> None:
    with pytest.raises(ContentError, match=r"^Cannot unpack a layer: "):
        _unpacked(_packed("gzip")[:-9], "gzip")


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_a_layer_of_zeros_is_unpacked_in_pieces(how: str) -> None:
    with unpacked(io.BytesIO(_packed(how, bytes(10 << 20))), how) as plain:
        sizes = [len(piece) for piece in stream(plain)]

    assert (sum(sizes), max(sizes)) == (10 << 20, 1 << 20)


def test_gzip_writes_no_hour_and_no_name() -> None:
    assert _packed("gzip")[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"
    assert gzip.decompress(_packed("gzip")) == DATA


@pytest.mark.parametrize(
    ("media_type", "how"),
    [
        ("application/vnd.oci.image.layer.v1.tar", "none"),
        ("application/vnd.oci.image.layer.v1.tar+gzip", "gzip"),
        ("application/vnd.oci.image.layer.v1.tar+zstd", "zstd"),
        ("application/vnd.oci.image.layer.v1.tar+xz", None),
        ("application/vnd.docker.image.rootfs.diff.tar", "none"),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", "gzip"),
        ("application/vnd.oci.image.config.v1+json", None),
        ("application/json", None),
    ],
)
def test_the_type_of_a_layer_says_how_it_is_packed(media_type: str, how: str | None) -> None:
    assert packing_of(media_type) == how


def test_gzip_packs_as_level_6_does() -> None:
    text = b"".join(b"%d %d\n" % (number, number * number) for number in range(20_000))
    deflate = zlib.compressobj(6, zlib.DEFLATED, 31)

    assert _packed("gzip", text) == deflate.compress(text) + deflate.flush()
