"""The OCI image specification as values: descriptors, manifests and indexes.

They are parsed from bytes that anyone may have sent, and printed in one spelling. Media types and field names are
those of version 1.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envsmith.base.files import digest_of
from envsmith.base.schema import AsJson, parse_json, written
from envsmith.errors import ContentError

IMAGE_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
IMAGE_INDEX = "application/vnd.oci.image.index.v1+json"
IMAGE_CONFIG = "application/vnd.oci.image.config.v1+json"
IMAGE_LAYER = "application/vnd.oci.image.layer.v1.tar"
MANIFEST_TYPES = (IMAGE_MANIFEST, "application/vnd.docker.distribution.manifest.v2+json")
INDEX_TYPES = (IMAGE_INDEX, "application/vnd.docker.distribution.manifest.list.v2+json")
# Registries may refuse a manifest of more than 4 MiB (distribution specification, "pushing manifests").
MAX_MANIFEST = 4 << 20
_MAX_ITEMS = 1000
# A layer larger than a tebibyte is a mistake or an attack.
_MAX_SIZE = 1 << 40
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MEDIA = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")


def is_digest(text: object) -> bool:
    """Tell whether ``text`` is ``sha256:`` and 64 hex digits. No other algorithm is used here."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def canonical(value: object) -> bytes:
    """Print JSON in its one spelling: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptor(AsJson):
    """What a manifest says of a blob; ``size`` in bytes."""

    media_type: str = field(metadata=written("mediaType"))
    digest: str
    size: int
    artifact_type: str = field(default="", metadata=written("artifactType", when_set=True))
    annotations: Mapping[str, str] = field(default_factory=dict, metadata=written(when_set=True))


def describe(data: bytes, media_type: str, *, artifact_type: str = "", **annotations: str) -> Descriptor:
    """Return the descriptor of bytes that are here."""
    return Descriptor(
        media_type=media_type,
        digest=digest_of(data),
        size=len(data),
        artifact_type=artifact_type,
        annotations=annotations,
    )


# The config of an artifact that has none, as the specification writes it: two bytes, one digest for everybody.
EMPTY = describe(b"{}", "application/vnd.oci.empty.v1+json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """A manifest with the bytes that it was parsed from; its digest is over those, never over a new print."""

    raw: bytes
    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]
    subject: Descriptor | None = None
    artifact_type: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return the digest of :attr:`raw`."""
        return digest_of(self.raw)

    @property
    def descriptor(self) -> Descriptor:
        """Return what an index or a subject says of it."""
        return Descriptor(
            media_type=self.media_type,
            digest=self.digest,
            size=len(self.raw),
            artifact_type=self.artifact_type,
            annotations=self.annotations,
        )

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Return config and layers, each digest once."""
        return tuple({d.digest: d for d in (self.config, *self.layers)}.values())


class _Fields:
    """Typed getters with the key path in every refusal."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise _broken(where, f"it is a {type(value).__name__}, not an object")
        self.value: dict[str, Any] = value
        self.where = where

    def text(self, key: str, pattern: re.Pattern[str], default: str | None = None) -> str:
        text = self.value.get(key, default)
        if not isinstance(text, str) or (text != default and not pattern.fullmatch(text)):
            raise _broken(f"{self.where}.{key}", f"{str(text)[:60]!r} does not have the form of this field")
        return text

    def size(self) -> int:
        size = self.value.get("size")
        if type(size) is not int or not 0 <= size <= _MAX_SIZE:
            raise _broken(f"{self.where}.size", f"{str(size)[:40]!r} is not a size in bytes")
        return size

    def annotations(self) -> dict[str, str]:
        annotations = self.value.get("annotations") or {}
        if not isinstance(annotations, dict) or not all(isinstance(v, str) for v in annotations.values()):
            raise _broken(f"{self.where}.annotations", "it is not an object of texts")
        return annotations

    def descriptor(self, key: str) -> Descriptor:
        return _descriptor(self.value.get(key), f"{self.where}.{key}")

    def descriptors(self, key: str) -> tuple[Descriptor, ...]:
        items = self.value.get(key)
        if not isinstance(items, list) or len(items) > _MAX_ITEMS:
            raise _broken(f"{self.where}.{key}", f"it is not a list of at most {_MAX_ITEMS} items")
        return tuple(_descriptor(item, f"{self.where}.{key}[{number}]") for number, item in enumerate(items))


def _broken(where: str, why: str) -> ContentError:
    return ContentError(
        f"Cannot read {where}: {why}.",
        hint="Publish the image again: the registry or bundle does not hold what an OCI client writes.",
    )


def _descriptor(value: object, where: str) -> Descriptor:
    fields = _Fields(value, where)
    return Descriptor(
        media_type=fields.text("mediaType", _MEDIA),
        digest=fields.text("digest", _DIGEST),
        size=fields.size(),
        artifact_type=fields.text("artifactType", _MEDIA, ""),
        annotations=fields.annotations(),
    )


def _document(raw: bytes, where: str) -> _Fields:
    if len(raw) > MAX_MANIFEST:
        raise _broken(where, f"it is longer than {MAX_MANIFEST} bytes")
    try:
        fields = _Fields(parse_json(raw), where)
    except ValueError:
        raise _broken(where, "it is not JSON") from None
    if fields.value.get("schemaVersion") != 2:
        raise _broken(f"{where}.schemaVersion", "it is not 2")
    return fields


def parse_manifest(raw: bytes, where: str) -> Manifest:
    """Parse an image or artifact manifest. ``ContentError`` names the wrong key, or says that it is an index."""
    fields = _document(raw, where)
    if "manifests" in fields.value:
        raise _broken(where, "it is an index of several images, not one image")
    return Manifest(
        raw=raw,
        media_type=fields.text("mediaType", _MEDIA, IMAGE_MANIFEST),
        config=fields.descriptor("config"),
        layers=fields.descriptors("layers"),
        subject=None if fields.value.get("subject") is None else fields.descriptor("subject"),
        artifact_type=fields.text("artifactType", _MEDIA, ""),
        annotations=fields.annotations(),
    )


def parse_index(raw: bytes, where: str) -> tuple[Descriptor, ...]:
    """Parse the descriptors of an index. ``ContentError`` names the key that is wrong."""
    return _document(raw, where).descriptors("manifests")


def index_bytes(descriptors: Sequence[Descriptor]) -> bytes:
    """Print an image index over ``descriptors``, in their order."""
    return canonical({"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [d.to_json() for d in descriptors]})


def image_manifest(config: bytes, layers: Sequence[Descriptor]) -> Manifest:
    """Make the manifest of an image with this configuration and these layers."""
    return _manifest({"config": describe(config, IMAGE_CONFIG).to_json(), "layers": [d.to_json() for d in layers]})


def artifact(
    *, artifact_type: str, layers: Sequence[Descriptor], subject: Descriptor, annotations: Mapping[str, str]
) -> Manifest:
    """Make an artifact that refers to ``subject`` (specification 1.1: empty config, ``artifactType``, ``subject``)."""
    plain = Descriptor(media_type=subject.media_type, digest=subject.digest, size=subject.size)
    return _manifest(
        {
            "artifactType": artifact_type,
            "config": EMPTY.to_json(),
            "layers": [d.to_json() for d in layers],
            "subject": plain.to_json(),
            "annotations": dict(annotations),
        }
    )


def _manifest(fields: Mapping[str, object]) -> Manifest:
    return parse_manifest(canonical({"schemaVersion": 2, "mediaType": IMAGE_MANIFEST, **fields}), "manifest")
