"""OCI descriptors, manifests and indexes as values: parsed from bytes that anyone may have sent, printed canonically.

Media types and field names are those of the OCI image specification 1.1.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsmith.errors import ContentError, DataError, StorageError

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


# An image as an OCI layout on disk whose manifest digest is a function of its lock.
#
# An engine's own image is not: its configuration carries the hour of the build, its layers are written in whatever order and with whatever
# headers the engine's version uses. Here the layers of a cell are written anew in one canonical form (``oci_layers``), the configuration in
# one spelling, and the base's own layers are kept byte for byte. Layers are not compressed unless asked: a digest over compressed
# bytes would be one of the compressor's version too.


MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
_MAX_JSON = 8 << 20
# What of a configuration says how a container starts; the rest (hostname, build container) is the engine's own.
_STARTS = ("Env", "Entrypoint", "Cmd", "WorkingDir", "User", "Labels", "ExposedPorts", "Volumes", "StopSignal")
# Labels that an engine adds about itself.
_ENGINE_LABELS = ("io.buildah.", "io.podman.")


@dataclass(frozen=True, kw_only=True, slots=True)
class OciLayer:
    """One layer: ``digest`` and ``size`` (bytes) of the blob as it is stored, ``diff_id`` the sha256 of the uncompressed tar."""

    digest: str
    diff_id: str
    size: int
    media_type: str = LAYER_TYPE

    def descriptor(self) -> dict[str, object]:
        """The layer as a manifest names it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True, kw_only=True, slots=True)
class OciImage:
    """An image in the OCI layout ``layout`` (a folder with ``index.json``, ``oci-layout`` and ``blobs/sha256``).

    ``manifest_digest`` is what a registry calls the image; ``config`` the parsed configuration. ``source`` is the id of the engine's image
    that it was made of, the one that a record names; empty when the layout came another way.
    """

    layout: Path
    manifest_digest: str
    config_digest: str
    config: Mapping[str, Any]
    layers: tuple[OciLayer, ...]
    source: str = ""

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of the configuration."""
        found = (self.config.get("config") or {}).get("Labels") or {}
        return {str(key): str(value) for key, value in found.items()}

    def blob(self, digest: str) -> Path:
        """Where a blob of this image lies."""
        return blob_path(self.layout, digest)


def blob_path(layout: Path, digest: str) -> Path:
    """The file of a blob; ``DataError`` for what is not a sha256 digest, so that no name leads out of the layout."""
    if not _DIGEST.fullmatch(digest):
        raise DataError(f"{layout}: {digest[:80]!r} is not a sha256 digest")
    return layout / "blobs" / "sha256" / digest[7:]


def canonical_config(
    told: Mapping[str, Any], *, architecture: str, diff_ids: Sequence[str], base_layers: int, epoch: int
) -> dict[str, Any]:
    """The configuration of an image without anything of the engine or the hour: ``told`` is the engine's ``config`` object.

    ``epoch`` (seconds) is the time of the image and of every line of its history, which has exactly one line a layer.
    """
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    starts = {key: told[key] for key in _STARTS if told.get(key)}
    if "Env" in starts:
        starts["Env"] = sorted(str(line) for line in starts["Env"])
    if "Labels" in starts:
        labels = {str(k): str(v) for k, v in starts["Labels"].items() if not str(k).startswith(_ENGINE_LABELS)}
        starts["Labels"] = labels
    named = [
        f"base layer {n + 1}" if n < base_layers else f"cell layer {n + 1 - base_layers}" for n in range(len(diff_ids))
    ]
    return {
        "architecture": architecture,
        "config": starts,
        "created": created,
        "history": [{"created": created, "created_by": f"envsmith {name}"} for name in named],
        "os": "linux",
        "rootfs": {"diff_ids": list(diff_ids), "type": "layers"},
    }


def put_blob(layout: Path, data: bytes) -> tuple[str, int]:
    """Store a small blob under its digest; the digest and its size.

    ``StorageError`` when it cannot be written.
    """
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    path = blob_path(layout, digest)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        raise StorageError(f"{layout}: cannot be written: {error.strerror or error}") from error
    return digest, len(data)


def manifest_text(config: bytes, layers: Sequence[OciLayer]) -> bytes:
    """The manifest of an image with this configuration and these layers, in its one spelling."""
    return canonical(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "digest": _sha256(config), "size": len(config)},
            "layers": [layer.descriptor() for layer in layers],
        }
    )


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def finish_layout(layout: Path, config: Mapping[str, Any], layers: Sequence[OciLayer], *, source: str = "") -> OciImage:
    """Write configuration, manifest and index; the index last, so that a layout with an index is whole.

    ``StorageError`` when it cannot be written.
    """
    config_digest, _ = put_blob(layout, canonical(config))
    digest, size = put_blob(layout, manifest_text(canonical(config), layers))
    entry = {"mediaType": MANIFEST_TYPE, "digest": digest, "size": size}
    try:
        (layout / "oci-layout").write_bytes(canonical({"imageLayoutVersion": "1.0.0"}))
        index = layout / ".index.json.partial"
        index.write_bytes(canonical({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]}))
        index.replace(layout / "index.json")
    except OSError as error:
        raise StorageError(f"{layout}: cannot be written: {error.strerror or error}") from error
    if source:
        (layout / "source").write_text(source + "\n", encoding="ascii")
    return OciImage(
        layout=layout,
        manifest_digest=digest,
        config_digest=config_digest,
        config=config,
        layers=tuple(layers),
        source=source,
    )


def read_layout(layout: Path, *, check: bool = False) -> OciImage:
    """The one image of a layout. ``DataError`` for what is not one, ``ContentError`` when a blob is not what its name says.

    The small blobs are always compared with their digests; the layers, gigabytes of them, only when ``check`` is given.
    """
    index = _json((layout / "index.json"), None)
    manifests = index.get("manifests")
    if not isinstance(manifests, list) or len(manifests) != 1 or not isinstance(manifests[0], dict):
        raise DataError(f"{layout}/index.json: one manifest was expected")
    digest = str(manifests[0].get("digest"))
    manifest = _json(blob_path(layout, digest), digest)
    told = manifest.get("config")
    config_digest = str(told.get("digest")) if isinstance(told, dict) else ""
    config = _json(blob_path(layout, config_digest), config_digest)
    layers = _layers(layout, manifest, config)
    if check:
        for layer in layers:
            _check(layout, layer)
    source = ""
    with contextlib.suppress(OSError, UnicodeError):
        source = (layout / "source").read_text(encoding="ascii").strip()
    return OciImage(
        layout=layout,
        manifest_digest=digest,
        config_digest=config_digest,
        config=config,
        layers=layers,
        source=source if _DIGEST.fullmatch(source) else "",
    )


def _layers(layout: Path, manifest: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[OciLayer, ...]:
    rows, rootfs = manifest.get("layers"), config.get("rootfs")
    diff_ids = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(rows, list) or not isinstance(diff_ids, list) or len(rows) != len(diff_ids):
        raise DataError(f"{layout}: manifest and configuration do not name the same layers")
    found = []
    for number, (row, diff_id) in enumerate(zip(rows, diff_ids, strict=True)):
        fields = row if isinstance(row, dict) else {}
        size = fields.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or not _DIGEST.fullmatch(str(diff_id)):
            raise DataError(f"{layout}: layers[{number}] of the manifest is no descriptor")
        path = blob_path(layout, str(fields.get("digest")))
        if not path.is_file() or path.stat().st_size != size:
            raise ContentError(f"{layout}: layer {path.name[:12]} is missing or not {size} bytes long")
        found.append(
            OciLayer(digest=f"sha256:{path.name}", diff_id=str(diff_id), size=size, media_type=str(fields["mediaType"]))
        )
    return tuple(found)


def _check(layout: Path, layer: OciLayer) -> None:
    digest = hashlib.sha256()
    with blob_path(layout, layer.digest).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if f"sha256:{digest.hexdigest()}" != layer.digest:
        raise ContentError(
            f"{layout}: layer {layer.digest[:19]} holds other bytes ({digest.hexdigest()[:12]})",
            hint="the layout was changed after it was made; build the cell again",
        )


def _json(path: Path, digest: str | None) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON:
            raise DataError(f"{path}: larger than {_MAX_JSON >> 20} MiB")
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    if digest is not None and hashlib.sha256(data).hexdigest() != digest[7:]:
        raise ContentError(f"{path}: holds other bytes than its name says")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {str(error)[:120]}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: not a mapping")
    return value


def place_blob(fresh: Path, digest: str, layout: Path, *, near: Path) -> None:
    """Give the finished file ``fresh`` its blob name in ``layout``.

    Where the layout of a neighbouring cell (beside ``near``, the layout's final place) has the same blob, both share these bytes on
    disk: the layer with torch is gigabytes, and the same in all of them. It is the fresh file that is shared, because its digest was taken.
    """
    path = blob_path(layout, digest)
    fresh.replace(path)
    for twin in near.parent.parent.glob(f"*/{near.name}/blobs/sha256/{path.name}"):
        shared = twin.with_name(f".{twin.name}.shared")
        with contextlib.suppress(OSError):
            shared.unlink(missing_ok=True)
            os.link(path, shared)
            shared.replace(twin)
