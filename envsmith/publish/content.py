"""OCI descriptors, manifests and indexes as values: parsed from bytes that anyone may have sent, printed canonically.

Media types and field names are those of the OCI image specification 1.1.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envsmith.errors import ContentError

__all__ = [
    "EMPTY",
    "IMAGE_INDEX",
    "IMAGE_MANIFEST",
    "MANIFEST_TYPES",
    "MAX_MANIFEST",
    "Descriptor",
    "Manifest",
    "artifact",
    "canonical",
    "describe",
    "digest_of",
    "index_bytes",
    "is_digest",
    "parse_index",
    "parse_manifest",
]

IMAGE_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
IMAGE_INDEX = "application/vnd.oci.image.index.v1+json"
_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
MANIFEST_TYPES = (IMAGE_MANIFEST, _DOCKER_MANIFEST)
INDEX_TYPES = (IMAGE_INDEX, _DOCKER_LIST)
# Registries may refuse a manifest of more than 4 MiB (distribution specification, "pushing manifests").
MAX_MANIFEST = 4 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MEDIA = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
_MAX_ITEMS = 1000
# A layer larger than a tebibyte is a mistake or an attack.
_MAX_SIZE = 1 << 40


def is_digest(text: object) -> bool:
    """``sha256:`` and 64 hex digits; no other algorithm is used here."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def digest_of(data: bytes) -> str:
    """``sha256:…`` of some bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def canonical(value: object) -> bytes:
    """JSON that has one spelling: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptor:
    """What a manifest says of a blob; ``size`` in bytes."""

    media_type: str
    digest: str
    size: int
    annotations: Mapping[str, str] = field(default_factory=dict)
    artifact_type: str = ""

    def to_json(self) -> dict[str, object]:
        """As it stands in a manifest or an index."""
        return {
            "mediaType": self.media_type,
            "digest": self.digest,
            "size": self.size,
            **({"artifactType": self.artifact_type} if self.artifact_type else {}),
            **({"annotations": dict(self.annotations)} if self.annotations else {}),
        }


def describe(data: bytes, media_type: str, *, artifact_type: str = "", **annotations: str) -> Descriptor:
    """The descriptor of bytes that are here."""
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
        """``sha256:…`` of :attr:`raw`."""
        return digest_of(self.raw)

    @property
    def descriptor(self) -> Descriptor:
        """What an index or a subject says of it."""
        return Descriptor(
            media_type=self.media_type,
            digest=self.digest,
            size=len(self.raw),
            artifact_type=self.artifact_type,
            annotations=self.annotations,
        )

    @property
    def blobs(self) -> tuple[Descriptor, ...]:
        """Config and layers, each digest once."""
        return tuple({d.digest: d for d in (self.config, *self.layers)}.values())


class _Fields:
    """Typed getters with the key path in every refusal."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise _broken(where, f"an object was expected, not {type(value).__name__}")
        self.value: dict[str, Any] = value
        self.where = where

    def text(self, key: str, default: str | None = None, pattern: re.Pattern[str] | None = None) -> str:
        found = self.value.get(key, default)
        if not isinstance(found, str) or len(found) > 4000 or (pattern and found and not pattern.fullmatch(found)):
            raise _broken(f"{self.where}.{key}", f"{str(found)[:60]!r} does not have the form of this field")
        return found

    def size(self) -> int:
        found = self.value.get("size")
        if type(found) is not int or not 0 <= found <= _MAX_SIZE:
            raise _broken(f"{self.where}.size", f"{str(found)[:40]!r} is not a size in bytes")
        return found

    def items(self, key: str) -> Sequence[object]:
        found = self.value.get(key)
        if not isinstance(found, list) or len(found) > _MAX_ITEMS:
            raise _broken(f"{self.where}.{key}", f"a list of at most {_MAX_ITEMS} items was expected")
        return found

    def annotations(self) -> dict[str, str]:
        found = self.value.get("annotations") or {}
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise _broken(f"{self.where}.annotations", "an object of texts was expected")
        return {str(k): v for k, v in found.items()}


def _broken(where: str, why: str) -> ContentError:
    return ContentError(f"{where}: {why}", hint="what the registry or bundle holds is not what an OCI client wrote")


def _descriptor(value: object, where: str) -> Descriptor:
    fields = _Fields(value, where)
    return Descriptor(
        media_type=fields.text("mediaType", pattern=_MEDIA),
        digest=fields.text("digest", pattern=_DIGEST),
        size=fields.size(),
        artifact_type=fields.text("artifactType", "", _MEDIA),
        annotations=fields.annotations(),
    )


def _document(raw: bytes, where: str) -> _Fields:
    if len(raw) > MAX_MANIFEST:
        raise _broken(where, f"longer than {MAX_MANIFEST} bytes")
    try:
        fields = _Fields(json.loads(raw), where)
    except (ValueError, RecursionError):
        raise _broken(where, "not JSON") from None
    if fields.value.get("schemaVersion") != 2:
        raise _broken(f"{where}.schemaVersion", "2 was expected")
    return fields


def parse_manifest(raw: bytes, where: str) -> Manifest:
    """An image or artifact manifest; ``ContentError`` names the key that is wrong, or says that it is an index."""
    fields = _document(raw, where)
    if "manifests" in fields.value:
        raise _broken(where, "it is an index of several images, a single image was expected")
    subject = fields.value.get("subject")
    return Manifest(
        raw=raw,
        media_type=fields.text("mediaType", IMAGE_MANIFEST, _MEDIA),
        config=_descriptor(fields.value.get("config"), f"{where}.config"),
        layers=tuple(_descriptor(v, f"{where}.layers[{n}]") for n, v in enumerate(fields.items("layers"))),
        subject=None if subject is None else _descriptor(subject, f"{where}.subject"),
        artifact_type=fields.text("artifactType", "", _MEDIA),
        annotations=fields.annotations(),
    )


def parse_index(raw: bytes, where: str) -> tuple[Descriptor, ...]:
    """The descriptors of an index; ``ContentError`` names the key that is wrong."""
    fields = _document(raw, where)
    return tuple(_descriptor(v, f"{where}.manifests[{n}]") for n, v in enumerate(fields.items("manifests")))


def index_bytes(descriptors: Sequence[Descriptor]) -> bytes:
    """An image index over ``descriptors``, in their order."""
    return canonical({"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [d.to_json() for d in descriptors]})


def artifact(
    *,
    artifact_type: str,
    layers: Sequence[Descriptor],
    subject: Descriptor,
    annotations: Mapping[str, str],
) -> Manifest:
    """An artifact that refers to ``subject`` (image specification 1.1: empty config, ``artifactType``, ``subject``)."""
    plain = Descriptor(media_type=subject.media_type, digest=subject.digest, size=subject.size)
    raw = canonical(
        {
            "schemaVersion": 2,
            "mediaType": IMAGE_MANIFEST,
            "artifactType": artifact_type,
            "config": EMPTY.to_json(),
            "layers": [d.to_json() for d in layers],
            "subject": plain.to_json(),
            "annotations": dict(annotations),
        }
    )
    return parse_manifest(raw, "artifact")
