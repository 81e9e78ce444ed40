"""Manifests and indexes: what is written reads back, and every field has its form and its bounds."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from envsmith.errors import ContentError
from envsmith.net.oci.spec import (
    EMPTY,
    MAX_MANIFEST,
    Descriptor,
    artifact,
    canonical,
    describe,
    image_manifest,
    index_bytes,
    is_digest,
    parse_index,
    parse_manifest,
)

LAYER = describe(b"layer", "application/vnd.oci.image.layer.v1.tar", artifact_type="a/b", title="x")
DIGEST = "sha256:" + "a" * 64


def _item(**changes: Any) -> dict[str, Any]:
    item = {"mediaType": "a/b", "digest": DIGEST, "size": 1, **changes}
    return {key: value for key, value in item.items() if value is not ...}


def _manifest(**changes: Any) -> bytes:
    fields = {"schemaVersion": 2, "config": _item(), "layers": [_item()], **changes}
    return json.dumps({key: value for key, value in fields.items() if value is not ...}).encode()


def test_what_is_written_reads_back() -> None:
    image = image_manifest(b"{}", [LAYER, LAYER])
    proof = artifact(artifact_type="x/y", layers=[LAYER], subject=image.descriptor, annotations={"k": "v"})

    assert parse_manifest(proof.raw, "proof") == proof
    assert (proof.artifact_type, proof.annotations, proof.config) == ("x/y", {"k": "v"}, EMPTY)
    assert proof.subject == dataclasses.replace(image.descriptor, artifact_type="", annotations={})
    assert proof.descriptor == Descriptor(
        media_type="application/vnd.oci.image.manifest.v1+json", digest=proof.digest, size=len(proof.raw),
        artifact_type="x/y", annotations={"k": "v"},
    )  # fmt: skip
    assert image.blobs == (image.config, LAYER)
    assert image.subject is None
    assert parse_index(index_bytes([LAYER, EMPTY]), "index") == (LAYER, EMPTY)
    assert json.loads(index_bytes([EMPTY]))["manifests"] == [
        {"mediaType": "application/vnd.oci.empty.v1+json", "digest": EMPTY.digest, "size": 2}
    ]
    assert canonical({"b": 1, "a": "ä"}) == '{"a":"ä","b":1}'.encode()


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (DIGEST, True),
        (DIGEST + "0", False),
        (DIGEST[:-1], False),
        ("sha512:" + "a" * 128, False),
        (DIGEST.upper(), False),
        (7, False),
    ],
)
def test_a_digest_is_sha256_and_64_digits(text: object, good: bool) -> None:
    assert is_digest(text) is good


@pytest.mark.parametrize(
    "raw",
    [
        _manifest(layers=[]),
        _manifest(layers=[_item()] * 1000),
        _manifest(layers=[_item(size=0), _item(size=1 << 40)]),
        _manifest(layers=[_item(mediaType="a" * 127 + "/" + "b" * 127, artifactType="", annotations=None)]),
        _manifest(subject=None, annotations={"a": "b"}, artifactType="x/y", mediaType="a/b"),
        _manifest() + b" " * (MAX_MANIFEST - len(_manifest())),
    ],
)
def test_a_manifest_at_a_bound_is_taken(raw: bytes) -> None:
    assert parse_manifest(raw, "m").raw == raw


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (_manifest(layers=[_item()] * 1001), "m.layers: it is not a list of at most 1000 items"),
        (_manifest(layers={}), "m.layers: it is not a list of at most 1000 items"),
        (_manifest(layers=[_item(), _item(size=-1)]), "m.layers[1].size: '-1' is not a size in bytes"),
        (_manifest(layers=[_item(size=(1 << 40) + 1)]), "m.layers[0].size: '1099511627777' is not a size in bytes"),
        (_manifest(layers=[_item(size=True)]), "m.layers[0].size: 'True' is not a size in bytes"),
        (_manifest(layers=[_item(size="9" * 50)]), f"m.layers[0].size: '{'9' * 40}' is not a size in bytes"),
        (
            _manifest(layers=[_item(mediaType="a" * 128 + "/b")]),
            f"m.layers[0].mediaType: '{'a' * 60}' does not have the form of this field",
        ),
        (
            _manifest(layers=[_item(mediaType=...)]),
            "m.layers[0].mediaType: 'None' does not have the form of this field",
        ),
        (_manifest(config=_item(digest="md5:1")), "m.config.digest: 'md5:1' does not have the form of this field"),
        (_manifest(config=...), "m.config: it is a NoneType, not an object"),
        (_manifest(subject=[]), "m.subject: it is a list, not an object"),
        (_manifest(annotations={"a": 1}), "m.annotations: it is not an object of texts"),
        (_manifest(annotations=["a"]), "m.annotations: it is not an object of texts"),
        (_manifest(artifactType="x"), "m.artifactType: 'x' does not have the form of this field"),
        (_manifest(schemaVersion=1), "m.schemaVersion: it is not 2"),
        (_manifest(manifests=[]), "m: it is an index of several images, not one image"),
        (_manifest() + b" " * (MAX_MANIFEST + 1 - len(_manifest())), f"m: it is longer than {MAX_MANIFEST} bytes"),
        (b"{", "m: it is not JSON"),
        (b"[]", "m: it is a list, not an object"),
    ],
)
def test_a_manifest_beyond_a_bound_is_refused_with_the_key_path(raw: bytes, words: str) -> None:
    with pytest.raises(ContentError) as caught:
        parse_manifest(raw, "m")

    assert caught.value.message == f"Cannot read {words}."
    assert (
        caught.value.hint == "Publish the image again: the registry or bundle does not hold what an OCI client writes."
    )
